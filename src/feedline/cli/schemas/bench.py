"""The JSON documents of ``feedline bench``."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from feedline.concurrency.stages import FeedStage
from feedline.feed.workers import Taken, WorkerStats


class CallerTime(TypedDict):
    """The time of the caller.

    Attributes:
        waiting: seconds in which it waited for chunks.
        mapping: seconds of mapping and checking chunks.
        planning: seconds of planning.
        gathering: seconds of the copy.
        python: seconds of everything else.
    """

    waiting: float
    mapping: float
    planning: float
    gathering: float
    python: float


class ColdFeed(TypedDict):
    """The feed and the disk, with ``--cold``.

    Attributes:
        resident_before: share of the data that stayed in the page cache, 0 to 1. None if the system does not tell.
        sequential_bytes_per_second: bytes per second of the disk, in order. None if the file system has no direct I/O.
        random_sequences_per_second: sequences per second of the disk, at random places. None likewise.
        share_of_sequential: speed of the feed divided by the speed of the disk, in order. None likewise.
        share_of_random: speed of the feed divided by the speed of the disk, at random places. None likewise.
    """

    resident_before: float | None
    sequential_bytes_per_second: float | None
    random_sequences_per_second: float | None
    share_of_sequential: float | None
    share_of_random: float | None


class BenchDocument(TypedDict):
    """The speed of a feed.

    Attributes:
        path: path of the corpus.
        format: name of the format.
        size: size of a minibatch, in samples.
        seed: seed of the order, as 16 hexadecimal digits.
        shuffle: ``"all"``, false for the order of the corpus, or the size of windows by its unit.
        open_seconds: seconds of opening.
        indexed: whether the text was indexed at opening.
        first_minibatch_seconds: seconds until the first minibatch.
        seconds: seconds of feeding.
        cpu_seconds: seconds of processor time.
        minibatches: number of minibatches.
        sequences: number of sequences.
        samples: number of samples.
        sweeps: number of sweeps.
        samples_per_second: samples per second.
        microseconds_per_minibatch: microseconds per minibatch.
        delivered_bytes: bytes of the minibatches.
        delivered_bytes_per_second: bytes of the minibatches per second.
        stored_bytes_per_second: stored bytes of their sequences per second.
        copy_bytes_per_second: bytes per second that this machine copies on one core.
        share_of_copy: delivered bytes per second over copied ones.
        time: seconds of the caller, by activity.
        read_thread_seconds: seconds of reading and decoding, summed over threads.
        chunks_read: number of chunks that were read.
        held_bytes: bytes of chunks in memory at the end.
        peak_held_bytes: maximum of the bytes of chunks in memory.
        private_bytes_growth: bytes of private memory at the peak, less those before the corpus was opened. None, as the
            next two, if the system does not tell.
        private_bytes_peak: maximum of the bytes of private memory.
        file_backed_bytes_peak: maximum of the bytes of mapped files in memory.
        cores: number of cores.
        threads: number of chunks that are read at a time.
        cold: comparison with the disk, with ``--cold``.
    """

    path: str
    format: str
    size: int
    seed: str
    shuffle: bool | str | dict[str, int]
    open_seconds: float
    indexed: bool
    first_minibatch_seconds: float
    seconds: float
    cpu_seconds: float
    minibatches: int
    sequences: int
    samples: int
    sweeps: float
    samples_per_second: float
    microseconds_per_minibatch: float
    delivered_bytes: int
    delivered_bytes_per_second: float
    stored_bytes_per_second: float
    copy_bytes_per_second: float
    share_of_copy: float
    time: CallerTime
    read_thread_seconds: float
    chunks_read: int
    held_bytes: int
    peak_held_bytes: int
    private_bytes_growth: int | None
    private_bytes_peak: int | None
    file_backed_bytes_peak: int | None
    cores: int | None
    threads: int
    cold: NotRequired[ColdFeed]


class LoaderFigures(TypedDict):
    """Figures of a `feedline.DataLoader`, see `LoaderStats`.

    Attributes:
        batches: number of batches delivered.
        items: number of items delivered.
        skipped: number of unreadable items that were skipped.
        waiting: seconds in which the loop waited for data.
        starting: seconds of ``waiting`` for the first batch of each iterator.
        starts: number of iterators that have delivered a batch.
        reading: seconds in the dataset, summed over workers.
        collating: seconds in ``collate_fn``, summed over workers.
        computing: seconds of processor time of both.
        transfer: seconds of pinning memory and copying to a device.
        consuming: seconds of the loop itself.
        workers: figures by worker. Empty without workers.
        taken: how results were taken from workers. None without workers.
        hook: debugger or profiler that Python called. Empty without one.
        rank: rank of the loop.
        ranks: number of ranks.
        gain: speed-up of the loop if it never had to wait.
        advice: the limit of the loop, and a remedy, in sentences.
        memory_advice: a remedy for workers that copy memory, in a sentence. Empty if they do not.
        stages: stages of the loop by name.
    """

    batches: int
    items: int
    skipped: int
    waiting: float
    starting: float
    starts: int
    reading: float
    collating: float
    computing: float
    transfer: float
    consuming: float
    workers: list[WorkerStats]
    taken: Taken | None
    hook: str
    rank: int
    ranks: int
    gain: float
    advice: str
    memory_advice: str
    stages: dict[str, FeedStage]


class LoaderDocument(TypedDict):
    """The speed of a loop over a loader, with ``--loader``.

    Attributes:
        loader: module and factory, as typed.
        first_batch_seconds: seconds until the first batch.
        seconds: seconds of the loop.
        batches: number of batches.
        batches_per_second: batches per second.
        bytes_per_second: bytes of arrays and tensors per second.
        waiting_seconds: seconds in which the loop waited for data.
        waiting_share: share of the time in which it waited, 0 to 1.
        seconds_per_batch: seconds per batch, without the first one. Absent if the first batches are too large to keep.
        perfect_seconds_per_batch: seconds per batch with batches in memory. Absent likewise.
        gain: the former divided by the latter. Absent likewise.
        stats: figures of the loader, if it is a `feedline.DataLoader`.
        advice: the limit of the loop, and a remedy, in sentences.
    """

    loader: str
    first_batch_seconds: float
    seconds: float
    batches: int
    batches_per_second: float
    bytes_per_second: float
    waiting_seconds: float
    waiting_share: float
    seconds_per_batch: NotRequired[float]
    perfect_seconds_per_batch: NotRequired[float]
    gain: NotRequired[float]
    stats: NotRequired[LoaderFigures]
    advice: str


Document = BenchDocument | LoaderDocument
