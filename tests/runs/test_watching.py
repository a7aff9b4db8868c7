"""A running process, read from its growing log: its end, its speed and its limit."""

from __future__ import annotations

import json

import pytest

import feedline as fl
from feedline.runs.log import RunLog, read_log
from feedline.runs.watching import RunWatch, duration_text, sparkline
from tests.runs.logs import progress, start, write


def seen(tmp_path, lines, now=1000.0):
    return RunWatch(write(tmp_path / "run.jsonl", lines)).look(now)


def spans(count, every=10.0, **more):
    """Progress lines of ten seconds each, a twentieth of the run each."""
    return [progress(100 * i, seconds=every, time=every * i, done=i / 20, **more) for i in range(1, count + 1)]


def test_how_far_and_how_long(tmp_path):
    run = seen(tmp_path, [start(time=0.0), *spans(8)], now=80.0)
    assert run.done == 0.4
    assert run.remaining_s == pytest.approx(12 * 10)
    assert run.speed() == 10.0
    assert run.state == "running"
    later = seen(tmp_path, [start(time=0.0), *spans(8)], now=100.0)
    assert later.remaining_s == pytest.approx(11 * 10)  # this span takes longer than usual, so the estimate stays


def test_time_left_with_evaluations_and_at_the_end(tmp_path):
    """Every fifth span has an evaluation of 40 s, and the recent ones may have none. Nothing counts down to 0."""
    seconds = [50.0 if i % 5 == 0 else 2.0 for i in range(1, 13)]
    times = [sum(seconds[:i]) for i in range(1, 13)]
    lines = [
        progress(100 * i, seconds=s, time=t, done=i / 20) for i, s, t in zip(range(1, 13), seconds, times, strict=True)
    ]
    seen_one = {"event": "validation", "samples": 500, "loss": 1.0, "metric": None, "counted": 1, "time": 56.0}
    run = seen(tmp_path, [start(time=0.0), *lines, seen_one], now=times[-1])
    assert run.remaining_s == pytest.approx(8 * times[-1] / 12)
    late = seen(tmp_path, [start(time=0.0), *lines, seen_one], now=times[-1] + 100)
    assert late.remaining_s == pytest.approx(7 * times[-1] / 12)
    assert late.elapsed_s == pytest.approx(times[-1] + 100)
    nearly = [
        *lines,
        *(progress(100 * i, seconds=2.0, time=times[-1] + 2 * (i - 12), done=i / 20) for i in range(13, 20)),
    ]
    assert seen(tmp_path, [start(time=0.0), *nearly, seen_one], now=times[-1] + 60).remaining_s > 0
    last = progress(2000, seconds=2.0, time=times[-1] + 16, done=1.0)
    run = seen(tmp_path, [start(time=0.0), *nearly, last, seen_one], now=times[-1] + 30)
    assert (run.remaining_s, run.state) == (None, "running, all trained: evaluating or saving")


def test_a_single_span_is_compared_with_the_start(tmp_path):
    assert seen(tmp_path, [start(time=0.0), *spans(1)], now=10.0).remaining_s == pytest.approx(190)
    assert seen(tmp_path, [start(), *spans(1)], now=10.0).remaining_s is None


def test_a_resumed_run_is_timed_by_its_own_process(tmp_path):
    """Hours between two processes are not part of the speed."""
    first = [start(time=0.0), *spans(4)]
    again = [progress(100 * i, seconds=10.0, time=9000 + 10 * i, done=i / 20) for i in range(5, 8)]
    run = seen(tmp_path, [*first, start(400, time=9000.0), *again], now=9070.0)
    assert run.remaining_s == pytest.approx(13 * 10)
    assert len(run.recent_spans()) == 3


def test_ends(tmp_path):
    run = seen(tmp_path, [start(time=0.0), *spans(3), {"event": "end", "samples": 300, "time": 31.0}])
    assert (run.state, run.done, run.remaining_s) == ("ended", 1.0, 0.0)
    stopped = {"event": "end", "samples": 300, "interrupted": True}
    run = seen(tmp_path, [start(time=0.0), *spans(3), stopped])
    assert (run.state, run.done) == ("interrupted, saved", 0.15)


def test_a_killed_run_prints_nothing_more(tmp_path):
    lines = [start(time=0.0), *spans(3)]
    assert seen(tmp_path, lines, now=80.0).state == "running"
    dead = seen(tmp_path, lines, now=30.0 + 3700)
    assert dead.state == "no news for 1 h 1 min: killed, or stuck"
    assert (dead.remaining_s, dead.elapsed_s) == (None, 30.0)


