"""`feedline.doctor` and ``FEEDLINE_DOCTOR``: programs run as without it, and end with a report."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import feedline as fl
from feedline import system
from feedline.runs.diagnosis import RankRecord, diagnose
from feedline.runs.log import read_log
from tests.linux import linux_only
from tests.quota import skipped_if_stopped

ROOT = Path(__file__).resolve().parents[2]

PROLOGUE = """
import sys, time
import numpy as np
import feedline as fl

class Items:
    def __init__(self, count, seconds):
        self.count, self.seconds = count, seconds
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        time.sleep(self.seconds)
        return np.full(4, index)

def train(loader):
    for batch in loader:
        time.sleep(1e-3)
        print(np.asarray(batch)[:, 0].tolist())

if __name__ == "__main__":
"""


def ran(tmp_path, code, mode="json", **options):
    """Run a program in a file, so that workers of any start method can import it."""
    path = tmp_path / "program.py"
    path.write_text(PROLOGUE + "\n".join(f"    {line}" for line in code.splitlines()) + "\n")
    environment = {**os.environ, "FEEDLINE_DOCTOR": mode}
    return subprocess.run(
        [sys.executable, str(path)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, **options
    )


def findings_of(done):
    """The findings in the last line of stdout, and the lines before it."""
    *lines, last = done.stdout.splitlines()
    return json.loads(last)["findings"], lines


class Slow:
    """Items that a disk delivers slowly."""

    def __len__(self):
        return 200

    def __getitem__(self, index):
        time.sleep(2e-3)
        return np.full(4, index)


def doctors():
    """Threads of doctors that live."""
    return [thread for thread in threading.enumerate() if thread.name == "feedline-doctor"]


@skipped_if_stopped()
def test_the_context_finds_what_limits_a_loop_and_prints_it(capsys):
    with fl.doctor() as examination:
        assert len(doctors()) == 1
        batches = [np.asarray(batch)[:, 0].tolist() for batch in fl.DataLoader(Slow(), batch_size=8)]
    assert sum(batches, []) == list(range(200))
    assert examination.findings[0].stage == "fetch"
    assert examination.record.feed.step.units == 25
    assert capsys.readouterr().err.startswith("feedline doctor, worst first:\nfetch, rank 0")
    assert doctors() == []


class Locked(Slow):
    """Items that one worker at a time can read."""

    def __init__(self):
        self.lock = multiprocessing.get_context("fork").Lock()

    def __len__(self):
        return 1200

    def __getitem__(self, index):
        with self.lock:
            return super().__getitem__(index)


@linux_only("what other processes do")
@skipped_if_stopped()
def test_a_short_loop_is_examined_on_a_slow_machine(monkeypatch):
    activity_of = system.activity_of

    def slow(pid):
        end = time.thread_time() + 1e-3
        while time.thread_time() < end:
            pass
        return activity_of(pid)

    monkeypatch.setattr(system, "activity_of", slow)
    with fl.doctor() as examination:
        for _ in fl.DataLoader(Locked(), batch_size=8, num_workers=2, multiprocessing_context="fork"):
            pass
    assert "one lock" in examination.findings[0].reason


def test_contexts_may_be_nested_and_repeated():
    loader = fl.DataLoader(Slow(), batch_size=8)
    with fl.doctor() as outer:
        list(loader)
        with fl.doctor() as inner:
            list(loader)
    with fl.doctor() as later:
        list(loader)
    batches = [examination.record.feed.step.units for examination in (outer, inner, later)]
    assert batches == [50, 25, 25]
    assert doctors() == []


def test_a_context_without_a_loop_finds_nothing(capsys):
    with fl.doctor() as examination:
        pass
    assert examination.findings == []
    assert "no loop was long enough to judge" in capsys.readouterr().err


def test_an_error_in_the_context_goes_on_after_the_report(capsys):
    with pytest.raises(KeyError, match="mine"), fl.doctor():
        raise KeyError("mine")
    assert "feedline doctor" in capsys.readouterr().err
    assert doctors() == []


def test_a_log_holds_the_record(tmp_path):
    with fl.doctor(log=tmp_path / "runs" / "log.jsonl") as examination:
        list(fl.DataLoader(Slow(), batch_size=8))
    line = read_log(tmp_path / "runs" / "log.jsonl", dict).events[-1]
    entry = RankRecord.from_json(line["record"])
    assert line["event"] == "end"
    assert diagnose([entry]) == examination.findings


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@skipped_if_stopped()
def test_only_the_program_reports_and_its_batches_stay(tmp_path, method):
    code = f"""
