"""Lines that are slow, break off and fall silent for a while: a steady flow is delivered, each byte once."""

from __future__ import annotations

import importlib.util
import json
import time

import feedline as fl
from tests.servers.web import Asked, WebServer
from tests.torture.case import Case
from tests.torture.scenario import Scenario


class SlowLines(Scenario):
    """All rows come, whole and in order, of a line that is slower than a request may be silent per piece."""

    name = "slow-lines"
    asks = "does a slow but steady line deliver all, each byte once?"

    def missing(self) -> str | None:
        return None if importlib.util.find_spec("obstore") else "the package obstore"

    def run(self, case: Case) -> None:
        rng = case.rng
        count, pad = rng.randrange(300, 900), "x" * rng.randrange(100, 1500)
        content = "".join(json.dumps({"i": i, "pad": pad}) + "\n" for i in range(count)).encode()
        with WebServer({"/x.jsonl": content}) as web:
            web.piece = rng.choice([2 << 10, 8 << 10, 16 << 10])
            # A mebibyte takes two seconds, and all of it longer than the deadline.
            web.pause_s = web.piece * 2.0 / (1 << 20)
            silent = rng.sample(range(8), 2)

            def before(_: Asked) -> None:
                if len(web.log) - 1 in silent:
                    time.sleep(0.2)

            web.before = before
            rows = case.attempt("a slow line", lambda: self._rows(case, web))
            if isinstance(rows, list):
                case.compare("rows over a slow line", list(enumerate(range(count))), list(enumerate(rows)))
            if web.sent_bytes > 1.1 * len(content) + (64 << 10):
                case.fail("twice", f"{web.sent_bytes} bytes were sent of an object of {len(content)}")
            case.tally("bytes over slow lines", web.sent_bytes)

    def _rows(self, case: Case, web: WebServer) -> list[int]:
        streams = {"i": fl.Stream((), "int64"), "pad": fl.Stream(dtype="str")}
        corpus = fl.open_corpus(
            f"{web.url}/x.jsonl", streams=streams, remote=fl.Remote(cache=case.folder / "cache", deadline_s=1.5)
        )
        try:
            with fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1) as source:
                return [int(i) for minibatch in source.minibatches(50) for i in minibatch["i"].rows.ravel()]
        finally:
            corpus.close()
