"""Ranks of one session decide together: real processes, a model that exchanges gradients by itself, plain learners.

An event at one rank alone (a signal, a clock, a callback, an end of data, a damaged file) either takes effect on all
ranks or is an error on all. No rank is left waiting.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline as fl  # noqa: E402
from feedline.train import (  # noqa: E402
    Evaluation,
    GrowMinibatch,
    KeepBest,
    MomentumSGD,
    ReduceOnPlateau,
    Saving,
    Schedule,
    Trainer,
    TrainingSession,
    data_parallel,
)
from feedline.train.checkpoint import Checkpoints  # noqa: E402
from feedline.train.lock import FolderLock  # noqa: E402
from tests.ranks import Failure, Job, run  # noqa: E402

WAYS = ["model", "learner"]  # who exchanges gradients


class Acts:
    """A reporter that does something at one rank, after a number of updates."""

    def __init__(self, rank, act=None, at=5, by=1):
        self.mine, self.act, self.at = rank == by, act, at
        self.seen, self.saved = [], 0

    def on_update(self, session, summary):
        if not (self.mine and session.minibatches == self.at):
            return
        if self.act == "slow":
            time.sleep(0.3)
        elif self.act in ("SIGINT", "SIGTERM"):
            os.kill(os.getpid(), signal.Signals[self.act])
        elif self.act == "stop":
            session.stop()
        elif self.act == "save":
            session.save()
        elif self.act == "scale":
            session.scale = 2.0
        elif self.act == "rate":
            session.trainer.learners[0].reset_learning_rate(0.0)

    def on_progress(self, session, progress):
        self.seen.append(["progress", progress.summary.samples, progress.summary.loss])

    def on_test(self, session, what, result):
        self.seen.append([what, result.summary.samples, result.summary.loss])

    def on_checkpoint(self, session, path):
        self.saved += 1

    def __getattr__(self, name):
        return lambda *arguments: None


class Scores(torch.nn.Module):
    """A model with a running statistic, computed by each rank from its own part. Rank 0's is saved."""

    def __init__(self, still):
        super().__init__()
        self.body, self.head = torch.nn.Linear(4, 6), torch.nn.Linear(6, 2)
        self.register_buffer("mean", torch.zeros(4))
        self.still = still

    def forward(self, x):
        assert len(x)
        if self.training and not self.still:
            self.mean.lerp_(x.mean(0), 0.1)
        return self.head(torch.tanh(self.body(x - self.mean)))


def losses(output, minibatch):
    return torch.nn.functional.cross_entropy(output, minibatch["y"].torch(layout="packed"), reduction="none")


def data(n=96, ragged=False):
    rng = np.random.default_rng(0)
    if not ragged:
        x = rng.normal(size=(n, 4)).astype("f4")
        return {"x": x, "y": (x[:, 0] > 0).astype("i8")}
    x = [rng.normal(size=(length, 4)).astype("f4") for length in rng.integers(1, 9, n)]
    return {"x": x, "y": [(sequence[:, 0] > 0).astype("i8") for sequence in x]}


def trains(
    rank,
    way="model",
    folder=None,
    every=None,
    act=None,
    ragged=False,
    size=16,
    n=96,
    sweeps=3,
    filling="global",
    controllers=False,
    callback=None,
    reference=None,
    microbatch=None,
    validates=False,
    held_out=20,
    best=None,
    max_samples=None,
    wrapped=True,
    still=False,
    **acts,
):
    """Return the final state of a rank. ``folder`` may be one folder for each rank."""
    if way != "alone" or not wrapped:
        torch.distributed.init_process_group("gloo")
    folder = folder[rank] if isinstance(folder, list) else folder
    torch.manual_seed(1)
    model = Scores(still)
    learner = MomentumSGD(model.parameters(), Schedule([0.2, 0.1], epoch_size=150, reference=reference), momentum=0.5)
    if way == "learner":
        learner = data_parallel(learner)
    elif wrapped and torch.distributed.is_initialized():
        model = torch.nn.parallel.DistributedDataParallel(model)
    source = fl.MinibatchSource(
        fl.ArrayDeserializer(**data(n, ragged)), seed=3, max_sweeps=sweeps, filling=filling, shuffle=filling == "global"
    )
    validation = fl.MinibatchSource(fl.ArrayDeserializer(**data(held_out, ragged)), shuffle=False, max_sweeps=1)
    reporter = Acts(rank, act, **acts)
    ids = []
    session = TrainingSession(
        Trainer(
            model,
            losses,
            None,
            learner,
            forward=lambda model, minibatch: model(minibatch["x"].torch(layout="packed")),
            microbatch=microbatch,
        ),
        Recorded(source, ids),
        size,
        max_samples=max_samples,
        progress=fl.samples(100),
        reporters=[reporter],
        saving=None if folder is None else Saving(folder, every=every),
        validation=None
        if not validates
        else Evaluation(
            validation,
            every=fl.minibatches(4),
            size=8,
            callback=None if callback is None else lambda result: not (rank == callback and result.number == 1),
        ),
        epoch=fl.sweeps(1) if controllers or best else None,
        controllers=([ReduceOnPlateau(patience=0), GrowMinibatch(limit=4)] if controllers else [])
        + ([KeepBest(best)] if best else []),
    )
    session.run()
    result = {
        "weights": [parameter.detach().flatten().tolist() for parameter in model.parameters()],
        "counts": [session.samples, session.minibatches, session.sweeps, session.scale],
        "clock": [learner.samples, learner.minibatches, learner.sweeps, learner.scale],
        "flags": [session.stopped, session.interrupted],
        "seen": reporter.seen,
        "saved": reporter.saved,
        "ids": ids,
        "source": source.state_dict(),
        "best": KeepBest(best).restore(model) if best else None,
    }
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return result


