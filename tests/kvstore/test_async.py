"""``dist_async`` with real processes: it equals one process, and continues when servers and workers die.

One Ray serves all tests except the one that ends a driver. Messages, deaths at each message, ranks and barriers are
tested without Ray, in `parameter_server/` and `test_barrier`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import feedline as fl
from feedline.errors import install_line
from feedline.kvstore import RefusedError
from feedline.kvstore.parameter_server import placement as parts
from feedline.kvstore.parameter_server import ray_cluster as cluster
from feedline.kvstore.parameter_server import server
from feedline.kvstore.parameter_server import store as async_store
from tests.docs.pages import IMPORTED_FROM, ROOT
from tests.feed.workers.tasks import alive, eventually
from tests.inside import disconnect, fall_silent, forget_a_push, held_back, links_of, membership_of, supervisor_of
from tests.warm import Python

pytestmark = [
    pytest.mark.frameworks("ray"),
    pytest.mark.slow,
    pytest.mark.timeout(900),  # processes of Ray take minutes to start on a busy machine
    # Ray's own.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def ours():
    """A Ray for two workers, which this process joins."""
    with (
        fl.kvstore.AsyncCluster(workers=2, servers=2, memory=256 << 20) as new_cluster,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in new_cluster.environment().items():
            patch.setenv(name, value)
        connection = cluster.RayConnection(new_cluster.address)
        try:
            yield new_cluster
        finally:
            connection.close()


@pytest.fixture(scope="module")
def shared(ours):
    """A store of only this process on two servers, shared by tests that use different keys."""
    with alone("shared", servers=2) as store:
        yield store


@pytest.fixture
def store(shared, monkeypatch):
    monkeypatch.setattr(parts, "SPLIT_ELEMENTS", 8)  # larger arrays are split over both servers
    shared.set_updater(None)
    yield shared
    shared.set_gradient_compression(None)


def start(what, name, environment=None, **more):
    return Python(
        ["-m", "tests.kvstore.async_worker", what, name],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": IMPORTED_FROM, **(environment or {}), **more},
    )


def said(worker):
    text = worker.communicate()[0]
    assert worker.returncode == 0, text
    return json.loads(text.splitlines()[-1])


#: Small and large keys, of which the last is split over the servers.
SHAPES, PUSHES = {"a": (3,), "b": (), "c": (2, 50_000)}, 40


def descend(store):
    """Solve least squares by SGD on this worker's share of the data. Return the solution."""
    rng = torch.Generator().manual_seed(store.rank)
    x = torch.randn(400, 5, generator=rng)
    y = x @ torch.arange(5.0)
    w = torch.zeros(5)
    store.broadcast("w", w, out=w)
    store.set_optimizer("sgd", learning_rate=0.05, rescale_grad=1 / 32)
    for step in range(200):
        rows = slice(step * 32 % 384, step * 32 % 384 + 32)
        store.pushpull("w", x[rows].T @ (x[rows] @ w - y[rows]), out=w)
    store.barrier()
    store.pull("w", w)
    return w.tolist()


def prepare(store):
    """The keys of `SHAPES`, and exact sums."""
    store.init(list(SHAPES), [torch.zeros(shape) for shape in SHAPES.values()])
    store.set_optimizer("test")


def push(store, value):
    """Push ``value`` everywhere."""
    store.push(list(SHAPES), [torch.full(shape, float(value)) for shape in SHAPES.values()])


def pulled(store):
    """Return the value of each key, or a list if its elements differ."""
    outs = [torch.empty(shape) for shape in SHAPES.values()]
    store.pull(list(SHAPES), outs)
    return [out.unique().tolist() for out in outs]


def alone(name, **options):
    """A store of only this process."""
    return fl.kvstore.create("dist_async", name=name, **{"workers": 1, "servers": 1, **options})


def process_of(store, index):
    link = links_of(store)[index]
    return int(link.wait_for(link.ask("greet", "nobody")).place.rsplit(" ", 1)[1])


def kill(pid):
    os.kill(pid, signal.SIGKILL)


# ---- as in one process ----------------------------------------------------------------------------------------


