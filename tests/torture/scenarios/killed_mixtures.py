"""Mixtures of several formats, killed at random instants, with weights changed in the run."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import feedline as fl
from feedline import _native
from tests.oracles import mixture as slow
from tests.torture import data
from tests.torture.case import Case
from tests.torture.scenario import Scenario
from tests.torture.scenarios.killed_feeds import commit, committed
from tests.torture.victims import Victim, draw, run

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
        when_empty, sweeps, block: of the mixture; None: without limit.
        window: unit and budget; None: as by default.
    """

    seed: int
    parts: list[tuple[str, str]]
    stages: list[tuple[int, list[int]]]
    when_empty: str
    sweeps: int | None
    block: int
    window: tuple[str, int] | None


class KilledMixtures(Scenario):
    """All starts together deliver what the slow oracle computes from the declaration and the changes."""

    name = "killed-mixtures"
    asks = "does a mixture go on as computed after kills, with weights changed on the way?"
    seconds = 120.0

    def run(self, case: Case) -> None:
        world = drawn(case.rng)
        path = case.folder / "record"
        for _ in range(case.rng.randint(2, 7)):
            instant = draw(case.rng, 0.3, 300)
            victim = Victim(case, deliver, world, case.data, path, case.rng.random(), instant=instant)
            ended = victim.wait()
            case.tally("kills", int(ended.hit))
            if ended.error is not None and not ended.hit:
                case.fail("lost" if ended.promised else "foreign", f"{world}: {ended.error}")
            elif ended.error is not None and ended.kind != "KeyboardInterrupt":
                case.fail("foreign", f"{world}, {victim.told()}: {ended.error}")
            elif not ended.hit and ended.error is None:
                break
        run(case, f"going on with {world}", deliver, world, case.data, path, case.rng.random())
        got, changes = recorded(path)
        case.tally("changes", len(changes))
        case.compare(f"{world}, changed {changes}", expected(world, changes, case.data), got)


def drawn(rng: random.Random) -> World:
    """Draw a mixture of two to five corpora."""
    count = rng.randint(2, 5)
    kinds = rng.choice(ALIKE)
    when_empty = rng.choice(["repeat", "repeat", "stop", "drop"])
    starts = [0, *sorted(rng.sample(range(1, MOST), rng.randint(0, 2)))]
    stages = [(start, quotas(rng, count)) for start in starts]
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


def quotas(rng: random.Random, count: int) -> list[int]:
    """Draw weights, of which one at least is positive."""
    found = [rng.choice([0, 1, 1, 2, 3, 7]) for _ in range(count)]
    return found if any(found) else [1] * count


def named(weights: list[int]) -> dict[str, int]:
    """Return weights by name."""
    return {f"c{k}": weight for k, weight in enumerate(weights)}


def make(world: World, folder: Path, **speed: Any) -> fl.MinibatchSource:
    """Create the source of all starts."""
    corpora = {f"c{k}": data.FORMATS[kind](folder / name) for k, (kind, name) in enumerate(world.parts)}
    (_, first), *later = world.stages
    mixture = fl.Mixture(
        corpora,
        named(first),
        stages=[(start, named(weights)) for start, weights in later],
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


def deliver(world: World, folder: Path, path: Path, luck: float) -> None:
    """The loop of a start: from what ``path`` says to the end; every minibatch is committed with its state."""
    rng = random.Random(luck)
    ranks = [make(world, folder, **data.speed(rng)) for _ in range(rng.choice([1, 1, 2, 3]))]
    state, length = committed(path)
    count = len(recorded(path)[0]) if state is not None else 0
    for rank in ranks:
        if state is not None:
            rank.load_state_dict(state)
    with open(path, "ab") as file:
        file.truncate(length)
        while count < MOST:
            if rng.random() < 0.05 and (change := changed(rng, world, ranks)):
                file.write(json.dumps({"change": change}).encode() + b"\n")
            size = rng.choice([8, 40, 300])
            minibatches = [rank.next_minibatch(size, (i, len(ranks))) for i, rank in enumerate(ranks)]
            if not any(minibatches):
                break
            for minibatch in minibatches:
                for source, content in zip(minibatch.source.tolist(), contents(minibatch), strict=True):
                    file.write(json.dumps({"item": [f"c{source} {content}", source]}).encode() + b"\n")
                    count += 1
            file.flush()
            commit(path, ranks[0].state_dict(), file.tell())
    for rank in ranks:
        rank.close()


def changed(rng: random.Random, world: World, ranks: list[fl.MinibatchSource]) -> tuple[int, list[int]] | None:
    """Change the weights of all ranks; None: with these ones the mixture would end."""
    weights = quotas(rng, len(world.parts))
    try:
        places = [rank.change_weights(named(weights)) for rank in ranks]
    except ValueError:
        return None
    assert len(set(places)) == 1, places
    return places[0], weights


def recorded(path: Path) -> tuple[list[data.Item], list[tuple[int, list[int]]]]:
    """Return the committed sequences and changes."""
    _, length = committed(path)
    lines = [json.loads(line) for line in path.read_bytes()[:length].splitlines()] if path.exists() else []
    items = [tuple(line["item"]) for line in lines if "item" in line]
    return items[:MOST], [tuple(line["change"]) for line in lines if "change" in line]


def expected(world: World, changes: list[tuple[int, list[int]]], folder: Path) -> list[data.Item]:
    """Compute what has to be delivered, corpus by corpus and place by place."""
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
