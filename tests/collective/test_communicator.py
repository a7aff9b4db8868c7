"""Ranks exchange the same bits, and errors name a missing rank. With real processes."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from feedline.collective import rendezvous as meeting  # noqa: E402
from feedline.collective.communicator import Communicator  # noqa: E402
from feedline.collective.exchanges import FRAME, SHOWN, shorten_differing  # noqa: E402
from feedline.collective.flat_buffers import lay_out_buckets  # noqa: E402
from feedline.errors import StoreError  # noqa: E402
from tests.inside import beat, notice_beats, resting_pulse  # noqa: E402
from tests.ranks import Failure, Job, free_port, hear, run, say  # noqa: E402


def sockets():
    return sum(
        os.readlink(f"/proc/self/fd/{fd}").startswith("socket") for fd in os.listdir("/proc/self/fd") if _open(fd)
    )


def _open(fd):
    return os.path.lexists(f"/proc/self/fd/{fd}")


def threads():
    return len(os.listdir("/proc/self/task"))


# ---- exchanges ------------------------------------------------------------------------------------------------


def everything(rank):
    collective = Communicator()
    tensor = torch.arange(5.0) + rank
    works = [collective.sum(tensor)]
    collective.wait(works)
    told = torch.full((3,), float(rank + 7))
    counts = [torch.tensor([rank]), told]
    collective.broadcast(counts)
    parts = [torch.full((rank + 1,), 10 * rank + to, dtype=torch.uint8) for to in range(collective.count)]
    received = collective.distribute(parts, [r + 1 for r in range(collective.count)])
    found = {
        "sum": tensor.tolist(),
        "gather": collective.gather([rank, 0.1]),
        "bytes": collective.gather_bytes(b"x" * rank),
        "told": [counts[0].tolist(), told.tolist()],
        "received": [part.tolist() for part in received],
    }
    collective.barrier()
    collective.close()
    return found


def test_what_is_exchanged():
    found = run(everything, 3)
    for rank, one in enumerate(found):
        assert one["sum"] == [3.0, 6.0, 9.0, 12.0, 15.0]
        assert one["gather"] == [[0.0, 0.1], [1.0, 0.1], [2.0, 0.1]]
        assert one["bytes"] == [b"", b"x", b"xx"]
        assert one["told"] == [[0], [7.0, 7.0, 7.0]]
        assert one["received"] == [[10 * r + rank] * (r + 1) for r in range(3)]


def sent(rank, dtype):
    collective = Communicator()
    told = torch.full((3,), 1 - rank).to(dtype)
    collective.broadcast([told])
    gathered = [
        one.double().tolist()
        for one in collective.run(collective.exchanges.gather_tensors(torch.full((2,), rank).to(dtype)))
    ]
    try:
        total = torch.ones(2).to(dtype)
        collective.wait([collective.sum(total)])
    except TypeError as error:
        total = str(error)
    collective.barrier()
    return told.double().tolist(), gathered, total if isinstance(total, str) else total.tolist()


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize(
    ("dtype", "total"),
    [
        (torch.bool, [True, True]),
        (torch.complex128, [2 + 0j, 2 + 0j]),
        (torch.int16, "expected a dtype that ranks can sum, got torch.int16"),
        (torch.float8_e4m3fn, "expected a dtype that ranks can sum, got torch.float8_e4m3fn"),
    ],
)
def test_every_dtype_can_be_sent_and_most_be_summed(dtype, total):
    assert run(sent, 2, dtype=dtype) == [([1.0] * 3, [[0.0, 0.0], [1.0, 1.0]], total)] * 2


def disagreeing(rank):
    collective = Communicator()
    try:
        collective.agree("push a" if rank != 1 else "push b")
    except Exception as error:
        say((type(error).__name__, str(error), error.ranks))
    collective.agree("the same")
    return "went on"


def test_ranks_that_disagree_get_an_error_and_go_on():
    with Job(disagreeing, 3) as job:
        for kind, text, ranks in job.results():
            assert kind == "StoreError"
            assert ranks == (1,)
            assert "rank 1: push b" in text
            assert "rank 0: push a" in text
        assert job.results() == ["went on"] * 3


#: Exchanges of several sizes, by how an error names them.
EXCHANGES = {
    "gather numbers": lambda collective: collective.gather([1.0]),
    "gather numbers, with 2 numbers": lambda collective: collective.gather([1.0, 2.0]),
    "gather numbers, with 100 numbers": lambda collective: collective.gather([1.0] * 100),
    "gather bytes": lambda collective: collective.gather_bytes(b"x" * 1000),
    "send 2 tensors of 4008 bytes": lambda collective: collective.broadcast([torch.ones(1000), torch.ones(2)]),
    "push 'w'": lambda collective: collective.agree("push 'w'"),
    "barrier": lambda collective: collective.barrier(),
}
PAIRS = list(itertools.combinations(EXCHANGES, 2))


def at_odds(rank):
    """Each rank makes a different exchange. gloo would end the process over their sizes."""
    collective = Communicator()
    found = []
    for pair in PAIRS:
        try:
            EXCHANGES[pair[rank]](collective)
        except StoreError as error:
            found.append((str(error), error.ranks))
        assert collective.gather([float(rank)]) == [[0.0], [1.0]]
    return found


def test_two_ranks_with_different_calls_both_get_an_error_and_go_on():
    for found in run(at_odds, 2):
        for (text, ranks), pair in zip(found, PAIRS, strict=True):
            assert ranks == (1,)
            for rank, name in enumerate(pair):
                shown = name if all("numbers" in one for one in pair) else name.partition(",")[0]
                assert f"rank {rank}: {shown}" in text


def test_texts_are_shown_where_they_differ():
    keys = [f"layer {i}" for i in range(100)]
    one, other = f"push {keys}", f"push {[*keys[:80], 'another', *keys[81:]]}"
    assert len(one) > SHOWN
    found = shorten_differing([one, other, one])
    assert all(text.startswith("push ['layer 0'") and len(text) <= SHOWN for text in found)
    assert "'layer 80'" in found[0]
    assert "'another'" in found[1]
    assert shorten_differing(["push 'a'", "push 'b'"]) == ["push 'a'", "push 'b'"]
    longer = shorten_differing([one, one + "!"])
    assert longer[1].endswith("!")
    assert not longer[0].endswith("!")


def telling(rank, count):
    collective = Communicator()
    if rank:
        begin = collective.exchanges.begin

        def lie(tensor, method, received, sent):
            if sent[0].numel() == FRAME * 8:
                sent[0].view(torch.float64)[3] = count
            return begin(tensor, method, received, sent)

        collective.exchanges.begin = lie
    return collective.gather_bytes(b"x")


@pytest.mark.parametrize("count", [-1.0, 0.5, float("nan"), float("inf"), 1e15])
def test_a_count_that_cannot_be_is_no_allocation(count):
    with Job(telling, 2, count=count) as job:
        for failure in job.results():
            assert failure.kind == "StoreError"
            assert failure.ranks == (1,)
            assert "bytes from rank 1" in failure.text


@pytest.mark.parametrize("how", ["close", "collect"])
def test_nothing_remains(how):
    assert run(leaving, 2, how=how) == [(True, True, [])] * 2


def leaving(rank, how):
    Communicator().close()  # the server of rank 0 stays
    before = sockets(), threads()
    collective = Communicator()
    collective.barrier()
    if how == "close":
        collective.close()
        collective.close()
    else:
        del collective
    for _ in range(200):
        if sockets() <= before[0] and threads() <= before[1]:
            break
        time.sleep(0.05)
    names = [t.name for t in threading.enumerate() if "feedline" in t.name]
    return sockets() <= before[0], threads() <= before[1], names


# ---- where ranks meet -----------------------------------------------------------------------------------------


def meeting_by(rank, how, path, port):
    variables = [os.environ.pop(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")]
    if how == "address":
        collective = Communicator(address=f"127.0.0.1:{port}", rank=rank, count=3)
    else:
        torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=3)
        group = torch.distributed.new_group([1, 2]) if how == "group" else None
        if how == "group" and rank == 0:
            return None
        collective = Communicator(group)
    assert variables[1] == "3"
    return collective.rank, collective.count, collective.gather([float(rank)])


@pytest.mark.parametrize("how", ["address", "default group", "group"])
def test_where_ranks_meet(how, tmp_path):
    found = run(meeting_by, 3, how=how, path=str(tmp_path / "meet"), port=free_port())
    if how == "group":
        assert found == [None, (0, 2, [[1.0], [2.0]]), (1, 2, [[1.0], [2.0]])]
    else:
        assert found == [(r, 3, [[0.0], [1.0], [2.0]]) for r in range(3)]


def listening():
    """Addresses on which this process listens."""
    own = set()
    for fd in os.listdir("/proc/self/fd"):
        if _open(fd):
            own.add(os.readlink(f"/proc/self/fd/{fd}"))
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with open(f"/proc/self/net/{table}") as lines:
            for line in list(lines)[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                    words = bytes.fromhex(fields[1].partition(":")[0])
                    packed = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
                    found.add(socket.inet_ntop(family, packed))
    return found


def meets(rank, port, host, how):
    if how == "launcher":
        os.environ["MASTER_ADDR"] = host
        collective = Communicator()
    else:
        collective = Communicator(address=f"{host}:{port}", rank=rank, count=2)
    collective.barrier()
    if how == "shares":  # torch's own rendezvous of the same process is reused
        torch.distributed.init_process_group("gloo", init_method=f"tcp://{host}:{port}", rank=rank, world_size=2)
        Communicator().barrier()
        torch.distributed.destroy_process_group()
    return listening()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("how", ["address", "launcher"])
def test_it_listens_at_the_given_address_and_nowhere_else(host, how):
    assert run(meets, 2, port=free_port(), host=host, how=how) == [{"127.0.0.1"}] * 2


def test_torch_shares_the_meeting_point_of_its_process():
    run(meets, 2, port=free_port(), host="127.0.0.1", how="shares")


class LostStore:
    """A store whose server has ended."""

    def clone(self):
        return self

    def add(self, key, amount):
        raise RuntimeError("Connection reset by peer\nat tcp.cpp:1")


@pytest.mark.parametrize(("host", "who"), [(0, "rank 0, which serves it, has ended"), (None, "the process that")])
def test_a_meeting_point_that_is_lost_at_once_is_an_error_that_leaves_no_socket(monkeypatch, host, who):
    ours, theirs = socket.socketpair()
    place = meeting.Rendezvous(LostStore(), 1, 2, "all", host, ours)
    monkeypatch.setattr("feedline.collective.communicator.meet", lambda *_: place)
    with theirs, pytest.raises(StoreError, match=who) as caught:
        Communicator()
    assert "Connection reset by peer" in str(caught.value)
    assert "tcp.cpp" not in str(caught.value)
    assert caught.value.ranks == (() if host is None else (0,))
    assert ours.fileno() == -1


@pytest.mark.parametrize(
    ("host", "found", "why"),
    [
        ("node-1", ["127.0.1.1"], "'node-1' resolves to 127.0.1.1 here"),
        ("node-1", ["10.0.0.1", "10.1.0.1"], "'node-1' resolves to 10.0.0.1, 10.1.0.1"),
        ("192.0.2.7", ["192.0.2.7"], "192.0.2.7 is not an address of this machine"),
    ],
)
def test_listening_on_all_addresses_is_a_warning(monkeypatch, host, found, why):
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, port, **_: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in found],
    )
    with pytest.warns(UserWarning, match=rf"listens on all addresses of this machine: {why}"):
        assert meeting.listening_socket(host, 1) is None


def test_a_port_that_is_taken_is_an_error_that_names_it():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StoreError, match=f"serve the rendezvous at {address}"):
            Communicator(address=address, rank=0, count=2, timeout_s=1)


@pytest.mark.parametrize("address", ["127.0.0.1", ":1", "127.0.0.1:port", "127.0.0.1:65536", "127.0.0.1:0"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ValueError, match="expected an address such as"):
        Communicator(address=address, rank=0, count=1)


def test_without_ranks_the_error_has_a_remedy(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match="init_process_group"):
        Communicator()


def coming(rank, missing):
    if rank == missing:
        hear()  # nothing
    meeting.START_S = 1.0
    Communicator(timeout_s=1)


def late(rank):
    """Rank 1 starts when rank 0 has waited for longer than its timeout, of ten beats."""
    if rank:
        hear()
    else:
        notice_beats(lambda beats: say("waits") if beats == 12 else None)
    return Communicator(timeout_s=5).gather([float(rank)])


def test_a_rank_may_start_later_than_the_timeout():
    with Job(late, 2) as job:
        assert job.heard(0) == "waits"
        job.tell(1, "start")
        assert job.results() == [[[0.0], [1.0]]] * 2


# ---- who is missing -------------------------------------------------------------------------------------------


def working(rank, timeout, ends=None, how=None):
    """Exchange until something happens. Rank ``ends`` leaves in its own way after some exchanges."""
    collective = Communicator(timeout_s=timeout)
    flat = torch.ones(1 << 20)
    for step in range(10**9):
        if step == 5:
            say("under way")
            if rank == ends:
                if how == "closes":
                    collective.close()
                    hear()  # nothing
                if how == "reads late":
                    collective.heartbeat.interval_s = 1.0
                if how == "returns":
                    return "done"
                if how == "raises":
                    raise ValueError("a bug in user code")
                if how == "sleeps":
                    hear()  # nothing
        collective.wait([collective.sum(flat), collective.sum(torch.ones(10))])
    return None


def after(world, timeout, then, **settings):
    """How the others end after something has happened to one."""
    with Job(working, world, timeout=timeout, **settings) as job:
        assert job.results() == ["under way"] * world
        lost = then(job)
        return [job.heard(r) for r in range(world) if r != lost]


@pytest.mark.parametrize(("world", "lost"), [(2, 0), (2, 1), (4, 2)])
def test_a_killed_rank_is_named_long_before_the_timeout(world, lost):
    def kill(job):
        job.kill(lost)
        return lost

    for failure in after(world, 600, kill):
        assert isinstance(failure, Failure)
        assert failure.kind == "StoreError"
        assert failure.ranks == (lost,)
        assert f"rank {lost}" in failure.text
        assert "alive" not in failure.text


def seeing(rank, path, busy):
    """Write what rank 1 sees on stderr to a file: messages of torch, and the final traceback."""
    collective = Communicator(timeout_s=600)
    if rank:
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 2)
        # Right after a heartbeat: in the middle of one, torch would speak first.
        read = collective.heartbeat.reads
        while collective.heartbeat.reads == read:
            time.sleep(0.001)
    say("under way")
    while busy and rank and not collective.heartbeat.lost:  # its heartbeat is the first to notice
        time.sleep(0.01)
    while True:
        try:
            collective.barrier()
        except StoreError:
            traceback.print_exc(file=sys.stderr)
            sys.stderr.flush()
            return "told"


@pytest.mark.parametrize("busy", [False, True])
def test_of_a_killed_rank_0_our_message_is_the_first_and_the_last(busy, tmp_path):
    path = tmp_path / "stderr"
    with Job(seeing, 2, path=str(path), busy=busy) as job:
        assert job.results() == ["under way"] * 2
        job.kill(0)
        assert job.heard(1) == "told"
    text = path.read_text()
    assert "frame #" not in text  # of a C++ stack
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.count("Traceback") == 1
    assert "StoreError: expected all 2 ranks in an exchange, but rank 1 missed rank 0" in text.splitlines()[-2]
    assert text.splitlines()[-1].startswith("  the exchange was 'barrier'; restart all ranks")


class Beats:
    """A store without a server: the last message of each of ``count`` ranks."""

    def __init__(self, count):
        self.texts = {f"beat/{rank}": "1 0 barrier" for rank in range(count)}

    def clone(self):
        return self

    def check(self, keys):
        return all(key in self.texts for key in keys)

    def multi_get(self, keys):
        return [self.texts[key].encode() for key in keys]


def test_messages_of_others_may_be_read_while_they_change():
    """The heartbeat thread adds ranks while the main thread iterates over them."""
    store = Beats(4000)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            heartbeat = resting_pulse(store, 0, 4000, 0)
            heartbeat.round, heartbeat.doing = 1, "barrier"
            thread = threading.Thread(target=beat, args=(heartbeat,))
            thread.start()
            while thread.is_alive():
                assert "alive" in heartbeat.missing(0)[1]
                heartbeat.absent()
            thread.join()
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize(
    ("who", "missing", "why"),
    [
        ("all", (), "all ranks are alive"),
        ("rank 1", (2,), "sent no heartbeat for 2 s"),
        ("nobody", (0,), "could not be reached, and it serves the rendezvous"),
    ],
)
def test_a_busy_machine_makes_no_rank_look_dead_and_silence_does(who, missing, why, monkeypatch):
    """A hundred seconds pass between two beats of this rank. Only ranks that are silent meanwhile are missing."""
    store, now, beats = Beats(3), [0.0], [1]
    heartbeat = resting_pulse(store, 1, 3, 0)
    beat(heartbeat)

    def sleep(seconds):
        now[0] += 100.0
        if who != "nobody":
            beats[0] += 1
            for rank in (0, 2) if who == "all" else (0,):
                store.texts[f"beat/{rank}"] = f"{beats[0]} 0 barrier"
            beat(heartbeat)

    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    ranks, text = heartbeat.missing(8)
    assert ranks == missing
    assert why in text


def test_a_rank_that_closes_does_not_wait_for_a_dead_one_while_another_lives(monkeypatch):
    store, beats = Beats(3), [1]
    heartbeat = resting_pulse(store, 1, 3, None)

    def sleep(seconds):
        beats[0] += 1
        assert beats[0] < 100
        store.texts["beat/0"] = f"{beats[0]} 0 barrier"

    monkeypatch.setattr("time.sleep", sleep)
    heartbeat.linger(3.0)
    assert beats[0] > 30


def test_the_host_of_the_meeting_point_stays_until_others_know_whom_it_missed():
    """It ends with its StoreError. A rank that reads seldom would name it instead of the rank that was killed."""

    def kill(job):
        job.kill(2)
        return 2

    assert [failure.ranks for failure in after(3, 600, kill, ends=1, how="reads late")] == [(2,), (2,)]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_stopped_rank_is_named_when_the_timeout_has_passed(lost):
    def stop(job):
        job.kill(lost, signal.SIGSTOP)
        return lost

    (failure,) = after(2, 4, stop)
    assert "alive" not in failure.text
    assert failure.kind == "StoreError"
    assert failure.ranks == (lost,)


def connecting(rank, how):
    given = {}
    if how == "torch":
        torch.distributed.init_process_group("gloo")
    else:
        given = {"address": f"127.0.0.1:{os.environ['MASTER_PORT']}", "rank": rank, "count": 2}
        if rank == 0:
            meeting.meet(None, given["address"], 0, 2, datetime.timedelta(seconds=5))
    say("here")
    hear()
    if rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    Communicator(**given, timeout_s=0.5)


@pytest.mark.parametrize("how", ["torch", "address"])
def test_a_stopped_rendezvous_is_named_by_ranks_that_connect(how):
    with Job(connecting, 2, how=how) as job:
        assert job.results() == ["here"] * 2
        pid = job.ranks[0][0].pid
        job.tell(0, "stop")  # only now, as the other may still have been meeting it
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)
        job.tell(1, "connect")
        failure = job.heard(1)
    assert failure.kind == "StoreError"
    assert failure.ranks == (0,)


@pytest.mark.parametrize("how", ["closes", "returns", "raises"])
@pytest.mark.parametrize("ends", [0, 1])
def test_a_rank_that_leaves_early_is_named(how, ends):
    with Job(working, 2, timeout=60, ends=ends, how=how) as job:
        assert job.results() == ["under way"] * 2
        failure = job.heard(1 - ends)
    assert failure.kind == "StoreError"
    assert failure.ranks == (ends,)
    if how == "closes":
        assert "closed" in failure.text


def test_a_rank_that_is_busy_elsewhere_is_named_as_such():
    with Job(working, 2, timeout=3, ends=1, how="sleeps") as job:
        assert job.results() == ["under way"] * 2
        failure = job.heard(0)
    assert failure.ranks == (1,)
    assert "alive" in failure.text
    assert "longer timeout" in failure.text


def elsewhere(rank):
    """Rank 1 continues with another group. The error names its last exchange here."""
    collective = Communicator(timeout_s=3)
    collective.agree("push 'first'")
    if rank:
        hear()  # nothing
    collective.agree("push 'second'")


def test_it_reports_the_last_action_of_a_missing_rank():
    with Job(elsewhere, 2) as job:
        failure = job.heard(0)
    assert failure.ranks == (1,)
    assert "did not enter \"push 'second'\"" in failure.text
    assert "the last exchange of rank 1 was \"push 'first'\"" in failure.text


def failing(rank):
    collective = Communicator(timeout_s=2)
    if rank == 1:
        hear()  # nothing
    for _ in range(2):
        try:
            collective.barrier()
        except Exception as error:
            say(str(error))
    return "end"


def test_after_an_error_it_suggests_the_next_step():
    with Job(failing, 2) as job:
        first, second = job.heard(0), job.heard(0)
        assert "last checkpoint" in first
        assert "restart all of them" in second
        assert "rank 1" in second


# ---- buckets --------------------------------------------------------------------------------------------------


def test_buckets_hold_every_tensor_once_and_little_more_than_the_limit():
    tensors = [torch.full((n,), float(n), dtype=d) for n in (3, 50, 1, 0, 7) for d in (torch.float32, torch.float64)]
    buckets = lay_out_buckets(tensors, limit_bytes=100)
    assert sorted(place for bucket in buckets for place in bucket.places) == list(range(len(tensors)))
    for bucket in buckets:
        assert bucket.flat.nbytes <= 100 or len(bucket.places) == 1
        bucket.fill([None if place == 2 else tensor for place, tensor in enumerate(tensors)])
    back = [torch.empty_like(tensor) for tensor in tensors]
    for bucket in buckets:
        bucket.read(back)
    for place, (got, tensor) in enumerate(zip(back, tensors, strict=True)):
        assert torch.equal(got, torch.zeros_like(tensor) if place == 2 else tensor)


def shares(rank, world):
    with contextlib.closing(Communicator()) as ranks:
        found = []
        for n in (1, 5, (1 << 20) - 1, (1 << 20) + 3, 3 << 20):
            own = torch.full((n,), rank + 1, dtype=torch.uint8)
            rows = [torch.zeros_like(own) for _ in range(world)]
            ranks.wait(ranks.exchanges.begin_sharing(own, rows))
            assert rows[rank] is own
            found.append([row.unique().tolist() for row in rows])
        return found


@pytest.mark.parametrize("world", [1, 2, 3])
def test_large_tensors_are_shared_in_pieces(world):
    assert run(shares, world, world=world) == [[[[r + 1] for r in range(world)]] * 5] * world
