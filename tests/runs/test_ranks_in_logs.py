"""Records of ranks in logs become spans: nothing is lost, nothing is negative, processes begin again at 0."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.probes.examination import Examination
from feedline.runs.diagnosis import diagnose, read_records
from feedline.runs.folder import read_run
from feedline.runs.rank_spans import FeedCounts, RankCounts, SpanRecorder, merge
from feedline.runs.readiness import rank_states
from feedline.runs.watching import RunWatch
from tests.effort import examples
from tests.runs.logs import progress, rank_record, start, write

AMOUNTS = st.integers(0, 5)  # whole numbers, whose sums are exact
STEPS = st.lists(st.tuples(st.integers(0, 1), AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS), max_size=12)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=4))
def test_spans_add_up_to_what_each_rank_counted(processes):
    """Whatever the lines: the spans of a rank add up to its last counts of every process, and follow each other."""
    recorder, expected = SpanRecorder(), {}
    for process in processes:
        recorder.start()
        counts = {}
        for rank, seconds, waited, steps, exchanged in process:
            before = counts.get(rank, RankCounts(rank, "a", 0.0, [FeedCounts({})], 0.0))
            if seconds:  # a record that is not newer is the same record
                [feed] = before.feeds
                waits_s = {"fetch": feed.waits_s.get("fetch", 0.0) + waited}
                counts[rank] = RankCounts(
                    rank,
                    "a",
                    before.seconds + seconds,
                    [FeedCounts(waits_s, feed.steps + steps, feed.step_seconds + steps + exchanged)],
                    before.exchange_seconds + exchanged,
                )
            if rank in counts:
                recorder.add(counts[rank])
        for rank, last in counts.items():
            expected.setdefault(rank, []).append(last)
    assert recorder.spans.keys() == expected.keys()
    for rank, spans in recorder.spans.items():
        total, lasts = merge(spans), expected[rank]
        assert total.waiting_s == sum(last.feeds[0].waits_s["fetch"] for last in lasts)
        assert total.steps == sum(last.feeds[0].steps for last in lasts)
        assert total.step_seconds == sum(last.feeds[0].step_seconds for last in lasts)
        assert total.exchange_seconds == sum(last.exchange_seconds for last in lasts)
        assert sum(span.ended_s - span.began_s for span in spans) == sum(last.seconds for last in lasts)
        ends_s = [0.0, *(span.ended_s for span in spans)]
        for span, before_s in zip(spans, ends_s, strict=False):
            assert span.ended_s > span.began_s >= before_s
            assert min(span.waiting_s, span.steps, span.step_seconds, span.exchange_seconds) >= 0


def test_a_span_is_of_the_feed_that_took_most_of_it():
    """A validation that has taken longer than the training so far does not mix with it."""
    recorder = SpanRecorder()
    recorder.start()
    training, validation = FeedCounts({"decode": 3.0}, 10, 1.0), FeedCounts({"fetch": 9.0}, 4, 2.0)
    recorder.add(RankCounts(0, "a", 4.0, [training], None))
    recorder.add(RankCounts(0, "a", 15.0, [training, validation], None))
    recorder.add(RankCounts(0, "a", 17.0, [FeedCounts({"decode": 4.5}, 15, 1.5), validation], None))
    assert [(span.waits_s, span.steps, span.step_seconds) for span in recorder.spans[0]] == [
        ({"decode": 3.0}, 10, 1.0),
        ({"fetch": 9.0}, 4, 2.0),
        ({"decode": 1.5}, 5, 0.5),
    ]


def two_ranks(seconds, slow=1, **more):
    records = [rank_record(rank, seconds) for rank in range(2)]
    records[slow] = rank_record(slow, seconds, working=0.88, exchanging=0.02, host="slow")
    return progress(round(10 * seconds), time=1000.0 + seconds, seconds=10.0, ranks=records, **more)


def test_a_resumed_run_begins_again_at_zero(tmp_path):
    """The lines after the place where it resumed are repeated, and count once."""
    lines = [start(time=1000.0), *(two_ranks(10.0 * i) for i in range(1, 4))]
    resumed = [rank_record(rank, 5.0) for rank in range(2)]
    lines += [start(200, time=2000.0), progress(300, time=2005.0, ranks=resumed)]
    spans = read_run(write(tmp_path / "run.jsonl", lines)).history.ranks
    assert [(span.process, span.began_s, span.ended_s) for span in spans[1]] == [
        (0, 0.0, 10.0),
        (0, 10.0, 20.0),
        (1, 20.0, 25.0),
    ]
    assert [span.host for span in spans[1]] == ["slow", "slow", "host1"]
    # Only the present process says who is late now.
    assert [state.late for state in rank_states(spans)] == [None, None]
    assert [state.late for state in rank_states({rank: of[:2] for rank, of in spans.items()})] == [None, "step"]


def test_a_doctor_reads_the_ranks_of_heartbeats(tmp_path):
    """The record of the writer is the full one, and short ones of other ranks show who is late."""
    write(tmp_path / "run.jsonl", [two_ranks(10.0 * i, record=rank_record(0, 10.0 * i)) for i in range(1, 4)])
    records = read_records(tmp_path)
    assert [(record.rank, record.seconds) for record in records] == [(0, 30.0), (1, 30.0)]
    assert [finding.rank for finding in diagnose(records) if "wait for this one" in finding.reason] == [1]


def test_logs_of_ranks_are_read_together(tmp_path):
    for rank in range(3):
        record = rank_record(rank, 10.0, waiting=0.6 * (rank == 2), exchanging=0.02 if rank == 2 else 0.5)
        write(tmp_path / f"run.jsonl.rank{rank}", [start(time=0.0), progress(100, time=10.0, record=record)])
    for name in (tmp_path, tmp_path / "run.jsonl", tmp_path / "run.jsonl.rank0", tmp_path / "run.jsonl.rank2"):
        assert sorted(read_run(name).history.ranks) == [0, 1, 2]
        watched = RunWatch(name).look(10.0)
        assert [(state.rank, state.late) for state in watched.ranks()] == [(0, None), (1, None), (2, "fetch")]
    assert watched.limit() == ("rank 2 on host2", "the other ranks wait for its data (fetch)")


def test_a_rank_that_comes_later_is_watched(tmp_path):
    def lines(rank):
        return [start(time=0.0), progress(100, time=10.0, record=rank_record(rank, 10.0))]

    write(tmp_path / "run.jsonl.rank0", lines(0))
    watch = RunWatch(tmp_path)
    assert watch.look(10.0).ranks() == []  # one rank has nobody to wait for
    write(tmp_path / "run.jsonl.rank1", lines(1))
    assert [state.rank for state in watch.look(10.0).ranks()] == [0, 1]


def test_logs_of_a_doctor_are_watched(tmp_path):
    """Programs without a session write them, one for each rank. A second program writes behind the first."""
    for rank in range(2):
        lines = [{"event": "start", "samples": 0, "time": 0.0}]
        for _ in range(2):
            lines += [
                {"event": "start", "samples": 0, "time": 100.0},
                {"event": "record", "samples": 3, "time": 102.0, "record": rank_record(rank, 2.0)},
                {"event": "record", "samples": 3, "time": 104.0, "record": rank_record(rank, 4.0)},
                {"event": "record", "samples": 9, "time": 106.0, "record": rank_record(rank, 6.0)},
            ]
        write(tmp_path / f"doctor.log.rank{rank}", lines)
    watched = RunWatch(tmp_path).look(107.0)
    assert watched.state == "running"
    assert [state.rank for state in watched.ranks()] == [0, 1]
    spans = watched.history.ranks[1]
    assert [(span.began_s, span.ended_s, span.steps) for span in spans] == [(0.0, 4.0, 40), (4.0, 6.0, 20)]
    assert RunWatch(tmp_path / "doctor.log").look(200.0).state.startswith("no news for")
    page = fl.report(tmp_path).read_text("utf-8")
    assert "<h2" in page


def test_a_doctor_begins_its_log_with_a_start(tmp_path):
    for _ in range(2):
        examination = Examination(tmp_path / "doctor.jsonl")
        list(fl.DataLoader([1, 2, 3]))
        examination.end()
    events = [json.loads(line)["event"] for line in (tmp_path / "doctor.jsonl").read_text().splitlines()]
    assert [event for event in events if event != "record"] == ["start", "end", "start", "end"]
    (spans,) = read_run(tmp_path / "doctor.jsonl").history.ranks.values()
    assert len(spans) == 1


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({"rank": -1}, "ranks.rank"),
        ({"seconds": "1"}, "ranks.seconds"),
        ({"feeds": [{"stages": {"fetch": {"waiting": -1.0}}}]}, "ranks.feeds.fetch"),
        ({"feeds": None}, "ranks.feeds"),
        ({"exchange_seconds": "much"}, "ranks.exchange_seconds"),
    ],
)
def test_damaged_records_are_errors_that_name_the_field(record, field, tmp_path):
    path = write(tmp_path / "run.jsonl", [start(), progress(100, ranks=[{**rank_record(0, 1.0), **record}])])
    with pytest.raises(fl.DataError, match=field):
        read_run(path)
