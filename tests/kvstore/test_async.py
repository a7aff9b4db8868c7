"""``dist_async`` with real processes: equal to one process, and continues when servers and workers die."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch

import feedline as fl
from feedline.kvstore import RefusedError
from feedline.kvstore.parameter_server import placement as parts
from feedline.kvstore.parameter_server import ray_cluster as cluster
from feedline.kvstore.parameter_server import store as async_store
from tests.docs.pages import IMPORTED_FROM, ROOT
from tests.kvstore import async_worker as program
from tests.warm import Python

pytestmark = [
    pytest.mark.frameworks("ray"),
    pytest.mark.slow,
    # Ray's own.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def ours():
    """A Ray for two workers, which this process joins."""
    with fl.kvstore.AsyncCluster(workers=2, servers=2, memory=256 << 20) as made, pytest.MonkeyPatch.context() as patch:
        for name, value in made.environment().items():
            patch.setenv(name, value)
        connection = cluster.RayConnection(made.address)
        try:
            yield made
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
    shared._timeout_s = 30.0
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
    text = worker.communicate(timeout=90)[0]
    assert worker.returncode == 0, text
    return json.loads(text.splitlines()[-1])


def alone(name, **options):
    """A store of only this process."""
    return fl.kvstore.create("dist_async", name=name, **{"workers": 1, "servers": 1, "timeout": 30, **options})


def process_of(store, server):
    link = store._links[server]
    return int(link.answered(link.ask("greet", "nobody"), time.monotonic() + 30).place.rsplit(" ", 1)[1])


def kill(pid):
    os.kill(pid, signal.SIGKILL)


# ---- as in one process ----------------------------------------------------------------------------------------


def script(store):
    """Every verb; what came out."""
    found = []
    table = torch.arange(40.0).view(10, 4)
    store.init(["t", "n", "i"], [table, torch.tensor(1.5), torch.arange(6)])
    store.push(["i", "n"], [torch.ones(6, dtype=torch.int64), [torch.tensor(1.0), torch.tensor(2.0)]])
    some = torch.sparse_coo_tensor([[7, 0, 7]], torch.ones(3, 4), (10, 4), check_invariants=True)
    store.push("t", [some, torch.ones(10, 4)])
    out, half, number = torch.empty(10, 4), torch.empty(10, 4, dtype=torch.float64), torch.empty(())
    store.pull(["n", "t"], [number, [out, half]])
    found += [out.clone(), half.clone(), number.clone()]
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
    return [*found, out, rows, wide, sparse.to_dense(), fresh]


def test_does_what_one_process_does(store):
    with fl.kvstore.create("local") as local:
        for found, expected in zip(script(store), script(local), strict=True):
            assert torch.equal(found, expected)


def test_states_are_those_of_one_process(store, tmp_path):
    keys, values, gradients = ["x", "y"], [torch.ones(10, 4), torch.ones(3)], [torch.randn(10, 4), torch.randn(3)]
    outs, expected = ([torch.empty(10, 4), torch.empty(3)] for _ in range(2))
    with fl.kvstore.create("local") as local:
        for one in (store, local):
            one.init(keys, values)
            one.set_optimizer("momentum", learning_rate=0.5)
            one.push(keys, gradients)
            one.save_optimizer_states(tmp_path / one.type, dump_optimizer=True)
        store.load_optimizer_states(tmp_path / "local")
        local.load_optimizer_states(tmp_path / "dist_async")
        for one, to in ((store, outs), (local, expected)):
            one.pushpull(keys, gradients, to)
    for found, other in zip(outs, expected, strict=True):
        assert torch.equal(found, other)
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
    for key, one, total in zip(keys, sent, pushed, strict=True):
        pieces = store._entries[key].parts
        left = torch.cat([store._encoder._residuals[key, part.server][0] for part in pieces])
        assert one.any()
        assert torch.equal(one + left, total)


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
        store.push("w", torch.ones(2))  # not waited for: on a busy machine it says so itself, else the next call does
        store.barrier()
    store.barrier()


# ---- deaths ---------------------------------------------------------------------------------------------------


def test_a_push_that_comes_again_is_taken_once(store):
    store.init("again", torch.zeros(10))
    store.set_optimizer("test")
    store.push("again", torch.ones(10))
    for link in store._links:
        link.drain(time.monotonic() + 30)
        link._sent -= 1
    store.pull("again", out := torch.empty(10))
    assert out.tolist() == [1] * 10


def test_a_function_comes_back_with_its_server(store):
    store.init("function", torch.zeros(10))
    store.set_updater(lambda key, merged, stored: stored.sub_(merged))
    store.push("function", torch.ones(10))
    kill(process_of(store, 0))
    store.push("function", torch.ones(10))
    store.pull("function", out := torch.empty(10))
    assert out.tolist() == [-2] * 10


def test_what_was_lost_is_counted(store):
    """A full log: the store counts exactly the pushes that are missing in the end."""
    store.init("lost", torch.zeros(()))
    store.set_optimizer("test")
    (part,) = store._entries["lost"].parts
    store._links[part.server]._log_bytes = 0
    for _ in range(5):
        store.push("lost", torch.tensor(1.0))
    kill(process_of(store, part.server))
    for _ in range(5):
        store.push("lost", torch.tensor(1.0))
    store.pull("lost", out := torch.empty(()))
    store._links[part.server]._log_bytes = 1 << 20
    assert store.lost_pushes > 0
    assert out == 10 - store.lost_pushes


def test_a_hanging_server_is_an_error_that_names_it(store):
    store.init("hangs", torch.ones(10))
    process = process_of(store, 0)
    os.kill(process, signal.SIGSTOP)
    store._timeout_s = 1.0
    try:
        with pytest.raises(fl.StoreError, match=r"server 0 of 2.*in time"):
            store.pull("hangs", torch.empty(10))
    finally:
        os.kill(process, signal.SIGCONT)
        store._timeout_s = 30.0
    store.pull("hangs", out := torch.empty(10))
    assert out.tolist() == [1] * 10


def test_a_coordinator_that_was_killed_learns_who_works(store):
    sys.modules["ray"].kill(store._membership._coordinator, no_restart=False)
    store.barrier()
    store.barrier()


def test_two_workers_and_two_servers_whatever_dies(ours):
    """Workers converge although two servers are killed, and a worker, which another one replaces."""
    other = start("works", "pair")
    with fl.kvstore.create("dist_async", name="pair", timeout=30, every=0.2) as store:
        assert program.descend(store) == pytest.approx([0, 1, 2, 3, 4], abs=0.02)
        program.prepare(store)
        servers_die(store)
        other_dies(store, other)


def servers_die(store):
    killed = []
    for number in range(program.PUSHES):
        program.push(store, 1)
        if number in (20, 60):
            killed.append(process_of(store, number // 40))
            kill(killed[-1])
        time.sleep(program.PAUSE)
    store.barrier()
    # Nothing lost, nothing twice.
    assert program.pulled(store) == [[2 * program.PUSHES]] * 3
    assert store.lost_pushes == 0
    assert killed[0] != process_of(store, 0)
    store.barrier()


def other_dies(store, other):
    rank = 1 - store.rank
    assert other.wait(60) == -signal.SIGKILL
    *_, told = other.stdout.read().splitlines()  # Ray may have written lines before
    assert json.loads(told) == {"rank": rank, "lost": 0, "pulled": [[2 * program.PUSHES]] * 3}
    other.stdout.close()
    program.push(store, 1)  # it waits for nobody
    assert program.pulled(store)[0][0] > 2 * program.PUSHES
    with pytest.raises(fl.StoreError, match=rf"missing rank {rank}, which sent no heartbeat"):
        store.barrier()
    said(start("inherits", "pair", RANK=str(rank)))
    assert program.pulled(store) == [[2 * program.PUSHES + 1 + 5]] * 3


def test_ranks_and_worker_0(ours):
    with alone("ranks", workers=2, rank=1) as store:
        with pytest.raises(fl.StoreError, match=r"rank 1 is taken by .*process"):
            alone("ranks", workers=2, rank=1, timeout=3)
        with pytest.raises(RefusedError, match="expected 2 workers, as the first worker set, got 3"):
            alone("ranks", workers=3, rank=0)
        with pytest.raises(fl.StoreError, match="rank 2 is not one of 2"):
            alone("ranks", workers=3, rank=2)
        process_of(store, 0)  # it has started
        store._timeout_s = 1.0
        with pytest.raises(fl.StoreError, match="worker 0 to initialise key 'w'"):
            store.init("w", torch.zeros(2))
        with pytest.raises(fl.StoreError, match="missing rank 0, which has"):
            store.barrier()
        store._timeout_s = 30.0


def test_the_last_worker_ends_the_servers(ours):
    with alone("last") as store:
        store.init("w", torch.zeros(2))
        process, folder = process_of(store, 0), Path(store._membership.folder)
        assert list(folder.iterdir())
        assert folder.stat().st_mode & 0o077 == 0
    assert gone([process])
    assert not folder.exists()
    with pytest.raises(RefusedError, match="closed"):
        store.push("w", torch.ones(2))


# ---- access, and leftovers ------------------------------------------------------------------------------------


def gone(processes):
    """Return whether the processes end within some seconds."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        left = [pid for pid in processes if running(pid)]
        if not left:
            return True
        time.sleep(0.1)
    return False


