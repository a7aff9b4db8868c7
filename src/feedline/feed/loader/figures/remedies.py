"""What to change when a loop waits for data: from figures to sentences, for `stats()` and `feedline bench --loader`.

The thresholds are chosen so that a change is worth the effort: less than a tenth of the time spent waiting is no reason
to change a loader.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Protocol

_FEWEST = 4  # batches, below which figures tell little
_WAITING = 0.1  # of the time, below which the loop is the limit
_BUSY = 0.7  # of the time, above which workers, or processors, are the limit
_LEAST_S = 2e-3  # to make a batch, below which a worker takes about as long to send it
_PER_CORE = 4  # workers, where these wait for files or a network


class WorkerFigures(Protocol):
    """See `WorkerStats`."""

    seconds: float


class LoopFigures(Protocol):
    """See `LoaderStats`."""

    batches: int
    waiting: float
    starting: float
    reading: float
    collating: float
    computing: float
    transfer: float
    consuming: float

    @property
    def workers(self) -> Sequence[WorkerFigures]:
        """See `LoaderStats`."""


def limit_of_loop(figures: LoopFigures) -> str | None:
    """Return the sentence for a loop that hardly waits. None if it waits. Works for the loop of any loader."""
    if figures.batches < _FEWEST:
        return f"Read more batches: {figures.batches} are too few for advice."
    share = figures.waiting / (figures.waiting + figures.consuming)
    if share >= _WAITING:
        return None
    return (
        f"The loop is the limit: it waits for data {share:.0%} of its time. Make the training step faster, on the GPU "
        "or in Python, not the loader."
    )


def remedy(figures: LoopFigures, cores: int) -> str:
    """Return what limits a loop, and what to change, in sentences.

    Args:
        figures: statistics of the loader.
        cores: number of processors that this process may use.
    """
    limit = limit_of_loop(figures)
    if limit is not None:
        return limit
    if figures.transfer >= figures.waiting / 2:
        return (
            f"Pinning and copying to the device are the limit, with {_per_batch(figures, figures.transfer)}. Send "
            "fewer bytes, such as uint8 that the device converts, or pass device=, which copies during the step before."
        )
    if not figures.computing:
        return _without_python(figures)
    if figures.workers:
        return _of_workers(figures, cores)
    return _more_workers(figures, cores)


def _without_python(figures: LoopFigures) -> str:
    if figures.reading >= figures.waiting / 2:
        return (
            f"Reading and decoding files is the limit, with {_per_batch(figures, figures.reading)}. Convert them to a "
            "store, or shuffle in windows. `feedline bench PATH --cold` shows which."
        )
    return f"Copying is the limit, with {_per_batch(figures, figures.waiting)}. Larger batches cost less for each item."


def _of_workers(figures: LoopFigures, cores: int) -> str:
    started = figures.starting / figures.waiting
    if started >= 0.5:
        return (
            f"The start of workers is the limit: {started:.0%} of the waiting was for first batches. Pass "
            "persistent_workers=True, or call loader.prefetch() before the loop."
        )
    busy = _making(figures) / len(figures.workers) / (figures.waiting + figures.consuming)
    if busy < _BUSY:
        return (
            f"Uneven or large batches are the limit: workers are busy {busy:.0%} of the time, and the loop still "
            "waits. Raise prefetch_factor=, or pass in_order=False."
        )
    return _more_workers(figures, cores)


def _more_workers(figures: LoopFigures, cores: int) -> str:
    """Return the remedy where Python does not make batches fast enough."""
    making, workers = _making(figures), len(figures.workers)
    if making < _LEAST_S * figures.batches:
        fewer = ", without workers" if workers else ""
        return (
            f"Small batches are the limit: the dataset and collate_fn take {_per_batch(figures, making)}, and sending "
            f"one from a worker about as long. Make batches larger{fewer}, or let the dataset return the items of a "
            "batch together, by __getitems__."
        )
    # For files or a network. Workers that wait for a processor keep all of them busy.
    used = figures.computing / (figures.waiting + figures.consuming)
    waits = figures.computing < making / 2 and used < _BUSY * cores
    most = cores * (_PER_CORE if waits else 1)
    needed = max(workers + 1, ceil(making / figures.consuming)) if figures.consuming else most + 1
    about = f"The dataset and collate_fn take {_per_batch(figures, making)}, the loop "
    about += f"{_milliseconds(figures, figures.consuming)}."
    if workers < needed <= most:
        return f"Add workers: num_workers={needed}. {about}"
    cheaper = _cheaper(figures, waits)
    if workers < most:
        return f"Add workers: num_workers={most}. {about} These workers do not keep up either, so also {cheaper}."
    return f"{cheaper[0].upper()}{cheaper[1:]}. {about} All {workers} workers are busy."


def _cheaper(figures: LoopFigures, waits: bool) -> str:
    """Return how to make batches with less work."""
    if figures.collating > figures.reading:
        return "make collate_fn cheaper: let items be arrays of one shape, which the default stacks"
    if waits:
        return "convert the dataset once, with fl.convert, so that items do not wait for files or a network"
    return (
        "convert the dataset once, with fl.convert, if items are the same in every epoch, or decode pictures natively, "
        "with feedline.images"
    )


def _making(figures: LoopFigures) -> float:
    """Return the seconds in which batches were made, summed over workers."""
    return sum(worker.seconds for worker in figures.workers) or figures.reading + figures.collating


def _per_batch(figures: LoopFigures, seconds: float) -> str:
    return f"{_milliseconds(figures, seconds)} for a batch"


def _milliseconds(figures: LoopFigures, seconds: float) -> str:
    return f"{1e3 * seconds / figures.batches:.3g} ms"
