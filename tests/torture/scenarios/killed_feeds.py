"""Feeds of every format, killed at random instants, with the state written after each minibatch."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from tests.torture import data
from tests.torture.case import Case
from tests.torture.restarts import commit, committed
from tests.torture.scenario import Scenario
from tests.torture.victims import Victim, draw, run

KINDS = (*data.FORMATS, "source", "lanes", "skipping")
LANES = 40
"""Samples of a minibatch in lanes: fixed, as the size determines the number of lanes."""


class KilledFeeds(Scenario):
    """All starts together deliver the same as an uninterrupted feed."""

    name = "killed-feeds"
    asks = "is the sequence of a feed whole after kills, in every format?"
    seconds = 120.0

    def run(self, case: Case) -> None:
        kind = KINDS[case.number % len(KINDS)]
        corpus = case.data / "many"
        if kind == "skipping":
            corpus = spoiled(case, corpus)
        order = {"max_sweeps": 2} if kind == "source" else data.settings(case.rng, kind)
        listed = case.folder / "quarantine.jsonl"
        expected = everything(kind, make(kind, corpus, order, case.folder / "other.jsonl"))
        if kind not in ("lanes", "skipping") and (wrong := data.check_sweeps(expected, data.SEQUENCES)):
            case.fail("silent", f"{kind} with {order}, never killed: {wrong}")
        path = case.folder / "record"
        seconds, operations = 0.1, 300
        for _ in range(case.rng.randint(2, 8)):
            instant = draw(case.rng, seconds, operations)
            victim = Victim(case, deliver, kind, corpus, order, path, listed, case.rng.random(), instant=instant)
            ended = victim.wait()
            case.tally("kills", int(ended.hit))
            if ended.error is not None and not ended.hit:
                case.fail("lost" if ended.promised else "foreign", f"{kind}: {ended.error}")
            elif ended.error is not None and ended.kind != "KeyboardInterrupt":
                case.fail("foreign", f"{kind}, {victim.told()}: {ended.error}")
            elif not ended.hit and ended.error is None:
                break
        run(case, f"going on with {kind}", deliver, kind, corpus, order, path, listed, case.rng.random())
        case.compare(f"{kind} with {order}", expected, delivered(path))
        if kind == "skipping" and (missing := set(BAD) - listed_in(listed)):
            case.fail("lost", f"skipped with {order}, and not listed: {sorted(missing)}")


BAD = (3, 4, 77, 150, 399)


def spoiled(case: Case, corpus: Path) -> Path:
    """The text with some sequences that cannot be read."""
    folder = case.folder / "spoiled" / "many"
    folder.mkdir(parents=True)
    lines = (corpus / "data.ctf").read_text().splitlines()
    for number in BAD:
        first = next(i for i, line in enumerate(lines) if line.split("\t")[0].split(" ")[0] == str(number))
        lines[first] = lines[first].replace("|x ", "|x oops ")
    (folder / "data.ctf").write_text("\n".join(lines) + "\n")
    return folder


def listed_in(path: Path) -> set[int]:
    """Sequences in a quarantine file, which kills may have torn."""
    found = set()
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            found.add(json.loads(line)["sequence"])
        except ValueError:
            continue
    return found


def make(kind: str, corpus: Path, order: dict[str, Any], listed: Path, **speed: Any) -> Any:
    """Create the feed of all starts."""
    if kind == "source":
        return data.Walk(data.count_of(corpus), 2)
    if kind == "lanes":
        order = {key: value for key, value in order.items() if key != "order"}
        store = data.open_store(corpus, streams=["word"])
        return fl.MinibatchSource(store, truncation_length=2, **order, **speed)
    if kind == "skipping":
        return fl.MinibatchSource(data.open_ctf(corpus), on_error=fl.Quarantine(listed), **order, **speed)
    return fl.MinibatchSource(data.FORMATS[kind](corpus), **order, **speed)


def items_of(kind: str, minibatch: Any) -> list[data.Item]:
    """Return the sequences of a minibatch, or pieces of sequences in lanes."""
    if kind != "lanes":
        return data.items(minibatch)
    pieces = minibatch["word"].sequences()
    lanes = zip(minibatch.ids.tolist(), minibatch.lanes.tolist(), pieces, strict=True)
    return [(number, f"{lane}: {np.asarray(piece.indices).tolist()}") for number, lane, piece in lanes]


def everything(kind: str, source: Any) -> list[data.Item]:
    """Return everything that a feed delivers."""
    return [item for minibatch in source.minibatches(LANES) for item in items_of(kind, minibatch)]


def deliver(kind: str, corpus: Path, order: dict[str, Any], path: Path, listed: Path, luck: float) -> None:
    """The loop of a start: from the position in ``path`` to the end. Every minibatch is committed with its state."""
    rng = random.Random(luck)
    source = make(kind, corpus, order, listed, **({} if kind == "source" else data.speed(rng)))
    state, length = committed(path)
    if state is not None:
        source.load_state_dict(state)
    with open(path, "ab") as file:
        file.truncate(length)
        while minibatch := source.next_minibatch(LANES if kind == "lanes" else rng.choice([1, 7, 40, 300])):
            for item in items_of(kind, minibatch):
                file.write(json.dumps(item).encode() + b"\n")
            file.flush()
            commit(path, source.state_dict(), file.tell())
    close = getattr(source, "close", None)
    if close is not None:
        close()


def delivered(path: Path) -> list[data.Item]:
    """Return the committed part of the record."""
    _, length = committed(path)
    lines = path.read_bytes()[:length].splitlines() if path.exists() else []
    return [tuple(json.loads(line)) for line in lines]
