"""Ctrl-C ends a program at once, also while its workers read items that take long."""

from __future__ import annotations

import os
import signal
from subprocess import PIPE

import pytest

from tests.feed.loader.swapped import alive, wait_until
from tests.warm import FEW, Python

SLOW = """
import os, sys, time
import feedline as fl
from feedline.feed.workers import limits

limits.GRACE_S = 1000.0  # in workers, too, which import this

class Slow:
    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index >= 4:
            time.sleep(1000)
        return os.getpid()

def note(worker):
    open(f"{__file__}.{worker}", "w").close()

def loop(waits, **options):
    pids = set()
    loader = fl.DataLoader(Slow(), batch_size=None, num_workers=2, collate_fn=int, worker_init_fn=note, **options)
    for number, pid in enumerate(loader):
        pids.add(pid)
        if number == 3:
            # Python's start of a process prints an interrupt.
            while not all(os.path.exists(f"{__file__}.{worker}") for worker in range(2)):
                time.sleep(0.01)
            print(*pids, flush=True)
            if not waits:
                time.sleep(1000)

def call(handled, *given, **options):
    try:
        loop(*given, **options)
    except KeyboardInterrupt:
        if not handled:
            raise
    sys.exit(3)
"""


@pytest.mark.parametrize(
    ("method", "group", "persistent", "waits", "handled"),
    [
        ("fork", False, False, True, False),
        ("fork", True, False, False, False),
        ("fork", False, False, False, True),
        ("fork", True, True, True, True),
        ("fork", False, True, False, False),
        ("spawn", False, False, False, True),
        ("forkserver", True, True, True, False),
    ],
)
def test_an_interrupted_loop_does_not_wait_for_slow_items(tmp_path, method, group, persistent, waits, handled):
    path = tmp_path / "program.py"
    options = f"persistent_workers={persistent}, multiprocessing_context={method!r}"
    path.write_text(f"{SLOW}\nif __name__ == '__main__':\n    call({handled}, {waits}, {options})\n")
    running = Python([path], imported=FEW, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True)
    try:
        workers = [int(pid) for pid in running.stdout.readline().split()]
        assert workers
        (os.killpg if group else os.kill)(running.pid, signal.SIGINT)
        _, err = running.communicate(timeout=100)
        assert running.returncode == (3 if handled else -signal.SIGINT)
        assert err.count("KeyboardInterrupt") == (not handled), err
        assert wait_until(lambda: not any(map(alive, workers)))
    finally:
        running.kill()
        running.communicate(timeout=100)
