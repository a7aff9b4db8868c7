"""Mixtures of several formats, killed at random instants, with weights changed in the run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import feedline as fl
from feedline import _native
from tests.oracles import mixture as slow
from tests.torture import data, restarts
from tests.torture.case import Case
from tests.torture.scenario import Scenario

MOST = 900
"""Number of sequences at which a mixture without end is left."""
# Formats that agree about their streams.
ALIKE = (("ctf", "store", "zarr", "arrays", "join", "tar", "mds", "user"), ("parquet", "arrow", "hdf5", "litdata"))
FOLDERS = ("many", "few", "few", "twin")


class World(NamedTuple):
    """A mixture and its source, in JSON types.

    Attributes:
        seed: of the source.
        parts: format and folder of each corpus.
        stages: declared stages: place, and quotas of the corpora.
        when_empty, sweeps, block: of the mixture. None: without limit.
        window: unit and budget. None: the default.
    """

    seed: int
    parts: list[tuple[str, str]]
    stages: list[tuple[int, list[int]]]
    when_empty: str
    sweeps: int | None
    block: int
    window: tuple[str, int] | None


class KilledMixtures(Scenario):
    """All starts together deliver the slow oracle's sequences for the declaration and the changes."""

    name = "killed-mixtures"
    asks = "does a mixture go on as computed after kills, with weights changed on the way?"
    seconds = 120.0

    def run(self, case: Case) -> None:
        world = drawn(case.rng)
        path = case.folder / "record"
        restarts.until_the_end(case, world, deliver, path)
        got, changes = restarts.recorded(path, MOST)
        case.tally("changes", len(changes))
        case.compare(f"{world}, changed {changes}", expected(world, changes, case.data), got)


def drawn(rng: random.Random) -> World:
    """Draw a mixture of two to five corpora."""
    count = rng.randint(2, 5)
    kinds = rng.choice(ALIKE)
    when_empty = rng.choice(["repeat", "repeat", "stop", "drop"])
    starts = [0, *sorted(rng.sample(range(1, MOST), rng.randint(0, 2)))]
    stages = [(start, restarts.quotas(rng, count)) for start in starts]
    units = [("chunks", rng.randint(1, 12)), ("samples", rng.randint(20, 900)), ("bytes", rng.randint(500, 20_000))]
    return World(
        seed=rng.randrange(1 << 64),
        parts=[(rng.choice(kinds), rng.choice(FOLDERS)) for _ in range(count)],
        stages=stages,
        when_empty=when_empty,
        sweeps=None if when_empty == "repeat" else rng.randint(1, 3),
        block=rng.choice([1, 7, 64, 256]),
        window=rng.choice([None, *units]),
    )


def make(world: World, folder: Path, **speed: Any) -> fl.MinibatchSource:
    """Create the source of all starts."""
    corpora = {f"c{k}": data.FORMATS[kind](folder / name) for k, (kind, name) in enumerate(world.parts)}
    (_, first), *later = world.stages
    mixture = fl.Mixture(
        corpora,
        restarts.named(first),
        stages=[(start, restarts.named(weights)) for start, weights in later],
        when_empty=world.when_empty,
        max_sweeps=world.sweeps,
        block=world.block,
        columns=["word", "x"],
    )
    shuffle = True if world.window is None else fl.Window(**dict([world.window]))
    sweeps = None if world.when_empty == "repeat" else 1
    return fl.MinibatchSource(mixture, seed=world.seed, shuffle=shuffle, max_sweeps=sweeps, **speed)


def contents(minibatch: Any) -> list[str]:
    """Return the content of each sequence."""
    words, rows = (minibatch[name].sequences() for name in ("word", "x"))
    found = []
    for word, row in zip(words, rows, strict=True):
        indices = np.asarray(word.indices if hasattr(word, "indices") else word).reshape(-1)
        found.append(f"{np.asarray(row).reshape(-1).tolist()} {indices.tolist()}")
    return found


def items_of(minibatch: Any) -> list[data.Item]:
    """Return the content of each sequence with the number of its corpus."""
    return [(f"c{k} {content}", k) for k, content in zip(minibatch.source.tolist(), contents(minibatch), strict=True)]


def deliver(world: World, folder: Path, path: Path, luck: float) -> None:
    """The loop of a start."""
    restarts.deliver(
        lambda **speed: make(world, folder, **speed),
        items_of,
        path,
        random.Random(luck),
        sizes=[8, 40, 300],
        parts=len(world.parts),
        most=MOST,
    )


def expected(world: World, changes: list[restarts.Change], folder: Path) -> list[data.Item]:
    """Compute the right sequences, corpus by corpus and place by place."""
    sizes = [data.count_of(folder / name) for _, name in world.parts]
    limits = [None if world.sweeps is None else world.sweeps * size for size in sizes]
    stages = sorted((dict(world.stages) | dict(changes)).items())
    row = slow.places(world.seed, stages, limits, dropping=world.when_empty == "drop", block=world.block, most=MOST)
    first = world.stages[0][1]
    shares = [weight or min(filter(None, first)) for weight in first]
    parts: list[list[str]] = []
    for k, (kind, name) in enumerate(world.parts):
        given = sum(k == source for source, _ in row)
        shuffle: Any = True
        if world.window is not None:
            unit, budget = world.window
            shuffle = fl.Window(**{unit: max(1, budget * shares[k] // sum(shares))})
        seed = _native.hash_key([world.seed, k, 11])
        found: list[str] = []
        with fl.MinibatchSource(data.FORMATS[kind](folder / name), seed=seed, shuffle=shuffle) as source:
            while len(found) < given:
                found += contents(source.next_minibatch(500))
        parts.append(found)
    return [(f"c{k} {parts[k][item]}", k) for k, item in row]
