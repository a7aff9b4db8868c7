"""The rank that the others wait for, from records with invented times."""

from __future__ import annotations

import pytest

from feedline.concurrency.stages import FeedStage
from feedline.runs.diagnosis import FeedRecord, RankRecord, diagnose


def record(rank, *, working=1.0, fetch=0.0, exchanging=None, steps=10, host=None):
    """A rank whose step has its own work and its exchanges, in seconds of all steps."""
    stages = {"fetch": FeedStage(fetch, fetch, steps), "step": FeedStage(working + (exchanging or 0.0), 0.0, steps)}
    seconds = working + fetch + (exchanging or 0.0)
    return RankRecord(rank, host or f"host{rank}", seconds, [FeedRecord({}, stages)], exchange_seconds=exchanging)


def late(records):
    """The findings about ranks that others wait for, as (rank, stage, gain)."""
    findings = [finding for finding in diagnose(records) if "wait for this one" in finding.reason]
    return [(finding.rank, finding.stage, round(finding.gain, 2)) for finding in findings]


def test_a_slow_step_is_late():
    records = [record(0, exchanging=1.0), record(1, working=1.9, exchanging=0.1), record(2, exchanging=1.0)]
    assert late(records) == [(1, "step", 1.82)]
    (finding,) = diagnose(records)  # nothing else is said of ranks whose steps take equally long
    assert finding.host == "host1"
    assert finding.evidence == (
        "The others wait for ranks 50% of their time, and this one 5%: a step takes it 190 ms, and the others 100 ms."
    )


def test_a_slow_feed_is_late_and_the_steps_of_those_that_wait_are_not_slow():
    records = [record(0, exchanging=1.0), record(1, fetch=0.9, exchanging=0.1)]
    assert late(records) == [(1, "fetch", 1.82)]
    assert not [finding for finding in diagnose(records) if finding.rank == 0]
    evidence = [finding.evidence for finding in diagnose(records)]
    assert any("it waits 90 ms for the data of a step, reading first of all" in text for text in evidence)


def test_ranks_that_take_turns_are_not_late():
    """Each is late in some steps, so all wait equally long."""
    assert late([record(rank, exchanging=0.5) for rank in range(4)]) == []


def test_short_waits_are_no_reason():
    assert late([record(0, exchanging=0.1), record(1, working=1.1, exchanging=0.0)]) == []


def test_unknown_exchanges_are_no_evidence_and_steps_are_compared_by_their_time():
    findings = diagnose([record(0), record(1, working=2.0), record(2)])
    assert [(finding.rank, finding.stage) for finding in findings] == [(1, "step")]
    assert "slower on this rank" in findings[0].reason
    assert late([record(0), record(1, working=2.0)]) == []


def test_half_of_the_ranks_are_late():
    records = [record(rank, working=1.9 if rank < 4 else 1.0, exchanging=0.1 if rank < 4 else 1.0) for rank in range(8)]
    assert late(records) == [(0, "step", 1.82)]
    assert diagnose(records)[0].evidence.endswith("The same holds for ranks 1, 2, 3.")


def test_a_brief_record_is_judged_like_the_full_one():
    records = [record(0, exchanging=1.0), record(1, fetch=0.9, exchanging=0.1)]
    brief = [RankRecord.from_json(full.to_brief_json()) for full in records]
    assert late(brief) == late(records)
    assert [rank.feed.waiting for rank in brief] == [rank.feed.waiting for rank in records]


def test_a_span_of_brief_records_is_the_difference():
    before, after = record(1, fetch=0.5, exchanging=0.1, steps=4), record(1, fetch=0.9, exchanging=0.4)
    first, last = (RankRecord.from_json(full.to_brief_json()) for full in (before, after))
    span, expected = last.since(first), after.since(before)
    assert span.feed.step.units == expected.feed.step.units == 6
    assert span.exchange_seconds == pytest.approx(expected.exchange_seconds) == pytest.approx(0.3)
    assert span.feed.waiting == pytest.approx(0.4)