def running(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_without_the_token_nobody_comes_in(ours, tmp_path):
    wrong = tmp_path / "token"
    wrong.write_text("0" * 64)
    found = said(start("joins", "token", RAY_AUTH_TOKEN_PATH=str(wrong)))
    assert found["kind"] == "StoreError"
    assert "the token" in found["error"]


def test_off_loopback_only_with_a_token(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RefusedError, match="a token"):
        cluster._check_token("192.0.2.1:6379")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(RefusedError, match="a token"):
        cluster._check_token("192.0.2.1:6379")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    cluster._check_token("192.0.2.1:6379")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(RefusedError, match="a token"):
        cluster._check_token("192.0.2.1:6379")


def test_addresses():
    assert cluster.is_loopback("127.0.0.1:6379")
    assert cluster.is_loopback("[::1]:6379")
    assert not cluster.is_loopback("192.0.2.1:6379")
    for wrong in ("auto", "127.0.0.1", ":6379", "127.0.0.1:port"):
        with pytest.raises(RefusedError, match="an address such as"):
            cluster.is_loopback(wrong)


def test_it_listens_on_loopback_alone(ours):
    """Every address on which a process of our Ray listens."""
    from feedline.interop.ray_supervisor import descendants

    sockets = set()
    for pid in [ours._ray.supervisor, *descendants(ours._ray.supervisor)]:
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


def test_a_killed_driver_leaves_nothing_behind(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("RAY_", "FEEDLINE_STORE_"))]:
        monkeypatch.delenv(name)
    driver = start("waits", "own")
    found = json.loads(driver.stdout.readline())
    assert len(found["processes"]) > 4
    assert Path(found["folder"]).stat().st_mode & 0o077 == 0
    assert all(running(pid) for pid in found["processes"][:1])
    driver.kill()
    driver.wait()
    driver.stdout.close()
    assert gone(found["processes"])
    until = time.monotonic() + 10
    while Path(found["folder"]).exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert not Path(found["folder"]).exists()


def test_without_ray_the_error_names_the_extra():
    found = said(start("without_ray", "none"))
    assert found["kind"] == "ModuleNotFoundError"
    assert "feedline[async]" in found["error"]


def test_several_workers_need_an_address(monkeypatch):
    monkeypatch.delenv(cluster.ADDRESS, raising=False)
    with pytest.raises(RefusedError, match="AsyncCluster"):
        async_store.AsyncStore(workers=2)


def test_print_stays_python_s(shared):
    """Ray would replace the stream with its own when it first shows a progress bar."""
    importlib.import_module("ray.experimental.tqdm_ray").instance()
    assert isinstance(print, types.BuiltinFunctionType)
