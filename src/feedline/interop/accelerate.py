"""Check that accelerate does not divide batches that a partition has divided already.

``accelerator.prepare`` passes the samplers of a loader to classes of its own: one gives each process some of the
batches, one lets the main process read for all. The sampler is not told, so this module searches the frames of its
caller for them.
"""

from __future__ import annotations

import sys

_MODULE = "accelerate.data_loader"
_DIVIDING = ("BatchSamplerShard", "DataLoaderDispatcher")


def check_undivided(count: int) -> None:
    """Check that accelerate does not divide the batches of a loader, if it is the caller.

    Args:
        count: number of shares of the loader's partition.

    Raises:
        ValueError: it does, and there are several shares.
    """
    if count == 1 or _MODULE not in sys.modules:
        return
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == _MODULE and type(frame.f_locals.get("self")).__name__ in _DIVIDING:
            raise ValueError(
                f"expected a loader without a partition from accelerator.prepare, which divides batches among "
                f"processes itself, got one that reads one of {count} shares, of which most would not be read: leave "
                "out partition=, or do not prepare the loader"
            )
        frame = frame.f_back  # type: ignore[assignment]
