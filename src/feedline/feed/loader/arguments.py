"""Which arguments go together? torch's rules for torch's parameters, and ours for ours.

Errors are of torch's types and name the parameters; nothing of the data is read here.
"""

from __future__ import annotations

import importlib
import multiprocessing
import multiprocessing.context
import os
import warnings
from typing import Any

from feedline.feed.loader.collate import torch_side
from feedline.feed.partition import Partition, checked

WORKERS = ("auto", "process", "thread")


def is_iterable_style(dataset: Any) -> bool:
    """Whether a dataset is torch's `IterableDataset`, or looks like one: iterable, and without items."""
    torch = torch_side()
    if torch is not None and isinstance(dataset, torch.IterableDataset):
        return True
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")


def check_workers(
    num_workers: Any, timeout: Any, prefetch_factor: Any, persistent_workers: bool, workers: Any
) -> int | None:
    """Check what is said of workers; returns ``prefetch_factor`` as it holds."""
    if isinstance(num_workers, bool) or not isinstance(num_workers, int):
        raise TypeError(f"expected num_workers as an int, got {num_workers!r}")
    if num_workers < 0:
        raise ValueError(f"expected num_workers of at least 0 (0: no workers), got {num_workers}")
    if timeout < 0:
        raise ValueError(f"expected a timeout of at least 0 seconds (0: none), got {timeout}")
    if workers not in WORKERS:
        raise ValueError(f"expected workers to be one of {', '.join(map(repr, WORKERS))}, got {workers!r}")
    if num_workers == 0:
        if prefetch_factor is not None:
            raise ValueError("expected no prefetch_factor without workers; give num_workers > 0 to fetch ahead")
        if persistent_workers:
            raise ValueError("expected persistent_workers with num_workers > 0 only")
        return None
    if prefetch_factor is None:
        return 2
    if prefetch_factor < 0:
        raise ValueError(f"expected prefetch_factor of at least 0, got {prefetch_factor}")
    return int(prefetch_factor)


def check_batching(
    iterable: bool,
    batch_size: Any,
    shuffle: Any,
    sampler: Any,
    batch_sampler: Any,
    drop_last: Any,
) -> None:
    """Check what is said of order and batches."""
    kind = "expected for an IterableDataset, which has its own order,"
    if iterable:
        if shuffle not in (False, None):
            raise ValueError(f"{kind} no shuffle, got shuffle={shuffle!r}")
        if sampler is not None:
            raise ValueError(f"{kind} no sampler, got sampler={sampler!r}")
        if batch_sampler is not None:
            raise ValueError(f"{kind} no batch_sampler, got batch_sampler={batch_sampler!r}")
    if sampler is not None and shuffle:
        raise ValueError("expected either sampler or shuffle, got both: a sampler is an order already")
    if batch_sampler is not None:
        if batch_size != 1 or shuffle or sampler is not None or drop_last:
            raise ValueError(
                "expected batch_sampler alone, without batch_size, shuffle, sampler and drop_last: it decides all four"
            )
    elif batch_size is None:
        if drop_last:
            raise ValueError("expected drop_last with a batch_size only, got batch_size=None: there are no batches")
    elif isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"expected batch_size as an int of at least 1, or None, got {batch_size!r}")
    if not isinstance(drop_last, bool):
        raise ValueError(f"expected drop_last to be True or False, got {drop_last!r}")


def check_own(given: dict[str, Any], iterable: bool) -> None:
    """Check what goes with feedline's own parameters."""
    chosen = [name for name in ("sampler", "batch_sampler") if given[name] is not None]
    for name in ("partition", "weights", "batch_samples"):
        if given[name] is None:
            continue
        if chosen:
            raise ValueError(
                f"expected {name} without {chosen[0]}: {name} belongs to the order that the loader makes itself"
            )
        if iterable:
            raise ValueError(f"expected {name} for map-style datasets only: an IterableDataset has its own order")
    if given["weights"] is not None and given["shuffle"]:
        raise ValueError("expected either weights or shuffle, got both: weighted items are drawn at random already")
    if given["batch_samples"] is not None:
        if given["batch_size"] != 1:
            raise ValueError("expected either batch_samples or batch_size, got both")
        if isinstance(given["batch_samples"], bool) or not isinstance(given["batch_samples"], int):
            raise TypeError(f"expected batch_samples as an int, got {given['batch_samples']!r}")
        if given["batch_samples"] < 1:
            raise ValueError(f"expected batch_samples of at least 1, got {given['batch_samples']}")
    if given["layout"] not in ("padded", "packed"):
        raise ValueError(f'expected layout to be "padded" or "packed", got {given["layout"]!r}')
    if given["partition"] is not None and given["batch_size"] is None:
        raise ValueError("expected a batch_size with a partition: it is batches that ranks share")
    if given["on_error"] not in ("raise", "skip"):
        raise ValueError(f'expected on_error to be "raise" or "skip", got {given["on_error"]!r}')
    if given["on_error"] == "raise" and given["max_errors"] is not None:
        raise ValueError('expected on_error="skip" with max_errors, got on_error="raise"')
    if given["on_error"] == "skip" and iterable:
        raise ValueError(
            'expected on_error="raise" for an IterableDataset: what follows a failed item of an iterator is unknown'
        )
    seed = given["seed"]
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64):
        raise ValueError(f"expected 0 <= seed < 2**64 or None, got {seed!r}")


def share_of(partition: Any) -> Partition | tuple[int, int]:
    """The share of a loader; "auto" is settled at the first read.

    Raises:
        ValueError: no share.
    """
    if partition is None:
        return 0, 1
    if partition == "auto":
        return Partition()
    if isinstance(partition, str):
        raise ValueError(f'expected partition=(index, count) or "auto", got {partition!r}')
    return checked(partition)


def start_method(context: Any, num_workers: int) -> Any:
    """A multiprocessing context from what was given, or None.

    Raises:
        ValueError: no such method, or no workers.
        TypeError: neither a name nor a context.
    """
    if context is None:
        return None
    if num_workers == 0:
        raise ValueError(
            "expected multiprocessing_context with num_workers > 0 only, got it for num_workers=0: nothing is started"
        )
    if isinstance(context, str):
        methods = multiprocessing.get_all_start_methods()
        if context not in methods:
            raise ValueError(
                f"expected multiprocessing_context to be one of {', '.join(map(repr, methods))}, got {context!r}"
            )
        # torch's own contexts where it is there, as it has them in the attribute.
        module = "torch.multiprocessing" if torch_side() is not None else "multiprocessing"
        return importlib.import_module(module).get_context(context)
    if not isinstance(context, multiprocessing.context.BaseContext):
        raise TypeError(
            f"expected multiprocessing_context as a start method or a multiprocessing context, got {context!r}"
        )
    return context


def warn_of_many(workers: int) -> None:
    """Warn of more worker processes than cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if cores is not None and workers > cores:
        warnings.warn(
            f"{workers} worker processes were asked for and this process may use {cores} cores: more workers than "
            "cores wait for each other",
            UserWarning,
            stacklevel=4,
        )
