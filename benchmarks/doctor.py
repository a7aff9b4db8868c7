"""What does `feedline.doctor` cost the loop that it examines?

Peer: the same loop without it. Unit: steps a second, CPU time of all threads of the process. Measured: minibatches of
256 rows of 784 floats from a store, with a step of a matrix product, and batches of a dataset whose items take a tenth
of a millisecond of Python, made by 2 workers, with a step of one millisecond of work; that one on the wall clock, as
workers are other processes. Records that are always counted are in both.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable

import numpy as np

import feedline as fl
from benchmarks.harness import Answer, Stage, Target, race, spread

ROWS, WIDTH, SIZE, ITEMS = 60_000, 784, 256, 2_000


class Items:
    """A dataset with Python work for each item."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, i: int) -> np.ndarray:
        ends = time.perf_counter() + 1e-4
        while time.perf_counter() < ends:
            pass
        return np.full(64, i, np.float32)


def run(stage: Stage) -> list[Answer]:
    """Measure a source, and a loader with workers."""
    rows = stage.size(ROWS, ROWS // 10)
    store = stage.data / "bench-doctor.store"
    fl.convert(fl.ArrayDeserializer(x=np.random.default_rng(8).random((rows, WIDTH), np.float32)), store)
    weights = np.random.default_rng(9).random((WIDTH, 64), np.float32)
    steps = 40 if stage.quick else 6000
    source = fl.MinibatchSource(fl.StoreDeserializer(store))

    def of_source() -> float:
        for _ in range(steps):
            np.dot(source.next_minibatch(SIZE)["x"].rows, weights)  # type: ignore[attr-defined]
        return steps

    loader = fl.DataLoader(Items(), batch_size=20, num_workers=2, persistent_workers=True)

    def of_loader() -> float:
        count = 0
        for _ in range(1 if stage.quick else 10):
            for _ in loader:
                ends = time.perf_counter() + 1e-3
                while time.perf_counter() < ends:
                    pass
                count += 1
        return count

    answers = [
        paired(stage, "a source over a store", of_source, "process"),
        paired(stage, "a loader with 2 workers", of_loader, "wall"),
    ]
    loader.close()
    return answers


def paired(stage: Stage, question: str, loop: Callable[[], float], clock: str) -> Answer:
    """Race a loop that is examined against one that is not."""

    def examined() -> float:
        with contextlib.redirect_stderr(io.StringIO()), fl.doctor():
            return loop()

    ran = race({"examined": examined, "alone": loop}, stage.rounds(9), clock)
    return Answer(
        question=f"examined by doctor: {question}",
        unit="steps/s",
        ours=ran.rate("examined"),
        peer="alone",
        peer_value=ran.rate("alone"),
        ratio=ran.ratio("examined", "alone"),
        target=Target("ratio", ">=", 0.995),
        spread=spread(ran.ratios("examined", "alone")),
        detail={"ratios": ran.ratios("examined", "alone")},
    )
