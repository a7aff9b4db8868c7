"""Corpora made of others, packed, windowed, bucketed, nested, chosen or one after the other, killed at random instants.

Drawn as a tree in JSON types, from which every start makes them. The oracle is a source without interruption, in
another process than the victims. The laws check the orders, this scenario that all starts agree.
"""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from feedline.feed.protocol import finish_of
from tests.torture import data, restarts
from tests.torture.case import Case
from tests.torture.scenario import Scenario
from tests.torture.scenarios.killed_mixtures import ALIKE, FOLDERS

MOST = 500
"""Number of sequences at which a source without end is left."""
PACKED = ("tokens", "labels", "segment", "positions", "document", "patches", "patches_segment")
METHODS = ("best-fit", "first-fit", "split")

Tree = dict[str, Any]


class KilledCompositions(Scenario):
    """All starts together deliver what one source delivers that nothing interrupts."""

    name = "killed-compositions"
    asks = "do packed, windowed, bucketed and nested corpora go on as uninterrupted ones do?"
    seconds = 120.0

    def run(self, case: Case) -> None:
        world = drawn(case.rng)
        for name, tokens in world["tokens"].items():
            streams = {"tokens": [document(name, i, n) for i, n in enumerate(tokens)]}
            if name in world["patches"]:
                streams["patches"] = [document(name, i, n)[:, None] for i, n in enumerate(world["patches"][name])]
            corpus = fl.ArrayDeserializer(streams)
            fl.convert(corpus, case.folder / f"{name}.store", chunk_bytes=512)
        for name, lengths in world["episodes"].items():
            rows = 100_000 * int(name[1:]) + np.arange(sum(lengths), dtype=np.float64)
            fl.convert(fl.ArrayDeserializer(x=rows), case.folder / f"{name}.store", chunk_bytes=256)
        path = case.folder / "record"
        restarts.until_the_end(case, world, deliver, path)
        got, changes = restarts.recorded(path, MOST)
        case.tally("changes", len(changes))
        case.compare(f"{world}, changed {changes}", expected(world, changes, case.data, case.folder), got)


# ---- worlds ---------------------------------------------------------------------------------------------


def document(name: str, i: int, length: int) -> np.ndarray:
    """Return the tokens of a document, which contain its number."""
    return (1 + 100_000 * int(name[1:]) + 1000 * i + np.arange(length)).astype(np.int32)


def drawn(rng: random.Random) -> Tree:
    """Draw a corpus and the settings of its source."""
    world: Tree = {"tokens": {}, "patches": {}, "episodes": {}, "seed": rng.randrange(1 << 64)}
    leaf = rng.choice([_packed] * 3 + [_rated] * 2 + [_windowed] * 2 + [_sequences] * 3)
    rows = leaf in (_packed, _rated)
    row, kinds = rng.randint(8, 60), rng.choice(ALIKE)
    tree = _nested(rng, lambda: leaf(rng, world, row, kinds), rng.choice([0, 1, 1, 2]))
    if rng.random() < 0.35:
        bounds = sorted(rng.sample(range(1, 12), rng.randint(1, 3)))
        tree = {"bucketed": tree, "boundaries": [row] if rows else bounds, "budget": rng.randint(12, 90)}
    elif "mixture" in tree and rng.random() < 0.4:
        # Stages would have to begin at multiples of a batch.
        most = 5 if tree["sweeps"] is None else 2  # the minimum of a corpus
        tree |= {"batches": "one source", "batch_size": rng.randint(1, most), "stages": tree["stages"][:1]}
    inner = tree.get("bucketed", tree)
    units = [("chunks", rng.randint(1, 9)), ("samples", rng.randint(40, 2000)), ("bytes", rng.randint(500, 20_000))]
    batched = "bucketed" in tree or "batches" in tree
    jumps = [] if batched or rng.random() < 0.6 else [sorted(rng.sample(range(1, 150), 2))]
    return world | {
        "tree": tree,
        "window": rng.choice([None, *units]),
        "sweeps": None if _endless(inner) else 1 if "mixture" in inner else rng.randint(1, 3),
        "jumps": jumps,
        "sizes": [10_000] if batched else [8, 40, 300],
        "changing": "mixture" in tree and not batched,
    }


def _nested(rng: random.Random, leaf: Any, depth: int) -> Tree:
    if depth == 0:
        return leaf()
    parts = [_nested(rng, leaf, rng.randint(0, depth - 1)) for _ in range(rng.randint(1, 3))]
    starts = [0, *sorted(rng.sample(range(1, MOST), rng.randint(0, 2)))]
    when_empty = rng.choice(["repeat", "repeat", "stop", "drop"])
    return {
        "mixture": parts,
        "stages": [(start, restarts.quotas(rng, len(parts))) for start in starts],
        "when_empty": when_empty,
        # A mixture without end within another one has one sweep, which never ends.
        "sweeps": None if when_empty == "repeat" else 1 if any("mixture" in p for p in parts) else rng.randint(1, 2),
        "block": rng.choice([1, 7, 64]),
    }


def _endless(tree: Tree) -> bool:
    return "mixture" in tree and (tree["when_empty"] == "repeat" or any(map(_endless, tree["mixture"])))


def _packed(rng: random.Random, world: Tree, row: int, kinds: Any) -> Tree:
    name = f"t{len(world['tokens'])}"
    world["tokens"][name] = [rng.choice([0, 1, 3, 7, 20, 45, 70]) for _ in range(rng.randint(5, 80))] + [7] * 12
    return {"packed": name, "row": row, "method": rng.choice(METHODS), "long": rng.choice(["split", "drop"])}


