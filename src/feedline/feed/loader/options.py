"""The arguments of a `DataLoader`, checked: torch's rules for torch's parameters, and ours for the others.

Errors have torch's types and key words, which programs and their tests look for. Checking reads no data.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import multiprocessing
import multiprocessing.context
import numbers
import os
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from feedline.errors import shown
from feedline.feed.argument_errors import refuse
from feedline.feed.arguments import BatchByLength, Quarantine, Weighted, quarantine_of
from feedline.feed.loader import pipes
from feedline.feed.loader.collate import RaggedCollate, default_functions, torch_side
from feedline.feed.partition import FixedShare, IndexAndCount, PartitionLike, partition_of, ranks, refuse_cut
from feedline.feed.progress_bar import Progress, expect_progress
from feedline.feed.protocol import Deserializer, check_seed, says_where_batches_end, whole_number
from feedline.feed.timeline import Window
from feedline.system import usable_cores

if TYPE_CHECKING:
    from feedline.feed.transforms import Transform

WORKERS = ("auto", "process", "thread", "ray")
SAMPLERS = ("sampler", "batch_sampler")


@dataclass
class LoaderOptions:
    """The arguments of a `DataLoader`, whose docstring describes them. Each is checked alone and against the others.

    The constructor opens a path, looks up a start method, and sets ``prefetch_factor`` to its default. Instances are
    immutable: see `with_arguments`.

    Attributes:
        is_corpus, is_iterable: the kind of dataset. It is map-style if it is neither.
        is_pipe: whether it is an iterable that consists of torch's data pipes.
        own_partition: partition of this loader, from the argument or from the ranks of the program.
        weighted, by_length: a `Weighted` sampler and a `BatchByLength`. ``sampler`` and ``batch_sampler`` are then
            None.
        quarantine: how unreadable items are skipped. None if they are errors.
        grows: whether more batches than ``prefetch_factor`` may be in flight, because it was omitted.
        defaulted: whether ``collate_fn`` was omitted.

    Raises:
        ValueError, TypeError: arguments are invalid or contradict each other.
    """

    dataset: Any
    batch_size: int | None
    shuffle: bool | Window | None
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
    partition: PartitionLike | None
    on_error: str | Quarantine
    device: Any
    transforms: Sequence[Transform | Callable[..., Mapping[str, Any]]]
    snapshot_every_n_steps: int | None
    progress: Progress

    def __post_init__(self) -> None:
        self.grows, self.defaulted = self.prefetch_factor is None, self.collate_fn is None
        self.weighted = self.by_length = None
        if isinstance(self.sampler, Weighted):
            self.weighted, self.sampler = self.sampler, None
        if isinstance(self.batch_sampler, BatchByLength):
            self.by_length, self.batch_sampler = self.batch_sampler, None
        self.quarantine = quarantine_of(self.on_error)
        self._check_workers()
        if isinstance(self.dataset, (str, os.PathLike)):
            from feedline.feed.open_corpus import open_corpus  # imports all formats, which other datasets do not need

            self.dataset = open_corpus(self.dataset)
        refuse(self.dataset, "DataLoader")
        expect_progress(self.progress)
        _check_generator(self.generator)
        self.is_corpus = isinstance(self.dataset, Deserializer)
        self.is_iterable = not self.is_corpus and is_iterable_style(self.dataset)
        self.is_pipe = self.is_iterable and pipes.is_pipe(self.dataset)
        self._check_batching()
        self._check_own()
        self.own_partition = self._partition()
        if self.is_corpus:
            self._check_corpus()
        elif self.transforms:
            raise ValueError(
                f"expected transforms for a corpus or a path only, got them for {shown(self.dataset, 60)}: call the "
                "function in its __getitem__, or in collate_fn"
            )
        else:
            self._check_items()
        self.multiprocessing_context = _start_method(self.multiprocessing_context, self.num_workers)
        if self.collate_fn is None:
            if self.by_length is not None and not self.is_corpus:
                self.collate_fn = RaggedCollate(self.by_length.layout)
            else:
                self.collate_fn = default_functions()[0 if self.batched else 1]

    def describe(self) -> dict[str, Any]:
        """Return the settings for those who look for what is slow, in JSON types."""
        # A corpus is read by a source, whose threads are no workers.
        data: dict[str, Any] = {"dataset": type(self.dataset).__name__}
        if self.is_corpus:
            from feedline.feed.reading.facts import corpus_facts  # which other loaders do not need

            whole = bool(self.shuffle) and not isinstance(self.shuffle, Window)
            data = {**corpus_facts(self.dataset), "shuffle": repr(self.shuffle), "whole_shuffle": whole}
        return {
            "feed": "DataLoader",
            **data,
            "workers": self.num_workers,
            "kind": self.kind,
            "prefetch_factor": self.prefetch_factor,
            "persistent_workers": self.persistent_workers,
            "pin_memory": self.pin_memory,
            "device": None if self.device is None else str(self.device),
            "batch_size": self.batch_size,
        }

    def with_arguments(self, changes: Mapping[str, Any]) -> LoaderOptions:
        """Return a copy with other values of some arguments. A new sampler replaces the present order.

        Raises:
            ValueError, TypeError: they are invalid, or contradict the other arguments.
        """
        changes = dict(changes)
        if self.grows:
            changes.setdefault("prefetch_factor", None)
        if self.defaulted:
            changes.setdefault("collate_fn", None)
        if changes.get("num_workers") == 0:  # arguments of workers have no effect any more, as in torch
            changes |= {"prefetch_factor": None, "persistent_workers": False, "multiprocessing_context": None}
        if changes.keys().isdisjoint(SAMPLERS):
            changes |= {"sampler": self.weighted or self.sampler}
        else:
            changes |= {"shuffle": None, "partition": None}
        if "batch_sampler" in changes:
            changes |= {"batch_size": 1, "drop_last": False, "sampler": None}
        changes.setdefault("sampler", None)
        changes.setdefault("batch_sampler", self.by_length or self.batch_sampler)
        return dataclasses.replace(self, **changes)

    def with_checked(self, **checked: Any) -> LoaderOptions:
        """Return a copy with other values of some arguments, which have been checked."""
        options = object.__new__(type(self))
        options.__dict__.update(self.__dict__, **checked)
        return options

    def repartitioned(self, share: FixedShare) -> LoaderOptions:
        """Return a copy with another share of the same batches of all ranks.

        Raises:
            ValueError: the number of ranks does not divide them, or ranks cannot share them.
        """
        options = self.with_checked(partition=share.partition, own_partition=share)
        if self.partition is None:  # else it was checked
            options._check_own()
        if not self.in_order:
            raise ValueError(
                "expected in_order=True for a loader whose ranks come and go, got False: its ranks deliver different "
                "batches at a step, so no place is the same for all"
            )
        if self.by_length is not None and self.samples is not None:
            options.by_length = dataclasses.replace(self.by_length, samples=self._divided(self.samples, share))
        elif self.batch_size is not None:
            options.batch_size = self._divided(self.batch_size, share)
        return options

    def _divided(self, size: int, share: FixedShare) -> int:
        """Return the size for each rank of another number of ranks."""
        (_, before), (_, count) = self.own_partition.peek(), share.resolve()
        total, unit = size * before, "samples" if self.samples is not None else "items"
        if total % count:
            raise ValueError(
                f"expected a number of ranks that divides the {total} {unit} of a batch of all ranks ({size} for each "
                f"of {before}), got {count}. Make the loader for batches that every number of ranks divides, such as "
                f"{math.lcm(total, count)} {unit}, or use a MinibatchSource, whose shares may differ in size"
            )
        return total // count

    def expect_seed(self, share: IndexAndCount) -> None:
        """Check that ranks with this share follow one order.

        Raises:
            ValueError: each of them would draw a seed.
        """
        if share[1] > 1 and self.seed is None and (self.shuffle or self.weighted is not None):
            raise ValueError(
                f"expected a seed with partition={share} and a random order, got none: ranks that draw separate "
                'seeds would follow different orders. Pass seed=, or partition="auto"'
            )

    @property
    def batched(self) -> bool:
        """Whether the dataset is read in batches rather than single items."""
        return self.batch_size is not None or self.batch_sampler is not None

    @property
    def samples(self) -> int | None:
        """Maximum number of samples in a batch. None if there is no limit."""
        return None if self.by_length is None else self.by_length.samples

    @property
    def indices(self) -> int | None:
        """Indices, or samples of an iterable dataset, per batch. None without batches, or if a batch sampler
        decides."""
        return None if self.batch_sampler is not None or self.samples is not None else self.batch_size

    @property
    def user_sampler(self) -> Any:
        """The user's sampler or batch sampler, or None."""
        return self.sampler if self.sampler is not None else self.batch_sampler

    @property
    def ahead(self) -> int:
        """Initial number of batches in flight per worker."""
        return self.prefetch_factor or 1

    @property
    def depth(self) -> int:
        """Initial number of batches in flight. 0 without workers."""
        return self.ahead * self.num_workers

    @property
    def place(self) -> str:
        """Where a worker runs: "here" and "thread" are in the process of the loop, "process" is another process, such
        as an actor of Ray."""
        return "process" if self.kind == "ray" else self.kind

    @property
    def kind(self) -> Literal["here", "process", "thread", "ray"]:
        """Where batches are made: "here", "process", "thread" or "ray"."""
        if self.num_workers == 0:
            return "here"
        process = getattr(self.multiprocessing_context, "Process", None)
        if isinstance(process, type) and issubclass(process, threading.Thread):  # noqa: TID251  # a program's own
            return "thread"  # as of MONAI's `ThreadDataLoader`
        if self.workers != "auto":
            return cast(Literal["process", "thread", "ray"], self.workers)
        return "process" if getattr(sys, "_is_gil_enabled", lambda: True)() else "thread"

    def _check_workers(self) -> None:
        self.num_workers = workers = whole_number("num_workers", self.num_workers, 0)
        factor = self.prefetch_factor
        if self.timeout < 0:
            raise ValueError(f"the timeout option should be non-negative, in seconds (0: none), got {self.timeout}")
        if self.workers not in WORKERS:
            raise ValueError(f"expected workers to be one of {', '.join(map(repr, WORKERS))}, got {self.workers!r}")
        if self.workers == "ray":
            from feedline.interop import ray_session

            ray_session.check()
            if self.multiprocessing_context is not None:
                raise ValueError(
                    'expected no multiprocessing_context with workers="ray", as Ray starts the workers, got '
                    f"{self.multiprocessing_context!r}"
                )
        if workers == 0:
            if factor is not None:
                raise ValueError(
                    "the prefetch_factor option could only be specified in multiprocessing: pass num_workers > 0 to "
                    "prefetch"
                )
            if self.persistent_workers:
                raise ValueError("the persistent_workers option needs num_workers > 0: there are none to keep")
        elif factor is None:
            self.prefetch_factor = 2
        else:
            self.prefetch_factor = whole_number("prefetch_factor", factor, 0)

    def _check_batching(self) -> None:
        if isinstance(self.shuffle, Window) and not self.is_corpus:
            raise ValueError(f"expected shuffle=True or False for a dataset, got {self.shuffle}: windows need a corpus")
        for name in ("shuffle", *SAMPLERS) if self.is_iterable else ():
            value = getattr(self, name)
            allowed = value is None if name != "shuffle" else self.is_pipe or value in (False, None)
            if not allowed:
                raise ValueError(
                    f"DataLoader with IterableDataset: expected unspecified {name} option, but got {name}={value!r}: "
                    "the dataset has its own order"
                )
        if self.is_pipe and self.shuffle is not None:
            self.dataset = pipes.set_shuffle(self.dataset, bool(self.shuffle))
        if self.sampler is not None and self.shuffle:
            raise ValueError("the sampler option is mutually exclusive with shuffle: a sampler determines the order")
        if self.batch_sampler is not None:
            if self.batch_size != 1 or self.shuffle or self.sampler is not None or self.drop_last:
                raise ValueError(
                    "the batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last: "
                    "it determines all four"
                )
        elif self.batch_size is not None:
            try:
                self.batch_size = whole_number("batch_size", self.batch_size, 1)
            except (TypeError, ValueError):
                raise ValueError(
                    f"batch_size should be a positive integer value or None, but got batch_size={self.batch_size!r}"
                ) from None
        elif self.drop_last:
            raise ValueError(
                "the batch_size=None option disables auto-batching and is mutually exclusive with drop_last: there "
                "are no batches"
            )
        if not isinstance(self.drop_last, bool):
            raise ValueError(f"expected drop_last to be True or False, got {self.drop_last!r}")

    def _check_own(self) -> None:
        samplers = [name for name in SAMPLERS if getattr(self, name) is not None]
        extensions = {"partition": self.partition, "fl.Weighted": self.weighted, "fl.BatchByLength": self.by_length}
        for name, value in extensions.items():
            if value is None:
                continue
            if samplers:
                raise ValueError(f"expected {name} or {samplers[0]}, got both: {name} is for the loader's own order")
            if self.is_iterable:
                raise ValueError(f"expected {name} for map-style datasets only: an IterableDataset has its own order")
        if self.weighted is not None and self.shuffle:
            raise ValueError("expected either fl.Weighted or shuffle, got both: weighted items are random anyway")
        if self.samples is not None and self.batch_size != 1:
            raise ValueError("expected either fl.BatchByLength or batch_size, got both")
        if self.partition is not None and self.batch_size is None and not self.is_corpus:
            raise ValueError("expected a batch_size with a partition, got None: ranks share batches")
        if self.quarantine is not None and self.is_iterable:
            raise ValueError(
                'expected on_error="raise" for an IterableDataset: an iterator cannot be continued after a failed item'
            )
        if self.seed is not None:
            self.seed = check_seed(self.seed)

    def _check_corpus(self) -> None:
        lengths = None if self.by_length is None else self.by_length.lengths
        unfit = {name: getattr(self, name) for name in (*SAMPLERS, "worker_init_fn")}
        for name, value in {**unfit, "fl.Weighted": self.weighted, "lengths of fl.BatchByLength": lengths}.items():
            if value is not None:
                raise ValueError(f"expected no {name} for a corpus, which is read in its own order by native threads")
        if says_where_batches_end(self.dataset):
            if self.batch_size is not None and self.samples is None:
                raise ValueError(
                    f"expected batch_size=None for {self.dataset.name}, which is in batches already, got "
                    f"{self.batch_size}"
                )
            if self.drop_last:
                raise ValueError(f"expected drop_last=False for {self.dataset.name}, whose batches differ in size")
        elif self.batch_size is None:
            raise ValueError("expected a batch_size for a corpus, got None")

    def _check_items(self) -> None:
        by_length, balanced = self.by_length, self.own_partition.partition.rule is not None
        if by_length is not None and (by_length.lengths is None or (by_length.samples is None and not balanced)):
            raise ValueError(
                "expected fl.BatchByLength(samples, lengths) for a dataset, with the number of samples of each item, "
                f"got {by_length}: batches are cut before items are read"
            )
        if balanced and by_length is None:
            raise ValueError(
                "expected batch_sampler=fl.BatchByLength(lengths=...) with fl.Partition(balance=...) for a dataset: "
                "the work of an item follows from its number of samples"
            )

    def _partition(self) -> FixedShare:
        partition = partition_of((0, 1) if self.partition is None else self.partition)
        if not self.is_corpus:
            refuse_cut(partition, "a DataLoader over a dataset, whose batches have no known axis of tokens", "cut them")
        if partition.is_auto:
            return FixedShare(partition)
        self.expect_seed(partition.share())
        return FixedShare(partition)


