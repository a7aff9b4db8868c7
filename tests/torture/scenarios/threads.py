"""Several threads at one source, one loader, one store."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import feedline as fl
from tests.torture import data, items
from tests.torture.case import Case, told
from tests.torture.scenario import Scenario


class Threads(Scenario):
    """Everything once, or an error that names the threads. Nothing twice, nothing lost."""

    name = "threads"
    asks = "are several threads at one feed served in turn, or refused?"

    def run(self, case: Case) -> None:
        sys.setswitchinterval(1e-5)
        kind = ("source", "source", "loader", "store")[case.number % 4]
        {"source": self._source, "loader": self._loader, "store": self._store}[kind](case)

    def _source(self, case: Case) -> None:
        rng = case.rng
        kind = rng.choice(list(data.FORMATS))
        order = data.settings(rng, kind)

        def made() -> Any:
            return fl.MinibatchSource(data.FORMATS[kind](case.data / "many"), **order)

        expected = data.in_order(made())
        source = made()
        size = rng.choice([3, 20, 100])
        got = self._together(case, f"{kind} with {order}", lambda: source.next_minibatch(size), rng.randint(2, 8))
        places = [(m.position.samples, m.position.sweep, n, data.items(m)) for n, m in enumerate(got)]
        delivered = [item for *_, found in sorted(places, key=lambda place: place[:3]) for item in found]
        delivered += data.in_order(source)
        case.compare(f"{kind} with {order}, size {size}, in several threads", expected, delivered)

    def _loader(self, case: Case) -> None:
        rng = case.rng
        options: dict[str, Any] = {"seed": rng.randrange(1 << 64), "shuffle": True}
        workers = rng.choice([{}, {"num_workers": 2, "workers": "thread"}])
        expected = [i for b in fl.DataLoader(items.Augmented(200), batch_size=4, **options) for i in items.contents(b)]
        iterator = iter(fl.DataLoader(items.Augmented(200), batch_size=4, **workers, **options))
        got = self._together(case, f"a loader with {workers}", lambda: next(iterator, None), rng.randint(2, 8))
        delivered = [item for batch in got for item in items.contents(batch)]
        delivered += [item for batch in iterator for item in items.contents(batch)]
        # A batch does not contain its position, and threads may record it late.
        case.compare(f"a loader with {workers}, in several threads", sorted(expected), sorted(delivered))

    def _store(self, case: Case) -> None:
        import torch

        store = fl.kvstore.create("local")
        keys = ["a", "b", "c"]
        store.init(keys, [torch.zeros(50) for _ in keys])
        store.set_updater(lambda key, merged, stored: stored.add_(merged))
        threads, pushes = case.rng.randint(2, 6), 40
        failures: list[BaseException] = []

        def push() -> None:
            try:
                for _ in range(pushes):
                    store.push(keys, [torch.ones(50) for _ in keys])
            except Exception as error:
                failures.append(error)

        running = [threading.Thread(target=push) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        for error in failures:
            case.fail("foreign", f"a store in {threads} threads: {told(error)}")
        outs = [torch.empty(50) for _ in keys]
        store.pull(keys, outs)
        case.tally("compared", threads * pushes)
        if any(out.unique().tolist() != [threads * pushes] for out in outs) and not failures:
            case.fail("lost", f"{threads} threads pushed {pushes} times: {[out.unique().tolist()[:4] for out in outs]}")

    def _together(self, case: Case, what: str, take: Callable[[], Any], threads: int) -> list[Any]:
        """Return the results of several threads until the end, or until they are refused."""
        case.doing(f"{what} in {threads} threads")
        got: list[Any] = []
        begin = threading.Barrier(threads)

        def loop() -> None:
            begin.wait()
            refusals = 0
            while refusals < 50:
                try:
                    found = take()
                except Exception as error:
                    refusals += 1
                    if not isinstance(error, (fl.FeedlineError, RuntimeError)) or "thread" not in str(error):
                        case.fail("foreign", f"{what} in {threads} threads: {told(error)}")
                        return
                    case.tally("refused")
                    continue
                if not (found if not isinstance(found, (list, tuple)) else len(found)):
                    return
                got.append(found)

        running = [threading.Thread(target=loop, name=f"taker {k}") for k in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return got
