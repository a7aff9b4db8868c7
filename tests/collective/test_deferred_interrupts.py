"""Ctrl-C tears nothing that several processes do together: it leaves a call under way, or waits for its end."""

from __future__ import annotations

import signal
import threading

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline.kvstore  # noqa: E402
from feedline.collective import deferred_interrupts  # noqa: E402
from feedline.collective.communicator import Communicator  # noqa: E402
from feedline.errors import StoreError  # noqa: E402
from feedline.kvstore import RefusedError, create, optimizer, register_optimizer  # noqa: E402
from feedline.kvstore.optimizers import Test as Adding  # noqa: E402
from tests.effort import stride  # noqa: E402
from tests.inside import before_next_send  # noqa: E402
from tests.moments import AtLine  # noqa: E402
from tests.ranks import Failure, Job, hear, run, say  # noqa: E402

# ---- signals that wait ----------------------------------------------------------------------------------------


@pytest.fixture
def ctrl_c():
    """Install Python's own handler, whichever runner started the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_it_waits_for_the_end_of_the_outermost_block(ctrl_c):
    seen = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupts.DeferredInterrupt():
        with deferred_interrupts.DeferredInterrupt(may_leave=True):
            ctrl_c()
            deferred_interrupts.deliver()
            assert deferred_interrupts.waiting()
        seen.append("goes on")
    assert seen == ["goes on"]
    assert not deferred_interrupts.waiting()


def test_it_leaves_where_that_is_allowed(ctrl_c):
    seen = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupts.DeferredInterrupt(may_leave=True):
        deferred_interrupts.deliver()
        ctrl_c()
        seen.append("first")
        deferred_interrupts.deliver()
        seen.append("second")
    assert seen == ["first"]


def test_a_second_one_does_not_wait(ctrl_c):
    seen = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupts.DeferredInterrupt():
        ctrl_c()
        seen.append("first")
        ctrl_c()
        seen.append("second")
    assert seen == ["first"]


def test_an_error_of_the_block_is_its_context(ctrl_c):
    with pytest.raises(KeyboardInterrupt) as raised, deferred_interrupts.DeferredInterrupt():
        ctrl_c()
        raise ValueError("of the block")
    assert isinstance(raised.value.__context__, ValueError)


def test_a_handler_of_the_program_is_called_once_for_each(ctrl_c):
    seen = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    with deferred_interrupts.DeferredInterrupt():
        ctrl_c()
        assert not seen
        ctrl_c()
        assert len(seen) == 2
        ctrl_c()
    assert len(seen) == 3
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_handler_that_is_set_within_stays():
    def theirs(number, frame):
        pass

    before = signal.getsignal(signal.SIGINT)
    with deferred_interrupts.DeferredInterrupt():
        signal.signal(signal.SIGINT, theirs)
    assert signal.signal(signal.SIGINT, before) is theirs


def test_other_threads_and_ignored_signals_are_left_alone():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with deferred_interrupts.DeferredInterrupt():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        seen = []

        def other():
            with deferred_interrupts.DeferredInterrupt():
                seen.append(signal.getsignal(signal.SIGINT))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert seen == [signal.SIG_IGN]
    finally:
        signal.signal(signal.SIGINT, before)


# ---- a store --------------------------------------------------------------------------------------------------


@register_optimizer
class Fallible(Adding):
    """As ``test``, for all that the store knows it may fail."""

    name = "fallible"
    cannot_fail = False


def add(key, merged, stored):
    stored.add_(merged.to_dense() if merged.layout is not torch.strided else merged)


def one_row():
    return torch.sparse_coo_tensor([[1]], torch.ones(1, 2), (3, 2), is_coalesced=True, check_invariants=True)


#: The kind of update, the pushed value, and the change of the second row by a push of all workers.
KINDS = {
    "optimizer": (lambda store: store.set_optimizer("test"), lambda: torch.ones(3, 2)),
    "fallible": (lambda store: store.set_optimizer("fallible"), lambda: torch.ones(3, 2)),
    "function": (lambda store: store.set_updater(add), lambda: torch.ones(3, 2)),
    "rows": (lambda store: store.set_optimizer("test"), one_row),
    "compressed": (
        lambda store: (store.set_optimizer("test"), store.set_gradient_compression({"type": "bf16"})),
        lambda: torch.ones(3, 2),
    ),
}


def call(store, what, moment):
    """Make one call of all workers with Ctrl-C in the middle, and again if it had not begun."""
    round = store.ranks.heartbeat.round
    try:
        with moment:
            what()
    except KeyboardInterrupt:
        if store.ranks.heartbeat.round == round:
            what()


def everywhere(rank, kind, step):
    """Push with Ctrl-C at one line of the store's code after the other. Return each worker's values after each."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    store = create("dist_sync")
    set_it, given = KINDS[kind]
    store.init("w", torch.zeros(3, 2))
    set_it(store)
    made = 0
    out = torch.empty(3, 2)
    for n in range(0, 10**6, step):
        reached = False
        for verb in ("push", "pushpull"):
            value = given()
            code = feedline.collective, feedline.kvstore
            moment = AtLine(n if rank == 0 else 10**9, lambda: signal.raise_signal(signal.SIGINT), *code)
            what = {
                "push": lambda value=value: store.push("w", value),
                "pushpull": lambda value=value: store.pushpull("w", value, out.clone()),
            }[verb]
            call(store, what, moment)
            if value.layout is torch.strided:
                value.fill_(99)  # the value was copied
            reached |= moment.reached
            made += 1
        store.pull("w", out)
        assert out[1].tolist() == [2.0 * made] * 2, f"after Ctrl-C in line {n}: {out.tolist()} after {made} pushes"
        if not any(flag for (flag,) in store.ranks.gather([float(reached)])):
            return n // step
    return None


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_wherever_it_comes_nothing_is_dropped_and_nothing_comes_twice(kind):
    step = stride(7)
    first, second = run(everywhere, 2, kind=kind, step=step)
    assert first == second
    assert first * step > 90


