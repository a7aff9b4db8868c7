"""Processes that fork in the middle of a feed, and both continue."""

from __future__ import annotations

import gc
import random
from typing import Any

import feedline as fl
from tests.forked import die
from tests.torture import data, items
from tests.torture.case import Case
from tests.torture.scenario import Scenario
from tests.torture.victims import Victim


class Forks(Scenario):
    """Parent and child continue independently. The end of one does not affect the other."""

    name = "forks"
    asks = "does a forked child's feed go on by itself, and its end leave the parent alone?"
    seconds = 90.0

    def run(self, case: Case) -> None:
        rng = case.rng
        kind = [*data.FORMATS, "loader"][case.number % (len(data.FORMATS) + 1)]
        if kind == "loader":
            return self._loader(case)
        order = data.settings(rng, kind)
        expected = data.in_order(fl.MinibatchSource(data.FORMATS[kind](case.data / "many"), **order))
        source = fl.MinibatchSource(data.FORMATS[kind](case.data / "many"), **order, **data.speed(rng))
        got: list[data.Item] = []
        for _ in range(rng.randint(0, 5)):
            got += data.items(source.next_minibatch(rng.choice([1, 10, 200])))
        what = f"{kind} with {order}, forked after {len(got)}"
        children = [Victim(case, go_on, source, rng.random()) for _ in range(rng.randint(1, 3))]
        here = got + data.in_order(source)
        case.compare(f"{what}, the parent", expected, here)
        for child in children:
            ended = child.wait()
            if ended.error is not None:
                case.fail("foreign", f"{what}, a child: {ended.error}")
            elif ended.result is not None:
                found = got + [tuple(item) for item in ended.result]
                case.compare(f"{what}, a child", expected[: len(found)], found)
        return None

    def _loader(self, case: Case) -> None:
        """Children of a program that uses a loader with workers: they end, and the loader continues."""
        rng = case.rng
        options: dict[str, Any] = {"seed": rng.randrange(1 << 64), "shuffle": True}
        workers = {"num_workers": 2, "workers": rng.choice(["process", "thread"]), "multiprocessing_context": "fork"}
        expected = [i for b in fl.DataLoader(items.Augmented(90), batch_size=4, **options) for i in items.contents(b)]
        loader = fl.DataLoader(items.Augmented(90), batch_size=4, **workers, **options)
        got, children = [], []
        for number, batch in enumerate(loader):
            got += items.contents(batch)
            if number in (0, 7):
                children.append(Victim(case, ends, loader, rng.random()))
        for child in children:
            ended = child.wait()
            if ended.error is not None:
                case.fail("foreign", f"a child of a program with a loader, {workers}: {ended.error}")
        case.compare(f"a loader with {workers}, whose program forked", expected, got)


def go_on(source: Any, luck: float) -> list[data.Item]:
    """In a child: to the end, or a little further, with or without closing."""
    rng = random.Random(luck)
    if rng.random() < 0.3:
        found = [item for _ in range(3) for item in data.items(source.next_minibatch(20))]
    else:
        found = data.in_order(source, rng.choice([7, 100]))
    if rng.random() < 0.5:
        source.close()
    return found


def ends(loader: Any, luck: float) -> None:
    """In a child that does not use the loader: it is collected, or the process just ends."""
    rng = random.Random(luck)
    if rng.random() < 0.5:
        del loader
        gc.collect()
    if rng.random() < 0.2:
        die(0)