class Recorded:
    """A source that records the sequences it delivers."""

    def __init__(self, source, ids):
        self._source, self.ids = source, ids

    def next_minibatch(self, size, partition=None):
        minibatch = self._source.next_minibatch(size, partition)
        if minibatch:
            self.ids.append(minibatch.ids.tolist())
        return minibatch

    def __getattr__(self, name):
        return getattr(self._source, name)


ALIKE = ["weights", "counts", "clock", "flags", "seen"]


def the_one_state(ranks):
    """Check that all ranks ended with the same state, and return it."""
    for key in ALIKE:
        assert all(rank[key] == ranks[0][key] for rank in ranks), key
    return ranks[0]


@functools.cache
def undisturbed_run(**settings):
    """The final state of a run of two ranks without any event."""
    return the_one_state(run(trains, 2, **settings))


def fails(world=2, **settings):
    """Return the errors of all ranks."""
    with Job(trains, world, **settings) as job:
        results = job.results()
    assert all(isinstance(failure, Failure) for failure in results), results
    return results


# ---- when to save ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("way", "slow"), [("model", 0), ("model", 1), ("learner", 1)])
def test_saving_by_time_with_a_slow_rank(tmp_path, way, slow):
    """Each rank has its own clock, but saving is collective, so rank 0's clock decides."""
    ranks = run(trains, 2, way=way, folder=str(tmp_path), every=0.02, act="slow", at=7, by=slow, sweeps=6)
    assert the_one_state(ranks)["counts"][0] == 576
    assert ranks[0]["saved"] > 2
    assert ranks[1]["saved"] == 0


@pytest.mark.parametrize("way", WAYS)
def test_one_rank_asks_for_a_checkpoint(tmp_path, way):
    """`run.save()` from a reporter of one rank."""
    ranks = run(trains, 2, way=way, folder=str(tmp_path), act="save", at=5, by=1, every=fl.minibatches(1000))
    the_one_state(ranks)
    states = [checkpoint.state["minibatches"] for checkpoint in Checkpoints(tmp_path).newest_first()]
    assert states == [18, 5]


# ---- when to end ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("way", "by"), [("model", 0), ("model", 1), ("learner", 1)])
def test_ctrl_c_at_one_rank(tmp_path, way, by):
    """All ranks save and end after the same update. Restarted, they end as if nothing had happened."""
    # Saving makes rank 0's statistics those of all ranks, so an undisturbed run would have to save there, too.
    options = {"way": way, "validates": True, "ragged": True, "still": way == "learner", "n": 40}
    undisturbed = undisturbed_run(**options)
    cut = the_one_state(run(trains, 2, **options, folder=str(tmp_path), act="SIGINT", at=6, by=by))
    assert cut["flags"] == [False, True]
    assert cut["counts"][1] == 6
    again = the_one_state(run(trains, 2, **options, folder=str(tmp_path)))
    assert {key: again[key] for key in ALIKE[:4]} == {key: undisturbed[key] for key in ALIKE[:4]}
    assert again["seen"] == undisturbed["seen"][len(cut["seen"]) :]


def test_sigterm_at_one_rank(tmp_path):
    """That rank's process ends after the checkpoint, and so does the run of the other ranks."""
    with Job(trains, 2, folder=str(tmp_path), act="SIGTERM", at=6, by=1) as job:
        first, second = job.results()
    assert second == "gone"
    assert (first["flags"], first["counts"][1]) == ([False, True], 6)
    assert Checkpoints(tmp_path).latest().state["minibatches"] == 6


