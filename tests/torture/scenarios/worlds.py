"""Worlds of one to eight ranks that change their number, minibatch sizes and settings at random."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import feedline as fl
from tests.torture import data
from tests.torture.case import Case
from tests.torture.scenario import Scenario

KINDS = tuple(data.FORMATS)


def work(lengths: Any) -> Any:
    """Work that grows faster than lengths, and is no whole number."""
    return lengths**1.5


def _open_rank(
    kind: str, corpus: Path, order: Mapping[str, Any], balance: Any, rng: random.Random, state: Any, i: int, world: int
) -> fl.MinibatchSource:
    partition = fl.Partition((i, world), balance=balance)
    source = fl.MinibatchSource(data.FORMATS[kind](corpus), partition=partition, **order, **data.speed(rng))
    if state is not None:
        source.load_state_dict(state)
    return source


class Worlds(Scenario):
    """The parts of all ranks make up the minibatches of one rank, for any previous world and balance."""

    name = "worlds"
    asks = "do worlds of 1 to 8 ranks, changing at random, deliver the one order?"

    def run(self, case: Case) -> None:
        if case.number % 4 == 3:
            return self._loaders(case)
        kind = KINDS[case.number % len(KINDS)]
        corpus, rng = case.data / "many", case.rng
        order = data.settings(rng, kind)
        expected = data.in_order(fl.MinibatchSource(data.FORMATS[kind](corpus), **order))
        if wrong := data.check_sweeps(expected, data.SEQUENCES):
            case.fail("silent", f"{kind} with {order}: {wrong}")
        got: list[data.Item] = []
        state, worlds, ended = None, [], False
        while not ended:
            world, steps = rng.randint(1, 8), rng.randint(1, 12)
            balance = rng.choice(["samples", "squares", work])
            open_rank = functools.partial(_open_rank, kind, corpus, order, balance, rng)
            worlds.append((world, str(balance)))
            what = f"{kind} with {order}, worlds {worlds}"
            case.doing(what)
            ranks = [open_rank(state, i, world) for i in range(world)]
            for _ in range(steps):
                if rng.random() < 0.2:  # ranks join or leave in mid-run
                    world, now = rng.randint(1, 8), ranks[0].state_dict()
                    worlds.append((world, "repartition"))
                    for rank in ranks[world:]:
                        rank.close()
                    ranks = [*ranks[:world], *(open_rank(now, i, world) for i in range(len(ranks), world))]
                    for i, rank in enumerate(ranks):
                        rank.repartition((i, world))
                size = rng.choice([1, 5, 30, 200])
                # Ranks run in any order, and one may be ahead of the others.
                parts = {i: ranks[i].next_minibatch(size) for i in rng.sample(range(world), world)}
                if len({bool(part) for part in parts.values()}) > 1:
                    case.fail("lost", f"{what}: some ranks ended and others did not")
                    return None
                if not parts[0]:
                    ended = True
                    break
                items = [item for i in range(world) for item in data.items(parts[i])]
                due = expected[len(got) : len(got) + len(items)]
                # A balance moves sequences between ranks, and so out of their places in the list of all.
                got += due if balance != "samples" and sorted(items) == sorted(due) else items
            states = [json.dumps(rank.state_dict(), sort_keys=True) for rank in ranks]
            if len(set(states)) > 1:
                case.fail("out of place", f"{what}: ranks have different states: {sorted(set(states))[:2]}")
            state = json.loads(rng.choice(states))
            for rank in ranks:
                rank.close()
        case.compare(what, expected, got)
        return None

    def _loaders(self, case: Case) -> None:
        rng = case.rng
        n, options = rng.randint(1, 90), {"seed": rng.randrange(1 << 64), "shuffle": rng.random() < 0.8}
        expected = [(int(i),) for _ in range(4) for batch in fl.DataLoader(range(n), **options) for i in batch]
        reference = fl.DataLoader(range(n), **options)
        expected = [(int(i),) for _ in range(4) for batch in reference for i in batch]
        got: list[tuple[int]] = []
        state, worlds = None, []
        while len(got) < len(expected):
            world, steps, size = rng.randint(1, 8), rng.randint(1, 6), rng.randint(1, 9)
            worlds.append(world)
            what = f"DataLoader over {n} with {options}, worlds {worlds}"
            case.doing(what)
            ranks = [fl.DataLoader(range(n), batch_size=size, partition=(i, world), **options) for i in range(world)]
            for rank in ranks if state is not None else []:
                rank.load_state_dict(state)
            iterators = [iter(rank) for rank in ranks]
            for _ in range(steps):
                parts = [next(iterator, None) for iterator in iterators]
                if len({part is None for part in parts}) > 1:
                    case.fail("lost", f"{what}: some ranks ended and others did not")
                    return
                if parts[0] is None:
                    break
                got += [(int(i),) for part in parts for i in part]
            states = [rank.state_dict() for rank in ranks]
            if any(one != states[0] for one in states):
                case.fail("out of place", f"{what}: ranks have different states: {states[:2]}")
            state = json.loads(json.dumps(rng.choice(states)))
        case.compare(what, expected[: len(got)], got[: len(expected)])
