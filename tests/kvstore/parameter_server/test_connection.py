"""``dist_async`` above its messages: whichever message kills a server or the coordinator, a store ends as if none had.

Without Ray, and so without its processes: see `tests.kvstore.ray_double`.
"""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedline.errors import StoreError
from feedline.kvstore import RefusedError, optimizer
from feedline.kvstore.aligned import Layout
from feedline.kvstore.parameter_server import connection as link
from feedline.kvstore.parameter_server import coordinator, membership
from feedline.kvstore.parameter_server import placement as parts
from feedline.kvstore.parameter_server import server as server_module
from feedline.kvstore.parameter_server.connection import ServerConnection
from feedline.kvstore.parameter_server.server import Answer, Greeting, Server
from feedline.kvstore.parameter_server.shard import Shard
from feedline.kvstore.parameter_server.store import AsyncStore
from feedline.kvstore.parameter_server.wire_format import receive_buffer, to_buffer
from tests.effort import examples, stride
from tests.kvstore.ray_double import ADDRESS, AFTER, BEFORE, TAKEN, Ray

HOWS = (BEFORE, TAKEN, AFTER)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No waiting, and no fsync, as processes die here, but not machines."""
    for module in (link, membership):
        monkeypatch.setattr(module, "PAUSE_S", 0.0)
    monkeypatch.setattr(coordinator, "BEAT_S", 1e6)  # no test lives that long
    monkeypatch.setattr(server_module, "PAUSE_FACTOR", 0.0)  # every push begins a snapshot, if ``every`` permits it
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(parts, "SPLIT_ELEMENTS", 8)  # larger arrays are on both servers
    monkeypatch.delenv("RANK", raising=False)


def opened(folder, **options):
    return AsyncStore(
        address=ADDRESS, **{"workers": 1, "servers": 2, "timeout": 20.0, "snapshots": folder, "every": 1e9, **options}
    )


def failing(key, merged, stored):
    stored += merged
    if float(merged.flatten()[0]) == 13.0:
        raise ZeroDivisionError("as it should")


def script(store, folder, call=lambda what: what()):
    """Every verb, with numbers that add up exactly. Returns the result of each."""
    results = []

    def note(*tensors):
        results.append([tensor.tolist() for tensor in tensors])

    def fails(what):
        """Check that the error is raised once, by the call or by a call that waits."""
        for attempt in (what, store.barrier):
            try:
                call(attempt)
            except (ZeroDivisionError, StoreError) as error:
                results.append("failed" if "as it should" in str(error) else repr(error))
        call(store.barrier)

    table, out, number = torch.arange(20.0).view(5, 4), torch.empty(5, 4), torch.empty(())
    some = torch.sparse_coo_tensor([[3, 0, 3]], torch.ones(3, 4), (5, 4), check_invariants=True)
    call(lambda: store.init(["t", "n"], [table, torch.tensor(1.5)]))
    call(lambda: store.set_optimizer("momentum", learning_rate=1.0, momentum=0.5))
    for step in range(3):
        call(lambda step=step: store.push(["t", "n"], [torch.full((5, 4), float(step)), torch.tensor(1.0)]))
    call(lambda: store.pushpull("t", torch.ones(5, 4), out))
    note(out)
    call(lambda: store.push("t", some))
    call(lambda: store.pushpull(["n", "t"], [torch.tensor(2.0), some], [number, out]))
    note(number, out)
    rows = torch.empty(2, 4)
    call(lambda: store.row_sparse_pull("t", rows, torch.tensor([4, 0])))
    note(rows)
    call(lambda: store.save_optimizer_states(folder / "states", dump_optimizer=True))
    call(lambda: store.push("t", torch.ones(5, 4)))
    call(lambda: store.load_optimizer_states(folder / "states"))
    call(lambda: store.push("t", torch.ones(5, 4)))
    fresh = torch.empty(2)
    call(lambda: store.broadcast("late", torch.tensor([1.0, 2.0]), fresh))
    note(fresh)
    call(lambda: store.set_gradient_compression({"type": "2bit", "threshold": 0.5}))
    for _ in range(3):
        call(lambda: store.push("t", torch.full((5, 4), 0.25)))
    call(lambda: store.set_gradient_compression(None))
    call(lambda: store.set_updater(failing))
    call(lambda: store.push(["t", "n"], [torch.ones(5, 4), torch.tensor(1.0)]))
    fails(lambda: store.push("n", torch.tensor(13.0)))
    call(lambda: store.push("n", torch.tensor(1.0)))
    fails(lambda: store.pushpull("n", torch.tensor(13.0), number))
    call(lambda: store.pull(["t", "n"], [out, number]))
    note(out, number)
    assert store.lost_pushes == 0
    call(store.close)
    return results


def played(folder, dies=None, away=0, eager=False, every=1e9, call=lambda what: what()):
    """Run the script in a Ray whose actors die with these messages. Return the results, and the messages."""
    folder.mkdir()
    with Ray(dies, away, eager) as ray:
        return script(opened(folder, every=every), folder, call), ray.messages


@pytest.mark.parametrize("every", [0.0, 1e9])
@pytest.mark.parametrize(("how", "away", "eager"), [(how, 0, False) for how in HOWS] + [(TAKEN, 2, True)])
def test_whichever_message_kills_it_ends_as_if_none_had(how, away, eager, every, tmp_path):
    expected, messages = played(tmp_path / "alive", eager=eager)
    assert {name for name, _ in messages} == {"Server", "Coordinator"}
    assert {method for _, method in messages} >= {
        *("join", "leave", "arrive", "push", "pull", "pull_rows", "greet", "key_shapes", "create_keys", "set_rule"),
        *("states", "set_states"),
    }
    assert len(messages) > 50
    # Each message with every other way to die, with a snapshot for every push or with as few as possible.
    step = stride(4)
    first = ([*HOWS, TAKEN].index(how) + (away > 0) * 3 + 2 * (every == 0.0)) % step
    for number, (_, method) in list(enumerate(messages))[first::step]:
        results, _ = played(tmp_path / str(number), {number: how}, away, eager, every)
        assert results == expected, f"killed {how} message {number}, {method}"


def shared(folder, dies=None, every=1e9):
    """Two workers push by turns. Return the final values at one, and the messages."""
    folder.mkdir()
    with Ray(dies) as ray:
        stores = [opened(folder, workers=2, rank=rank, every=every) for rank in range(2)]
        for store in stores:
            store.init(["t", "n"], [torch.zeros(5, 4), torch.tensor(0.0)])
            store.set_optimizer("test")
        out, number = torch.empty(5, 4), torch.empty(())
        for step in range(3):
            for rank, store in enumerate(stores):
                store.push(["t", "n"], [torch.full((5, 4), 1.0 + step), torch.tensor(10.0**rank)])
        first, second = stores
        first.close()
        second.pull(["t", "n"], [out, number])
        second.close()
        return [out.tolist(), number.item()], ray.messages


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("every", [0.0, 1e9])
def test_whichever_message_kills_it_two_workers_lose_nothing(how, every, tmp_path):
    expected, messages = shared(tmp_path / "alive", None, every)
    assert expected == [[[12.0] * 4] * 5, 33.0]
    assert ("Server", "flush") in messages
    step = stride(2)
    for number, (_, method) in list(enumerate(messages))[(HOWS.index(how) + (every == 0.0)) % step :: step]:
        results, _ = shared(tmp_path / str(number), {number: how}, every)
        assert results == expected, f"killed {how} message {number}, {method}"


@given(
    st.dictionaries(st.integers(1, 120), st.sampled_from(HOWS), max_size=6),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([0.0, 1e9]),
)
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_however_often_and_whenever_servers_die(tmp_path_factory, dies, away, eager, every):
    folder = tmp_path_factory.mktemp("store")
    expected, _ = played(folder / "alive")
    results, _ = played(folder / "dies", dies, away, eager, every)
    assert results == expected


def test_pushes_lost_with_a_server_are_applied_once(tmp_path, monkeypatch):
    """With a log without room, and a server that dies twice before its next snapshot."""
    with Ray() as ray, opened(tmp_path, servers=1, log_bytes=0) as store:
        store.init("n", torch.tensor(0.0))
        store.set_optimizer("test")
        (actor,) = (actor for name, actor in ray.actors.items() if "server" in name)
        for _ in range(2):
            for _ in range(3):
                store.push("n", torch.tensor(1.0))
            store.barrier()
            ray.kill(actor, no_restart=False)
        store.push("n", torch.tensor(1.0))
        store.pull("n", out := torch.empty(()))
        # On a slow machine there may be a snapshot after each push, and no push is lost.
        assert out.item() == 7 - store.lost_pushes


def test_a_server_that_is_gone_for_good_is_an_error(tmp_path):
    with Ray() as ray:
        store = opened(tmp_path)
        store.init("n", torch.tensor(0.0))
        for name, actor in ray.actors.items():
            if "server" in name:
                ray.kill(actor, no_restart=True)
        with pytest.raises(StoreError, match="but it is dead"):
            store.pull("n", torch.empty(()))
        store.close()


def test_a_server_without_its_snapshot_is_an_error(tmp_path):
    with Ray() as ray:
        store = opened(tmp_path, servers=1)
        store.init("n", torch.tensor(0.0))
        store.push("n", torch.tensor(1.0))
        store.barrier()
        (file,) = tmp_path.glob("*/*.safetensors")
        file.unlink()
        (actor,) = (actor for name, actor in ray.actors.items() if "server" in name)
        actor.arguments = (actor.arguments[0], str(tmp_path / "elsewhere"), 1e9)
        ray.kill(actor, no_restart=False)
        with pytest.raises(StoreError, match="lost its snapshot"):
            store.pull("n", torch.empty(()))


# ---- Ctrl-C ---------------------------------------------------------------------------------------------------


class Interrupting(Ray):
    """A Ray in which Ctrl-C comes during the wait for the n-th answer."""

    def __init__(self, nth):
        super().__init__()
        self.left = nth

    def get(self, message, timeout=None):
        self.left -= 1
        if self.left == -1:
            signal.raise_signal(signal.SIGINT)
            raise self.exceptions.GetTimeoutError
        return super().get(message, timeout)


@pytest.fixture
def ctrl_c():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_in_any_wait_drops_and_repeats_no_push(tmp_path, ctrl_c):
    """Pushes with Ctrl-C in every wait. Each is made, whether or not the push itself raised KeyboardInterrupt."""
    for nth in range(10**6):
        folder = tmp_path / str(nth)
        folder.mkdir()
        with Interrupting(-1) as ray, opened(folder) as store:
            store.init(["t", "n"], [torch.zeros(5, 4), torch.tensor(0.0)])
            store.set_optimizer("test")
            ray.left, interrupted = nth, 0
            out, number = torch.empty(5, 4), torch.empty(())
            for step in range(3):
                for verb in (
                    lambda step=step: store.push(["t", "n"], [torch.full((5, 4), 2.0**step), torch.tensor(1.0)]),
                    lambda: store.pushpull("n", torch.tensor(10.0), torch.empty(())),
                    store.barrier,
                ):
                    try:
                        verb()
                    except KeyboardInterrupt:
                        interrupted += 1
            while True:  # a pull that raises it is made again
                try:
                    store.pull(["t", "n"], [out, number])
                except KeyboardInterrupt:
                    interrupted += 1
                else:
                    break
            ray.left = -1
            assert (out.unique().tolist(), number.item()) == ([7.0], 33.0), f"in wait {nth}"
            if not interrupted:
                break
    assert nth > 10


def test_a_push_is_made_on_all_servers_or_on_none(tmp_path):
    """The next push raises an earlier push's exception, and is nevertheless made on all servers."""
    with Ray() as ray, opened(tmp_path) as store:
        store.init("t", torch.zeros(5, 4))
        store.set_updater(failing)
        store.push("t", torch.full((5, 4), 13.0))
        for actor in ray.actors.values():  # the answers have arrived when the next push is sent
            while actor.queue:
                actor.take()
        with pytest.raises(ZeroDivisionError):
            store.push("t", torch.ones(5, 4))
        with pytest.raises(ZeroDivisionError):  # of the other server
            store.barrier()
        store.pull("t", out := torch.empty(5, 4))
        assert out.unique().tolist() == [1.0]


