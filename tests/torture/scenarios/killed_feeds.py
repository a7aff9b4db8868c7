"""Feeds of every format, killed at random instants, with the state written after each minibatch."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import feedline as fl
from tests.torture import data
from tests.torture.case import Case
from tests.torture.scenario import Scenario
from tests.torture.victims import Victim, draw, run

KINDS = (*data.FORMATS, "source")


class KilledFeeds(Scenario):
    """What was delivered over all starts is what one that was never killed delivers."""

    name = "killed-feeds"
    asks = "is the sequence of a feed whole after kills, in every format?"
    seconds = 120.0

    def run(self, case: Case) -> None:
        kind = KINDS[case.number % len(KINDS)]
        corpus = case.data / "many"
        order = {} if kind == "source" else data.settings(case.rng, kind)
        expected = data.in_order(make(kind, corpus, order))
        if wrong := data.check_sweeps(expected, data.SEQUENCES):
            case.fail("silent", f"{kind} with {order}, never killed: {wrong}")
        path = case.folder / "record"
        seconds, operations = 0.1, 300
        for _ in range(case.rng.randint(2, 8)):
            victim = Victim(
                case, deliver, kind, corpus, order, path, case.rng.random(), instant=draw(case.rng, seconds, operations)
            )
            ended = victim.wait()
            case.tally("kills", int(ended.hit))
            if ended.error is not None and not ended.hit:
                case.fail("lost" if ended.promised else "foreign", f"{kind}: {ended.error}")
            elif ended.error is not None and ended.error != "KeyboardInterrupt":
                case.fail("foreign", f"{kind}, interrupted by {victim.told()}: {ended.error}")
            elif not ended.hit and ended.error is None:
                break
        run(case, f"going on with {kind}", deliver, kind, corpus, order, path, case.rng.random())
        case.compare(f"{kind} with {order}", expected, delivered(path))


def make(kind: str, corpus: Path, order: dict[str, Any], **speed: Any) -> Any:
    """The feed of all starts."""
    if kind == "source":
        return data.Walk(data.count_of(corpus), 2)
    return fl.MinibatchSource(data.FORMATS[kind](corpus), **order, **speed)


def deliver(kind: str, corpus: Path, order: dict[str, Any], path: Path, luck: float) -> None:
    """The loop of a start: from what ``path`` says to the end; every minibatch is committed with its state."""
    rng = random.Random(luck)
    source = make(kind, corpus, order, **({} if kind == "source" else data.speed(rng)))
    state, length = committed(path)
    if state is not None:
        source.load_state_dict(state)
    with open(path, "ab") as file:
        file.truncate(length)
        while minibatch := source.next_minibatch(rng.choice([1, 7, 40, 300])):
            for item in data.items(minibatch):
                file.write(json.dumps(item).encode() + b"\n")
            file.flush()
            commit(path, source.state_dict(), file.tell())
    close = getattr(source, "close", None)
    if close is not None:
        close()


def commit(path: Path, state: Any, length: int) -> None:
    """From now on, ``length`` bytes of the record count, and ``state`` is behind them."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"state": state, "length": length}))
    os.replace(new, path.with_suffix(".state"))


def committed(path: Path) -> tuple[Any, int]:
    """The state, and how much of the record counts."""
    place = path.with_suffix(".state")
    if not place.exists():
        return None, 0
    saved = json.loads(place.read_text())
    return saved["state"], saved["length"]


def delivered(path: Path) -> list[data.Item]:
    """What counts of the record."""
    _, length = committed(path)
    lines = path.read_bytes()[:length].splitlines() if path.exists() else []
    return [tuple(json.loads(line)) for line in lines]
