"""Feed a text larger than any window for a while, and watch private memory. A process of ``feedline demo``.

    python -m feedline.cli.demo.large '{"path": "large.ctf", "seconds": 20, "seed": 7, "size": 4096}'

Prints a JSON object a line: progress, and at last the result.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from feedline.cli.demo.processes import end_with_parent
from feedline.cli.demo.words import open_source
from feedline.cli.memory import memory

_LOOK_EVERY = 0.1  # seconds


def feed(path: str, seconds: float, seed: int, size: int) -> dict[str, Any]:
    """Feed for ``seconds`` after indexing; bytes of private memory before the file was opened and at most since."""
    base = memory().private
    source = open_source(path, seed, None, progress=_tell_indexing())
    stored = sum(info.bytes for info in source.corpus.chunks())
    peak, looked, began = memory().private, 0.0, time.perf_counter()
    while (now := time.perf_counter() - began) < seconds:
        if now - looked >= _LOOK_EVERY:
            looked, peak = now, max(peak, memory().private)
            print(json.dumps({"done": now / seconds}), flush=True)
        source.next_minibatch(size)
    stats, held = source.stats(), memory()
    return {
        "stored_bytes": stored,
        "sequences": source.num_sequences,
        "seconds": now,
        "samples": stats.samples,
        "fed_bytes": round(stored * stats.samples / source.num_samples),
        "base_bytes": base,
        "peak_bytes": max(peak, held.private),
        "growth_bytes": max(peak, held.private) - base,
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