@pytest.mark.parametrize("way", WAYS)
def test_a_stop_of_one_rank_stops_all(way):
    """A reporter or a validation's callback stops it."""
    stopped = the_one_state(run(trains, 2, way=way, act="stop", at=5))
    assert (stopped["flags"], stopped["counts"][1]) == ([True, False], 5)
    stopped = the_one_state(run(trains, 2, way=way, validates=True, callback=1))
    assert (stopped["flags"], stopped["counts"][1]) == ([True, False], 8)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("act", ["scale", "rate"])
def test_ranks_that_would_continue_differently_are_an_error(way, act):
    """One rank alone has changed the size of minibatches, or the rate to 0."""
    for failure in fails(way=way, act=act, at=5):
        assert failure.kind == "StoreError"
        assert "rank 0: 16" in failure.text
        assert "rank 1: " + ("32" if act == "scale" else "-1") in failure.text


@pytest.mark.parametrize("way", WAYS)
def test_data_that_ends_at_different_times(way):
    """Each rank fills its own minibatches, and one has fewer. It learns with the others, without data."""
    ranks = run(trains, 2, way=way, filling="cntk", n=9, size=8, sweeps=2, ragged=True)
    result = the_one_state(ranks)
    assert len(ranks[0]["ids"]) != len(ranks[1]["ids"])
    assert result["counts"][:2] == [2 * sum(map(len, data(9, ragged=True)["x"])), max(len(r["ids"]) for r in ranks)]
    assert result["clock"][2] == 2


def reads_own_data(rank, lengths):
    """A rank that reads all of some data, so that its minibatches are no parts of global ones."""
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(1)
    model = Scores(still=True)
    learner = MomentumSGD(model.parameters(), 0.2, momentum=0.5)
    source = fl.MinibatchSource(
        fl.ArrayDeserializer(**data(lengths[rank])), shuffle=False, max_sweeps=1, partition=(0, 1)
    )
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    trainer = Trainer(wrapped, losses, None, learner, forward=lambda model, m: model(m["x"].torch()))
    run = TrainingSession(trainer, source, 8).run()
    torch.distributed.destroy_process_group()
    return [run.samples, learner.samples, run.minibatches], [p.flatten().tolist() for p in model.parameters()]


@pytest.mark.parametrize("lengths", [(8, 24), (24, 8)])
def test_whole_minibatches_of_the_ranks_that_have_data_left_count(lengths):
    """While all ranks have such a minibatch, it is taken for the same one. A rank that continues has its own."""
    (first, weights), second = run(reads_own_data, 2, lengths=lengths)
    assert (first, weights) == second
    assert first == [24, 24, 3]


@pytest.mark.parametrize("filling", ["global", "cntk"])
def test_with_unknown_exchanges_all_ranks_learn_equally_often(filling):
    """A rank without data cannot take part then. All skip that minibatch, and end with the first rank."""
    ranks = run(trains, 2, way="alone", wrapped=False, filling=filling, n=9, size=8, sweeps=2, ragged=True)
    counts = [rank["counts"] for rank in ranks]
    assert counts[0] == counts[1]
    assert 0 < counts[0][0] < 2 * sum(map(len, data(9, ragged=True)["x"]))
    assert ranks[0]["clock"] == ranks[1]["clock"]


