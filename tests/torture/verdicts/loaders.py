"""Loops over datasets, with feedline's loader or torch's own."""

from __future__ import annotations

import fcntl
import functools
import multiprocessing
import sys
import time
from typing import Any

import numpy as np

from tests.torture.verdicts.program import ROW, Items, Place, Program, compute, cores, loader_of, train

_STEP_S = 0.002
_LOCK = multiprocessing.get_context("fork").Lock()


def _wait(seconds: float, index: int) -> np.ndarray:
    time.sleep(seconds)
    return ROW


def _compute(seconds: float, index: int) -> np.ndarray:
    return compute(seconds)


def _load(loader: Any, read: Any, count: int, step_s: float = _STEP_S, sweeps: int = 1, **options: Any) -> None:
    if options.get("num_workers") and options.get("workers") != "thread":
        options["multiprocessing_context"] = "fork"
    options.setdefault("batch_size", 16)
    train(loader(Items(count, read), **options), step_s, sweeps)


def _slow_disk(place: Place, torch: bool = False) -> None:
    """Rank 1 reads from a slow disk."""
    slow = place.rank == 1 and not place.mended
    _load(loader_of(torch), functools.partial(_wait, 4e-3 if slow else 0.4e-3), 1200, 0.012, num_workers=2)


def _slow_sample(place: Place, torch: bool = False) -> None:
    def read(index: int) -> np.ndarray:
        return _wait(1.2 if index == 777 and not place.mended else 1e-3, index)

    _load(loader_of(torch), read, 1600, 0.004, num_workers=2)


def _threads(place: Place) -> None:
    workers = {"workers": "process" if place.mended else "thread"}
    _load(loader_of(False), functools.partial(_compute, 2e-3), 1000, num_workers=2, **workers)


def _many_workers(place: Place, torch: bool = False) -> None:
    workers = cores() if place.mended else 6 * cores()
    _load(loader_of(torch), functools.partial(_compute, 2e-3), 600 * cores(), num_workers=workers)


def _one_lock(place: Place, torch: bool = False) -> None:
    def read(index: int) -> np.ndarray:
        if place.mended:
            return _wait(2e-3, index)
        with _LOCK:
            return _wait(2e-3, index)

    _load(loader_of(torch), read, 1000, num_workers=2)


def _one_file_lock(place: Place, torch: bool = False) -> None:
    path = place.folder / "lock"
    path.touch()

    def read(index: int) -> np.ndarray:
        if place.mended:
            return _wait(2e-3, index)
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return _wait(2e-3, index)

    _load(loader_of(torch), read, 1000, num_workers=2)


def _trace(frame: Any, event: str, argument: Any) -> Any:
    return _trace


def _python(index: int) -> np.ndarray:
    """Return an item that many lines of Python make."""
    total = 0
    for i in range(6000):
        total += i * index
        total %= 1009
    return ROW


def _hook(place: Place, torch: bool = False) -> None:
    if not place.mended:
        sys.settrace(_trace)
    _load(loader_of(torch), _python, 800 if place.mended else 400)


def _hook_in_workers(place: Place, torch: bool = False) -> None:
    def profiled(worker: int) -> None:
        if not place.mended:
            sys.setprofile(_trace)

    def read(index: int) -> np.ndarray:
        for _ in range(2000):
            abs(index)
        return ROW

    _load(loader_of(torch), read, 1500, 0.001, num_workers=1, worker_init_fn=profiled)


def _tiny_files(place: Place, torch: bool = False) -> None:
    paths = [place.folder / f"{i}.npy" for i in range(3000)]
    for path in paths:
        np.save(path, ROW)

    def read(index: int) -> np.ndarray:
        return np.load(paths[index])

    _load(loader_of(torch), read, len(paths), 0.5e-3, sweeps=4, batch_size=64, num_workers=1)


def _irregular_steps(place: Place, torch: bool = False) -> None:
    batches = loader_of(torch)(Items(1600, functools.partial(_wait, 0.2e-3)), batch_size=16, num_workers=2)
    began = time.monotonic()
    for number, _ in enumerate(batches):
        time.sleep(0.5 if number % 33 == 32 and not place.mended else 0.01)
    print(f"seconds {time.monotonic() - began:.4f}", flush=True)


def _slow_steps(place: Place, torch: bool = False) -> None:
    """The steps of rank 2 are slower."""
    slow = place.rank == 2 and not place.mended
    _load(loader_of(torch), functools.partial(_wait, 0.2e-3), 1280, 0.025 if slow else 0.01, num_workers=2)


def _healthy(place: Place, torch: bool = False) -> None:
    _load(loader_of(torch), functools.partial(_wait, 0.4e-3), 1200, 0.02, num_workers=2)


def _arrays(place: Place) -> None:
    """A loader over arrays in memory, without Python in it, and a step that computes."""
    batches = loader_of(False)((np.zeros((4000, 64), np.float32), np.arange(4000)), batch_size=32, shuffle=True)
    began = time.monotonic()
    for x, _ in batches:
        end = time.thread_time() + 0.01
        while time.thread_time() < end:
            x @ x.T
    print(f"seconds {time.monotonic() - began:.4f}", flush=True)


def _faults(name: str, run: Any, *says: str, torch: bool = True, **verdict: Any) -> list[Program]:
    """Return the programs of a fault with feedline's loader, and with torch's own."""
    options = {"mends": True, **verdict}
    own = Program(name, run, says=says, **options)
    if not torch:
        return [own]
    return [own, Program(f"{name}-torch", functools.partial(run, torch=True), says=says, **options)]


PROGRAMS = (
    *_faults("slow-disk", _slow_disk, "slower on this rank", stage="fetch", rank=1, ranks=3),
    *_faults("slow-sample", _slow_sample, "1 sample", "item 777", torch=False, stage="fetch"),
    *_faults(
        "slow-batch",
        functools.partial(_slow_sample, torch=True),
        "times the median",
        "batch 4",
        torch=False,
        stage="fetch",
    ),
    *_faults("threads", _threads, "(the GIL)", torch=False, stage="transform"),
    *_faults("many-workers", _many_workers, "too many workers", stage="decode"),
    *_faults("one-lock", _one_lock, "one lock", stage="fetch"),
    *_faults("one-file-lock", _one_file_lock, "one lock", stage="fetch"),
    *_faults("hook", _hook, "hook", "tests", stage="decode"),
    *_faults("hook-in-workers", _hook_in_workers, "hook", "tests", torch=False, stage="decode"),
    *_faults("tiny-files", _tiny_files, "small files", stage="fetch", mends=False),
    *_faults("irregular-steps", _irregular_steps, "Some steps", "step 3", stage="step"),
    *_faults("slow-steps", _slow_steps, "slower on this rank", stage="step", rank=2, ranks=3),
    *_faults("healthy-loader", _healthy, mends=False),
    *_faults("healthy-ranks", _healthy, mends=False, ranks=3),
    *_faults("healthy-arrays", _arrays, torch=False, mends=False),
)
