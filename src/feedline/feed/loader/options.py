"""The arguments of a loader, checked: which go together? torch's rules for torch's parameters, and ours for ours.

Errors are of torch's types and name the parameters; nothing of the data is read here.
"""

from __future__ import annotations

import copy
import importlib
import multiprocessing
import multiprocessing.context
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from feedline.feed.convert import open_corpus
from feedline.feed.loader.collate import default_functions, torch_side
from feedline.feed.loader.ragged import Collate
from feedline.feed.partition import Partition, checked
from feedline.feed.protocol import Deserializer

WORKERS = ("auto", "process", "thread")


@dataclass
class LoaderOptions:
    """The arguments of a `DataLoader`, which says what they mean; each is checked alone and against the others.

    A path is opened, a start method looked up, and ``prefetch_factor`` has its default once it is made. Instances are
    never changed: see `replaced`.

    Attributes:
        is_corpus, is_iterable: what kind of dataset it is; map-style if neither.
        share: the share of this rank.
        grows: more batches may be made ahead than ``prefetch_factor`` says, as nobody gave it.

    Raises:
        ValueError, TypeError: arguments that have no meaning or contradict each other.
    """

    dataset: Any
    batch_size: int | None
    shuffle: bool | None
    sampler: Any
    batch_sampler: Any
    num_workers: int
    collate_fn: Callable[[Any], Any] | None
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], Any] | None
    multiprocessing_context: Any
    generator: Any
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str
    in_order: bool
    seed: int | None
    workers: str
    partition: tuple[int, int] | str | None
    on_error: str
    quarantine: str | Path | None
    max_errors: int | None
    batch_samples: int | None
    lengths: ArrayLike | None
    layout: str
    weights: ArrayLike | None
    device: Any
    snapshot_every_n_steps: int | None

    def __post_init__(self) -> None:
        self.grows = self.prefetch_factor is None
        self._check_workers()
        if isinstance(self.dataset, (str, os.PathLike)):
            self.dataset = open_corpus(self.dataset)
        self.is_corpus = isinstance(self.dataset, Deserializer)
        self.is_iterable = not self.is_corpus and _is_iterable_style(self.dataset)
        self._check_batching()
        self._check_own()
        if self.is_corpus:
            self._check_corpus()
        elif (self.lengths is None) is not (self.batch_samples is None):
            raise ValueError(
                "expected lengths with batch_samples only"
                if self.batch_samples is None
                else "expected lengths= with batch_samples, the number of samples of each item: what fits into a batch "
                "is decided before items are read"
            )
        self.share = self._partition()
        self.multiprocessing_context = _start_method(self.multiprocessing_context, self.num_workers)
        if self.collate_fn is None:
            ragged = self.batch_samples is not None and not self.is_corpus
            self.collate_fn = Collate(self.layout) if ragged else default_functions()[0 if self.batched else 1]

    def replaced(self, name: str, value: Any) -> LoaderOptions:
        """A copy with another value for one of the arguments that may change while a loader is in use."""
        if name == "multiprocessing_context":
            value = _start_method(value, self.num_workers)
        other = copy.copy(self)
        setattr(other, name, value)
        return other

    @property
    def batched(self) -> bool:
        """Whether the dataset is asked for batches, not for single items."""
        return self.batch_size is not None or self.batch_sampler is not None

    @property
    def indices(self) -> int | None:
        """Indices, or samples of an iterable dataset, in a batch; None: they come alone, or something else decides."""
        return None if self.batch_sampler is not None or self.batch_samples is not None else self.batch_size

    @property
    def user_sampler(self) -> Any:
        """The user's sampler or batch sampler, or None."""
        return self.sampler if self.sampler is not None else self.batch_sampler

    @property
    def skips(self) -> bool:
        """Whether items that cannot be read are left out."""
        return self.on_error == "skip"

    @property
    def ahead(self) -> int:
        """Batches that each worker makes ahead, at first."""
        return max(self.prefetch_factor or 1, 1)

    @property
    def kind(self) -> str:
        """What makes batches: "here", "process" or "thread"."""
        if self.num_workers == 0:
            return "here"
        if self.workers != "auto":
            return self.workers
        return "process" if getattr(sys, "_is_gil_enabled", lambda: True)() else "thread"

    def _check_workers(self) -> None:
        workers, factor = self.num_workers, self.prefetch_factor
        if isinstance(workers, bool) or not isinstance(workers, int):
            raise TypeError(f"expected num_workers as an int, got {workers!r}")
        if workers < 0:
            raise ValueError(f"expected num_workers of at least 0 (0: no workers), got {workers}")
        if self.timeout < 0:
            raise ValueError(f"expected a timeout of at least 0 seconds (0: none), got {self.timeout}")
        if self.workers not in WORKERS:
            raise ValueError(f"expected workers to be one of {', '.join(map(repr, WORKERS))}, got {self.workers!r}")
        if workers == 0:
            if factor is not None:
                raise ValueError("expected no prefetch_factor without workers; give num_workers > 0 to fetch ahead")
            if self.persistent_workers:
                raise ValueError("expected persistent_workers with num_workers > 0 only")
        elif factor is None:
            self.prefetch_factor = 2
        elif factor < 0:
            raise ValueError(f"expected prefetch_factor of at least 0, got {factor}")
        else:
            self.prefetch_factor = int(factor)

    def _check_batching(self) -> None:
        kind = "expected for an IterableDataset, which has its own order,"
        if self.is_iterable:
            if self.shuffle not in (False, None):
                raise ValueError(f"{kind} no shuffle, got shuffle={self.shuffle!r}")
            if self.sampler is not None:
                raise ValueError(f"{kind} no sampler, got sampler={self.sampler!r}")
            if self.batch_sampler is not None:
                raise ValueError(f"{kind} no batch_sampler, got batch_sampler={self.batch_sampler!r}")
        if self.sampler is not None and self.shuffle:
            raise ValueError("expected either sampler or shuffle, got both: a sampler is an order already")
        if self.batch_sampler is not None:
            if self.batch_size != 1 or self.shuffle or self.sampler is not None or self.drop_last:
                raise ValueError(
                    "expected batch_sampler alone, without batch_size, shuffle, sampler and drop_last: it decides all "
                    "four"
                )
        elif self.batch_size is None:
            if self.drop_last:
                raise ValueError("expected drop_last with a batch_size only, got batch_size=None: there are no batches")
        elif isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise ValueError(f"expected batch_size as an int of at least 1, or None, got {self.batch_size!r}")
        if not isinstance(self.drop_last, bool):
            raise ValueError(f"expected drop_last to be True or False, got {self.drop_last!r}")

    def _check_own(self) -> None:
        chosen = [name for name in ("sampler", "batch_sampler") if getattr(self, name) is not None]
        for name in ("partition", "weights", "batch_samples"):
            if getattr(self, name) is None:
                continue
            if chosen:
                raise ValueError(
                    f"expected {name} without {chosen[0]}: {name} belongs to the order that the loader makes itself"
                )
            if self.is_iterable:
                raise ValueError(f"expected {name} for map-style datasets only: an IterableDataset has its own order")
        if self.weights is not None and self.shuffle:
            raise ValueError("expected either weights or shuffle, got both: weighted items are drawn at random already")
        if self.batch_samples is not None:
            if self.batch_size != 1:
                raise ValueError("expected either batch_samples or batch_size, got both")
            if isinstance(self.batch_samples, bool) or not isinstance(self.batch_samples, int):
                raise TypeError(f"expected batch_samples as an int, got {self.batch_samples!r}")
            if self.batch_samples < 1:
                raise ValueError(f"expected batch_samples of at least 1, got {self.batch_samples}")
        if self.layout not in ("padded", "packed"):
            raise ValueError(f'expected layout to be "padded" or "packed", got {self.layout!r}')
        if self.partition is not None and self.batch_size is None:
            raise ValueError("expected a batch_size with a partition: it is batches that ranks share")
        if self.on_error not in ("raise", "skip"):
            raise ValueError(f'expected on_error to be "raise" or "skip", got {self.on_error!r}')
        if self.on_error == "raise" and self.max_errors is not None:
            raise ValueError('expected on_error="skip" with max_errors, got on_error="raise"')
        if self.on_error == "skip" and self.is_iterable:
            raise ValueError(
                'expected on_error="raise" for an IterableDataset: what follows a failed item of an iterator is unknown'
            )
        seed = self.seed
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64):
            raise ValueError(f"expected 0 <= seed < 2**64 or None, got {seed!r}")

    def _check_corpus(self) -> None:
        for name in ("sampler", "batch_sampler", "weights", "lengths", "worker_init_fn"):
            if getattr(self, name) is not None:
                raise ValueError(f"expected no {name} for a corpus, which is read in its own order by native threads")
        if self.batch_size is None:
            raise ValueError("expected a batch_size for a corpus, got None")

    def _partition(self) -> Partition:
        if self.partition == "auto":
            return Partition()
        if isinstance(self.partition, str):
            raise ValueError(f'expected partition=(index, count) or "auto", got {self.partition!r}')
        return Partition((0, 1) if self.partition is None else checked(self.partition))


def _is_iterable_style(dataset: Any) -> bool:
    """Whether a dataset is torch's `IterableDataset`, or looks like one: iterable, and without items."""
    torch = torch_side()
    if torch is not None and isinstance(dataset, torch.IterableDataset):
        return True
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")


def _start_method(context: Any, num_workers: int) -> Any:
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
