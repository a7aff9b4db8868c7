"""Examples of several workers: they end equal, and a worker that is lost is named, whoever launched them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.docs.pages import IMPORTED_FROM, ROOT
from tests.ranks import free_port

pytest.importorskip("torch", reason="torch is not installed")

EXAMPLES = ROOT / "examples"
ENVIRONMENT = {**os.environ, "PYTHONPATH": IMPORTED_FROM, "OMP_NUM_THREADS": "1"}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
#: Examples with arguments that let them run until they are ended.
FOR_EVER = {
    "data_parallel_lstm": ["--sweeps", "1000000"],
    "cntk_own_source": ["--sentences", "1000000000"],
}
DEADLINE = 120

pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="examples are out of reach of a test of the wheel")


class Program:
    """A Python program under way in a session of its own, and what it says; ended with all that it started.

    Args:
        arguments: of Python.
        variables: over the environment's.
    """

    def __init__(self, arguments, variables):
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            env={**ENVIRONMENT, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        self.said, self._more = "", threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self._more:
                self.said += line
                self._more.notify_all()

    def says(self, pattern):
        """Wait until it has said something."""
        until = time.monotonic() + DEADLINE
        with self._more:
            while not re.search(pattern, self.said):
                assert time.monotonic() < until, self.said
                assert self._more.wait(1) or self._reader.is_alive(), self.said

    def ends(self):
        """Wait for its end; the exit code, and all that it said."""
        code = self.process.wait(DEADLINE)
        self._reader.join(DEADLINE)
        return code, self.said

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # The processes that torchrun starts lead sessions of their own.
        if self.process.poll() is None:
            for pid in children(self.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


def children(pid):
    """Processes that a process has started; none if it is gone."""
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()] if found.exists() else []


def worker(example, rank, port, *more):
    """One worker as any launcher starts it: by variables alone."""
    variables = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return Program([str(EXAMPLES / f"{example}.py"), *FOR_EVER[example], *more], variables)


def under_torchrun(example, *arguments):
    return Program([*TORCHRUN, str(EXAMPLES / f"{example}.py"), *arguments], {})


def last_words(example, *arguments):
    """What the two workers of an example say at their end, under torchrun."""
    with under_torchrun(example, *arguments) as job:
        code, said = job.ends()
    assert code == 0, said
    first, second = sorted(line for line in said.splitlines() if line.startswith("worker"))
    assert (first[:13], second[:13]) == ("worker 0 of 2", "worker 1 of 2")
    return first[15:], second[15:]


@pytest.mark.parametrize("compress", [[], ["--compress", "fp16"]])
def test_data_parallel_lstm(compress):
    """Two workers get it right, and end with the same bits."""
    first, second = last_words("data_parallel_lstm", *compress)
    assert first == second
    assert float(re.match(r"([\d.]+)% wrong", first)[1]) < 5


def test_matrix_factorisation():
    """Both workers find the factors, and neither pulls nearly all rows."""
    first, second = last_words("matrix_factorisation", "--store", "dist_sync")
    assert first.split(",")[0] == second.split(",")[0]
    for words in (first, second):
        error, pulled = re.fullmatch(r"error ([\d.]+), (\d+) of 700 rows pulled a step", words).groups()
        assert float(error) < 0.12
        assert int(pulled) < 350


@pytest.mark.parametrize("learner", ["parallel", "block"])
def test_cntk_own_source(learner):
    """Both workers have had sentences; they end with the same bits."""
    first, second = (
        re.fullmatch(r"(4 of 4 right, .*), learned from (\d+) .*", words)
        for words in last_words("cntk_own_source", "--learner", learner)
    )
    assert first[1] == second[1]
    assert int(first[2]) + int(second[2]) == 400
    assert min(int(first[2]), int(second[2])) > 100


def test_two_workers_of_a_cntk_script_learn_what_one_learns():
    """Their parts are one minibatch, so the printed losses are the same."""
    losses = []
    for program in (["examples/cntk_own_source.py"], [*TORCHRUN, "examples/cntk_own_source.py"]):
        with Program([*program[:-1], str(ROOT / program[-1])], {}) as job:
            code, said = job.ends()
        assert code == 0, said
        losses.append([float(loss) for loss in re.findall(r"Finished Epoch.*?loss = ([\d.]+)", said)])
    assert len(losses[0]) == 4
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)  # the sums differ in their last bits


@pytest.mark.parametrize(
    ("example", "how", "more"),
    [
        ("data_parallel_lstm", signal.SIGKILL, ["--timeout", "600"]),
        ("data_parallel_lstm", signal.SIGSTOP, ["--timeout", "4"]),
        ("cntk_own_source", signal.SIGKILL, []),
    ],
)
def test_a_lost_worker_ends_the_other_with_an_error_that_names_it(example, how, more):
    port = free_port()
    with worker(example, 0, port, *more) as first, worker(example, 1, port, *more) as second:
        first.says("(?i)epoch|loss")
        second.process.send_signal(how)
        code, said = first.ends()
    assert code == 1
    assert re.search(r"StoreError: expected all 2 ranks in an exchange, rank 0 missed .*rank 1: ", said), said


@pytest.mark.parametrize("example", FOR_EVER)
def test_under_torchrun_a_killed_worker_ends_the_job_and_is_named(example):
    """By torchrun, which ends the others as soon as one is gone."""
    with under_torchrun(example, *FOR_EVER[example]) as job:
        job.says("(?i)epoch|loss")
        (lost,) = (
            pid for pid in children(job.process.pid) if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes()
        )
        os.kill(lost, signal.SIGKILL)
        code, said = job.ends()
    assert code == 1
    assert re.search(r"Root Cause.*\n.*\n.*\n.*\n  rank +: 1 .*\n  exitcode +: -9 ", said), said