# ---- counts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("microbatch", [None, 5])
def test_it_learns_what_one_process_learns(microbatch):
    """Parts are uneven, some empty, and differ in the number of pieces. Every label weighs the same, for any parts.

    Rates per sample, schedules and spans count the samples of all ranks.
    """
    options = {"ragged": True, "size": 11, "reference": 16, "validates": True, "microbatch": microbatch, "still": True}
    options["n"] = 40
    (alone,) = run(trains, 1, way="alone", **options)
    for way in WAYS:
        result = the_one_state(run(trains, 2, way=way, **options))
        assert (result["counts"], result["clock"]) == (alone["counts"], alone["clock"])
        for ours, theirs in zip(result["weights"], alone["weights"], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
        for ours, theirs in zip(result["seen"], alone["seen"], strict=True):
            assert ours[:2] == theirs[:2]
            np.testing.assert_allclose(ours[2], theirs[2], rtol=1e-4)


def test_controllers_see_the_same_everywhere(tmp_path):
    """By their own losses, ranks would lower rates and grow minibatches at different times."""
    result = the_one_state(run(trains, 2, controllers=True, validates=True, sweeps=5))
    assert result["clock"][3] < 1 or result["counts"][3] > 1
    results = run(trains, 2, best=str(tmp_path), validates=True)
    assert results[0]["best"] == results[1]["best"] is not None


# ---- where to begin -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints") / "run"
    run(trains, 2, folder=str(folder), every=fl.minibatches(4), act="stop", at=9)
    for path in Checkpoints(folder).paths()[2:]:
        shutil.rmtree(path)
    assert [c.state["minibatches"] for c in Checkpoints(folder).newest_first()] == [8, 4]
    return folder


@pytest.fixture
def cut(tmp_path, two_checkpoints):
    """A folder with two checkpoints, of updates 4 and 8."""
    return Path(shutil.copytree(two_checkpoints, tmp_path / "run"))


@pytest.mark.parametrize("by", [0, 1])
def test_one_rank_has_a_damaged_newest_checkpoint(tmp_path, cut, by):
    """All continue from the previous checkpoint if one machine cannot read the newest."""
    damaged = tmp_path / "other"
    shutil.copytree(cut, damaged)
    newest = Checkpoints(damaged).paths()[-1]
    (newest / "tensors.safetensors").write_bytes(b"torn")
    folders = [str(cut), str(damaged)] if by else [str(damaged), str(cut)]
    result = the_one_state(run(trains, 2, folder=folders))
    undisturbed = undisturbed_run()
    assert {key: result[key] for key in ("weights", "counts", "clock")} == {
        key: undisturbed[key] for key in ("weights", "counts", "clock")
    }


def test_folders_that_are_not_shared_are_reported(tmp_path, cut):
    for folders in ([str(cut), str(tmp_path / "b")], [str(tmp_path / "a"), str(cut)]):
        failures = fails(folder=folders)
        assert {failure.kind for failure in failures} == {"StateError"}
        assert all("a folder that all machines share" in failure.text for failure in failures)
    other_folder = tmp_path / "other"  # with the same names, but of another run
    run(trains, 2, folder=str(other_folder), every=fl.minibatches(4), n=64)
    for number, path in enumerate(Checkpoints(other_folder).paths()):
        path.rename(other_folder / f"checkpoint-00000{number + 1}-{64 * (number + 1)}")
    assert all(
        "differs from rank 0's" in f.text or "share" in f.text for f in fails(folder=[str(cut), str(other_folder)])
    )


def test_all_damaged_is_an_error_of_all(cut):
    for path in cut.iterdir():
        (path / "state.json").write_text("{")
    assert all("all of them damaged" in failure.text for failure in fails(folder=str(cut)))


def test_one_rank_that_cannot_continue_fails_all(cut):
    """Its data differ from the run's."""
    failures = fails(folder=str(cut), controllers=True)
    assert {failure.kind for failure in failures} == {"StateError"}
    assert all("controllers" in failure.text for failure in failures)


def test_a_folder_of_another_session_is_refused_on_all_ranks(tmp_path):
    """Rank 0 finds the lock, and all ranks raise the error."""
    lock = FolderLock(tmp_path)
    try:
        for failure in fails(folder=str(tmp_path)):
            assert failure.kind == "StateError"
            assert f"process {os.getpid()}" in failure.text
    finally:
        lock.release()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("way", WAYS)
def test_sources_with_different_places_continue_there(tmp_path, way):
    """With CNTK's filling every rank has its own place. Each is saved, and other numbers of ranks are refused."""
    options = {"way": way, "filling": "cntk", "n": 40, "size": 8, "sweeps": 2, "ragged": True, "still": True}
    undisturbed = run(trains, 2, **options)
    folder = str(tmp_path)
    cut = run(trains, 2, folder=folder, act="SIGINT", at=5, by=0, **options)
    assert cut[0]["source"] != cut[1]["source"]
    (failure,) = fails(1, folder=folder, **{**options, "way": "alone"})
    assert "same number of ranks" in failure.text
    again = run(trains, 2, folder=folder, **options)
    for rank in range(2):
        assert cut[rank]["ids"] + again[rank]["ids"] == undisturbed[rank]["ids"]
        assert again[rank]["weights"] == undisturbed[rank]["weights"]


@pytest.mark.parametrize("world", [1, 3])
def test_another_number_of_ranks_continues(cut, world):
    """Counts and sums continue, whichever rank had them."""
    result = the_one_state(run(trains, world, folder=str(cut)))
    undisturbed = undisturbed_run()
    assert result["counts"] == undisturbed["counts"]
    assert [entry[:2] for entry in result["seen"]] == [entry[:2] for entry in undisturbed["seen"][1:]]


def test_one_rank_alone_needs_no_connections(tmp_path):
    """A world of one rank needs no agreement."""
    (result,) = run(trains, 1, folder=str(tmp_path), every=0.001)
    assert result["counts"][0] == 288
