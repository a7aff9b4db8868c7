"""How long does restoring at 90 % of a sweep take, for 10^5 to 10^9 sequences?

Limit: 20 ms over opening the source, whatever the number. Unit: milliseconds of CPU time, all threads counted, from a
source that has just been opened to its first minibatch after `load_state_dict`. Wall time is in the notes. Measured: a
synthetic corpus whose chunks (up to 10^6 sequences) are views of one array, so that nothing but the feed's own
work is timed. Shuffled as a whole, and in windows of one chunk for a corpus that has to be read. Medians over fresh
sources. Opening, and the first minibatch of a source that starts at the beginning, are reported, too. From a disk:
`cold`.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import feedline as fl
from benchmarks.harness import Answer, Stage, Target, spread

CHUNK = 10**6


class Synthetic(fl.Deserializer, fl.RandomAccess):
    """``n`` sequences of one sample. Every chunk is a view of the same array."""

    def __init__(self, n: int, random_access: bool, chunk: int = CHUNK) -> None:
        self.schema = fl.Schema({"x": fl.Stream((), "float32")})
        self._random_access = random_access
        self.name = f"synthetic {n}"
        self._n, self._chunk = n, min(chunk, n)
        self._rows = np.zeros(self._chunk, np.float32)
        self._infos = [
            fl.ChunkInfo(size, size, size * 4)
            for size in (min(self._chunk, n - start) for start in range(0, n, self._chunk))
        ]

    def capability(self, kind: Any) -> Any:
        """Without random access if the caller wants none."""
        return None if kind is fl.RandomAccess and not self._random_access else super().capability(kind)

    def chunks(self) -> list[fl.ChunkInfo]:
        """All alike but the last."""
        return self._infos

    def read(self, chunk: int) -> fl.Chunk:
        """A view."""
        return fl.Chunk(self.schema, {"x": fl.Value.from_dense(self._rows[: self._infos[chunk].sequences])})

    def lengths(self, ordinals: NDArray[np.int64]) -> None:
        """One sample each."""

    def digest(self) -> str:
        """Return a digest of the size, which determines the corpus."""
        return f"{self._n:032x}"


def run(stage: Stage) -> list[Answer]:
    """Whole-data shuffle and windows, at five sizes."""
    exponents = (5, 7) if stage.quick else (5, 6, 7, 8, 9)
    answers = []
    for whole in (True, False):
        for exponent in exponents:
            once(10**exponent, whole)
            took = [once(10**exponent, whole) for _ in range(stage.rounds(9))]
            opened, fresh, restored = ([one[k].cpu for one in took] for k in range(3))
            wall = statistics.median(one[2].wall for one in took)
            answers.append(
                Answer(
                    question=f"restore at 90 % of 10^{exponent}, {'whole shuffle' if whole else 'windows'}",
                    unit="ms",
                    ours=statistics.median(restored),
                    peer="first minibatch at 0",
                    peer_value=statistics.median(fresh),
                    target=Target("ours", "<=", 20, "20 ms"),
                    spread=spread(restored),
                    detail={"open_ms": opened, "fresh_ms": fresh, "restore_ms": restored, "wall_ms": wall},
                    note=f"{wall:.2f} ms on the wall clock; opening took {statistics.median(opened):.2f} ms",
                )
            )
    return answers


class Took(NamedTuple):
    """Milliseconds."""

    cpu: float
    wall: float


def once(n: int, whole: bool) -> tuple[Took, Took, Took]:
    """Milliseconds: opening, first minibatch of a fresh source, state and first minibatch of a restored one."""
    shuffle: bool | fl.Window = True if whole else fl.Window(chunks=1)
    corpora = [Synthetic(n, whole) for _ in range(3)]

    def source(i: int) -> fl.MinibatchSource:
        return fl.MinibatchSource(corpora[i], shuffle=shuffle, read_ahead=0)

    with source(0) as saved:
        saved.seek(fl.Position(0, int(n * 0.9), int(n * 0.9)))
        state = saved.state_dict()
    t0 = clocks()
    fresh = source(1)
    t1 = clocks()
    fresh.next_minibatch(256)
    t2 = clocks()
    restored = source(2)
    t3 = clocks()
    restored.load_state_dict(state)
    first = restored.next_minibatch(256)
    t4 = clocks()
    assert first.position.sequence == int(n * 0.9)
    fresh.close()
    restored.close()
    return between(t0, t1), between(t1, t2), between(t3, t4)


def clocks() -> tuple[float, float]:
    """CPU and wall, in seconds."""
    return time.process_time(), time.perf_counter()


def between(a: tuple[float, float], b: tuple[float, float]) -> Took:
    """From one reading of the clocks to another."""
    return Took((b[0] - a[0]) * 1e3, (b[1] - a[1]) * 1e3)
