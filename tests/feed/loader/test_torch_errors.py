"""Errors reach the loop with their own type: both torch's DataLoader and ours."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import time

import pytest

from tests.feed.loader.swapped import (
    Function,
    MyError,
    Numbers,
    Whole,
    alive,
    both,
    flat,
    pid_of,
    same,
    torch,
    wait_until,
    workers,
)
from tests.forked import die

pytestmark = both


def value_error(index):
    if index == 3:
        raise ValueError(f"no sample {index} here")
    return index


def key_error(index):
    return {0: 0, 1: 1, 2: 2}[index]


def my_error(index):
    if index == 3:
        raise MyError("mine")
    return index


def os_error(index):
    return index if index < 3 else len(open("no such file").read())


FAILING = [
    (value_error, ValueError, "no sample 3 here"),
    (key_error, KeyError, "3"),
    (my_error, MyError, "mine"),
    (os_error, FileNotFoundError, "no such file"),
]


@workers
@pytest.mark.parametrize(("function", "error", "says"), FAILING)
def test_an_error_in_a_sample_keeps_its_type(Loader, workers, function, error, says):
    iterator = iter(Loader(Function(function), num_workers=workers))
    assert flat(next(iterator) for _ in range(3)) == [0, 1, 2]
    with pytest.raises(error, match=says):
        next(iterator)


@pytest.mark.parametrize(("function", "error", "says"), FAILING)
def test_an_error_in_a_worker_has_its_place(Loader, function, error, says):
    with pytest.raises(error) as caught:
        list(Loader(Function(function), num_workers=2))
    told = text_of(caught.value)
    assert re.search(r"Caught \w+ in DataLoader worker process [01]\.", told)
    assert "Original Traceback" in told
    assert function.__name__ in told
    assert says in told


def text_of(error: BaseException) -> str:
    """Everything that a user would see of an error but the traceback here: message, notes and causes."""
    parts = [str(error), *getattr(error, "__notes__", ())]
    if error.__cause__ is not None:
        parts.append(text_of(error.__cause__))
    return "\n".join(parts)


@workers
def test_after_an_error_comes_the_next_batch(Loader, workers):
    iterator = iter(Loader(Function(value_error), batch_size=2, num_workers=workers))
    got = []
    for _ in range(5):
        try:
            got.append(next(iterator).tolist())
        except ValueError:
            got.append("error")
    assert got == [[0, 1], "error", [4, 5], [6, 7], [8, 9]]
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.parametrize("persistent", [False, True])
def test_after_an_error_comes_the_next_epoch(Loader, persistent):
    loader = Loader(Function(value_error), num_workers=2, persistent_workers=persistent)
    for _ in range(2):
        got = []
        with pytest.raises(ValueError, match="no sample 3"):
            for batch in loader:
                got += flat([batch])
        assert got == [0, 1, 2]


def bad_collate(samples):
    raise MyError("cannot collate")


def bad_init(worker):
    raise MyError("cannot start")


class BadIterable(Whole):
    def __iter__(self):
        raise MyError("cannot iterate")


class FailsOnTheWay(Whole):
    def __iter__(self):
        yield 0
        yield 1
        raise MyError("cannot go on")


class BadLength(Numbers):
    def __len__(self):
        raise MyError("cannot count")


@workers
def test_an_error_in_collate_fn(Loader, workers):
    with pytest.raises(MyError, match="cannot collate"):
        list(Loader(Numbers(), collate_fn=bad_collate, num_workers=workers))


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_in_worker_init_fn(Loader, count):
    with pytest.raises(MyError, match="cannot start"):
        list(Loader(Numbers(), num_workers=count, worker_init_fn=bad_init))
    with pytest.raises(MyError, match="cannot start"):
        list(Loader(Whole(), num_workers=count, worker_init_fn=bad_init))


@workers
def test_an_error_in_iter_of_an_iterable(Loader, workers):
    with pytest.raises(MyError, match="cannot iterate"):
        list(Loader(BadIterable(), num_workers=workers))


@workers
def test_an_error_on_the_way_through_an_iterable(Loader, workers):
    iterator = iter(Loader(FailsOnTheWay(), num_workers=min(workers, 1)))
    assert flat([next(iterator), next(iterator)]) == [0, 1]
    with pytest.raises(MyError, match="cannot go on"):
        next(iterator)


@workers
def test_an_error_in_len_is_raised_at_once(Loader, workers):
    with pytest.raises(MyError, match="cannot count"):
        list(Loader(BadLength(), num_workers=workers))


class BadSampler:
    def __iter__(self):
        yield 0
        raise MyError("cannot choose")


@workers
def test_an_error_in_a_sampler(Loader, workers):
    with pytest.raises(MyError, match="cannot choose"):
        list(Loader(Numbers(), sampler=BadSampler(), num_workers=workers))


@workers
def test_an_index_out_of_range(Loader, workers):
    with pytest.raises(IndexError):
        list(Loader([1, 2, 3], sampler=[0, 5], num_workers=workers))


# ---- workers that die, or take too long ---------------------------------------------------------------------


def segfault(index):
    if index == 3:
        ctypes.string_at(0)
    return index


def killed(index):
    if index == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return index


def exits(index):
    if index == 3:
        die(7)
    return index


@pytest.mark.parametrize("function", [segfault, killed, exits])
def test_a_worker_that_always_dies_is_an_error(Loader, function):
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid.*\d+\).*(exited unexpectedly|killed by signal)"):
        # Numbers, not tensors: torch fetches those from the worker, and may find it gone while it does.
        list(Loader(Function(function), batch_size=2, num_workers=1, collate_fn=same))


@pytest.mark.parametrize("when", ["init", "iter"])
def test_a_worker_that_dies_elsewhere_is_an_error(Loader, when):
    data, init = (Numbers(), exits_at_start) if when == "init" else (DiesIterating(), None)
    with pytest.raises(RuntimeError, match=r"(?i)worker"):
        list(Loader(data, num_workers=1, worker_init_fn=init))


def exits_at_start(worker):
    die(3)


class DiesIterating(Whole):
    def __iter__(self):
        os.kill(os.getpid(), signal.SIGKILL)
        yield 0


def sleeps(index):
    if index == 2:
        time.sleep(2.5)
    return index


@pytest.mark.slow
def test_a_timeout(Loader):
    iterator = iter(Loader(Function(sleeps), num_workers=1, timeout=1))
    with pytest.raises(RuntimeError, match="timed out after 1"):
        list(iterator)


def test_no_timeout_while_all_is_well(Loader):
    assert flat(Loader(Numbers(), num_workers=2, timeout=int(1e6))) == list(range(10))


# ---- the loop itself fails ----------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [False, True])
def test_an_exception_in_the_loop_ends_the_workers(Loader, persistent):
    pids = set()

    def loop():
        loader = Loader(Function(pid_of, 1000), num_workers=2, persistent_workers=persistent)
        for batch in loader:
            pids.update(flat([batch]))
            raise MyError("in the loop")

    with pytest.raises(MyError):
        loop()
    assert pids
    assert wait_until(lambda: not any(map(alive, pids)))


def test_an_exception_is_not_kept_for_later(Loader):
    """A failed sweep does not affect the next one."""
    with pytest.raises(ValueError, match="no sample"):
        list(Loader(Function(value_error), num_workers=2))
    assert flat(Loader(Numbers(), num_workers=2, collate_fn=same)) == list(range(10))
    assert torch.utils.data.get_worker_info() is None