def script(store):
    """Use every verb, and return the results."""
    results = []
    table = torch.arange(40.0).view(10, 4)
    store.init(["t", "n", "i"], [table, torch.tensor(1.5), torch.arange(6)])
    store.push(["i", "n"], [torch.ones(6, dtype=torch.int64), [torch.tensor(1.0), torch.tensor(2.0)]])
    some = torch.sparse_coo_tensor([[7, 0, 7]], torch.ones(3, 4), (10, 4), check_invariants=True)
    store.push("t", [some, torch.ones(10, 4)])
    out, half, number = torch.empty(10, 4), torch.empty(10, 4, dtype=torch.float64), torch.empty(())
    store.pull(["n", "t"], [number, [out, half]])
    results += [out.clone(), half.clone(), number.clone()]
    store.set_optimizer("adam", learning_rate=0.1)
    store.push(["t", "n"], [some, torch.tensor(-1.0)])
    store.pushpull("t", [torch.ones(10, 4), torch.ones(4, 10).T], out)
    ids = torch.tensor([[9, 0], [0, 4]], dtype=torch.int32)
    rows, wide, sparse = (
        torch.empty(2, 2, 4),
        torch.empty(2, 2, 4, dtype=torch.float64),
        torch.sparse_coo_tensor(size=(10, 4), check_invariants=True),
    )
    store.row_sparse_pull("t", [rows, wide], ids)
    store.row_sparse_pull(["t"], [sparse], [torch.tensor([3, 3, 8])])
    fresh = torch.empty(2)
    store.broadcast("late", torch.tensor([1.0, 2.0]), out=fresh)
    store.set_updater(lambda key, merged, stored: stored.mul_(2).add_(merged))
    store.pushpull("late", torch.ones(2), fresh)
    return [*results, out, rows, wide, sparse.to_dense(), fresh]


def test_does_what_one_process_does(store):
    with fl.kvstore.create("local") as local:
        for actual, expected in zip(script(store), script(local), strict=True):
            assert torch.equal(actual, expected)


def test_states_match_one_process(store, tmp_path):
    keys, values, gradients = ["x", "y"], [torch.ones(10, 4), torch.ones(3)], [torch.randn(10, 4), torch.randn(3)]
    outs, expected = ([torch.empty(10, 4), torch.empty(3)] for _ in range(2))
    with fl.kvstore.create("local") as local:
        for store_of_kind in (store, local):
            store_of_kind.init(keys, values)
            store_of_kind.set_optimizer("momentum", learning_rate=0.5)
            store_of_kind.push(keys, gradients)
            store_of_kind.save_optimizer_states(tmp_path / store_of_kind.type, dump_optimizer=True)
        store.load_optimizer_states(tmp_path / "local")
        local.load_optimizer_states(tmp_path / "dist_async")
        for store_of_kind, to in ((store, outs), (local, expected)):
            store_of_kind.pushpull(keys, gradients, to)
    for actual, other in zip(outs, expected, strict=True):
        assert torch.equal(actual, other)
    store.set_optimizer("sgd")
    with pytest.raises(fl.StateError, match="momentum"):
        store.load_optimizer_states(tmp_path / "local")


def test_numbers_that_the_servers_have_do_not_change_unheard(store):
    rule = fl.kvstore.optimizer("sgd", learning_rate=1.0)
    store.set_optimizer(rule)
    with pytest.raises(RefusedError, match="dist_async"):
        rule.learning_rate = 0.5
    assert rule.learning_rate == 1.0
    store.set_optimizer("sgd")
    rule.learning_rate = 0.5


def test_what_was_sent_and_the_residual_are_what_was_pushed(store):
    keys, shapes = ["q", "r"], [(5, 2), (3,)]
    store.init(keys, [torch.zeros(shape) for shape in shapes])
    store.set_optimizer("test")
    store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    pushed = [torch.zeros(shape) for shape in shapes]
    for _ in range(6):
        gradients = [torch.randint(-8, 9, shape).float() / 8 for shape in shapes]
        store.push(keys, gradients)
        for total, gradient in zip(pushed, gradients, strict=True):
            total += gradient
    sent = [torch.empty(shape) for shape in shapes]
    store.pull(keys, sent)
    for key, pulled, total in zip(keys, sent, pushed, strict=True):
        assert pulled.any()
        assert torch.equal(pulled + held_back(store, key), total)


