from __future__ import annotations

import gc

import pytest

from feedline.feed.workers import Pool
from tests.feed.workers.tasks import Gate, Task, alive, descriptors, eventually, segments


@pytest.fixture(scope="session", autouse=True)
def server():
    """Start multiprocessing's own servers, which stay until the end, so that tests do not count them."""
    with Pool(Task(), 1, method="forkserver") as pool, Pool(Task(), 1, method="spawn"):
        pool.result(pool.submit(("echo", 0)))


@pytest.fixture(autouse=True)
def nothing_left(server, collects_often, monkeypatch):
    """Check that no test leaves a process, a descriptor or shared memory."""
    pids = []
    start = Pool.__init__

    def noted(self, *args, **options):
        start(self, *args, **options)
        pids.extend(self.pids if options.get("kind") != "thread" else [])

    monkeypatch.setattr(Pool, "__init__", noted)
    gc.collect()
    before = len(descriptors()), segments()
    yield
    gc.collect()
    assert eventually(lambda: (len(descriptors()), segments()) <= before), (before, descriptors(), segments())
    assert eventually(lambda: not any(map(alive, pids)))


@pytest.fixture
def pool():
    with Pool(Task(), 2) as pool:
        yield pool


@pytest.fixture(params=["process", "thread"])
def either(request):
    with Pool(Task(), 2, kind=request.param) as pool:
        yield pool


@pytest.fixture
def gate(tmp_path):
    gate = Gate(tmp_path)
    yield gate
    gate.let_go()
