"""Fixtures of the tests of remote data: a server with objects, a separate cache, comparisons of corpora."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import feedline as fl
from feedline.feed.remote import requests
from tests.servers.object_store import ObjectStore

pytest.importorskip("obstore", reason="obstore is not installed")


@pytest.fixture
def store():
    with ObjectStore() as server:
        yield server


@pytest.fixture(autouse=True)
def one_request_each(monkeypatch):
    """Nothing is asked a second time because a busy machine is slow, so that requests and bytes can be counted."""
    monkeypatch.setattr(requests.TRAFFIC, "hedged", 1 << 40)


@pytest.fixture
def options(store):
    """How to reach the server, and not to wait for it for long."""
    return {"storage_options": store.s3(), "deadline_s": 20.0}


@pytest.fixture
def opened(store, options, tmp_path):
    """Open an address in the bucket `b` of the server."""
    corpora = []

    def open_it(
        what: Any, cache: Any = None, cache_bytes: int = 1 << 30, deadline_s: float = 20.0, **streams: Any
    ) -> Any:
        names = [f"s3://b/{one}" for one in what] if isinstance(what, list) else f"s3://b/{what}"
        corpora.append(
            fl.open_corpus(
                names,
                streams=streams,
                remote=fl.Remote(cache or tmp_path / "cache", cache_bytes, **{**options, "deadline_s": deadline_s}),
            )
        )
        return corpora[-1]

    yield open_it
    for corpus in corpora:
        corpus.close()


@pytest.fixture
def interrupted():
    """A context in which Ctrl-C comes once something is so."""

    @contextlib.contextmanager
    def interrupt(when: Callable[[], bool]) -> Iterator[None]:
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.01):
                if when():
                    os.kill(os.getpid(), signal.SIGINT)
                    return

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()

    return interrupt


def delivered(corpus: Any, size: int = 7, **options: Any) -> list[Any]:
    """All sequences of a run as plain values, with their ordinals, minibatch by minibatch."""
    with fl.MinibatchSource(corpus, **{"max_sweeps": 2, "seed": 3, **options}) as source:
        return [plain(minibatch) for minibatch in source.minibatches(size)]


def plain(minibatch: Any) -> Any:
    """A minibatch as plain values."""
    values = {}
    for name in minibatch.schema:
        rows = minibatch[name].sequences()
        values[name] = [one.toarray().tolist() if hasattr(one, "toarray") else np.asarray(one).tolist() for one in rows]
    return minibatch.ids.tolist(), values