# ---- messages that no peer sends --------------------------------------------------------------------------------


def bytes_of(count):
    return np.zeros(count, np.uint8)


WRONG_RUNS = {
    "none": None,
    "empty": bytes_of(0),
    "short": bytes_of(63),
    "long": bytes_of(65),
    "numbers": np.zeros(16, np.float32),
    "rows": np.zeros((2, 32), np.uint8),
    "text": "a run",
}


@pytest.mark.parametrize("verb", ["pull", "pushpull", "pull_rows"])
@pytest.mark.parametrize("what", WRONG_RUNS)
def test_a_server_s_run_of_another_kind_or_size_is_an_error_that_names_it(what, verb, tmp_path, monkeypatch):
    with Ray(), opened(tmp_path, servers=1) as store:
        store.init("w", torch.arange(4.0))
        read, read_rows = Shard.read, Shard.read_rows
        monkeypatch.setattr(Shard, "read", lambda shard, keys: WRONG_RUNS[what] if keys else read(shard, keys))
        monkeypatch.setattr(Shard, "read_rows", lambda *_: WRONG_RUNS[what])
        out = torch.full((4,), 7.0)
        calls = {
            "pull": lambda: store.pull("w", out),
            "pushpull": lambda: store.pushpull("w", torch.ones(4), out),
            "pull_rows": lambda: store.row_sparse_pull("w", out, torch.arange(4)),
        }
        with pytest.raises(StoreError, match="server 0 of 1"):
            calls[verb]()
        assert out.tolist() == [7.0] * 4
        monkeypatch.setattr(Shard, "read", read)
        monkeypatch.setattr(Shard, "read_rows", read_rows)
        calls[verb]()


