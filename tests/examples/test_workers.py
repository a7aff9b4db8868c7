"""Examples of several workers end with equal models, and name a lost worker, with any launcher."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time

import pytest

from tests.docs.pages import IMPORTED_FROM, ROOT
from tests.ranks import free_port
from tests.warm import Python

pytest.importorskip("torch", reason="torch is not installed")

EXAMPLES = ROOT / "examples"
ENVIRONMENT = {**os.environ, "PYTHONPATH": IMPORTED_FROM, "OMP_NUM_THREADS": "1"}
TORCHRUN = ["-m", "tests.torchrun", "--standalone", "--nproc-per-node", "2"]
#: Examples with arguments that let them run until they are ended.
FOR_EVER = {
    "data_parallel_lstm": ["--sweeps", "1000000"],
    "cntk_own_source": ["--sentences", "1000000000"],
}
DEADLINE = 120

pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="examples are out of reach of a test of the wheel")


class Program:
    """A running Python program in its own session, and its output. Ended with all that it started.

    Args:
        arguments: of Python.
        variables: variables that override the environment's.
    """

    def __init__(self, arguments, variables):
        self.process = Python(
            arguments,
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
        """Wait for its end. Return the exit code, and all output."""
        code = self.process.wait(DEADLINE)
        self._reader.join(DEADLINE)
        return code, self.said

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def worker(example, rank, port, *arguments):
    """One worker as any launcher starts it: by variables alone."""
    variables = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return Program([str(EXAMPLES / f"{example}.py"), *arguments], variables)


@contextlib.contextmanager
def pair(example, *arguments):
    """Two workers."""
    port = free_port()
    with worker(example, 0, port, *arguments) as first, worker(example, 1, port, *arguments) as second:
        yield first, second


@contextlib.contextmanager
def under_torchrun(folder, example, *arguments):
    """torchrun with two workers, whose ids are in files of the folder that are named after their ranks."""
    with Program([*TORCHRUN, str(EXAMPLES / f"{example}.py"), *arguments], {"LAUNCHED": str(folder)}) as job:
        try:
            yield job
        finally:
            if job.process.poll() is None:  # workers lead their own sessions
                for file in folder.iterdir():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(file.read_text()), signal.SIGKILL)


def last_words(example, *arguments):
    """Return the final output of the two workers of an example."""
    with pair(example, *arguments) as workers:
        ends = [one.ends() for one in workers]
    assert [code for code, _ in ends] == [0, 0], ends
    return by_rank("".join(said for _, said in ends))


def by_rank(said):
    """Return the last words of rank 0, and of rank 1. Two that print at once may share a line."""
    first, second = sorted(re.findall(r"^rank .*?(?=rank \d|$)|rank \d of .*$", said, re.MULTILINE))
    assert (first[:11], second[:11]) == ("rank 0 of 2", "rank 1 of 2")
    return first[13:], second[13:]


def test_data_parallel_lstm(tmp_path):
    """Two workers get it right, and end with the same bits. Under torchrun, as in the page."""
    with under_torchrun(tmp_path, "data_parallel_lstm") as job:
        code, said = job.ends()
    assert code == 0, said
    is_learned(*by_rank(said))


def test_data_parallel_lstm_with_compression():
    is_learned(*last_words("data_parallel_lstm", "--compress", "fp16"))


def is_learned(first, second):
    assert first == second
    assert float(re.match(r"([\d.]+)% wrong", first)[1]) < 5


def test_matrix_factorisation():
    """Both workers find what one finds, and neither pulls nearly all rows."""
    with Program([str(EXAMPLES / "matrix_factorisation.py"), "--sweeps", "2"], {}) as alone:
        code, said = alone.ends()
    assert code == 0, said
    expected = float(re.match(r"rank 0 of 1: error ([\d.]+),", said)[1])
    first, second = last_words("matrix_factorisation", "--store", "dist_sync", "--sweeps", "2")
    assert first.split(",")[0] == second.split(",")[0]
    for words in (first, second):
        error, pulled = re.fullmatch(r"error ([\d.]+), (\d+) of 700 rows pulled a step", words).groups()
        assert float(error) == pytest.approx(expected, rel=1e-2)
        assert int(pulled) < 350


@pytest.mark.parametrize("learner", ["parallel", "block"])
def test_cntk_own_source(learner):
    """Both workers have had sentences, and end with the same bits."""
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
    with Program([str(EXAMPLES / "cntk_own_source.py")], {}) as alone, pair("cntk_own_source") as (first, second):
        for one in (alone, first):
            code, said = one.ends()
            assert code == 0, said
            losses.append([float(loss) for loss in re.findall(r"Finished Epoch.*?loss = ([\d.]+)", said)])
        assert second.ends()[0] == 0
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
    with pair(example, *FOR_EVER[example], *more) as (first, second):
        first.says("(?i)epoch|loss")
        second.process.send_signal(how)
        code, said = first.ends()
    assert code == 1
    assert re.search(r"StoreError: expected all 2 ranks in an exchange, but rank 0 missed .*rank 1: ", said), said


@pytest.mark.parametrize("example", FOR_EVER)
def test_under_torchrun_a_killed_worker_ends_the_job_and_is_named(example, tmp_path):
    """By torchrun, which ends the others as soon as one is gone."""
    with under_torchrun(tmp_path, example, *FOR_EVER[example]) as job:
        job.says("(?i)epoch|loss")
        os.kill(int((tmp_path / "1").read_text()), signal.SIGKILL)
        code, said = job.ends()
    assert code == 1
    assert re.search(r"Root Cause.*\n.*\n.*\n.*\n  rank +: 1 .*\n  exitcode +: -9 ", said), said
