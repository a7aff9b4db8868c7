"""Rules of the doctor over records with clocks that the test sets: what they say, and when they say nothing."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.concurrency.conditions import Conditions
from feedline.concurrency.stages import STAGES, FeedStage
from feedline.runs.diagnosis import FeedRecord, RankRecord, diagnose
from tests.effort import examples

LOADER = {"feed": "DataLoader", "dataset": "Items", "workers": 2, "kind": "process"}
SOURCE = {
    "feed": "MinibatchSource",
    "corpus": "data",
    "format": "Store",
    "files": 1,
    "stored_bytes": 100_000_000,
    "threads": 2,
}
STEP_S = 5.0


def record(facts, waiting, *, rank=0, step=None, conditions=None, stages=None, feed=None, **options):
    """Record of a loop of 1000 steps in 5 s that waits for stages, by name, so many seconds."""
    conditions = conditions or {}
    figures = {name: FeedStage(2 * seconds, seconds, 1000, threads=2) for name, seconds in waiting.items()}
    for name, fields in (stages or {}).items():
        figures[name] = replace(figures.get(name, FeedStage(units=1000)), **fields)
    figures["step"] = step or FeedStage(STEP_S, 0.0, 1000, median_seconds=STEP_S / 1000)
    seconds = figures["step"].seconds + sum(waiting.values())
    feeds = [FeedRecord(facts, figures, **(feed or {}))]
    return RankRecord(rank, f"host{rank}", seconds, feeds, Conditions(**{"cores": 8, **conditions}), **options)


def verdicts(*records):
    """Stages, ranks and reasons of findings, worst first."""
    return [(finding.stage, finding.rank, finding.reason) for finding in diagnose(records)]


def slow(seconds, name="item 7"):
    """Slowest units of a stage: one of them takes so many seconds."""
    return [{"seconds": seconds, "name": name}]


def ranks(own, usual):
    """Records of three ranks, of which the one in the middle differs."""
    return [own(rank) if rank == 1 else usual(rank) for rank in range(3)]


# Each rule: words of its reason, its stage, a record for which it fires, and the same just below its threshold.
RULES = {
    "hook": (
        "hook", "decode",
        record(LOADER, {"decode": 5.0}, feed={"hook": "pydevd"}),
        record(LOADER, {"decode": 5.0}),
    ),
    "swapping": (
        "swaps", "decode",
        record(LOADER, {"decode": 5.0}, conditions={"swapped_bytes": 1 << 25, "major_faults": 9000}),
        record(LOADER, {"decode": 5.0}, conditions={"swapped_bytes": 1 << 23, "major_faults": 9000}),
    ),
    "quota": (
        "quota", "decode",
        record(LOADER, {"decode": 5.0}, conditions={"throttled_seconds": 2.0}),
        record(LOADER, {"decode": 5.0}, conditions={"throttled_seconds": 0.9}),
    ),
    "too many workers": (
        "too many workers", "decode",
        record(
            {**LOADER, "workers": 16}, {"decode": 5.0},
            conditions={"cores": 2, "cpu_seconds": 20.0, "queued_seconds": 90.0, "worker_queued_seconds": 90.0},
        ),
        record(
            {**LOADER, "workers": 16}, {"decode": 5.0},
            conditions={"cores": 2, "cpu_seconds": 20.0, "queued_seconds": 5.9, "worker_queued_seconds": 5.9},
        ),
    ),
    "one lock": (
        "one lock", "fetch",
        record(LOADER, {"fetch": 5.0}, feed={"activity": {"lock": 50, "waiting": 50}}),
        record(LOADER, {"fetch": 5.0}, feed={"activity": {"lock": 24, "waiting": 76}}),
    ),
    "the GIL": (
        "(the GIL)", "transform",
        record({**LOADER, "kind": "thread"}, {"fetch": 5.0}, feed={"computing_seconds": 9.0}),
        record({**LOADER, "kind": "thread"}, {"fetch": 5.0}, feed={"computing_seconds": 4.9}),
    ),
    "one slow sample": (
        "1 sample", "fetch",
        record(LOADER, {"fetch": 2.0}, stages={"fetch": {"median_seconds": 1e-3, "slowest": slow(3.0)}}),
        record(LOADER, {"fetch": 2.0}, stages={"fetch": {"median_seconds": 1e-3, "slowest": slow(0.6)}}),
    ),
    "refused requests": (
        "refuses", "fetch",
        record(SOURCE, {"fetch": 5.0}, requests=100, refused_requests=3),
        record(SOURCE, {"fetch": 5.0}, requests=100, refused_requests=1),
    ),
    "a small cache": (
        "cache of objects", "fetch",
        record({**SOURCE, "remote": True}, {"fetch": 5.0}, stages={"fetch": {"bytes": 130_000_000}}),
        record({**SOURCE, "remote": True}, {"fetch": 5.0}, stages={"fetch": {"bytes": 119_000_000}}),
    ),
    "less than a window": (
        "Less than a window", "decode",
        record({**SOURCE, "read_ahead": 1}, {"decode": 5.0}),
        record({**SOURCE, "read_ahead": None}, {"decode": 5.0}),
    ),
    "a whole shuffle": (
        "whole shuffle", "fetch",
        record({**SOURCE, "whole_shuffle": True}, {"fetch": 5.0}, stages={"fetch": {"bytes": 1_000_000}}),
        record({**SOURCE, "whole_shuffle": True}, {"fetch": 5.0}),
    ),
    "a full page cache": (
        "page cache", "fetch",
        record(SOURCE, {"fetch": 5.0}, stages={"fetch": {"bytes": 130_000_000}}),
        record(SOURCE, {"fetch": 5.0}, stages={"fetch": {"bytes": 119_000_000}}),
    ),
    "tiny files of a corpus": (
        "small files", "fetch",
        record({**SOURCE, "files": 100, "stored_bytes": 6_500_000}, {"decode": 5.0}),
        record({**SOURCE, "files": 100, "stored_bytes": 6_600_000}, {"decode": 5.0}),
    ),
    "tiny files of a dataset": (
        "small files", "fetch",
        record(
            LOADER, {"fetch": 5.0}, conditions={"asked_bytes": 4_000_000, "read_calls": 4000},
            feed={"activity": {"file": 30, "waiting": 70}},
        ),
        record(
            LOADER, {"fetch": 5.0}, conditions={"asked_bytes": 4_000_000, "read_calls": 4000},
            feed={"activity": {"file": 20, "waiting": 80}},
        ),
    ),
    "compressed text": (
        "Decompressing", "decode",
        record({**SOURCE, "format": "CSV", "compressed": True}, {"decode": 5.0}),
        record({**SOURCE, "format": "CSV", "compressed": True}, {"decode": 0.5}),
    ),
    "a compressed store": (
        "Decompressing", "decode",
        record({**SOURCE, "mapped": False}, {"decode": 5.0}),
        record({**SOURCE, "mapped": True}, {"decode": 5.0}),
    ),
    "text": (
        "Parsing text", "decode",
        record({**SOURCE, "format": "JSONLines"}, {"decode": 5.0}),
        record({**SOURCE, "format": "Parquet"}, {"decode": 5.0}),
    ),
    "pageable copies": (
        "not pinned", "device",
        record({**LOADER, "pin_memory": False, "device": None}, {"device": 1.0}),
        record({**LOADER, "pin_memory": True, "device": None}, {"device": 1.0}),
    ),
    "a Python function": (
        "Python function", "transform",
        record({**SOURCE, "transforms": ["the transform crop"]}, {"transform": 5.0}),
        record({**SOURCE, "transforms": ["images.Decode"]}, {"transform": 5.0}),
    ),
    "irregular steps": (
        "Some steps", "step",
        record(LOADER, {}, step=FeedStage(5.0, 0.0, 1000, median_seconds=4e-3, slowest=slow(1.0, "step 9"))),
        record(LOADER, {}, step=FeedStage(5.0, 0.0, 1000, median_seconds=4e-3, slowest=slow(0.4, "step 9"))),
    ),
    "starts": (
        "start again", "fetch",
        record(LOADER, {"fetch": 1.0}, feed={"starting_seconds": 1.0, "starts": 3}),
        record(LOADER, {"fetch": 1.0}, feed={"starting_seconds": 1.0, "starts": 2}),
    ),
    "a stage without a cause": (
        "The loop waits for reading", "fetch",
        record(LOADER, {"fetch": 1.0}),
        record(LOADER, {"fetch": 0.5}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_fires(rule):
    words, stage, fires, _ = RULES[rule]
    first = diagnose([fires])[0]
    assert words in first.reason
    assert (first.stage, first.rank, first.host) == (stage, 0, "host0")
    assert first.gain > 1
    assert all(text.endswith(".") for text in (first.reason, first.evidence, first.setting))


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_does_not_fire_below_its_threshold(rule):
    words, _, _, silent = RULES[rule]
    assert not any(words in finding.reason for finding in diagnose([silent]))


def test_a_slow_disk_is_that_of_its_rank():
    def waits(seconds):
        return lambda rank: record(LOADER, {"fetch": seconds}, rank=rank)

    first, *later = diagnose(ranks(waits(5.0), waits(0.4)))
    assert (first.stage, first.rank, first.host) == ("fetch", 1, "host1")
    assert "slower on this rank" in first.reason
    assert not later
    assert not any("slower" in finding.reason for finding in diagnose(ranks(waits(0.9), waits(0.5))))
    # Where the others never wait for a disk, this one is slower, too.
    assert diagnose(ranks(waits(5.0), lambda rank: record(LOADER, {"decode": 0.1}, rank=rank)))[0].rank == 1


def test_a_slow_step_is_that_of_its_rank():
    def steps(seconds):
        stage = FeedStage(1000 * seconds, 0.0, 1000, median_seconds=seconds)
        return lambda rank: record(LOADER, {}, rank=rank, step=stage)

    (finding,) = diagnose(ranks(steps(2e-2), steps(1e-2)))
    assert (finding.stage, finding.rank) == ("step", 1)
    assert finding.gain == pytest.approx(2.0)
    assert not diagnose(ranks(steps(1.25e-2), steps(1e-2)))


def test_a_reason_of_several_ranks_is_one_finding_about_the_worst():
    waits = [record(LOADER, {"fetch": 2.0 + rank}, rank=rank) for rank in range(3)]
    (finding,) = diagnose(waits)
    assert finding.rank == 2
    assert finding.evidence.endswith("The same holds for ranks 0, 1.")


def test_findings_are_sorted_by_gain():
    steps = FeedStage(5.0, 0.0, 1000, median_seconds=3e-3, slowest=slow(2.0, "step 9"))
    small, large = (record(LOADER, {"fetch": seconds}, step=steps) for seconds in (1.0, 9.0))
    assert [stage for stage, _, _ in verdicts(small)] == ["step", "fetch"]
    assert [stage for stage, _, _ in verdicts(large)] == ["fetch", "step"]


def test_a_busy_machine_is_no_reason():
    """Workers waited for processors that other programs used, and would have kept up with their own."""
    busy = {"cpu_seconds": 1.0, "queued_seconds": 6.0, "worker_queued_seconds": 6.0}
    assert verdicts(record(LOADER, {"fetch": 2.0}))
    assert not verdicts(record(LOADER, {"fetch": 2.0}, conditions=busy))
    # Work that takes longer than the step remains a reason.
    assert verdicts(record(LOADER, {"decode": 20.0}, conditions=busy))
    steps = FeedStage(5.0, 0.0, 1000, median_seconds=4e-3, slowest=slow(1.0, "step 9"))
    assert verdicts(record(LOADER, {}, step=steps))
    assert not verdicts(record(LOADER, {}, step=steps, conditions={"loop_queued_seconds": 1.2}))


def test_no_records_and_empty_ones_say_nothing():
    assert diagnose([]) == []
    assert diagnose([RankRecord(0, "a"), RankRecord(1, "b", 5.0, [FeedRecord()])]) == []
    short = record(LOADER, {"fetch": 0.1}, step=FeedStage(0.05, 0.0, 1000))
    few = record(LOADER, {"fetch": 5.0}, step=FeedStage(5.0, 0.0, 3))
    assert diagnose([short, few]) == []


# ---- any record -------------------------------------------------------------------------------------------

seconds = st.floats(0, 1e6)
counts = st.integers(0, 10**12)
units = st.lists(st.fixed_dictionaries({"seconds": seconds, "name": st.text(max_size=5)}), max_size=3)
stages = st.builds(
    FeedStage,
    seconds,
    seconds,
    counts,
    counts,
    st.integers(1, 64),
    st.none() | st.floats(0, 1),
    seconds,
    units.map(lambda listed: sorted(listed, key=lambda unit: -unit["seconds"])),
)
facts = st.fixed_dictionaries(
    {},
    optional={
        "feed": st.sampled_from(["DataLoader", "MinibatchSource"]),
        "dataset": st.just("Items"),
        "workers": st.none() | st.integers(0, 64),
        "kind": st.sampled_from(["process", "thread", "here"]),
        "format": st.sampled_from(["Store", "CSV", "ImageFolder"]),
        "files": st.none() | counts,
        "stored_bytes": st.none() | counts,
        "sequences": st.none() | counts,
        "remote": st.booleans(),
        "mapped": st.booleans(),
        "compressed": st.booleans(),
        "whole_shuffle": st.booleans(),
        "read_ahead": st.none() | counts,
        "transforms": st.lists(st.sampled_from(["the transform f", "Decode"]), max_size=2),
        "pin_memory": st.booleans(),
    },
)
activities = st.dictionaries(st.sampled_from(["running", "disk", "lock", "file", "waiting"]), st.integers(0, 1000))
feeds = st.builds(
    FeedRecord,
    facts,
    st.dictionaries(st.sampled_from(STAGES), stages),
    activities,
    seconds,
    seconds,
    st.integers(0, 100),
    st.sampled_from(["", "pydevd"]),
)
by_type = {int: counts, float: seconds, str: st.sampled_from(["", "pydevd"])}
conditions = st.builds(
    Conditions,
    **{name: by_type[type(value)] for name, value in Conditions().to_json().items()} | {"cores": st.integers(1, 256)},
)
records = st.builds(
    RankRecord,
    st.integers(0, 1000),
    st.text(max_size=5),
    seconds,
    st.lists(feeds, max_size=2),
    conditions,
    st.none() | seconds,
    counts,
    counts,
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(records, max_size=4))
def test_any_records_have_a_diagnosis(several):
    findings = diagnose(several)
    gains = [finding.gain for finding in findings]
    assert all(math.isfinite(gain) and gain >= 1 for gain in gains)
    assert gains == sorted(gains, reverse=True)
    assert {finding.rank for finding in findings} <= {entry.rank for entry in several}


@settings(max_examples=examples(100), deadline=None)
@given(records)
def test_a_record_survives_json(entry):
    assert RankRecord.from_json(json.loads(json.dumps(entry.to_json()))) == entry


@settings(max_examples=examples(100), deadline=None)
@given(records, records)
def test_the_record_of_a_span_is_never_negative(entry, start):
    span = entry.since(start)
    assert RankRecord.from_json(json.loads(json.dumps(span.to_json()))) == span


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.floats(0.3, 1e4), st.integers(4, 10**6)), min_size=1, max_size=1))
def test_a_loop_that_never_waits_is_healthy(loops):
    entries = [
        record(LOADER, {}, rank=rank, step=FeedStage(seconds, 0.0, units, median_seconds=seconds / units))
        for rank, (seconds, units) in enumerate(loops)
    ]
    assert diagnose(entries) == []


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "swapping"])  # its limit is faults a second
@pytest.mark.parametrize("factor", [2.0, 50.0])  # shorter units are below 5 ms, where none counts as slow
def test_slower_clocks_change_no_reason(rule, factor):
    def stretched(value):
        if isinstance(value, dict):
            return {key: timed(key, part) for key, part in value.items()}
        return [stretched(part) for part in value] if isinstance(value, list) else value

    def timed(key, value):
        is_time = key.endswith("seconds") or key == "waiting"
        return value * factor if is_time and value is not None else stretched(value)

    entry = RULES[rule][2]
    data = entry.to_json()
    activity = data["feeds"][0].pop("activity")  # counts, one of which is called "waiting"
    data = stretched(data)
    data["feeds"][0]["activity"] = activity
    assert [f[:2] for f in verdicts(RankRecord.from_json(data))] == [f[:2] for f in verdicts(entry)]
    assert diagnose([RankRecord.from_json(data)])[0].reason == diagnose([entry])[0].reason


# ---- hostile JSON -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ((), [], "record: expected an object"),
        (("rank",), -1, "record.rank"),
        (("host",), 3, "record.host"),
        (("seconds",), float("nan"), "record.seconds"),
        (("feeds",), {}, "record.feeds"),
        (("feeds", 0), "x", "record.feeds"),
        (("feeds", 0, "facts", "workers"), "two", "record.feeds.facts.workers"),
        (("feeds", 0, "facts", "transforms"), [1], "record.feeds.facts.transforms"),
        (("feeds", 0, "stages", "step", "seconds"), "1", "record.feeds.stages.step.seconds"),
        (("feeds", 0, "stages", "step", "slowest"), [{"seconds": 1}], "record.feeds.stages.step.slowest.name"),
        (("feeds", 0, "stages", "step", "median_seconds"), None, "record.feeds.stages.step.median_seconds"),
        (("feeds", 0, "activity"), {"lock": 0.5}, "record.feeds.activity.lock"),
        (("feeds", 0, "hook"), [], "record.feeds.hook"),
        (("conditions", "cores"), "8", "record.conditions.cores"),
        (("exchange_seconds",), "1", "record.exchange_seconds"),
        (("requests",), 1e300, "record.requests"),
    ],
)
def test_hostile_json_is_refused_by_the_name_of_its_field(path, value, named):
    data = json.loads(json.dumps(record(LOADER, {"fetch": 1.0}).to_json()))
    if path:
        place = data
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
    else:
        data = value
    with pytest.raises(ValueError, match=named.replace(".", r"\.")):
        RankRecord.from_json(data)


def test_a_record_needs_a_rank_and_ignores_unknown_fields():
    data = record(LOADER, {"fetch": 1.0}).to_json()
    assert RankRecord.from_json({**data, "later": 1}) == RankRecord.from_json(data)
    for name in ("rank", "host"):
        with pytest.raises(ValueError, match=f"record.{name}: expected a value"):
            RankRecord.from_json({key: value for key, value in data.items() if key != name})
