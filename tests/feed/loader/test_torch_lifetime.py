"""Order of delivery, and leftovers of loops that stop halfway: both torch's DataLoader and ours."""

from __future__ import annotations

import gc
import os
import signal

import pytest

from tests.feed.loader.swapped import (
    Endless,
    Function,
    Numbers,
    Program,
    alive,
    both,
    flat,
    pid_of,
    torch,
    wait_until,
    workers,
)

pytestmark = both


# ---- in order, or as they come ------------------------------------------------------------------------------


class FirstLast(Numbers):
    """Sample 0 waits until a file exists."""

    def __init__(self, file) -> None:
        super().__init__(8)
        self.file = file

    def __getitem__(self, index):
        assert index != 0 or wait_until(self.file.exists)
        return index


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_a_slow_sample(Loader, in_order, batched, tmp_path):
    file = tmp_path / "go"
    loader = Loader(
        FirstLast(file), batch_size=1 if batched else None, num_workers=2, prefetch_factor=2, in_order=in_order
    )
    if in_order:
        file.touch()
        assert flat(loader) == list(range(8))
    else:
        batches = iter(loader)
        first = flat([next(batches)])
        assert first == [1]
        file.touch()
        assert sorted(first + flat(batches)) == list(range(8))


def test_order_does_not_matter_without_workers(Loader):
    assert flat(Loader(Numbers(), batch_size=3, in_order=False)) == list(range(10))


# ---- stopping half-way --------------------------------------------------------------------------------------


@workers
def test_a_loop_may_be_left_and_begun_again(Loader, workers):
    loader = Loader(Numbers(10), batch_size=2, num_workers=workers)
    for _ in range(3):
        for batch in loader:
            if batch[0] == 4:
                break
        assert batch.tolist() == [4, 5]
    assert flat(loader) == list(range(10))


@workers
def test_an_iterator_may_be_dropped_unread(Loader, workers):
    loader = Loader(Numbers(10), batch_size=2, num_workers=workers)
    for _ in range(3):
        iter(loader)
    assert flat(loader) == list(range(10))


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("read", [1, 5])
def test_dropped_in_the_middle_nobody_lives_on(Loader, persistent, read):
    loader = Loader(Function(pid_of, 1000), num_workers=2, persistent_workers=persistent)
    iterator = iter(loader)
    pids = set(flat(next(iterator) for _ in range(read)))
    assert all(map(alive, pids))
    del iterator, loader
    gc.collect()
    assert wait_until(lambda: not any(map(alive, pids)))


def test_read_to_the_end_nobody_lives_on(Loader):
    loader = Loader(Function(pid_of, 6), num_workers=2)
    pids = set(flat(loader))
    assert pids
    del loader
    gc.collect()
    assert wait_until(lambda: not any(map(alive, pids)))


def test_a_batch_outlives_its_loader(Loader):
    loader = Loader(Function(rows, 4), batch_size=2, num_workers=1)
    kept = list(loader)
    del loader
    gc.collect()
    assert [batch[:, 0].tolist() for batch in kept] == [[0, 1], [2, 3]]
    kept[0] += 1
    assert kept[0][:, 0].tolist() == [1, 2]


def rows(index):
    return torch.full((1000,), index)


ENDS = {
    "end": "",
    "exit": "sys.exit(0)",
    "error": "raise SystemExit(0) from RuntimeError('in the loop')",
    "os._exit": "os._exit(0)",
    "iterator kept": "kept = iterator",
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("options", ["", "persistent_workers=True"])
def test_a_program_ends_with_its_workers(Loader, how, options, tmp_path):
    script = f"""
        import os, sys
        from tests.feed.loader.swapped import Function, flat, pid_of

        def main():
            global kept
            iterator = iter(Loader(Function(pid_of, 1000), num_workers=2, {options}))
            print(*set(flat(next(iterator) for _ in range(4))))
            {ENDS[how]}

        if __name__ == "__main__":
            main()
    """
    pids = [int(pid) for pid in Program(Loader, script, tmp_path).output().split()]
    assert pids
    assert wait_until(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_program_that_is_killed_takes_its_workers_along(Loader, number, tmp_path):
    script = """
        import time
        from tests.feed.loader.swapped import Function, flat, pid_of

        if __name__ == "__main__":
            iterator = iter(Loader(Function(pid_of, 1000), num_workers=2))
            pids = set(flat(next(iterator) for _ in range(4)))
            print(*pids)  # with the batches gone: Python ignores an interrupt that comes in a finalizer
            time.sleep(60)
    """
    program = Program(Loader, script, tmp_path)
    pids = [int(pid) for pid in program.line().split()]
    assert pids
    os.kill(program.process.pid, number)
    program.process.communicate(timeout=150)
    assert program.process.returncode != 0
    assert wait_until(lambda: not any(map(alive, pids)))


def test_an_endless_dataset_may_be_left(Loader):
    """Workers end in the middle of an endless dataset."""
    loader = Loader(Forever(), batch_size=2, num_workers=2)
    pids = set()
    for i, batch in enumerate(loader):
        pids.update(flat([batch]))
        if i == 20:
            break
    del loader
    gc.collect()
    assert pids
    assert wait_until(lambda: not any(map(alive, pids)))


class Forever(Endless):
    """Who makes the sample, without end."""

    def __iter__(self):
        return map(pid_of, super().__iter__())
