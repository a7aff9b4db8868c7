"""A garbage collector that runs all the time, over cycles of everything."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import threading
import time
import traceback
import weakref
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from tests.torture import data, items
from tests.torture.arena import children
from tests.torture.case import Case
from tests.torture.scenario import Scenario


class Collector(Scenario):
    """No order of freeing objects crashes, hangs, or changes delivered data."""

    name = "collector"
    asks = "may things be freed at any time, in any order?"
    seconds = 90.0

    def run(self, case: Case) -> None:
        rng = case.rng
        # All the time, now and then, or not before much has piled up: each frees in another order.
        gc.set_threshold(*rng.choice([(1, 1, 1), (5, 2, 1), (700, 10, 10), (0, 10, 10)]))
        what = ("loader", "raising", "source", "store", "session")[case.number % 5]
        kept: list[Any] = []
        getattr(self, f"_{what}")(case, rng, [])  # objects created once stay
        gc.collect()
        before = held()
        for round_ in range(rng.randint(1, 3)):
            case.doing(f"{what}, round {round_}, thresholds {gc.get_threshold()}")
            for _ in range(1 if what == "session" else rng.randint(1, 4)):
                getattr(self, f"_{what}")(case, rng, kept)
            if rng.random() < 0.5:
                kept.clear()
            gc.collect()
        for expected, array in kept:
            case.tally("compared")
            if np.asarray(array).tobytes() != expected:
                case.fail("silent", f"{what}: an array has changed since it was handed out")
        kept.clear()
        for attempt in range(200):  # threads and processes take a moment to end
            if attempt % 20 == 0:
                gc.collect()  # it does nothing while another thread collects
            if all(now <= then for now, then in zip(held(), before, strict=True)):
                break
            time.sleep(0.02)
        else:
            told = f"(descriptors, threads, children) are {held()}, were {before}; {opened()}; {doings()}"
            case.fail("left over", f"{what}: {told}")

    def _loader(self, case: Case, rng: random.Random, kept: list[Any]) -> None:
        workers = {"num_workers": rng.randint(1, 3), "workers": rng.choice(["process", "process", "thread"])}
        dataset = items.Augmented(60, wide=rng.choice([3, 9000]))
        loader = fl.DataLoader(dataset, batch_size=4, multiprocessing_context="fork", **workers)
        iterator = iter(loader)
        for _ in range(rng.randint(0, 14)):
            batch = next(iterator)
            kept.append((np.asarray(batch[1]).tobytes(), batch[1]))
        _cycle(rng, [loader, iterator, kept[-1:], weakref.ref(loader)])

    def _raising(self, case: Case, rng: random.Random, kept: list[Any]) -> None:
        workers = {"num_workers": rng.randint(1, 3), "workers": rng.choice(["process", "process", "thread"])}
        errors = []

        def made() -> fl.DataLoader:
            return fl.DataLoader(items.Raising(60), batch_size=4, multiprocessing_context="fork", **workers)

        held = made() if rng.random() < 0.3 else None
        try:
            # A loader referenced only by the traceback is freed with all its parts, in any order.
            for batch in made() if held is None else held:
                _keep(kept, batch[1], rng.random() < 0.5)
            case.fail("lost", "a raising item raised nothing")
        except ValueError as error:
            if rng.random() < 0.3:
                errors.append(error)
                error.itself = errors  # type: ignore[attr-defined]
        if rng.random() < 0.3:
            threading.Thread(target=gc.collect).start()

    def _source(self, case: Case, rng: random.Random, kept: list[Any]) -> None:
        kind = rng.choice(list(data.FORMATS))
        source = fl.MinibatchSource(data.FORMATS[kind](case.data / "few"), max_sweeps=3, **data.speed(rng))
        for _ in range(rng.randint(0, 9)):
            minibatch = source.next_minibatch(rng.choice([5, 50]))
            rows = minibatch["x"].torch() if rng.random() < 0.5 else minibatch["x"].rows
            kept.append((np.asarray(rows).tobytes(), rows))
        _cycle(rng, [source, source.corpus, iter(source)])

    def _store(self, case: Case, rng: random.Random, kept: list[Any]) -> None:
        import torch

        store = fl.kvstore.create(rng.choice(["local", "device"]))
        store.init("w", torch.zeros(2000))
        holder: list[Any] = [store]
        store.set_updater(lambda key, merged, stored: (holder, stored.add_(merged)))
        for n in range(1, 6):
            store.push("w", [torch.ones(2000), torch.ones(2000)])
            out = torch.empty(2000)
            store.pull("w", out)
            kept.append((np.full(2000, 2.0 * n, "f4").tobytes(), out))

    def _session(self, case: Case, rng: random.Random, kept: list[Any]) -> None:
        from tests.torture import training

        run, watch = training.session(case.folder / f"{rng.random()}", case.data / "few", rng.randint(1, 12))
        try:
            run.run()
        except training.StoppedError as error:
            _cycle(rng, [run, watch, error])


def held() -> tuple[int, int, int]:
    """Descriptors, threads of Python and children of this process, ended ones that nobody has waited for among them.

    Waiting for them here would take their exit statuses from those who started them and wait for them.
    """
    return len(os.listdir("/proc/self/fd")), len(sys._current_frames()), len(children(os.getpid()))


def opened() -> str:
    """What this process's descriptors refer to."""
    told = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            told.append(f"{number}: {os.readlink(f'/proc/self/fd/{number}')}")
    return ", ".join(told)


def doings() -> str:
    """Where the other threads of Python are."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = {names.get(ident, "?"): frame for ident, frame in sys._current_frames().items()}
    told = []
    for name, frame in frames.items():
        calls = traceback.extract_stack(frame)[-6:]
        told.append(f"{name}: " + " < ".join(f"{Path(c.filename).name}:{c.lineno} {c.name}" for c in reversed(calls)))
    return "; ".join(told[: 4 if len(told) > 1 else 0])


def _keep(kept: list[Any], array: Any, whether: bool) -> None:
    if whether:
        kept.append((np.asarray(array).tobytes(), array))


def _cycle(rng: random.Random, things: list[Any]) -> None:
    """Drop objects in a reference cycle: the collector chooses which is freed first."""
    rng.shuffle(things)
    things.append(things)
    if rng.random() < 0.5:
        holder: dict[str, Any] = {"things": things}
        holder["holder"] = holder
