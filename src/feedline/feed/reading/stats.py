"""Statistics of a source."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from feedline.feed.timeline import Share


@dataclass(slots=True)
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

    def to_json(self) -> dict[str, Any]:
        """Return all figures by name, in JSON types."""
        return asdict(self) | {"corpora": {name: share._asdict() for name, share in self.corpora.items()}}

    def __repr__(self) -> str:
        return (
            f"Stats({self.minibatches} minibatches, {self.sequences} sequences, {self.samples} samples; "
            f"{self.chunks_read} chunks read in {self.read_seconds:.3f} s, waited {self.wait_seconds:.3f} s; "
            f"holds {self.held_bytes / 1e6:.1f} MB, at most {self.peak_bytes / 1e6:.1f} MB; {self.skipped} skipped"
            + "".join(f"; {name} {s.delivered:.1%} of {s.declared:.1%} declared" for name, s in self.corpora.items())
            + ")"
        )
