"""Copies in the background: what gather() returns, whatever happens between start() and result()."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline import _native
from tests.native.test_gather import dense_chunk, same, sparse_chunk


def gatherer_of(seed=0, n=300, slots=3):
    rng = np.random.default_rng(seed)
    gatherer = _native.Gatherer([None, None, 99])
    for slot in range(slots):
        ragged = dense_chunk(rng, n, (7,), "float32", ragged=True)
        plain = dense_chunk(rng, n, (50,), "float64", ragged=False)
        gatherer.add(slot, [plain, ragged, sparse_chunk(rng, n, "float32", ragged=slot % 2 == 1)])
    return gatherer


def equal(got, expected):
    assert len(got) == len(expected)
    for value, oracle in zip(got, expected, strict=True):
        same(value, oracle)


@given(st.integers(0, 2**32), st.integers(0, 2000), st.booleans())
def test_a_copy_is_a_gather(seed, n, one_slot):
    rng = np.random.default_rng(seed)
    gatherer = gatherer_of()
    index = rng.integers(0, 300, n)
    slots = None if one_slot else rng.integers(0, 3, n).astype(np.uint32)
    copy = gatherer.start(slots, index)
    equal(copy.result(), gatherer.gather(slots, index))
    assert copy.done
    assert all(a is b for v, w in zip(copy.result(), copy.result(), strict=True) for a, b in zip(v, w, strict=True))


def test_many_at_once_and_in_any_order():
    """There are more than the queue holds. Several threads finish them, backwards."""
    gatherer = gatherer_of()
    rng = np.random.default_rng(1)
    asked = [rng.integers(0, 300, 1500) for _ in range(60)]
    copies = [gatherer.start(None, index) for index in asked]
    wrong = []

    def finish(which):
        for i in which:
            try:
                equal(copies[i].result(), gatherer.gather(None, asked[i]))
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=finish, args=(range(59, -1, -1 - k),)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_arguments_may_be_written_to():
    gatherer = gatherer_of()
    index = np.arange(300).repeat(20)
    slots = (index % 3).astype(np.uint32)
    expected = gatherer.gather(slots, index)
    for _ in range(20):
        i, s = index.copy(), slots.copy()
        copy = gatherer.start(s, i)
        i[:] = 1 << 60
        s[:] = 1 << 30
        equal(copy.result(), expected)


def test_slots_may_come_and_go():
    """A copy keeps the chunks it began with, and lets them go with its result."""
    for change in ("remove", "replace", "clear", "drop"):
        gatherer = _native.Gatherer([None])
        rows = np.random.default_rng(2).random((400, 500))
        view = rows[:]
        alive = weakref.ref(view)
        gatherer.add(0, [(view, None)])
        index = np.random.default_rng(3).permutation(400)
        copy = gatherer.start(None, index)
        del view
        if change == "drop":
            del gatherer
        else:
            gatherer.clear() if change == "clear" else gatherer.remove(0)
            if change == "replace":
                gatherer.add(0, [(np.zeros((2, 500)), None)])
        assert alive() is not None
        assert np.array_equal(copy.result()[0][0], rows[index])
        gc.collect()
        assert alive() is None, change


def test_dropping_lets_everything_go():
    gatherer = _native.Gatherer([None])
    view = np.random.default_rng(2).random((400, 500))[:]
    alive = weakref.ref(view)
    gatherer.add(0, [(view, None)])
    del view
    for _ in range(200):
        gatherer.start(None, np.arange(400))
    gatherer.remove(0)
    assert alive() is None
    with pytest.raises(ValueError, match="at least one chunk"):
        _native.Gatherer([None]).start(None, np.arange(4))


@pytest.mark.parametrize(
    ("slots", "index", "error"),
    [
        (None, np.array([0, 300]), IndexError),
        (None, np.array([-1]), IndexError),
        (np.array([3], np.uint32), np.array([0]), IndexError),
        (np.array([0, 1], np.uint32), np.array([0]), ValueError),
        (None, np.array([0.5]), TypeError),
        (np.array([0]), np.array([0]), TypeError),
    ],
)
def test_errors_match_gather(slots, index, error):
    gatherer = gatherer_of()
    with pytest.raises(error) as expected:
        gatherer.gather(slots, index)
    with pytest.raises(error) as got:
        gatherer.start(slots, index)
    assert str(got.value) == str(expected.value)


def run(script, *options):
    """Run a script in its own process, which must end quietly."""
    start = """
    import os, sys, signal, threading, time
    import numpy as np
    from feedline import _native
    rows = np.random.default_rng(0).random((4000, 500))
    gatherer = _native.Gatherer([None])
    gatherer.add(0, [(rows, None)])
    index = np.random.default_rng(1).permutation(4000)
    """
    text = textwrap.dedent(start) + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, *options, "-W", "ignore::DeprecationWarning", "-c", text],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.parametrize("options", [(), ("-X", "dev")])
@pytest.mark.parametrize(
    "end",
    [
        "copy = gatherer.start(None, index)",
        "copies = [gatherer.start(None, index) for _ in range(30)]; del gatherer",
        "gatherer.start(None, index); sys.exit(0)",
        "copy = gatherer.start(None, index); cycle = [copy]; cycle.append(cycle); del copy, cycle",
        "copy = gatherer.start(None, index); os._exit(0)",
        "copy = gatherer.start(None, index); os.fork() or os._exit(0); os.wait()",
    ],
)
def test_the_interpreter_ends_in_peace(options, end):
    run(end, *options)


def test_a_forked_child_needs_no_thread_of_its_parent():
    """Copies under way at a fork are right on both sides, and a child copies in the background again."""
    out = run("""
    expected = rows[index]
    for pause in (0, 0.001, 0.003, 0.01, 0.1):
        copies = [gatherer.start(None, index) for _ in range(3)]
        time.sleep(pause)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            for copy in copies[:2]:
                assert np.array_equal(copy.result()[0][0], expected) and copy.done
            del copy, copies
            fresh = gatherer.start(None, index)
            while not fresh.done:
                time.sleep(0.001)
            assert np.array_equal(fresh.result()[0][0], expected)
            print("child", flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        for copy in copies:
            assert np.array_equal(copy.result()[0][0], expected)
    """)
    assert out == "child\n" * 5


def test_a_wait_can_be_interrupted():
    """One part of 400 MB takes longer than the wait between two looks for signals."""
    out = run("""
    gatherer = _native.Gatherer([None])
    gatherer.add(0, [(np.zeros((1, 50_000_000)), None)])
    for attempt in range(50):
        copy = gatherer.start(None, np.zeros(1, np.int64))
        time.sleep(0.002)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        try:
            copy.result()
        except KeyboardInterrupt:
            if not copy.done:
                assert copy.result()[0][0].shape == (1, 50_000_000) and copy.done
                print("interrupted")
                break
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        del copy
    """)
    assert out == "interrupted\n"


def test_signals_go_to_other_threads():
    """The native thread blocks all signals, so that each interrupts a call of the main thread."""
    out = run("""
    gatherer.start(None, index).result()
    masks = []
    for task in os.listdir("/proc/self/task"):
        status = open(f"/proc/self/task/{task}/status").read()
        masks.append(int(status.split("SigBlk:")[1].split()[0], 16))
    print(masks.count(0), sum(mask >> (signal.SIGINT - 1) & 1 for mask in masks))
    """)
    unblocked, blocked = map(int, out.split())
    assert unblocked >= 1
    assert blocked == 1
