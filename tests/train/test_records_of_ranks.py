"""Records of ranks, which go with heartbeats into the log of rank 0, and name the rank that is late."""

from __future__ import annotations

import itertools
import json
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline as fl  # noqa: E402
from feedline.runs.diagnosis import RankRecord, diagnose  # noqa: E402
from feedline.train import SGD, JsonLines, Trainer, TrainingSession, data_parallel  # noqa: E402
from tests.ranks import run  # noqa: E402

LATE_S = 0.4  # in a step, much longer than what the step takes


class QuickBeats:
    """A reporter that lets records travel faster than in a long run."""

    def on_update(self, run, summary):
        if run.ranks.heartbeat is not None:
            run.ranks.heartbeat.interval_s = 0.02

    def __getattr__(self, name):
        return lambda *arguments: None


class WithoutProgress(JsonLines):
    """A reporter of a rank whose spans are long."""

    def on_progress(self, run, progress):
        pass


def trains(rank, folder, slow_step=None, slow_feed=None, in_ddp=False, long_spans=False):
    torch.distributed.init_process_group("gloo")

    def read(sequence):
        if rank == slow_feed:
            time.sleep(LATE_S / 8)  # eight sequences in a minibatch of this rank
        return sequence

    def losses(output, minibatch):
        if rank == slow_step:
            time.sleep(LATE_S)
        return output.square().sum(1)

    model = torch.nn.Linear(3, 2)
    learner = SGD(model.parameters(), 0.1)
    if in_ddp:
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        learner = data_parallel(learner)
    x = np.random.default_rng(0).normal(size=(160, 3)).astype("f4")
    session = TrainingSession(
        Trainer(model, losses, None, learner, forward=lambda m, b: m(b["x"].torch())),
        fl.MinibatchSource(fl.ArrayDeserializer(x=x), max_sweeps=1, transforms=[read]),
        16,
        progress=fl.minibatches(3),
        reporters=[
            QuickBeats(),
            (WithoutProgress if long_spans and rank else JsonLines)(f"{folder}/together.jsonl"),
            JsonLines(f"{folder}/each.jsonl", rank=None),
        ],
    )
    session.run()
    torch.distributed.destroy_process_group()


def progress(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["event"] == "progress"]


@pytest.mark.parametrize(("planted", "stage"), [("slow_step", "step"), ("slow_feed", "transform")])
def test_the_late_rank_is_named(planted, stage, tmp_path):
    run(trains, 2, folder=str(tmp_path), **{planted: 1})
    each = [RankRecord.from_json(progress(tmp_path / f"each.jsonl.rank{rank}")[-1]["record"]) for rank in range(2)]
    together = [RankRecord.from_json(data) for data in progress(tmp_path / "together.jsonl")[-1]["ranks"]]
    for records in (each, together):
        assert [record.rank for record in records] == [0, 1]
        (finding,) = [finding for finding in diagnose(records) if "wait for this one" in finding.reason]
        assert (finding.rank, finding.stage) == (1, stage)
        assert finding.gain > 1.1
        # The late rank does not wait, and the other one waits as long as it is late.
        assert records[1].exchange_seconds < records[0].exchange_seconds
    assert each[0].exchange_seconds >= 0.8 * LATE_S * each[0].feed.step.units
    assert not [line for line in progress(tmp_path / "each.jsonl.rank0") if "ranks" in line]


def test_the_late_feed_of_a_model_in_ddp_is_named(tmp_path):
    """The ranks meet before each update, where the others wait."""
    run(trains, 2, folder=str(tmp_path), slow_feed=1, in_ddp=True)
    records = [RankRecord.from_json(data) for data in progress(tmp_path / "together.jsonl")[-1]["ranks"]]
    (finding,) = [finding for finding in diagnose(records) if "wait for this one" in finding.reason]
    assert (finding.rank, finding.stage) == (1, "transform")


def test_records_add_up_and_only_grow(tmp_path):
    """Each rank counts its steps, and what heartbeats carry of them never goes back."""
    run(trains, 2, folder=str(tmp_path), slow_step=0)
    lines = progress(tmp_path / "together.jsonl")
    of_rank = {rank: [] for rank in range(2)}
    for line in lines:
        for data in line["ranks"]:
            of_rank[data["rank"]].append(RankRecord.from_json(data))
    for rank, records in of_rank.items():
        own = [RankRecord.from_json(line["record"]) for line in progress(tmp_path / f"each.jsonl.rank{rank}")]
        assert own[-1].feed.step.units == 10
        for earlier, later in itertools.pairwise(records):
            span = later.since(earlier)
            assert span.seconds >= 0
            assert span.feed.step.units == later.feed.step.units - earlier.feed.step.units >= 0
            assert later.exchange_seconds >= earlier.exchange_seconds
        assert records[-1].feed.step.units <= own[-1].feed.step.units
    carried = sum(record.feed.step.units for record in (records[-1] for records in of_rank.values()))
    assert carried == sum(sum(s.feed.step.units for s in spans_of(records)) for records in of_rank.values())


def spans_of(records):
    return [later.since(before) for before, later in zip([RankRecord(0, ""), *records], records, strict=False)]


def test_within_a_long_span_records_are_sent_too(tmp_path):
    run(trains, 2, folder=str(tmp_path), slow_step=1, long_spans=True)
    (record,) = [data for data in progress(tmp_path / "together.jsonl")[-1]["ranks"] if data["rank"] == 1]
    assert record["seconds"] >= 2.0


def test_one_rank_waits_for_no_other(tmp_path):
    run(trains, 1, folder=str(tmp_path))
    for line in progress(tmp_path / "together.jsonl"):
        assert line["record"]["exchange_seconds"] is None
        assert "ranks" not in line
