"""Ctrl-C at any bytecode of a feed, in a program that continues, as in a notebook."""

from __future__ import annotations

import functools
import json
from typing import Any

import feedline as fl
from tests.torture import data, items
from tests.torture.case import Case
from tests.torture.interruption import Interrupter
from tests.torture.scenario import Scenario


class Interrupts(Scenario):
    """After an interrupt the feed is before or after the minibatch, and continues correctly."""

    name = "interrupts"
    asks = "is a feed whole after Ctrl-C anywhere in it?"

    def run(self, case: Case) -> None:
        rng = case.rng
        interrupter = Interrupter()
        if case.number % 3 == 2:
            return self._loader(case, interrupter)
        # Not a user-defined source: it advances as its author wrote it, even when interrupted.
        kind = list(data.FORMATS)[case.number % len(data.FORMATS)]
        order = data.settings(rng, kind)

        def made(**speed: Any) -> Any:
            return fl.MinibatchSource(data.FORMATS[kind](case.data / "few"), **order, **speed)

        expected = data.in_order(made())
        source = made(**data.speed(rng))
        got: list[data.Item] = []
        size = rng.choice([2, 5, 25])
        what = f"{kind} with {order}, size {size}, interrupted"
        while True:
            before = json.dumps(source.state_dict())
            minibatch, interrupted = interrupter.call(lambda: source.next_minibatch(size), rng.random() * 0.0006)
            if interrupted:
                case.tally("interrupts")
                now = json.dumps(source.state_dict())
                if now != before:
                    # It had been created, but the caller did not get it.
                    source.load_state_dict(json.loads(before))
                    minibatch = source.next_minibatch(size)
                    if json.dumps(source.state_dict()) != now:
                        case.fail("out of place", f"{what}: stood neither before nor after a minibatch: {now}")
                        return None
                else:
                    continue
            if not minibatch:
                break
            got += data.items(minibatch)
        case.compare(what, expected, got)
        return None

    def _loader(self, case: Case, interrupter: Interrupter) -> None:
        rng = case.rng
        n = 60
        options: dict[str, Any] = {"seed": rng.randrange(1 << 64), "shuffle": True, "batch_size": rng.choice([1, 4])}
        workers: dict[str, Any] = rng.choice(
            [{}, {"num_workers": 2, "workers": "thread"}, {"num_workers": 2, "multiprocessing_context": "fork"}]
        )
        expected = [item for b in fl.DataLoader(items.Augmented(n), **options) for item in items.contents(b)]

        def made(state: Any = None) -> Any:
            fresh = fl.DataLoader(items.Augmented(n), **workers, **options)
            if state is not None:
                fresh.load_state_dict(state)
            return fresh, iter(fresh)

        loader, iterator = made()
        got: list[tuple[int, str]] = []
        what = f"a loader with {workers} and {options}, interrupted"
        left, anew = rng.randint(1, 30), rng.random() < 0.5
        while len(got) < n:
            place = loader.state_dict()
            call = functools.partial(next, iterator, None)
            batch, interrupted = interrupter.call(call, rng.random() * 0.003 if left else 60.0)
            if interrupted:
                left -= 1
                case.tally("interrupts")
                if loader.state_dict() != place:
                    # The batch had been delivered, but the caller did not get it.
                    loader, iterator = made(place)
                elif anew:
                    loader, iterator = made(loader.state_dict())
            elif batch is None:
                if loader.state_dict() == place and len(got) < n:
                    # An iterator may have ended after raising: the loader still knows where to continue.
                    loader, iterator = made(place)
                else:
                    break
            else:
                got += items.contents(batch)
        case.compare(what, expected, got)