def test_refused_calls_change_nothing(store):
    def fails(key, merged, stored):
        stored += merged
        raise ZeroDivisionError("as it should")

    store.init("w", torch.zeros(2))
    for call, kind, text in (
        (lambda: store.init("w", torch.zeros(2)), RefusedError, "initialised already"),
        (lambda: store.init([3], [torch.zeros(2)]), RefusedError, "type str"),
        (lambda: store.push("nobody", torch.zeros(2)), RefusedError, "call init first"),
        (lambda: store.push("w", torch.zeros(3)), RefusedError, "shape"),
        (lambda: store.pull("w", torch.zeros(2, 1)), RefusedError, "shape"),
        (lambda: store.row_sparse_pull("w", torch.zeros(1), torch.tensor([2])), RefusedError, "rows 0 to 1"),
        (lambda: store.save_optimizer_states("nowhere"), RefusedError, "call set_optimizer first"),
        (lambda: store.set_updater(3), TypeError, "function"),
    ):
        with pytest.raises(kind, match=text):
            call()
    store.set_updater(fails)
    with pytest.raises(ZeroDivisionError, match="as it should") as error:
        store.pushpull("w", torch.ones(2), out := torch.empty(2))
    assert "in server" in "".join(error.value.__notes__)
    store.pull("w", out)
    assert out.tolist() == [0, 0]
    with pytest.raises(ZeroDivisionError):
        store.push(
            "w", torch.ones(2)
        )  # not waited for: on a busy machine this call raises the error, else the next one
        store.barrier()
    store.barrier()


# ---- deaths ---------------------------------------------------------------------------------------------------


def test_a_push_that_comes_again_is_taken_once(store):
    store.init("again", torch.zeros(10))
    store.set_optimizer("test")
    store.push("again", torch.ones(10))
    for link in links_of(store):
        link.drain()
        forget_a_push(link)
    store.pull("again", out := torch.empty(10))
    assert out.tolist() == [1] * 10


def test_a_working_server_beats_and_a_stopped_one_does_not(store, monkeypatch, tmp_path):
    begun, until = tmp_path / "begun", tmp_path / "until"

    def waits(key, merged, stored):
        begun.touch()
        while not until.exists():
            time.sleep(0.01)

    def beat():
        return link.actor.beat.options(concurrency_group=server.BEATS).remote()

    ray = sys.modules["ray"]
    store.init("hangs", torch.ones(10))
    link = links_of(store)[0]
    store.set_updater(waits)
    store.push("hangs", torch.ones(10))
    assert eventually(begun.exists)
    ray.get(beat())  # in addition to the updater
    until.touch()
    process = process_of(store, 0)
    os.kill(process, signal.SIGSTOP)
    monkeypatch.setattr(link, "timeout_s", 1.0)
    try:
        with pytest.raises(fl.StoreError, match=r"server 0 of 2.*in time"):
            store.pull("hangs", torch.empty(10))
    finally:
        os.kill(process, signal.SIGCONT)
        monkeypatch.undo()
    store.pull("hangs", out := torch.empty(10))
    assert out.tolist() == [1] * 10


def test_a_coordinator_that_was_killed_learns_who_works(store):
    sys.modules["ray"].kill(membership_of(store).coordinator, no_restart=False)
    store.barrier()
    store.barrier()


def test_two_workers_and_two_servers_with_deaths(ours):
    """Workers converge although both servers die, a silent one is replaced, and the last worker ends everything."""
    with contextlib.ExitStack() as ends:
        stores = both(lambda rank: fl.kvstore.create("dist_async", name="pair", rank=rank, every=0.2, timeout=600))
        ends.callback(stores[0].close)
        for weights in both(lambda rank: descend(stores[rank])):
            assert weights == pytest.approx([0, 1, 2, 3, 4], abs=0.02)
        both(lambda rank: prepare(stores[rank]))
        servers_die(stores)
        other_dies(stores, ends)
        store = stores[0]
        processes, folder = [process_of(store, server) for server in range(2)], Path(membership_of(store).folder)
        assert list(folder.iterdir())
        assert folder.stat().st_mode & 0o077 == 0
    assert gone(processes)
    assert not folder.exists()
    with pytest.raises(RefusedError, match="closed"):
        store.push("a", torch.ones(3))


def both(work):
    """Call a function as worker 0 and as worker 1, in threads, and return the results."""
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(work, range(2)))


