"""`feedline watch` in a terminal (tmux) and without one: it follows, survives resizing, ends with the run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time

import pytest

from tests.cli.shell import ENV, feedline, start
from tests.runs.logs import progress, rank_record, write
from tests.runs.logs import start as begun

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
LINES = [begun(time=0.0), *(progress(100 * i, loss=1 / i, time=10.0 * i, done=i / 10) for i in range(1, 6))]
END = {"event": "end", "samples": 500, "time": 60.0}


def append(path, *lines):
    with path.open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


class Terminal:
    """A command in its own tmux."""

    def __init__(self, folder, *args):
        self._tmux = ["tmux", "-S", str(folder / "tmux")]
        command = shlex.join([sys.executable, "-m", "feedline", *map(str, args)])
        self("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "24", f"{command}; echo left $?; sleep 100")

    def __call__(self, *args):
        # A size that shells may export, and which is wrong once the terminal is resized.
        env = {**ENV, "COLUMNS": "100", "LINES": "24", "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        done = subprocess.run([*self._tmux, *args], env=env, capture_output=True, text=True, check=True, timeout=150)
        return done.stdout

    def until(self, wanted, without=""):
        """The screen, once it has some words and lacks others."""
        end = time.monotonic() + 150
        while True:
            screen = self("capture-pane", "-p")
            if wanted in screen and not (without and without in screen):
                return screen
            assert time.monotonic() < end, f"expected {wanted!r} on the screen, got\n{screen}"
            time.sleep(0.1)

    def pid(self):
        """The command's process."""
        shell = self("display-message", "-p", "#{pane_pid}").strip()
        return int(open(f"/proc/{shell}/task/{shell}/children").read().split()[0])


@pytest.fixture
def terminal(tmp_path):
    opened = []

    def open_(*args):
        opened.append(Terminal(tmp_path, *args))
        return opened[-1]

    yield open_
    for one in opened:
        one("kill-server")


@needs_tmux
def test_in_a_terminal(tmp_path, terminal):
    screen = terminal("watch", tmp_path / "run")
    screen.until("waiting for a log")
    (tmp_path / "run").mkdir()
    path = write(tmp_path / "run" / "run.jsonl", LINES)
    wide = screen.until("50.0%")
    assert "loss" in wide
    assert "lowest 0.2 at 500" in wide
    assert "what limits" in wide
    screen("resize-window", "-x", "50", "-y", "15")
    append(path, progress(600, loss=0.1, time=60.0, done=0.6))
    narrow = screen.until("60.0%")
    assert max(map(len, narrow.splitlines())) <= 50
    assert narrow.count("loss") == 1  # nothing of the older screen is left
    append(path, END)
    last = screen.until("left 0")
    assert "ended" in last
    assert "100.0%" in last


@needs_tmux
def test_when_ended_by_a_signal_the_screen_is_given_back(tmp_path, terminal):
    write(tmp_path / "run.jsonl", LINES)
    screen = terminal("watch", tmp_path / "run.jsonl")
    screen.until("50.0%")
    os.kill(screen.pid(), 15)
    assert "50.0%" not in screen.until("left 143", without="50.0%")


def test_without_a_terminal_there_are_lines(tmp_path):
    path = write(tmp_path / "run.jsonl", LINES[:3])
    process = start("watch", path)
    assert process.stdout.readline() == "10.0%, 100 label samples, loss 1, 50 samples/s, 25.0% waiting for data\n"
    append(path, *LINES[3:], END)
    out, err = process.communicate(timeout=60)
    assert out.splitlines()[-2:] == [
        "50.0%, 500 label samples, loss 0.2, 50 samples/s, 25.0% waiting for data",
        "ended",
    ]
    assert (process.returncode, err) == (0, "")


def test_a_killed_run_is_watched_on(tmp_path):
    """Without news the lines note it once, with the consequence. The metric has its name, and a resumed run goes on."""
    now = time.time()
    lines = [begun(time=now - 40, metric_name="wrong")]
    lines += [progress(100 * i, metric=0.5, seconds=1.0, time=now - 40 + i, done=i / 10) for i in range(1, 4)]
    path = write(tmp_path / "run.jsonl", lines)
    process = start("watch", path)
    for _ in range(3):
        process.stdout.readline()
    told = process.stdout.readline()
    assert re.match(r"no news for \d", told)  # 37 s, or more on a slow machine
    assert told.endswith("still watching, in case it is resumed; Ctrl-C ends this\n")
    once = feedline("watch", path, "--once").stdout
    assert re.search("killed, (stuck, or evaluating|or stuck), after 3 s", once)
    assert "left" not in once
    assert "wrong" in once
    append(path, begun(300, time=time.time()), progress(400, seconds=1.0, time=time.time(), done=0.4), END)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert [line.split(",")[0] for line in out.splitlines()] == ["40.0%", "ended"]


def test_once(tmp_path):
    write(tmp_path / "run.jsonl", LINES)
    done = feedline("watch", tmp_path, "--once")
    assert "50.0%" in done.stdout
    assert "about" not in done.stdout  # it has been silent for years
    state = json.loads(feedline("watch", tmp_path, "--json").stdout)
    assert (state["done"], state["loss"], state["samples_per_second"]) == (0.5, 0.2, 50.0)
    assert state["limit"]["stage"] == "the feed"
    failed = feedline("watch", tmp_path / "none", "--once", code=1)
    assert "where there is none yet" in failed.stderr
    (tmp_path / "run.jsonl").write_text('{"a": 1}\n')
    assert "expected an event of a training session" in feedline("watch", tmp_path, code=1).stderr


