"""Ctrl-C at any bytecode of a feed, in a program that goes on, as in a notebook."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import feedline as fl
from tests.torture import data, items
from tests.torture.case import Case
from tests.torture.scenario import Scenario


class Interrupts(Scenario):
    """After an interrupt the feed stands before the minibatch or after it, and what follows is what should."""

    name = "interrupts"
    asks = "is a feed whole after Ctrl-C anywhere in it?"

    def run(self, case: Case) -> None:
        rng = case.rng
        signal.signal(signal.SIGALRM, _interrupt)
        if case.number % 3 == 2:
            return self._loader(case)
        # Not a user's own source: it moves on as its author wrote it, whoever is interrupted.
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
            minibatch, interrupted = _interrupted(lambda: source.next_minibatch(size), rng.random() * 0.0006)
            if interrupted:
                case.tally("interrupts")
                now = json.dumps(source.state_dict())
                if now != before:
                    # It had been made: only that the caller did not get it.
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

    def _loader(self, case: Case) -> None:
        rng = case.rng
        n = 60
        options: dict[str, Any] = {"seed": rng.randrange(1 << 64), "shuffle": True, "batch_size": rng.choice([1, 4])}
        workers: dict[str, Any] = rng.choice(
            [{}, {"num_workers": 2, "workers": "thread"}, {"num_workers": 2, "multiprocessing_context": "fork"}]
        )
        expected = [item for b in fl.DataLoader(items.Augmented(n), **options) for item in items.contents(b)]
        loader = fl.DataLoader(items.Augmented(n), **workers, **options)
        got: list[tuple[int, str]] = []
        what = f"a loader with {workers}, interrupted"
        iterator = iter(loader)
        next_ = lambda: next(iterator, None)  # noqa: E731
        while len(got) < n:
            place = loader.state_dict().get("sequence", 0)
            batch, interrupted = _interrupted(next_, rng.random() * 0.002)
            if interrupted:
                case.tally("interrupts")
                now = loader.state_dict()
                if (now["sequence"], now["sweep"]) == (place, 0):
                    # An iterator may be over after it raised; the loader says where to go on.
                    fresh = fl.DataLoader(items.Augmented(n), **workers, **options)
                    fresh.load_state_dict(now)
                    loader, iterator = fresh, iter(fresh)
                    continue
                done = now["sequence"] if now["sweep"] == 0 else n
                fresh = fl.DataLoader(items.Augmented(n), **workers, **options)
                fresh.load_state_dict({**now, "sweep": 0, "sequence": place})
                loader, iterator = fresh, iter(fresh)
                while place < done:
                    found = items.contents(next(iterator))
                    place += len(found)
                    got += found
                continue
            if batch is None:
                break
            got += items.contents(batch)
        case.compare(what, expected, got)


_armed = False


def _interrupt(signum: int, frame: Any) -> None:
    if _armed:
        raise KeyboardInterrupt


def _interrupted(call: Callable[[], Any], seconds: float) -> tuple[Any, bool]:
    """What a call returns, if it is not interrupted after so long."""
    global _armed
    try:
        try:
            _armed = True
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
            found = call()
        finally:
            _armed = False
    except (KeyboardInterrupt, RuntimeError) as error:
        # What Python's own Condition makes of an interrupt while it takes its lock again.
        if isinstance(error, RuntimeError) and "un-acquired lock" not in str(error):
            raise
        return None, True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return found, False
