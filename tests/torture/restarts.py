"""A loop over a source that is killed and started again until it ends, with weights changed on the way.

Every minibatch is committed with the state after it. What all starts together delivered is then compared with what one
has to deliver that nothing interrupts, under the same changes.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import feedline as fl
from tests.torture import data
from tests.torture.case import Case
from tests.torture.victims import Victim, draw, run

Change = tuple[int, list[int]]
"""A place, and the weights from there on."""


def until_the_end(case: Case, world: Any, program: Callable[..., None], path: Path) -> None:
    """Start ``program(world, data, path, luck)``, kill it, and so on. The last start is left alone."""
    for _ in range(case.rng.randint(2, 7)):
        instant = draw(case.rng, 0.3, 300)
        victim = Victim(case, program, world, case.data, path, case.rng.random(), instant=instant)
        ended = victim.wait()
        case.tally("kills", int(ended.hit))
        if ended.error is not None and not ended.hit:
            case.fail("lost" if ended.promised else "foreign", f"{world}: {ended.error}")
        elif ended.error is not None and ended.kind != "KeyboardInterrupt":
            case.fail("foreign", f"{world}, {victim.told()}: {ended.error}")
        elif not ended.hit and ended.error is None:
            break
    run(case, f"going on with {world}", program, world, case.data, path, case.rng.random())


def deliver(
    make: Callable[..., fl.MinibatchSource],
    items_of: Callable[[Any], list[data.Item]],
    path: Path,
    rng: random.Random,
    *,
    sizes: Sequence[int],
    parts: int,
    most: int,
) -> None:
    """Deliver from the position in ``path`` to the end, for one to three ranks.

    Args:
        make: creates the source of a rank, given settings that must not matter.
        items_of: names the sequences of a minibatch.
        path: the record.
        rng: draws settings that must not matter, and changes of weights.
        sizes: sizes of minibatches.
        parts: number of corpora whose weights are changed. 0: none.
        most: number of sequences at which a source without end is left.
    """
    ranks = [make(**data.speed(rng)) for _ in range(rng.choice([1, 1, 2, 3]))]
    state, length = committed(path)
    count = len(recorded(path, most)[0])
    for rank in ranks:
        if state is not None:
            rank.load_state_dict(state)
    with open(path, "ab") as file:
        file.truncate(length)
        while count < most:
            if parts and rng.random() < 0.05 and (change := _changed(rng, parts, ranks)):
                file.write(json.dumps({"change": change}).encode() + b"\n")
            size = rng.choice(sizes)
            minibatches = [rank.next_minibatch(size, (i, len(ranks))) for i, rank in enumerate(ranks)]
            if not any(minibatches):
                break
            for minibatch in filter(None, minibatches):
                for item in items_of(minibatch):
                    file.write(json.dumps({"item": item}).encode() + b"\n")
                    count += 1
            file.flush()
            commit(path, ranks[0].state_dict(), file.tell())
    for rank in ranks:
        rank.close()


def _changed(rng: random.Random, parts: int, ranks: list[fl.MinibatchSource]) -> Change | None:
    """Change the weights of all ranks. None: with these the mixture would end."""
    weights = quotas(rng, parts)
    try:
        places = [rank.change_weights(named(weights)) for rank in ranks]
    except ValueError:
        return None
    assert len(set(places)) == 1, places
    return places[0], weights


def commit(path: Path, state: Any, length: int) -> None:
    """Commit ``length`` bytes of the record, and the ``state`` after them."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"state": state, "length": length}))
    os.replace(new, path.with_suffix(".state"))


def committed(path: Path) -> tuple[Any, int]:
    """Return the state, and the committed length of the record."""
    place = path.with_suffix(".state")
    if not place.exists():
        return None, 0
    saved = json.loads(place.read_text())
    return saved["state"], saved["length"]


def recorded(path: Path, most: int) -> tuple[list[data.Item], list[Change]]:
    """Return the committed sequences and changes."""
    _, length = committed(path)
    lines = [json.loads(line) for line in path.read_bytes()[:length].splitlines()] if path.exists() else []
    items = [tuple(line["item"]) for line in lines if "item" in line]
    return items[:most], [tuple(line["change"]) for line in lines if "change" in line]


def quotas(rng: random.Random, count: int) -> list[int]:
    """Draw weights, of which one at least is positive."""
    found = [rng.choice([0, 1, 1, 2, 3, 7]) for _ in range(count)]
    return found if any(found) else [1] * count


def named(weights: list[int]) -> dict[str, int]:
    """Return weights by name."""
    return {f"c{k}": weight for k, weight in enumerate(weights)}
