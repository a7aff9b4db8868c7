"""Two processes that learn together end with the same result as one process, and stop and resume together."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from feedline.train import SGD, Trainer, data_parallel  # noqa: E402
from tests.ranks import run  # noqa: E402
from tests.train.ranks_program import main  # noqa: E402


def job(world, **settings):
    """Return the final states of the ranks of a job."""
    return run(main, world, world=world, **settings)


def test_two_learn_what_one_learns():
    """Sums, counts and validations equal those of one process, and so do parameters, up to the order of additions.

    With 11 samples a minibatch and sequences of up to 8, parts are uneven, and some are empty.
    """
    (alone,) = job(1)
    first, second = job(2)
    assert first["parameters"] == second["parameters"]
    assert first["samples"] == second["samples"] == alone["samples"]
    for name, values in alone["parameters"].items():
        np.testing.assert_allclose(first["parameters"][name], values, rtol=1e-4, atol=1e-6)
    for ours in (first, second):
        assert [entry[:1] + entry[2:] if entry[0] == "validation" else entry[0] for entry in ours["seen"]] == [
            entry[:1] + entry[2:] if entry[0] == "validation" else entry[0] for entry in alone["seen"]
        ]
        assert [entry[-1] for entry in ours["seen"]] == [entry[-1] for entry in alone["seen"]]


def test_a_validation_that_every_rank_reads_whole_counts_once():
    parts = job(2)
    undivided = job(2, held_out=[0, 1])
    validations = [[e for e in ranks[1]["seen"] if e[0] == "validation"] for ranks in (undivided, parts)]
    assert validations[0] == validations[1]
    assert len(validations[0]) == 2


def test_one_rank_keeps_the_best_model(tmp_path):
    """The others read it once it is written."""
    ranks = job(2, best=str(tmp_path / "best"))
    assert ranks[0]["best"] == ranks[1]["best"]
    assert [path.name[:18] for path in (tmp_path / "best").iterdir()] == ["checkpoint-000002-"]


def test_an_interrupt_at_one_rank_stops_all_and_they_resume(tmp_path):
    """Dropout draws from another generator on each rank, and all of them are in the checkpoint."""
    undivided = job(2, dropout=0.3)
    folder = str(tmp_path / "run")
    cut = job(2, dropout=0.3, folder=folder, interrupt=7, interrupted_rank=1)
    assert [rank["interrupted"] for rank in cut] == [True, True]
    assert cut[0]["samples"] == cut[1]["samples"] < undivided[0]["samples"]
    resumed = job(2, dropout=0.3, folder=folder)
    assert resumed[0]["parameters"] == resumed[1]["parameters"] == undivided[0]["parameters"]
    assert resumed[0]["samples"] == undivided[0]["samples"]


def test_another_world_size_continues(tmp_path):
    """One rank continues where two stopped, with the same minibatches."""
    folder = str(tmp_path / "run")
    (single,) = job(1)
    job(2, folder=folder, interrupt=5, interrupted_rank=0)
    (resumed,) = job(1, folder=folder)
    assert resumed["samples"] == single["samples"]
    for name, values in single["parameters"].items():
        np.testing.assert_allclose(resumed["parameters"][name], values, rtol=1e-4, atol=1e-6)


def test_some_of_both_is_refused():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    learners = [data_parallel(SGD(model[0].parameters(), 0.1)), SGD(model[1].parameters(), 0.1)]
    with pytest.raises(ValueError, match="for all learners or for none"):
        Trainer(model, lambda o, m: o, None, learners)


def test_without_torch_distributed_it_raises():
    model = torch.nn.Linear(2, 2)
    learner = data_parallel(SGD(model.parameters(), 0.1))
    with pytest.raises(RuntimeError, match="init_process_group"):
        _ = learner.strategy.ranks