@pytest.mark.parametrize(
    "answer",
    [None, (), Answer(durable=9), Answer(durable=-1), Answer(durable="1"), Answer(failure="text"), Greeting],
    ids=repr,
)
def test_an_answer_that_is_none_is_an_error_that_names_the_server(answer, tmp_path, monkeypatch):
    with Ray():
        store = opened(tmp_path, servers=1)
        store.init("w", torch.arange(4.0))
        monkeypatch.setattr(Server, "push", lambda *_: answer)
        store.push("w", torch.ones(4))
        with pytest.raises(StoreError, match="server 0 of 1"):
            store.pull("w", torch.empty(4))


@pytest.mark.parametrize("applied", [-1, 2, 10**9])
def test_a_server_that_has_more_than_was_sent_is_an_error(applied, tmp_path, monkeypatch):
    with Ray() as ray:
        store = opened(tmp_path, servers=1)
        store.init("w", torch.arange(4.0))
        monkeypatch.setattr(Server, "greet", lambda *_: Greeting(applied, 0, 1, False, 0, "here"))
        ray.dies[len(ray.messages)] = TAKEN
        store.push("w", torch.ones(4))
        with pytest.raises(StoreError, match="at most 1 pushes"):
            store.pull("w", torch.empty(4))


def test_a_server_that_never_catches_up_is_an_error(tmp_path, monkeypatch):
    with Ray():
        store = opened(tmp_path, servers=1)
        store.init("w", torch.arange(4.0))
        monkeypatch.setattr(Server, "push", lambda *_: Answer(refused=True))
        with pytest.raises(StoreError, match=r"expected server 0 of 1.* to catch up"):
            store.pushpull("w", torch.ones(4), torch.empty(4))