def is_iterable_style(dataset: Any) -> bool:
    """Return whether a dataset is torch's `IterableDataset`, or looks like one: iterable, but not indexable."""
    torch = torch_side()
    if torch is not None and isinstance(dataset, torch.IterableDataset):
        return True
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")


def _check_generator(generator: Any) -> None:
    """Check that ``generator`` is a ``torch.Generator`` or None.

    Raises:
        TypeError: it is something else.
    """
    torch = torch_side()
    if generator is None or (torch is not None and torch.is_generator(generator)):
        return
    hint = "pass seed= for the order and random numbers of the loader"
    if isinstance(generator, numbers.Integral):
        hint = f"for a seed write seed={int(generator)}"
    raise TypeError(f"expected generator as a torch.Generator, got {shown(generator, 60)}; {hint}")


def _start_method(method: Any, num_workers: int) -> Any:
    """Return a multiprocessing context from an argument, or None.

    Raises:
        ValueError: the start method is unknown, or there are no workers.
        TypeError: ``method`` is neither a name nor a context.
    """
    if method is None:
        return None
    if num_workers == 0:
        raise ValueError(
            "multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got "
            "num_workers=0: no process is started"
        )
    if isinstance(method, str):
        methods = multiprocessing.get_all_start_methods()
        if method not in methods:
            raise ValueError(
                f"the multiprocessing_context option should specify a valid start method in {methods!r}, but got "
                f"multiprocessing_context={method!r}"
            )
        # torch's own contexts if torch is installed, as in torch's attribute.
        module = "torch.multiprocessing" if torch_side() is not None else "multiprocessing"
        return importlib.import_module(module).get_context(method)
    if not isinstance(method, multiprocessing.context.BaseContext):
        raise TypeError(
            "the multiprocessing_context option should be a valid context object or a string specifying the start "
            f"method, but got multiprocessing_context={method!r}"
        )
    return method


def expect_processes(options: LoaderOptions) -> None:
    """Warn if there will be more worker processes than cores, and start the server that forks them now."""
    workers = options.num_workers
    module = options.multiprocessing_context or multiprocessing
    if module.get_start_method(allow_none=True) == "forkserver":  # None if the program may still choose
        from feedline.feed.workers import context, prepare

        prepare(context(options.multiprocessing_context))
    cores = usable_cores()
    if workers > cores:
        warnings.warn(
            f"expected at most {cores} worker processes, the number of cores this process may use, got {workers} "
            "workers, which compete for cores: excessive worker creation might get DataLoader running slow or even "
            "freeze",
            stacklevel=4,
        )


def warn_of_ranks(options: LoaderOptions) -> None:
    """Warn if each of several ranks shuffles and reads all of the data."""
    if options.shuffle and options.partition is None and not options.is_pipe:
        _, count = ranks()
        if count > 1:
            warnings.warn(
                f"expected a partition or a DistributedSampler among {count} ranks, got neither: every rank will read "
                'all of the data in a separate order. Pass partition="auto" to share it, or partition=(0, 1) if '
                "that is what you want",
                stacklevel=3,
            )
