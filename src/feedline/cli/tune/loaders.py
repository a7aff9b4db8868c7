"""The settings of a `DataLoader`: workers, their kind, batches in flight, and whether workers stay.

A turn starts its own workers. The clock begins once the batches that they make at first have been delivered.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from feedline.cli.bench_loader import forever, make_loader
from feedline.cli.tune.paired_search import Setting, UnavailableError
from feedline.errors import DataError
from feedline.feed.loader import DataLoader
from feedline.system import usable_cores

_SEND_S = 3e-4  # seconds that a batch costs the loop when it comes from another process
_DEFAULTS: Setting = {"workers": "auto", "prefetch_factor": None}
_PATIENCE = 3  # times the length of a turn, after which neither all workers nor whole rounds are waited for
_ROUNDS = 2  # batches of each worker in a turn, at least
_FIRST = 0.5  # of a turn, that the batches in flight may take before the clock begins


@dataclass(frozen=True)
class BatchWork:
    """Seconds for a batch.

    Attributes:
        making: in the dataset and in ``collate_fn``.
        computing: of processor time among them.
        consuming: in the loop.
    """

    making: float
    computing: float
    consuming: float


class Loaders:
    """The feed of a function that returns a loader: a `paired_search.Subject`, and a context manager that ends workers.

    Args:
        spec: ``module:factory`` or ``script.py:factory``.
        watch: called often, to show progress.

    Raises:
        UsageError, DataError: there is no such factory, or it returns no `DataLoader` of feedline.
    """

    unit = "batches"

    def __init__(self, spec: str, watch: Callable[[], object]) -> None:
        self._watch, self._spec = watch, spec
        module, _, factory = spec.rpartition(":")
        script = Path(module)
        if script.suffix == ".py":
            if not script.is_file():
                raise DataError(f"expected a script at {script}, got none", hint="pass the path of a Python file")
            sys.path.insert(0, str(script.resolve().parent))
            spec = f"{script.stem}:{factory}"
        loader, self._step = make_loader(spec)
        if not isinstance(loader, DataLoader):
            kind = f"{type(loader).__module__}.{type(loader).__name__}"
            raise DataError(
                f"expected a feedline.DataLoader from {self._spec}, got {kind}",
                hint="return feedline.DataLoader, which takes the same arguments; `feedline tune PATH` searches the "
                "settings of a MinibatchSource",
            )
        self._loader, self._work = loader, BatchWork(0.0, 0.0, 0.0)
        self._predicting = False  # all predictions follow from the same figures
        self._cores = usable_cores()
        options = loader._batches.options
        workers = options.num_workers
        self.present: Setting = {
            "num_workers": workers,
            "workers": options.workers,
            "prefetch_factor": None if options.grows else options.prefetch_factor,
            "persistent_workers": options.persistent_workers,
        }
        counts = {workers, self._cores, *(1 << k for k in range(8) if 1 << k <= max(4, 2 * self._cores))}
        kinds, ahead, stay = [options.workers], {None, 2, 8}, [False, True]
        # Where an iterable is split among workers, their number decides the batches.
        numbers = [workers] if options.is_iterable else sorted(counts | {0})
        if options.is_corpus:  # whose workers are threads
            numbers, ahead, stay = sorted({workers, *(n for n in counts if n > 1)}), set(), []
        elif options.workers != "ray":
            self._kind = options.with_arguments({"num_workers": 1}).kind
            kinds.append("thread" if self._kind == "process" else "process")
        present_ahead, present_stay = self.present["prefetch_factor"], self.present["persistent_workers"]
        self.axes: Mapping[str, Sequence[Hashable]] = {
            "num_workers": numbers,
            "workers": kinds,
            "prefetch_factor": sorted({*ahead, present_ahead}, key=lambda n: (n is not None, n or 0)),
            "persistent_workers": sorted({*stay, bool(present_stay)}),
        }

    def __enter__(self) -> Loaders:
        return self

    def __exit__(self, *_: object) -> None:
        self._loader.close()

    def normal(self, setting: Setting) -> Setting:
        """See `paired_search.Subject`."""
        if setting["num_workers"]:
            return setting
        return {**self.present, "num_workers": 0} if self.present["num_workers"] else dict(self.present)

    def predict(self, setting: Setting) -> float:
        """Return batches per second, from the present setting's seconds of the dataset and of the loop."""
        self._predicting = True
        work, workers = self._work, int(str(setting["num_workers"]))
        if self._loader._batches.options.is_corpus:
            return 1 / max(work.consuming, work.making / min(max(workers, 2), self._cores), 1e-9)
        if not workers:
            return 1 / max(work.making + work.consuming, 1e-9)
        kind = self._kind if setting["workers"] == self.present["workers"] else str(setting["workers"])
        if kind != "thread":
            loop = work.consuming + _SEND_S
            seconds = max(loop, work.making / workers, (work.computing + loop) / self._cores)
        elif getattr(sys, "_is_gil_enabled", lambda: True)():
            # Python in the dataset and in the loop runs one at a time.
            seconds = max(work.making / workers, work.computing + work.consuming)
        else:
            seconds = max(work.consuming, work.making / workers, (work.computing + work.consuming) / self._cores)
        return 1 / max(seconds, 1e-9)

    def measure(self, setting: Setting, seconds: float) -> float:
        """See `paired_search.Subject`."""
        if setting == self.present:
            return self._measure(setting, seconds)
        try:
            return self._measure(setting, seconds)
        except Exception as error:  # such as a dataset that threads cannot share
            reason = str(error).partition("\n")[0]
            raise UnavailableError(f"{type(error).__name__}: {reason}") from error

    def _measure(self, setting: Setting, seconds: float) -> float:
        loader = self._loader
        loader._change(dict(setting))
        workers = int(str(setting["num_workers"]))
        depth = workers * int(str(setting["prefetch_factor"] or 2))
        before = _figures(loader)
        began = time.perf_counter()
        first = start = now = 0.0  # times of the first batch, and of the last that was in flight then
        skipped = batches = 0
        stream = forever(loader)
        try:
            for batch in stream:
                self._step(batch)
                batches, now = batches + 1, time.perf_counter()
                first = first or now
                passed, late = now - (start or first), now - (start or first) >= _PATIENCE * seconds
                # Batches come in turn, so the last worker has begun with the last of these. Whole rounds are counted.
                if not start and (late or (batches > workers and (batches > depth or passed >= _FIRST * seconds))):
                    start, skipped = now, batches
                elif start and passed >= seconds and (late or batches - skipped >= _ROUNDS * workers):
                    break
                self._watch()
        finally:
            stream.close()
            loader.close()
        if not batches:
            raise UnavailableError("no batches were delivered")
        if setting == self.present and not self._predicting:
            making, computing, consuming = (b - a for a, b in zip(before, _figures(loader), strict=True))
            # The loop's time is counted when the next batch is requested.
            self._work = BatchWork(making / batches, computing / batches, consuming / max(1, batches - 1))
        return (batches - skipped) / max(1e-9, now - start) if start else batches / (now - began)

    def refusal(self, setting: Setting) -> str:
        """See `paired_search.Subject`. No number or kind of workers changes the order."""
        return ""

    def keeps_order(self, setting: Setting) -> bool:
        """See `report.Reported`."""
        return True

    def mixing(self, setting: Setting) -> float | None:
        """See `report.Reported`. It depends on nothing that is searched."""
        return None

    def code(self, setting: Setting) -> str:
        """See `report.Reported`."""
        names = ["num_workers"]
        if setting["num_workers"]:
            names += [name for name in ("workers", "prefetch_factor") if setting[name] != _DEFAULTS[name]]
            names += ["persistent_workers"] if setting["persistent_workers"] else []
        arguments = ", ".join(f"{name}={setting[name]!r}" for name in names)
        return f"fl.DataLoader(..., {arguments})"

    def notes(self) -> Sequence[str]:
        """See `report.Reported`."""
        return []


def _figures(loader: DataLoader) -> tuple[float, float, float]:
    """Return the seconds of `BatchWork` so far."""
    stats = loader.stats()
    return stats.reading + stats.collating, stats.computing, stats.consuming