def test_workers_that_copy_memory_are_named(tmp_path):
    sentence = "A worker has copied 171 MB: pass fl.shared(dataset)."
    copying = progress(100, seconds=1.0, stats={"workers": [{"copied_bytes": 171_000_000}], "memory_advice": sentence})
    write(tmp_path / "run.jsonl", [*LINES[:1], copying])
    assert sentence in " ".join(feedline("watch", tmp_path, "--once").stdout.split())
    assert json.loads(feedline("watch", tmp_path, "--json").stdout)["memory_advice"] == sentence
    write(tmp_path / "run.jsonl", LINES)
    assert json.loads(feedline("watch", tmp_path, "--json").stdout)["memory_advice"] is None
    assert "fl.shared" not in feedline("watch", tmp_path, "--once").stdout


def test_a_page_is_made_again_while_the_log_grows(tmp_path):
    path = write(tmp_path / "run.jsonl", LINES[:2])
    process = start("report", tmp_path, "--watch", "--every", "1")
    page = tmp_path / "report.html"
    assert process.stdout.readline() == f"{page}\n"
    assert 'data-seconds="1"' in page.read_text("utf-8")
    append(path, *LINES[2:], END)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")
    text = page.read_text("utf-8")
    assert "data-seconds" not in text
    assert ">500<" in text
    assert "expected --every" in feedline("report", tmp_path, "--watch", "--every", "0.1", code=2).stderr


def test_several_runs_are_compared(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "run.jsonl", LINES)
    assert feedline("report", tmp_path / "a", tmp_path / "b").stdout == f"{tmp_path / 'comparison.html'}\n"
    failed = feedline("report", tmp_path / "a", tmp_path / "b", "--watch", code=2)
    assert "expected one run with --watch, got 2" in failed.stderr


def of_ranks(count, late, seconds=10.0):
    """A log of a run whose ranks all wait for one of them."""
    return [
        begun(time=0.0),
        *(
            progress(100 * i, time=seconds * i, ranks=[late_record(rank, late, seconds * i) for rank in range(count)])
            for i in range(1, 4)
        ),
    ]


def late_record(rank, late, seconds):
    host = f"node{rank // 8}"
    if rank == late:
        return rank_record(rank, seconds, waiting=0.08, working=0.9, exchanging=0.02, host=host)
    return rank_record(rank, seconds, waiting=0.1, host=host)


def test_each_rank_has_a_line_and_the_late_one_is_named(tmp_path):
    write(tmp_path / "run.jsonl", of_ranks(3, late=1))
    lines = feedline("watch", tmp_path, "--once").stdout.splitlines()
    heads = next(i for i, line in enumerate(lines) if line.startswith("rank"))
    assert [line.split() for line in lines[heads + 1 : heads + 4]] == [
        ["0", "10%", "40%", "50", "ms", "fetch", "node0"],
        ["1", "8%", "2%", "90", "ms", "fetch", "node0", "late:", "step"],
        ["2", "10%", "40%", "50", "ms", "fetch", "node0"],
    ]
    assert "what limits  rank 1 on node0: the other ranks wait for its step" in lines
    ranks = json.loads(feedline("watch", tmp_path, "--json").stdout)["ranks"]
    assert [rank["late"] for rank in ranks] == [None, "step", None]
    assert ranks[1]["exchanging"] == pytest.approx(0.02)
    write(tmp_path / "run.jsonl", of_ranks(1, late=None))
    assert "data wait" not in feedline("watch", tmp_path, "--once").stdout


@needs_tmux
def test_many_ranks_fit_a_low_terminal(tmp_path, terminal):
    write(tmp_path / "run.jsonl", [*of_ranks(64, late=37), {**END, "samples": 300}])
    assert len(re.findall("node", feedline("watch", tmp_path, "--once").stdout)) == 64 + 1  # and what limits
    write(tmp_path / "run.jsonl", of_ranks(12, late=3))
    shown = terminal("watch", tmp_path)
    screen = shown.until("ranks more")
    assert screen.startswith(tmp_path.name)
    write(tmp_path / "run.jsonl", of_ranks(64, late=37))
    screen = shown.until("58 ranks more")
    lines = screen.splitlines()
    (late,) = [line for line in lines if "late: step" in line]
    assert late.split()[0] == "37"
    assert "data wait 8% to 10%" not in screen  # the late one is shown, and not summed up
    assert re.search(r"\d+ ranks more: data wait 10%, rank wait 40%, own step 50 ms", screen)
    assert lines[0].startswith(tmp_path.name)  # nothing is scrolled away


def test_lines_name_a_late_rank_once(tmp_path):
    path = write(tmp_path / "run.jsonl", of_ranks(2, late=0))
    append(path, {**END, "samples": 300})
    lines = feedline("watch", tmp_path).stdout.splitlines()
    assert lines.count("rank 0 on node0 is late: step") == 1