def test_a_server_that_dies_of_a_push_again_and_again_is_an_error(tmp_path, monkeypatch):
    """Each time it gets the pushes again that the snapshot lacks."""
    with Ray() as ray:
        store = opened(tmp_path, servers=1)
        store.init("w", torch.arange(4.0))
        for value in range(3):
            store.push("w", torch.full((4,), float(value)))
        store.barrier()
        actor = server_of(ray)
        take = actor.take

        def taken():
            if actor.queue[0].method == "push" and actor.queue[0].arguments[1] == 4:
                actor.queue[0].dies = TAKEN
            take()

        monkeypatch.setattr(actor, "take", taken)
        with pytest.raises(StoreError, match="it has not answered after 10 restarts"):
            store.pushpull("w", torch.ones(4), torch.empty(4))


# ---- slow, or hanging ------------------------------------------------------------------------------------------


class Slow(Ray):
    """A Ray in which an answer takes several slices of waiting, as on a busy machine."""

    slices, methods = 0, ("key_shapes", "pull", "greet")

    def get(self, message, timeout=None):
        if self.slices and message.method in self.methods and timeout == link.SLICE_S:
            self.slices -= 1
            raise self.exceptions.GetTimeoutError
        return super().get(message, timeout)


def server_of(ray):
    return next(actor for name, actor in ray.actors.items() if "server" in name)