def test_how_long_silence_is_usual_depends_on_the_spans(tmp_path):
    quick = [start(time=0.0), *spans(8, every=0.5)]
    assert seen(tmp_path, quick, now=13.0).state == "running"
    assert seen(tmp_path, quick, now=16.0).state == "no news for 12 s: killed, stuck, or evaluating"
    assert seen(tmp_path, quick, now=70.0).state == "no news for 1 min 6 s: killed, or stuck"
    evaluated = {"event": "validation", "samples": 800, "loss": 1.0, "metric": None, "counted": 1, "time": 12.0}
    assert seen(tmp_path, [*quick, evaluated], now=20.0).state == "running"  # an evaluation is news
    assert seen(tmp_path, [start(time=0.0)], now=50.0).state == "running"
    slow = [start(time=0.0), *spans(3, every=100.0)]
    assert seen(tmp_path, slow, now=700.0).state == "running"


def test_older_logs_have_no_end_in_sight(tmp_path):
    run = seen(tmp_path, [start(), progress(100), progress(200)])
    assert (run.done, run.remaining_s) == (None, None)


@pytest.mark.parametrize(
    ("line", "stage", "advice"),
    [
        ({"waiting": 0.02, "saving": 0.05}, "the training step", "the feed keeps up"),
        ({"waiting": 0.4, "saving": 0.0, "stats": {"read_seconds": 30.0}}, "reading", "2 threads busy"),
        (
            {"waiting": 0.4, "saving": 0.0, "stats": {"read_seconds": 1.0, "transform_seconds": 45.0}},
            "decoding and other transforms",
            "3 threads busy",
        ),
        ({"waiting": 0.4, "saving": 0.0}, "the feed", "neither reads nor decodes"),
        ({"waiting": 0.1, "saving": 0.5}, "checkpoints", "save less often"),
        ({"waiting": 0.1, "saving": 0.0, "evaluating": 0.5}, "evaluation", "fewer sequences"),
    ],
)
def test_what_limits(tmp_path, line, stage, advice):
    limit = seen(tmp_path, [start(), progress(100, seconds=15.0, **line)]).limit()
    assert limit.stage == stage
    assert advice in limit.advice


def test_shares_match_the_recent_spans(tmp_path):
    early = [progress(100 * i, waiting=0.9, saving=0.0) for i in range(1, 20)]
    late = [progress(100 * i, waiting=0.0, saving=0.0) for i in range(20, 30)]
    assert seen(tmp_path, [start(), *early, *late]).limit().stage == "the training step"


# ---- a log that grows -----------------------------------------------------------------------------


def test_any_cut_reads_the_same(tmp_path):
    """Read in pieces that end anywhere, a log gives the same as when read at once."""
    lines = [start(), progress(100), progress(200), progress(300), start(100), progress(200, loss=0.1)]
    whole = write(tmp_path / "whole.jsonl", lines)
    text = whole.read_bytes()
    expected = read_log(whole, dict)
    for cut in range(0, len(text), 97):
        path = tmp_path / "growing.jsonl"
        path.write_bytes(text[:cut])
        log = RunLog(path, dict)
        log.read_new_lines()
        with path.open("ab") as file:
            file.write(text[cut:])
        log.read_new_lines()
        assert (log.events, log.starts, log.lines) == (expected.events, expected.starts, expected.lines)
        assert log.torn == expected.torn
        assert not log.read_new_lines()
        path.unlink()


def test_a_replaced_or_cut_log_is_read_again(tmp_path):
    path = write(tmp_path / "run.jsonl", [start(), progress(100), progress(200)])
    watch = RunWatch(tmp_path)
    assert watch.look(0.0).history.samples == 200
    write(path, [start(), progress(50)])  # cut in place
    assert watch.look(0.0).history.samples == 50
    path.rename(tmp_path / "old")
    write(path, [start(), progress(70), progress(90), progress(95)])
    (tmp_path / "old").unlink()
    assert watch.look(0.0).history.samples == 95
    path.unlink()
    assert watch.look(0.0) is None


def test_a_log_may_come_later_and_must_be_one(tmp_path):
    watch = RunWatch(tmp_path / "run")
    assert watch.look(0.0) is None
    (tmp_path / "run").mkdir()
    assert watch.look(0.0) is None
    path = write(tmp_path / "run" / "run.jsonl", [start()], torn='{"event": "prog')
    assert watch.look(0.0).history.samples == 0
    path.write_text(json.dumps({"other": 1}) + "\n")
    with pytest.raises(fl.DataError, match="expected an event of a training session"):
        watch.look(0.0)


# ---- words and lines ------------------------------------------------------------------------------


def test_sparklines():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 10) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 0, 7, 7], 2) == "▁█"
    assert sparkline([1, 10, 100], 3) == "▁▅█"  # logarithmic
    assert sparkline([None, 1, float("nan"), 2], 4) == " ▁ █"
    assert sparkline([3, 3], 5) == "▁▁"
    assert sparkline([0.0, 0.5, 1.0, 9.0], 4, (0.0, 1.0)) == "▁▅██"
    assert (sparkline([], 5), sparkline([1], 0), sparkline([None], 3)) == ("", "", " ")


def test_durations():
    told = {0: "0 s", 8.4: "8 s", 160: "2 min 40 s", 3600: "1 h", 11100: "3 h 5 min", 90000: "1 d 1 h"}
    assert {seconds: duration_text(seconds) for seconds in told} == told