loader = fl.DataLoader(Items(240, 5e-3), batch_size=8, shuffle=True, seed=3, num_workers=2,
                       multiprocessing_context={method!r})
train(loader)
"""
    done = ran(tmp_path, code)
    findings, lines = findings_of(done)
    assert done.returncode == 0, done.stderr
    batches = fl.DataLoader(range(240), batch_size=8, shuffle=True, seed=3)
    assert lines == [str(np.asarray(batch).tolist()) for batch in batches]
    assert {finding["stage"] for finding in findings} <= {"fetch", "decode"}
    assert "findings" not in done.stderr


def test_forked_children_do_not_report(tmp_path):
    code = """
import os
pid = os.fork()
if pid == 0:
    sys.exit(0)  # runs its exit functions
os.waitpid(pid, 0)
print("parent")
"""
    done = ran(tmp_path, code)
    assert done.stdout.splitlines() == ["parent", '{"findings": []}']


def test_text_goes_to_stderr(tmp_path):
    done = ran(tmp_path, "train(fl.DataLoader(Items(100, 5e-3), batch_size=8))", mode="1")
    assert "feedline doctor, worst first:" in done.stderr
    assert "doctor" not in done.stdout


def test_zero_examines_nothing(tmp_path):
    done = ran(tmp_path, "train(fl.DataLoader(Items(100, 5e-3), batch_size=8))", mode="0")
    assert "doctor" not in done.stderr
    assert len(done.stdout.splitlines()) == 13


def test_a_path_gets_a_log_of_each_rank(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    ran(tmp_path, "train(fl.DataLoader(Items(100, 5e-3), batch_size=8))", mode=str(tmp_path / "log.jsonl"))
    line = json.loads((tmp_path / "log.jsonl.rank1").read_text().splitlines()[-1])
    assert RankRecord.from_json(line["record"]).rank == 1


def test_a_program_that_raises_keeps_its_traceback_and_exit_code(tmp_path):
    done = ran(tmp_path, "raise KeyError('mine')")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("KeyError: 'mine'")
    assert done.stdout.splitlines()[-1] == '{"findings": []}'
    assert ran(tmp_path, "sys.exit(7)").returncode == 7


def test_an_interrupt_ends_the_program_with_its_report(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROLOGUE + "    print('begun', flush=True)\n    train(fl.DataLoader(Items(10**6, 1e-3)))\n")
    process = subprocess.Popen(
        [sys.executable, str(path)],
        cwd=ROOT,
        env={**os.environ, "FEEDLINE_DOCTOR": "json"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode in (1, -signal.SIGINT)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "findings" in json.loads(output.splitlines()[-1])


def test_imports_before_the_first_feed_are_not_part_of_the_record(tmp_path):
    """In a process of its own, as feeds of other tests may still be alive."""
    done = ran(
        tmp_path,
        """
with fl.doctor() as examination:
    time.sleep(0.3)
    ready = time.monotonic()
    train(fl.DataLoader(Items(16, 1e-3), batch_size=8))
print(examination.record.seconds, time.monotonic() - ready)
""",
        mode="0",
    )
    recorded_s, looped_s = map(float, done.stdout.splitlines()[-1].split())
    assert 0 < recorded_s <= looped_s