def test_a_server_that_works_slowly_is_waited_for_however_long(tmp_path):
    with Slow() as ray, opened(tmp_path, servers=1, timeout=1.0) as store:
        store.init("w", torch.arange(4.0))
        ray.slices = int(100 / link.SLICE_S)
        store.pull("w", out := torch.empty(4))
        assert ray.slices == 0
        assert out.tolist() == [0, 1, 2, 3]


def test_a_silent_server_is_named_after_the_timeout(tmp_path):
    """The same wait, but without a heartbeat."""
    with Slow() as ray, opened(tmp_path, servers=1, timeout=1.0) as store:
        store.init("w", torch.arange(4.0))
        server_of(ray).beats = False
        ray.slices = int(100 / link.SLICE_S)
        with pytest.raises(StoreError, match=r"server 0 of 1.*in time.*for 1 s"):
            store.pull("w", torch.empty(4))
        ray.slices = 0
        server_of(ray).beats = True
        store.pull("w", out := torch.empty(4))
        assert out.tolist() == [0, 1, 2, 3]


def test_a_server_that_starts_has_longer(tmp_path):
    """At the start, and after a death."""
    with Slow() as ray, opened(tmp_path, servers=1, timeout=1.0) as store:
        server_of(ray).beats = False  # it has not started
        ray.slices = int(100 / link.SLICE_S)
        store.init("w", torch.arange(4.0))
        assert ray.slices == 0
        ray.dies[len(ray.messages)] = BEFORE
        store.push("w", torch.ones(4))
        ray.slices, ray.methods = int(100 / link.SLICE_S), ("greet",)
        store.pull("w", torch.empty(4))
        assert ray.slices == 0
        ray.slices = int(link.START_S / link.SLICE_S) + 1
        ray.dies[len(ray.messages)] = BEFORE
        with pytest.raises(StoreError, match="in time"):
            store.pull("w", torch.empty(4))
        ray.slices = 0


@pytest.mark.parametrize(
    "states",
    [
        {"w": ({"momentum": torch.ones(3)}, 1)},
        {"w": ({"momentum": torch.ones(4, dtype=torch.int64)}, 1)},
        {"w": ({"other": torch.ones(4)}, 1)},
        {"w": ({}, 1)},
        {"w": ({"momentum": torch.ones(4)}, 1.5)},
    ],
)
def test_states_of_other_shapes_are_an_error_that_names_the_server(states, tmp_path, monkeypatch):
    with Ray(), opened(tmp_path, servers=1) as store:
        store.init("w", torch.arange(4.0))
        store.set_optimizer("momentum")
        monkeypatch.setattr(Shard, "states", lambda _: ("momentum", optimizer("momentum").parameters(), states))
        with pytest.raises(StoreError, match="server 0 of 1"):
            store.save_optimizer_states(tmp_path / "states")


def pushed(server, items, run, number=1):
    answer = server.push("worker", number, items, run, (), False, False)
    assert isinstance(answer, Answer)
    return answer.failure


def rows_run(ids, columns=4):
    return to_buffer([torch.tensor(ids, dtype=torch.int64), torch.ones(len(ids), columns)]).numpy()


WRONG_PUSHES = {
    "no bytes": ([("t", None)], bytes_of(0)),
    "too few": ([("t", None)], bytes_of(64)),
    "too many": ([("t", None)], bytes_of(192)),
    "other key": ([("nobody", None)], bytes_of(128)),
    "numbers": ([("t", None)], np.zeros(128, np.int8)),
    "rows below 0": ([("t", -1)], bytes_of(0)),
    "more rows than there are": ([("t", 6)], rows_run([0, 1, 2, 3, 4, 5])),
    "a row that is not there": ([("t", 2)], rows_run([1, 5])),
    "a row before the first": ([("t", 2)], rows_run([-1, 3])),
    "a row twice": ([("t", 2)], rows_run([3, 3])),
    "rows descending": ([("t", 2)], rows_run([3, 1])),
    "rows of a number": ([("n", 1)], rows_run([0], 1)),
    "half a row": ([("t", 0.5)], rows_run([0])),
    "no compression": ([("t", {"type": "none"})], bytes_of(64)),
    "compressed integers": ([("i", {"type": "2bit"})], bytes_of(64)),
    "a code too short": ([("t", {"type": "2bit", "threshold": 0.5})], bytes_of(0)),
}


