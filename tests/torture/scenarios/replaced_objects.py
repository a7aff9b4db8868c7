"""Objects that are replaced by others of the same length while they are read, at random moments and stores."""

from __future__ import annotations

import importlib.util
import io
import itertools
from collections.abc import Callable, Iterator

import numpy as np

import feedline as fl
from tests.servers.web import WebServer
from tests.torture.case import Case
from tests.torture.scenario import Scenario

LEAST = 1 << 20


class ReplacedObjects(Scenario):
    """The values of a sweep are all of one version, or there is an error. A later run has the last version."""

    name = "replaced-objects"
    asks = "are values of a replaced object ever mixed with old ones, or served for good?"

    def missing(self) -> str | None:
        return None if importlib.util.find_spec("fsspec") else "the package fsspec"

    def run(self, case: Case) -> None:
        from feedline.feed.remote import object_cache

        object_cache.MIN_CACHE_BYTES = LEAST
        rng, rows = case.rng, case.rng.randrange(1200, 2400)
        with WebServer({"/x.npy": numbers(0, rows)}) as web:
            web.etag = rng.random() < 0.3
            budget = rng.choice([LEAST, 2 * LEAST, 64 * LEAST])
            for version in range(1, 6):
                requests = itertools.count()
                replaced_at = rng.randrange(30)

                def replace(version: int = version) -> None:
                    web.objects["/x.npy"] = numbers(version, rows)
                    web.modified = f"Mon, {version + 2:02} Nov 2026 10:00:00 GMT"

                def replace_in_time(
                    _: object,
                    replace: Callable[[], None] = replace,
                    requests: Iterator[int] = requests,
                    replaced_at: int = replaced_at,
                ) -> None:
                    if next(requests) == replaced_at:  # once, for any timing of the server's threads
                        replace()

                web.before = replace_in_time
                case.doing(f"a run in which version {version} comes")
                found = case.attempt("a run", lambda: self._versions(case, web, budget), (fl.DataError,))
                if isinstance(found, set) and len(found) > 1:
                    case.fail("silent", f"values of versions {sorted(found)} in one run")
                replace()  # if it has made fewer requests
                web.before = lambda _: None
                now = case.attempt("a later run", lambda: self._versions(case, web, budget))
                if isinstance(now, set) and now != {version}:
                    case.fail("silent", f"a later run has values of versions {sorted(now)}, rather than {version}")
                case.tally("replaced objects")

    def _versions(self, case: Case, web: WebServer, budget: int) -> set[int]:
        """Return the versions that the values of a run are of."""
        corpus = fl.open_corpus(
            f"{web.url}/x.npy", remote=fl.Remote(cache=case.folder / "cache", cache_bytes=budget, deadline_s=20.0)
        )
        try:
            order = {"shuffle": fl.Window(bytes=LEAST), "seed": case.rng.randrange(9), "max_sweeps": 2, "read_ahead": 0}
            with fl.MinibatchSource(corpus, **order) as source:
                values = [np.unique(minibatch["x"].rows) for minibatch in source.minibatches(100)]
        finally:
            corpus.close()
        return set(np.concatenate(values).astype(int).tolist())


def numbers(version: int, rows: int) -> bytes:
    """Return an array of a version. All have one length."""
    file = io.BytesIO()
    np.save(file, np.full((rows, 512), version, np.float32))
    return file.getvalue()