def in_waits(*actions):
    """Do one thing in each of this rank's next waits for others, once it waits."""
    deliver, left = deferred_interrupts.deliver, list(actions)

    def delivers():
        if left:
            left.pop(0)()
        deliver()

    deferred_interrupts.deliver = delivers


def ctrl_c_now():
    signal.raise_signal(signal.SIGINT)


def left_in_wait(rank, verb):
    """Press Ctrl-C while the other worker keeps this one waiting. It continues with other calls."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    store = create("dist_sync")
    store.init("w", torch.zeros(2))
    store.set_optimizer("momentum", learning_rate=1.0, momentum=0.5)
    store.push("w", torch.ones(2))
    value = torch.full((2,), 2.0)
    fresh = torch.empty(2)
    calls = {
        "pull": lambda: store.pull("w", torch.empty(2)),
        "push": lambda: store.push("w", value),
        "pushpull": lambda: store.pushpull("w", value, torch.empty(2)),
        "init": lambda: store.init("v", torch.full((2,), 7.0 + rank)),
        "broadcast": lambda: store.broadcast("v", torch.full((2,), 7.0 + rank), fresh),
        "barrier": store.barrier,
        "set_optimizer": lambda: store.set_optimizer("momentum", learning_rate=2.0, momentum=0.5),
        "compression": lambda: store.set_gradient_compression({"type": "bf16"}),
    }
    if rank == 0:
        if verb == "pull":  # of a push that the other has not made yet
            store.push("w", value)
        in_waits(ctrl_c_now)
        try:
            calls[verb]()
            say("was not interrupted")
        except KeyboardInterrupt as error:
            say(error.__notes__)
        value.fill_(99)
    elif verb == "pull":  # what this one sends comes late
        before_next_send(store, hear)
        store.push("w", value)
    else:
        hear()
        calls[verb]()
    store.push("w", torch.ones(2))
    outs = [torch.empty(2)]
    store.pull("w", outs[0])
    if verb in ("init", "broadcast"):
        outs.append(torch.empty(2))
        store.pull("v", outs[1])
    store.close()
    return [out.tolist() for out in outs]


@pytest.mark.parametrize(
    "verb", ["pull", "push", "pushpull", "init", "broadcast", "barrier", "set_optimizer", "compression"]
)
def test_a_call_that_it_leaves_is_completed_by_the_next(verb):
    with Job(left_in_wait, 2, verb=verb) as job:
        (note,) = job.heard(0)
        job.tell(1, "the other has left")
        first, second = job.results()
    assert "the next call completes it" in note
    assert first == second
    if verb in ("init", "broadcast"):
        assert first[1] == [7.0, 7.0]


def twice(rank):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    store = create("dist_sync")
    store.init("w", torch.zeros(2))
    out = torch.empty(2)
    if rank == 0:
        in_waits(ctrl_c_now, ctrl_c_now)
        for _ in range(2):
            try:
                store.push("w", torch.ones(2))
            except KeyboardInterrupt as error:
                say(error.__notes__)
    else:
        hear()
        store.push("w", torch.ones(2))
    store.push("w", torch.full((2,), 3.0))
    store.pull("w", out)
    return out.tolist()


def test_the_note_shows_whether_a_call_has_begun():
    """The second push waits for the first, and is left before it has begun: it is not made."""
    with Job(twice, 2) as job:
        first, second = job.heard(0), job.heard(0)
        job.tell(1, "the other has left")
        assert job.results() == [[6.0, 6.0]] * 2
    assert len(first) == 1
    assert any("has not begun" in note for note in second)


# ---- a worker that leaves in the middle ------------------------------------------------------------------------


@register_optimizer
class OutOfMemory(Adding):
    """A rule that promises more than it keeps, on one worker."""

    name = "out_of_memory"
    cannot_fail = True
    fails = False

    def rule(self, weight, gradient, states, count):
        weight.add_(gradient)
        if OutOfMemory.fails:
            raise MemoryError("no space")


def leaves(rank):
    OutOfMemory.fails = rank == 0
    store = create("dist_sync")
    store.init("w", torch.zeros(2))
    store.set_optimizer("out_of_memory")
    store.push("w", torch.ones(2))
    out = torch.empty(2)
    for verb in (lambda: store.pull("w", out), lambda: store.push("w", out), lambda: store.pull("w", out)):
        try:
            verb()
        except (MemoryError, StoreError) as error:
            say((type(error).__name__, str(error), getattr(error, "ranks", ())))
        else:
            say("ok")
    return "end"


def test_a_worker_that_breaks_in_the_middle_of_an_update_can_do_nothing_more_and_is_reported_to_the_others():
    with Job(leaves, 2) as job:
        (kind, _, _), *others = (job.heard(0) for _ in range(3))
        assert kind == "MemoryError"
        for name, text, _ in others:
            assert name == "StoreError"
            assert "MemoryError in the middle of" in text
            assert "last checkpoint" in text
        assert job.heard(1) == "ok"
        name, text, ranks = job.heard(1)
        assert (name, ranks) == ("StoreError", (0,))
        assert "abandoned a collective exchange" in text


def one_fails(rank, kind):
    store = create("dist_sync")
    store.init(["a", "b"], [torch.zeros(2), torch.zeros(2)])

    def update(key, merged, stored):
        stored += merged
        if rank == 1 and key == "b" and float(merged[0]) == 4.0:
            raise ArithmeticError("on one alone")

    class Rule(Adding):
        name = "one_fails"
        cannot_fail = False

        def rule(self, weight, gradient, states, count):
            update("b", gradient, weight)

    if kind == "function":
        store.set_updater(update)
    else:
        store.set_optimizer(Rule())
    store.push(["a", "b"], [torch.ones(2)] * 2)
    try:
        store.push(["a", "b"], [torch.full((2,), 2.0)] * 2)
    except (ArithmeticError, StoreError) as error:
        say((type(error).__name__, str(error), getattr(error, "ranks", ())))
    store.push(["a", "b"], [torch.ones(2)] * 2)
    outs = [torch.empty(2), torch.empty(2)]
    store.pull(["a", "b"], outs)
    return [out.tolist() for out in outs]


@pytest.mark.parametrize("kind", ["function", "optimizer"])
def test_an_updater_that_fails_on_one_worker_is_taken_back_on_all(kind):
    with Job(one_fails, 2, kind=kind) as job:
        name, text, ranks = job.heard(0)
        assert (name, ranks) == ("StoreError", (1,))
        assert "ArithmeticError('on one alone')" in text
        assert job.heard(1)[0] == "ArithmeticError"
        assert job.results() == [[[4.0, 4.0]] * 2] * 2


def states_on_one(rank, folder):
    store = create("dist_sync")
    store.init("w", torch.zeros(2))
    store.set_optimizer("momentum", learning_rate=1.0)
    store.push("w", torch.ones(2))
    store.save_optimizer_states(f"{folder}/{rank}")
    store.barrier()
    if rank == 1:
        store.load_optimizer_states(f"{folder}/{rank}")
    with pytest.raises(StoreError, match="with states of file"):
        store.push("w", torch.ones(2))
    if rank == 0:
        store.load_optimizer_states(f"{folder}/{rank}")
    store.push("w", torch.ones(2))
    store.pull("w", out := torch.empty(2))
    return out.tolist()


def test_states_that_one_worker_alone_has_loaded_are_reported(tmp_path):
    first, second = run(states_on_one, 2, folder=str(tmp_path))
    assert first == second


def set_again(rank):
    store, rule = create("dist_sync"), optimizer("momentum", learning_rate=1.0, momentum=0.5)
    store.init("w", torch.zeros(1))
    store.set_optimizer(rule)
    for _ in range(2):
        store.push("w", torch.ones(1))
    store.set_optimizer(rule)
    store.pull("w", out := torch.empty(1))
    return out.item()


def test_a_rule_that_is_set_again_forgets_after_what_was_pushed_before():
    assert run(set_again, 2) == [-5.0] * 2


def asks_within(rank):
    store = create("dist_sync")
    store.init("w", torch.zeros(1))
    seen = []

    def update(key, merged, stored):
        for verb in (store.barrier, lambda: store.push("w", merged), lambda: store.pull("w", torch.empty(1))):
            try:
                verb()
            except RefusedError as error:
                seen.append(str(error).partition(",")[0])
        stored += merged

    store.set_updater(update)
    store.push("w", torch.ones(1))
    store.pull("w", out := torch.empty(1))
    return seen, out.item()


def test_an_updater_that_calls_its_store_is_refused():
    refusals = ["expected no exchange within another", "expected no push or init from within an updater; change"]
    for seen, value in run(asks_within, 2):
        assert [text.startswith(start[:40]) for text, start in zip(seen, refusals, strict=True)] == [True, True]
        assert value == 2.0


# ---- exchanges next to a store ---------------------------------------------------------------------------------


def stepping(rank, how):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    collective = Communicator()
    collective.barrier()
    if rank == 0:
        in_waits(*{"once": [ctrl_c_now, lambda: say("waits")], "twice": [ctrl_c_now] * 2, "raises": []}[how])
    try:
        with collective.step():
            collective.gather([1.0])
            if rank == 1:
                hear()
            if how == "raises" and rank == 0:
                raise ValueError("of this rank alone")
            total = torch.ones(2)
            collective.wait([collective.sum(total)])
            say(total.tolist())
    except (KeyboardInterrupt, ValueError) as error:
        say(type(error).__name__)
    return collective.gather([float(rank)])


def test_in_a_step_it_waits_for_the_end():
    with Job(stepping, 2, how="once") as job:
        assert job.heard(0) == "waits"
        job.tell(1, "Ctrl-C has come")
        assert [job.heard(0), job.heard(0)] == [[2.0, 2.0], "KeyboardInterrupt"]
        assert job.heard(1) == [2.0, 2.0]
        assert job.results() == [[[0.0], [1.0]]] * 2


@pytest.mark.parametrize(("how", "kind"), [("twice", "KeyboardInterrupt"), ("raises", "ValueError")])
def test_a_rank_that_leaves_a_step_can_exchange_nothing_more_and_is_reported_to_the_others(how, kind):
    with Job(stepping, 2, how=how) as job:
        assert job.heard(0) == kind
        job.tell(1, "the other has left")
        own = job.heard(0)
        assert isinstance(own, Failure)
        assert own.kind == "StoreError"
        assert f"{kind} in the middle of" in own.text
        said = job.heard(1)
        if not isinstance(said, Failure):  # the sum was under way already, and came
            said = job.heard(1)
    assert said.kind == "StoreError"
    assert said.ranks == (0,)
    assert f"abandoned a collective exchange ({kind}" in said.text
