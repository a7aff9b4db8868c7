"""Signals: the first one requests a stop with a checkpoint. SIGTERM then ends the process and its children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline as fl  # noqa: E402
from feedline.train import Saving  # noqa: E402
from feedline.train.checkpoint import Checkpoints  # noqa: E402
from feedline.train.stop_signals import StopSignals  # noqa: E402
from tests.forked import Forked  # noqa: E402
from tests.train.test_session import StopsAfter, fingerprint, session  # noqa: E402
from tests.warm import run  # noqa: E402


class Signals(StopsAfter):
    """A reporter that sends this process signals after ``updates`` updates."""

    def __init__(self, updates, *numbers):
        super().__init__(updates)
        self.numbers = numbers

    def on_update(self, run, summary):
        self.left -= 1
        if self.left == 0:
            for number in self.numbers:
                os.kill(os.getpid(), number)


# A run that gets signals, and prints its end.
PROGRAM = """
import signal, sys
from tests.train.test_session import session
from tests.train.test_stop_signals import Signals
print("begun", flush=True)
run = session(sys.argv[1], reporters=[Signals(8, *(signal.Signals[name] for name in sys.argv[2:]))]).run()
print("ended", run.interrupted, run.minibatches, flush=True)
"""


def signalled(folder, *names):
    """Return the exit code of a process, and its output."""
    done = run(
        ["-c", PROGRAM, str(folder), *names],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.split("\n")[1]


def test_sigterm_saves_and_ends_the_process(tmp_path):
    """As the sender expects. Restarted, the run ends as if nothing had happened."""
    expected = fingerprint(session(tmp_path / "whole").run())
    assert signalled(tmp_path / "run", "SIGTERM") == (-signal.SIGTERM, "")
    assert Checkpoints(tmp_path / "run").latest().state["minibatches"] == 8
    assert not list((tmp_path / "run").glob(".*"))  # its lock was released
    assert fingerprint(session(tmp_path / "run").run()) == expected


@pytest.mark.parametrize(
    ("names", "ended"),
    [
        (["SIGINT"], (0, "ended True 8")),
        (["SIGINT", "SIGTERM"], (-signal.SIGTERM, "")),
        (["SIGTERM", "SIGTERM"], (-signal.SIGTERM, "")),
        (["SIGTERM", "SIGINT"], (-signal.SIGINT, "")),  # as Python ends after KeyboardInterrupt
    ],
)
def test_one_signal_or_two(tmp_path, names, ended):
    assert signalled(tmp_path, *names) == ended
    newest = Checkpoints(tmp_path).latest().state["minibatches"]
    assert newest == (8 if names == ["SIGINT"] else 6)  # it saves every 3rd update: the second signal ends it


def test_a_handler_of_the_program_is_called_after_the_run(tmp_path):
    heard, before = [], signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(len(Checkpoints(tmp_path).paths())))
    try:
        run = session(reporters=[Signals(8, signal.SIGTERM)], saving=Saving(tmp_path)).run()
        assert (run.interrupted, run.minibatches, heard) == (True, 8, [1])
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a program that ignores it continues
        assert session(reporters=[Signals(8, signal.SIGTERM)]).run().samples == 960
    finally:
        signal.signal(signal.SIGTERM, before)


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopSignals() as stopping:
        assert signal.getsignal(signal.SIGTERM) != before[1]
        assert not stopping.requested
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_forked_child_is_ended_by_its_signals(number, request):
    """SIGTERM ends worker processes. An inherited handler would ignore it."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray leaves a handler where it has been used
    request.addfinalizer(lambda: signal.signal(signal.SIGTERM, before))
    reading, writing = os.pipe()
    with StopSignals() as stopping:

        def is_interrupted():
            try:
                os.write(writing, b".")
                while True:
                    time.sleep(0.01)
            except KeyboardInterrupt:
                return True

        child = Forked(is_interrupted)
        os.read(reading, 1)  # it runs
        os.kill(child.pid, number)
        assert child.status() == (-number if number == signal.SIGTERM else 0)
        assert not stopping.requested
    os.close(reading)
    os.close(writing)


def test_in_a_thread_signals_are_left_alone():
    seen = []

    def run():
        with StopSignals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]


def test_a_run_without_checkpoints_is_stopped_too():
    run = session(reporters=[Signals(5, signal.SIGINT)], progress=fl.minibatches(100)).run()
    assert (run.interrupted, run.minibatches) == (True, 5)
