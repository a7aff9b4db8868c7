"""``feedline bench --loader module:factory``: the speed of a DataLoader, and the gain of a perfect loader.

The loop runs twice: with the loader, and with batches prepared in memory, which no loader can beat. The difference is
the cost of waiting for data.
"""

from __future__ import annotations

import importlib
import itertools
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

from feedline.cli.console import UsageError, print_facts, print_table, progress, show_bytes, show_count
from feedline.errors import DataError
from feedline.feed.loader import DataLoader, LoaderStats
from feedline.feed.loader.figures.remedies import limit_of_loop

_HELD_BYTES, _HELD_BATCHES = 256 << 20, 64

NO_FIGURES = (
    "The loader is the limit. It has no figures of its work: return feedline.DataLoader in place of torch's to learn "
    "what to change."
)

Step = Callable[[Any], Any]


def call_factory(argument: str, spec: str) -> Any:
    """Return the result of the function ``module:factory``, or the value of that name.

    Args:
        argument: name of the argument, for errors.
        spec: as typed.

    Raises:
        UsageError: ``spec`` is not ``module:factory``.
        DataError: there is no such module or factory.
    """
    module, _, name = spec.partition(":")
    if not (module and name):
        raise UsageError(f"expected {argument} module:factory, got {spec!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise DataError(
            f"expected a factory at {spec}, got {error}", hint="name a module in this folder or an installed one"
        ) from error
    return factory() if callable(factory) else factory


def make_loader(spec: str) -> tuple[Iterable[Any], Step]:
    """Return the result of ``module:factory``: a loader, and the function that the loop applies to each batch.

    Raises:
        UsageError: ``spec`` is not ``module:factory``.
        DataError: there is no such module or factory, or it returns neither.
    """
    result = call_factory("--loader", spec)
    loader, step = result if isinstance(result, tuple) else (result, lambda batch: None)
    if not isinstance(loader, Iterable) or not callable(step):
        raise DataError(f"expected a loader or (loader, function of a batch), from {spec}, got {type(result).__name__}")
    return loader, step


def measure(loader: Iterable[Any], step: Step, seconds: float) -> dict[str, Any]:
    """Loop for ``seconds`` with the loader, then as long with batches in memory, and return figures in JSON types.

    Raises:
        DataError: the loader is empty.
    """
    in_memory: list[Any] = []
    batches, size, held_bytes, waited, first = 0, 0, 0, 0.0, 0.0
    began = time.perf_counter()
    stream = forever(loader)
    with progress("feeding", "s") as show:
        while (now := time.perf_counter()) - began < seconds or not batches:
            batch = next(stream, None)
            got = time.perf_counter()
            if batch is None:
                raise DataError("expected a loader with batches, got one without")
            waited += got - now
            first = first or got - began
            step(batch)
            batches, nbytes = batches + 1, bytes_of(batch)
            size += nbytes
            if len(in_memory) < _HELD_BATCHES and held_bytes + nbytes <= _HELD_BYTES:
                in_memory.append(batch)
                held_bytes += nbytes
            show(round(got - began), round(seconds))
    wall = time.perf_counter() - began
    result: dict[str, Any] = {
        "first_batch_seconds": first,
        "seconds": wall,
        "batches": batches,
        "batches_per_second": batches / wall,
        "bytes_per_second": size / wall,
        "waiting_seconds": waited,
        "waiting_share": waited / wall,
    }
    if in_memory:
        steady = (wall - first) / max(1, batches - 1)
        perfect = _replay(in_memory, step, min(seconds, wall))
        result |= {"seconds_per_batch": steady, "perfect_seconds_per_batch": perfect, "gain": steady / perfect}
    if isinstance(loader, DataLoader):
        result["stats"] = loader.stats().to_json()
        result["advice"] = loader.stats().advice
    else:
        figures = LoaderStats(batches=batches, waiting=waited, consuming=wall - waited)
        result["advice"] = limit_of_loop(figures) or NO_FIGURES
    return result


def show(run: Mapping[str, Any]) -> None:
    """Print the results, titled by ``"loader"``."""
    facts = {
        "first batch": f"after {run['first_batch_seconds']:.3g} s",
        "fed": f"{show_count(run['batches'])} batches in {run['seconds']:.3g} s, "
        f"{run['batches_per_second']:.4g} per second, {show_bytes(run['bytes_per_second'])}/s",
        "waiting": f"{run['waiting_share']:.1%} of the time the loop waited for data",
    }
    if "gain" in run:
        facts["perfect"] = (
            f"{1e6 * run['seconds_per_batch']:.4g} us per batch; with batches in memory "
            f"{1e6 * run['perfect_seconds_per_batch']:.4g}: a perfect loader would make this loop "
            f"{run['gain']:.2f} times as fast"
        )
    facts["advice"] = run["advice"]
    print_facts(run["loader"], facts)
    stats = run.get("stats")
    if stats and stats.get("workers"):
        rows = [
            [str(i), str(worker["units"]), f"{worker['seconds']:.3f} s", f"{worker['seconds'] / run['seconds']:.0%}"]
            for i, worker in enumerate(stats["workers"])
        ]
        print_table(["worker", "batches", "busy", "share of time"], rows)
    if stats:
        parts = [[name, f"{stats[name]:.3f} s"] for name in ("reading", "collating", "transfer")]
        print_table(["summed over workers", "seconds"], parts)


def bytes_of(batch: Any) -> int:
    """Return the bytes of all arrays and tensors in a tree of tuples, lists and mappings."""
    if isinstance(batch, Mapping):
        return sum(bytes_of(value) for value in batch.values())
    if isinstance(batch, (tuple, list)):
        return sum(bytes_of(value) for value in batch)
    return int(getattr(batch, "nbytes", 0))


def _replay(batches: list[Any], step: Step, seconds: float) -> float:
    """Return the seconds per batch of the loop with batches in memory."""
    began, done = time.perf_counter(), 0
    for batch in itertools.cycle(batches):
        step(batch)
        done += 1
        # The clock is not read every time: that would cost as much as an empty step.
        if done % 16 == 0 and time.perf_counter() - began >= seconds:
            break
    return (time.perf_counter() - began) / done


def forever(loader: Iterable[Any]) -> Generator[Any]:
    """Yield epoch after epoch. Stops after an empty one."""
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            return
