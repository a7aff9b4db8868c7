"""Statistics of a source."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from feedline.concurrency.stages import Durations, FeedStage
from feedline.feed.timeline import Share

_INTERNAL = {"internal": True}  # of fields that `Stats.to_json` leaves out


@dataclass(slots=True, weakref_slot=True)
class Stats:
    """Statistics of a source in this process.

    Attributes:
        chunks_read: chunks read (and decoded), repeats included.
        held_bytes: decoded bytes of chunks in private memory. A mapped chunk does not count, as its pages belong to the
            file.
        peak_bytes: the largest value of ``held_bytes``, with the stored bytes that were fetched ahead and, for each
            chunk that was being decoded, its stored bytes and three times its decoded bytes. Where memory is plenty,
            freed memory is kept for reuse, which counts as one chunk more.
        read_seconds: time spent reading and decoding, summed over threads.
        wait_seconds: time that ``next_minibatch`` waited for chunks.
        transform_seconds: time spent in transforms, such as decoding pictures, summed over threads.
        minibatches, sequences, samples: number delivered to this rank.
        shared_minibatches: number of minibatches among them that another rank of this machine had read.
        skipped: unreadable sequences skipped by this rank.
        asked_bytes: bytes of local files that were requested, from the disk or the page cache. For mapped files, such
            as stores, the values that were copied, for other files the parts with the chunks. 0 if the format does not
            know.
        disk_bytes: bytes that were fetched, mostly past the page cache, because it did not hold them. They are whole
            pages, so they may be more than the requested bytes.
        fetched_bytes, cached_bytes: bytes of chunks that came from object stores, and that the cache of objects had.
        corpora: for each corpus of a mixture, its share of the sequences since the beginning of the order, over all
            ranks, and the share that its weights declare. Empty for other corpora.
        balance: balance of the source: "samples", "squares", or "function" for the user's.
        unevenness: of the last minibatch before the call of `MinibatchSource.stats`, see
            `PlannedMinibatch.unevenness`. Empty with one rank, where ranks cannot be balanced, for corpora of
            unknown sizes, and for rows of `Packed` without a balance, as their documents would have to be looked up.
        fetch_seconds: part of ``read_seconds`` in which threads waited for the disk or a store.
        plan_seconds, gather_seconds, transform_wait_seconds, device_seconds: parts of the time in `next_minibatch`:
            planning, copying sequences out of chunks, in transforms or waiting for them, and copying to a device. For
            minibatches of less than half a millisecond they are estimates from one call in sixteen.
        decoded_bytes: bytes of the chunks that were read, decoded.
        starting, starts: seconds of ``wait_seconds`` in the first call of `next_minibatch`, and 1 after it.
        threads: number of chunks that may be read at once.
        rank, ranks: rank in the partition of the last minibatches, and number of ranks.
    """

    chunks_read: int = 0
    held_bytes: int = 0
    peak_bytes: int = 0
    read_seconds: float = 0.0
    wait_seconds: float = 0.0
    transform_seconds: float = 0.0
    minibatches: int = 0
    shared_minibatches: int = 0
    sequences: int = 0
    samples: int = 0
    skipped: int = 0
    asked_bytes: int = 0
    disk_bytes: int = 0
    fetched_bytes: int = 0
    cached_bytes: int = 0
    corpora: dict[str, Share] = field(default_factory=dict)
    balance: str = "samples"
    unevenness: dict[str, dict[str, float]] = field(default_factory=dict)
    fetch_seconds: float = 0.0
    plan_seconds: float = 0.0
    gather_seconds: float = 0.0
    transform_wait_seconds: float = 0.0
    device_seconds: float = 0.0
    decoded_bytes: int = 0
    starting: float = 0.0
    starts: int = 0
    threads: int = 1
    rank: int = 0
    ranks: int = 1
    inside: bool = field(default=False, repr=False, metadata=_INTERNAL)  # whether it is part of a loader
    describe: Callable[[], dict[str, Any]] = field(default=dict, repr=False, metadata=_INTERNAL)
    known: dict[str, Any] | None = field(default=None, repr=False, metadata=_INTERNAL)
    began: float = field(default=0.0, repr=False, metadata=_INTERNAL)
    ended: float = field(default=0.0, repr=False, metadata=_INTERNAL)
    chunk_durations: Durations = field(default_factory=Durations, repr=False, metadata=_INTERNAL)
    sequence_durations: Durations = field(default_factory=Durations, repr=False, metadata=_INTERNAL)
    step_durations: Durations = field(default_factory=Durations, repr=False, metadata=_INTERNAL)

    @property
    def stages(self) -> dict[str, FeedStage]:
        """Stages that have done something, by name. The time of ``step`` is what the loop did between minibatches."""
        read_s, fetch_s = self.read_seconds, min(self.fetch_seconds, self.read_seconds)
        if read_s:
            fetch_wait = self.wait_seconds * fetch_s / read_s
        else:  # rows that are read one by one are only fetched
            fetch_s = fetch_wait = self.wait_seconds
        threads, fetched = self.threads, self.disk_bytes + self.fetched_bytes
        calls_s = self.plan_seconds + self.gather_seconds + self.device_seconds  # partly estimates
        left_s = max(0.0, self.ended - self.began - self.wait_seconds - self.transform_wait_seconds)
        scale = min(1.0, left_s / calls_s) if calls_s else 1.0
        plan_s, gather_s, device_s = (
            scale * part for part in (self.plan_seconds, self.gather_seconds, self.device_seconds)
        )
        stages = {
            "plan": FeedStage(plan_s, plan_s, self.minibatches),
            "fetch": FeedStage(fetch_s, fetch_wait, self.chunks_read, fetched, threads),
            "decode": FeedStage(
                read_s - fetch_s if read_s else 0.0,
                self.wait_seconds - fetch_wait,
                self.chunks_read,
                self.decoded_bytes,
                threads,
            ).timed(self.chunk_durations),
            "gather": FeedStage(gather_s, gather_s, self.minibatches),
            "transform": FeedStage(
                self.transform_seconds, self.transform_wait_seconds, self.sequences, threads=threads
            ).timed(self.sequence_durations),
            "device": FeedStage(device_s, device_s, self.minibatches),
            "step": FeedStage(max(0.0, left_s - calls_s), 0.0, self.minibatches).timed(self.step_durations),
        }
        return {name: stage for name, stage in stages.items() if stage.seconds or (name == "step" and self.minibatches)}

    def __reduce__(self) -> Any:
        """Let copies go on from the figures, without what the source reads."""
        figures = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "describe"}
        return functools.partial(Stats, **figures), ()

    @property
    def facts(self) -> dict[str, Any]:
        """Settings and data of the source. Once they were asked for, nothing refers to what it reads."""
        if self.known is None:
            self.known, self.describe = self.describe(), dict
        return self.known

    def note_call(self, began: float) -> None:
        """Note that a call of `next_minibatch` began at a time of ``time.perf_counter``, and has ended."""
        self.began = self.began or began
        self.ended = time.perf_counter()

    def to_json(self) -> dict[str, Any]:
        """Return all figures by name, in JSON types."""
        # Not `asdict`, which would copy what the source reads.
        figures = {entry.name: copy.copy(getattr(self, entry.name)) for entry in fields(self) if not entry.metadata}
        figures["corpora"] = {name: share._asdict() for name, share in self.corpora.items()}
        return figures | {"stages": {name: stage.to_json() for name, stage in self.stages.items()}}

    def __repr__(self) -> str:
        return (
            f"Stats({self.minibatches} minibatches, {self.sequences} sequences, {self.samples} samples; "
            f"{self.chunks_read} chunks read in {self.read_seconds:.3f} s, waited {self.wait_seconds:.3f} s; "
            f"holds {self.held_bytes / 1e6:.1f} MB, at most {self.peak_bytes / 1e6:.1f} MB; {self.skipped} skipped"
            + "".join(f"; {name} {s.delivered:.1%} of {s.declared:.1%} declared" for name, s in self.corpora.items())
            + ")"
        )