@pytest.fixture
def server(tmp_path):
    new_server = Server(0, str(tmp_path / "snapshots"), 1e9)
    new_server.create_keys(
        [("t", (5, 4), "float32"), ("n", (), "float32"), ("i", (3,), "int64")],
        to_buffer([torch.zeros(5, 4), torch.tensor(0.0), torch.zeros(3, dtype=torch.int64)]).numpy(),
    )
    return new_server


@pytest.mark.parametrize("what", WRONG_PUSHES)
def test_a_push_that_does_not_fit_is_refused_and_changes_nothing(what, server):
    items, run = WRONG_PUSHES[what]
    before = server.pull("worker", 0, ["t", "n", "i"]).buffer.copy()
    assert isinstance(pushed(server, items, run), (StoreError, RefusedError))
    assert (server.pull("worker", 1, ["t", "n", "i"]).buffer == before).all()
    assert pushed(server, [("n", None)], to_buffer([torch.tensor(2.0)]).numpy(), 2) is None
    assert pushed(server, [("t", 2)], rows_run([0, 4]), 3) is None


@pytest.mark.parametrize(
    ("items", "run"),
    [
        ([("x", (4,), "float32")], bytes_of(0)),
        ([("x", (4,), "float32")], bytes_of(128)),
        ([("x", (-4,), "float32")], bytes_of(0)),
        ([("x", (1 << 62, 1 << 62), "float32")], bytes_of(64)),
        ([("x", (1.5,), "float32")], bytes_of(64)),
        ([("x", (4,), "load")], bytes_of(64)),
        ([("x", (4,), 3)], bytes_of(64)),
    ],
)
def test_keys_that_do_not_fit_their_bytes_are_not_made(items, run, server):
    with pytest.raises(StoreError):
        server.create_keys(items, run)
    assert not server.key_shapes(["x"])


@pytest.mark.parametrize(
    ("key", "ids"),
    [
        ("t", np.array([5])),
        ("t", np.array([-1])),
        ("t", np.array([0], np.int32)),
        ("t", np.array([[0]])),
        ("t", bytes_of(8)),
        ("t", [0]),
        ("n", np.array([0])),
        ("nobody", np.array([0])),
    ],
)
def test_rows_that_are_not_there_are_not_given(key, ids, server):
    with pytest.raises(StoreError):
        server.pull_rows("worker", 0, [key], [ids])


def test_states_that_do_not_fit_are_not_taken(server):
    server.set_rule("worker", 0, {"name": "momentum", "parameters": optimizer("momentum").parameters()}, 1)
    for states in (
        {"t": ({"momentum": torch.zeros(4)}, 1)},
        {"nobody": ({"momentum": torch.zeros(4)}, 1)},
        {"n": ({"momentum": torch.tensor(1)}, 1)},
        {"n": ({"momentum": torch.tensor(1.0)}, -1)},
    ):
        with pytest.raises(StoreError):
            server.set_states("worker", 0, {}, states)
    with pytest.raises(RefusedError):
        server.set_states("worker", 0, {"rule": 1.0}, {})


def test_a_layout_makes_no_pointer_into_a_run_of_another_size():
    layout, out = Layout([((4,), torch.float32)]), torch.zeros(4)
    for run in (torch.empty(0, dtype=torch.uint8), torch.empty(63, dtype=torch.uint8), torch.empty(16)):
        for what in (lambda run=run: layout.read(run, [[out]]), lambda run=run: layout.views(run)):
            with pytest.raises(StoreError, match="buffer of 64 bytes"):
                what()


def test_after_a_restart_a_link_repeats_its_requests(tmp_path):
    """The push is sent again, and so is the query."""
    with Ray({2: TAKEN}) as ray:
        actor = ray.remote(Server).options(name="server").remote(0, str(tmp_path / "snapshots"), 1e9)
        connection = ServerConnection(actor, 0, 1, "worker", 1 << 20, 20.0)
        value = to_buffer([torch.arange(4.0)])
        connection.wait_for(connection.ask("create_keys", [("w", (4,), "float32")], value.numpy()))
        for _ in range(2):
            number = connection.append([("w", None)], value.numpy(), ["w"])
            connection.flush()
            run = receive_buffer(connection.take_pulled(number, ["w"]), 64)
            assert run[:16].view(torch.float32).tolist() == [0.0, 1.0, 2.0, 3.0]
