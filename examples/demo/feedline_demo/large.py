"""Feed a text larger than any window from the disk, and watch private memory. A process of ``feedline demo``.

    python -m feedline_demo.large '{"path": "large.ctf", "seconds": 20, "seed": 7, "size": 4096}'

Prints one JSON object per line: progress, and finally the result. The text is indexed first, then evicted from the page
cache, so that it is fed from the disk: one sweep at most, as a second might find it in memory again. The speed of the
disk is measured afterwards, bypassing the page cache.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from feedline.cli.memory import memory
from feedline.feed.files.disk import evict, resident, survey
from feedline.system import KNOWS_PAGE_CACHE

from .processes import end_with_parent
from .words import open_source

_LOOK_EVERY = 0.1  # seconds


def feed(path: str, seconds: float, seed: int, size: int) -> dict[str, Any]:
    """Feed one sweep, or for ``seconds`` after indexing; return figures in JSON types.

    Returns:
        Among others ``resident_before``, the share of the text that stayed in the page cache; ``base_bytes`` and
        ``peak_bytes``, bytes of private memory before the file was opened and at most since; and the disk's speed,
        ``disk_bytes_per_second``, with the feed's share of it: None where the page cache cannot be bypassed.
    """
    base = memory()
    with open_source(path, seed, 1, progress=_tell_indexing()) as source:
        stored = sum(info.bytes for info in source.corpus.chunks())
        if KNOWS_PAGE_CACHE:
            evict([path])
        before = resident([path])
        peak, looked, began = memory(), 0.0, time.perf_counter()
        while (now := time.perf_counter() - began) < seconds:
            if now - looked >= _LOOK_EVERY:
                looked, peak = now, peak.peak(memory())
                print(
                    json.dumps({"done": max(now / seconds, source.position.samples / source.num_samples)}), flush=True
                )
            if not source.next_minibatch(size):
                break
        stats, held = source.stats(), memory()
        peak = peak.peak(held)
        fed = round(stored * stats.samples / source.num_samples)
        disk = survey([path], stored // source.num_sequences)
        sequential = None if disk is None else disk.sequential
        return {
            "stored_bytes": stored,
            "sequences": source.num_sequences,
            "seconds": now,
            "samples": stats.samples,
            "fed_bytes": fed,
            "resident_before": before,
            "disk_bytes_per_second": sequential,
            "share_of_disk": None if sequential is None else fed / now / sequential,
            "base_bytes": base.private,
            "peak_bytes": peak.private,
            "growth_bytes": peak.growth(base),
            "file_backed_bytes": held.file_backed,
            "held_peak_bytes": stats.peak_bytes,
        }


def _tell_indexing() -> Any:
    told = 0.0

    def tell(done: int, total: int) -> None:
        nonlocal told
        if done / total - told >= 0.02:
            told = done / total
            print(json.dumps({"indexed": told}), flush=True)

    return tell


def main() -> None:
    """The program."""
    end_with_parent()
    print(json.dumps({"result": feed(**json.loads(sys.argv[1]))}), flush=True)


if __name__ == "__main__":
    main()
