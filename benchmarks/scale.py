"""What does it cost to feed a thousand ranks with 10^12 tokens in 10^6 chunks, or from many files?

Limit: none but the figures themselves, which docs/explanation/scale.md explains. Unit: seconds or milliseconds
of CPU time, all threads counted, MB of private memory, bytes. Measured: each in a fresh process. The chunks exist as
sizes only (4 MB, 1,000 documents of 1,000 tokens each), since a plan reads nothing: opening a source over them, going
to 90 % of a sweep and planning there, planning one global minibatch of 8,192 tokens a rank as one of 1,000 ranks, the
state, and memory, for windows, for `lanes=1024`, and in the order of the corpus. The files are real, 10^4 of ten JSON
lines each: opening them for the first time, which reads them all, and again, with the index of the first time. And
`DataLoader` over 10^9 items: from its constructor to its first batch at 90 %.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import feedline as fl
from benchmarks.harness import Answer, Stage

RANKS, RANK = 1000, 7
DOCUMENTS, TOKENS, BYTES = 1000, 1000, 4  # of a chunk, of a document, of a token
SIZE = RANKS * 8192
ORDERS: dict[str, dict[str, Any]] = {
    "windows": {},
    "lanes=1024": {"order": fl.Arcs(1024)},
    "in order": {"shuffle": False},
}


class Documents(fl.Deserializer):
    """Documents with lengths only, which are never read."""

    def __init__(self, chunks: int) -> None:
        self.schema, self.name = fl.Schema({"tokens": fl.Stream((), "int32")}), "documents"
        self._infos = [fl.ChunkInfo(DOCUMENTS, DOCUMENTS * TOKENS, DOCUMENTS * TOKENS * BYTES)] * chunks

    def chunks(self) -> list[fl.ChunkInfo]:
        """All alike."""
        return self._infos

    def lengths(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
        """All alike, too."""
        return np.full(len(ordinals), TOKENS, np.int64)

    def read(self, chunk: int) -> fl.Chunk:
        """Refuse."""
        raise NotImplementedError

    def digest(self) -> str:
        """Constant."""
        return "00"


class Numbers:
    """Items of which nothing but their number exists."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return index


def run(stage: Stage) -> list[Answer]:
    """Chunks, files, items."""
    chunks = 10**4 if stage.quick else 10**6
    files = 200 if stage.quick else 10**4
    items = 10**6 if stage.quick else 10**9
    answers = []
    for order in ORDERS:
        found = elsewhere("chunks", order, str(chunks))
        for what, unit in UNITS.items():
            question = f"{chunks:,} chunks, {chunks * DOCUMENTS * TOKENS:.0e} tokens, {order}: {what}"
            answers.append(Answer(question=question, unit=unit, ours=found[what]))
    folder = stage.data / f"bench-files-{files}"
    if not folder.exists():
        folder.mkdir()
        for number in range(files):
            lines = (f'{{"x": [{number}, {line}]}}\n' for line in range(10))
            (folder / f"{number:06}.jsonl").write_text("".join(lines))
    for turn in ("the first time", "again"):
        found = elsewhere("files", str(folder), str(stage.data / "bench-files-index"))
        answers += [
            Answer(question=f"opening {files:,} files of ten lines, {turn}", unit="s", ours=found["open"]),
            Answer(question=f"opening {files:,} files of ten lines, {turn}: memory", unit="MB", ours=found["memory"]),
        ]
    found = elsewhere("items", str(items))
    answers.append(
        Answer(question=f"DataLoader over {items:,} items, to a batch at 90 %", unit="ms", ours=found["restore"])
    )
    return answers


UNITS = {"opening": "s", "to 90 %": "ms", "a minibatch of one of 1,000 ranks": "ms", "state": "B", "memory": "MB"}


def elsewhere(*arguments: str) -> dict[str, float]:
    """Figures of a fresh process."""
    said = subprocess.run(
        [sys.executable, "-m", "benchmarks.scale", *arguments],
        cwd=Path(__file__).resolve().parents[1],
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
    )
    return dict(json.loads(said.stdout))


def chunks_here(order: str, chunks: int) -> dict[str, float]:
    """See `UNITS`."""
    corpus = Documents(chunks)
    before = private()
    began = time.process_time()
    source = fl.MinibatchSource(corpus, seed=1, max_sweeps=4, **ORDERS[order])
    next(source.plan(SIZE, partition=(RANK, RANKS)))
    opened = time.process_time()
    source.seek(fl.Position(2, int(0.9 * chunks * DOCUMENTS)))
    plan = source.plan(SIZE, partition=(RANK, RANKS))
    next(plan)
    restored = time.process_time()
    turns = 10
    for _ in range(turns):
        next(plan)
    planned = time.process_time()
    return {
        "opening": opened - began,
        "to 90 %": 1e3 * (restored - opened),
        "a minibatch of one of 1,000 ranks": 1e3 * (planned - restored) / turns,
        "state": len(json.dumps(source.state_dict())),
        "memory": private() - before,
    }


def files_here(folder: str, cache: str) -> dict[str, float]:
    """Opening alone."""
    before = private()
    began = time.process_time()
    os.environ["XDG_CACHE_HOME"] = cache
    corpus = fl.open_corpus(f"{folder}/*.jsonl")
    chunks = len(corpus.chunks())
    opened = time.process_time()
    assert chunks
    return {"open": opened - began, "memory": private() - before}


def items_here(length: int) -> dict[str, float]:
    """A loader that takes up where another one was."""
    items = Numbers(length)
    state = fl.DataLoader(items, batch_size=256, shuffle=True, seed=1).state_dict()
    began = time.process_time()
    loader = fl.DataLoader(items, batch_size=256, shuffle=True, seed=1)
    loader.load_state_dict(state | {"sequence": length * 9 // 10})
    next(iter(loader))
    return {"restore": 1e3 * (time.process_time() - began)}


def private() -> float:
    """MB of private memory of this process."""
    status = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in status if line.startswith(("RssAnon", "RssShmem"))) / 1e3


if __name__ == "__main__":
    _what, *_given = sys.argv[1:]
    if _what == "chunks":
        _found = chunks_here(_given[0], int(_given[1]))
    elif _what == "files":
        _found = files_here(*_given)
    else:
        _found = items_here(int(_given[0]))
    print(json.dumps(_found))