def servers_die(stores):
    before = [process_of(stores[0], server) for server in range(2)]

    def pushes(rank):
        for number in range(PUSHES):
            push(stores[rank], 1)
            if rank == 0 and number in (PUSHES // 4, PUSHES // 2):
                kill(before[number // (PUSHES // 2)])
        stores[rank].barrier()
        # No push is lost or applied twice.
        assert pulled(stores[rank]) == [[2 * PUSHES]] * 3
        assert stores[rank].lost_pushes == 0

    both(pushes)
    assert not set(before) & {process_of(stores[0], server) for server in range(2)}


def other_dies(stores, ends):
    """Make the worker silent, so that to others it looks killed."""
    store, second = stores
    fall_silent(second)
    push(store, 1)  # it waits for no other worker
    assert pulled(store)[0][0] > 2 * PUSHES
    with pytest.raises(fl.StoreError, match="missing rank 1, which sent no heartbeat"):
        store.barrier()
    heir = fl.kvstore.create("dist_async", name="pair", rank=1, timeout=600)
    ends.callback(heir.close)
    prepare(heir)
    for _ in range(5):
        push(heir, 1)
    both(lambda rank: (store, heir)[rank].barrier())
    assert pulled(store) == [[2 * PUSHES + 1 + 5]] * 3
    disconnect(second)  # only its connection


# ---- access, and leftovers ------------------------------------------------------------------------------------


def gone(processes):
    """Return whether the processes end within a generous time."""
    return eventually(lambda: not any(map(alive, processes)))


def test_without_the_token_nobody_comes_in(ours, tmp_path):
    wrong = tmp_path / "token"
    wrong.write_text("0" * 64)
    answer = said(start("joins", "token", RAY_AUTH_TOKEN_PATH=str(wrong)))
    assert answer["kind"] == "StoreError"
    assert "the token" in answer["error"]


def test_off_loopback_only_with_a_token(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RefusedError, match="a token"):
        cluster.check_token("192.0.2.1:6379")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(RefusedError, match="a token"):
        cluster.check_token("192.0.2.1:6379")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    cluster.check_token("192.0.2.1:6379")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(RefusedError, match="a token"):
        cluster.check_token("192.0.2.1:6379")


def test_addresses():
    assert cluster.is_loopback("127.0.0.1:6379")
    assert cluster.is_loopback("[::1]:6379")
    assert not cluster.is_loopback("192.0.2.1:6379")
    for wrong in ("auto", "127.0.0.1", ":6379", "127.0.0.1:port"):
        with pytest.raises(RefusedError, match="an address such as"):
            cluster.is_loopback(wrong)


def test_it_listens_only_on_loopback(ours):
    """Checks every address on which a process of our Ray listens."""
    from feedline.system.descendants import descendants

    sockets = set()
    for pid in [supervisor_of(ours), *descendants(supervisor_of(ours))]:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    sockets.add(os.readlink(link))
    open_to = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                open_to.add(fields[1].rpartition(":")[0])
    assert open_to
    # 127.0.0.1, and the same as an IPv6 address.
    assert open_to <= {"0100007F", "0000000000000000FFFF00000100007F"}


def test_a_killed_driver_leaves_nothing(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("RAY_", "FEEDLINE_STORE_"))]:
        monkeypatch.delenv(name)
    driver = start("waits", "own")
    started = json.loads(driver.stdout.readline())
    assert len(started["processes"]) > 4
    assert Path(started["folder"]).stat().st_mode & 0o077 == 0
    assert all(alive(pid) for pid in started["processes"][:1])
    driver.kill()
    driver.wait()
    driver.stdout.close()
    assert gone(started["processes"])
    assert eventually(lambda: not Path(started["folder"]).exists())


def test_a_shutdown_of_ray_is_an_error_and_starts_no_other_ray(monkeypatch):
    """Calls of Ray without a connection start a Ray."""
    for name in [name for name in os.environ if name.startswith(("RAY_", "FEEDLINE_STORE_"))]:
        monkeypatch.delenv(name)
    outcome = said(start("shuts_down", "shut"))
    assert len(outcome["errors"]) == 3  # a second close does nothing
    assert all("ray.shutdown() was called" in error for error in outcome["errors"])
    assert not outcome["started"]


def test_without_ray_the_error_names_the_extra(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else find(name, *rest))
    with pytest.raises(ModuleNotFoundError, match=re.escape(install_line("async"))):
        fl.kvstore.create("dist_async")


def test_several_workers_need_an_address(monkeypatch):
    monkeypatch.delenv(cluster.ADDRESS, raising=False)
    with pytest.raises(RefusedError, match="AsyncCluster"):
        async_store.AsyncStore(workers=2)


def test_print_stays_python_s(shared):
    """Ray would replace the stream with its own when it first shows a progress bar."""
    importlib.import_module("ray.experimental.tqdm_ray").instance()
    assert isinstance(print, types.BuiltinFunctionType)