def _rated(rng: random.Random, world: Tree, row: int, kinds: Any) -> Tree:
    tree = _packed(rng, world, row, kinds)
    tokens = world["tokens"][tree["packed"]]
    world["patches"][tree["packed"]] = [rng.choice([0, 0, 1, 4, 30]) for _ in tokens[:-12]] + [1] * 12
    return tree | {"method": rng.choice(METHODS[:2]), "long": "drop", "cost": {"tokens": 1, "patches": 0.25}}


def _windowed(rng: random.Random, world: Tree, row: int, kinds: Any) -> Tree:
    name = f"e{len(world['episodes'])}"
    world["episodes"][name] = [rng.randint(1, 25) for _ in range(rng.randint(2, 12))]
    # All corpora of a mixture have windows of one shape.
    offsets = sorted(rng.sample(range(-5, 6), 3))
    return {
        "windows": name,
        "lengths": world["episodes"][name],
        "offsets": offsets,
        "every": rng.randint(1, 3),
        "pad": rng.choice(["edge", "zeros"]),
    }


def _sequences(rng: random.Random, world: Tree, row: int, kinds: Any) -> Tree:
    leaves = [{"format": rng.choice(kinds), "folder": rng.choice(FOLDERS)} for _ in range(rng.choice([1, 1, 2]))]
    tree = {"concat": leaves} if len(leaves) > 1 else leaves[0]
    chosen = rng.random()
    if chosen < 0.3:
        first = rng.randrange(data.FEW - 2)
        tree = {"take": tree, "bounds": [first, rng.randint(first + 2, data.FEW)]}
    elif chosen < 0.5:
        tree = {"filtered": tree, "which": sorted(rng.sample(range(data.FEW), rng.randint(2, data.FEW)))}
    return tree


def made(tree: Tree, corpora: Path, folder: Path) -> fl.Deserializer:
    """Make the corpus that a tree describes."""

    def part(one: Tree) -> fl.Deserializer:
        return made(one, corpora, folder)

    if "packed" in tree:
        store = fl.StoreDeserializer(folder / f"{tree['packed']}.store")
        return fl.Packed(store, tree["row"], method=tree["method"], long=tree["long"], cost=tree.get("cost"))
    if "windows" in tree:
        store = fl.StoreDeserializer(folder / f"{tree['windows']}.store")
        lengths = tree["lengths"]
        return fl.TimeWindows(store, {"x": tree["offsets"]}, within=lengths, every=tree["every"], pad=tree["pad"])
    if "format" in tree:
        return data.FORMATS[tree["format"]](corpora / tree["folder"])
    if "concat" in tree:
        return fl.Concat(*map(part, tree["concat"]), columns=["word", "x"])
    if "take" in tree:
        return fl.Take(part(tree["take"]), *tree["bounds"])
    if "filtered" in tree:
        return fl.Filtered(part(tree["filtered"]), tree["which"])
    if "bucketed" in tree:
        return fl.Bucketed(part(tree["bucketed"]), tree["boundaries"], budget=tree["budget"])
    parts = [part(one) for one in tree["mixture"]]
    (_, first), *later = tree["stages"]
    return fl.Mixture(
        {f"c{k}": one for k, one in enumerate(parts)},
        restarts.named(first),
        stages=[(start, restarts.named(weights)) for start, weights in later],
        when_empty=tree["when_empty"],
        max_sweeps=tree["sweeps"],
        block=tree["block"],
        batches=tree.get("batches", "mixed"),
        batch_size=tree.get("batch_size"),
        columns=["word", "x"] if "word" in parts[0].schema and finish_of(parts[0]) is None else None,
    )


def make(world: Tree, corpora: Path, folder: Path, **speed: Any) -> fl.MinibatchSource:
    """Create the source of a start."""
    shuffle = True if world["window"] is None else fl.Window(**dict([world["window"]]))
    return fl.MinibatchSource(
        made(world["tree"], corpora, folder),
        seed=world["seed"],
        shuffle=shuffle,
        max_sweeps=world["sweeps"],
        jumps=world["jumps"],
        **speed,
    )


# ---- delivery -------------------------------------------------------------------------------------------


def items_of(minibatch: Any) -> list[data.Item]:
    """Return a name of each sequence, and a digest of its content."""
    sources = minibatch.source.tolist() if minibatch.source is not None else [0] * minibatch.num_sequences
    columns = {name: minibatch[name].sequences() for name in minibatch if not name.endswith("cu_seqlens")}
    found = []
    for i, (ordinal, source) in enumerate(zip(minibatch.ids.tolist(), sources, strict=True)):
        h = hashlib.blake2b(digest_size=8)
        for name in sorted(columns.keys() & {"word", "x", "x_present", *PACKED}):
            value = columns[name][i]
            array = np.asarray(value.indices if hasattr(value, "indices") else value)
            h.update(f"{name} {array.reshape(-1).tolist()};".encode())
        found.append((f"c{source}:{ordinal}", h.hexdigest()))
    return found


def deliver(world: Tree, corpora: Path, path: Path, luck: float) -> None:
    """The loop of a start."""
    restarts.deliver(
        lambda **speed: make(world, corpora, path.parent, **speed),
        items_of,
        path,
        random.Random(luck),
        sizes=world["sizes"],
        parts=len(world["tree"]["mixture"]) if world["changing"] else 0,
        most=MOST,
    )


def expected(world: Tree, changes: list[restarts.Change], corpora: Path, folder: Path) -> list[data.Item]:
    """Deliver all of it at once, with the changes of weights made before the first minibatch."""
    found: list[data.Item] = []
    with make(world, corpora, folder) as source:
        for place, weights in changes:
            assert source.change_weights(restarts.named(weights), at=place) == place
        while len(found) < MOST and (minibatch := source.next_minibatch(max(world["sizes"]))):
            found += items_of(minibatch)
    return found[:MOST]
