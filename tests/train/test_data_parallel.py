"""Two processes that learn together end as one that learns alone, and stop and resume together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from feedline.train import SGD, Trainer, data_parallel  # noqa: E402

ROOT = Path(__file__).parents[2]


def job(tmp_path, name, world, **settings):
    """What each rank of a job ended with."""
    out = [tmp_path / f"{name}-{rank}.json" for rank in range(world)]
    each = [
        {"dropout": 0.0, "size": 11, **settings, "rank": rank, "world": world, "meet": str(tmp_path / f"{name}-meet")}
        for rank in range(world)
    ]
    for rank, one in enumerate(each):
        if rank != one.get("interrupted_rank", rank):
            one.pop("interrupt", None)
        one["out"] = str(out[rank])
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.train.ranks_program"]
    ranks = [subprocess.Popen([*command, json.dumps(one)], cwd=ROOT, env=env, stderr=subprocess.PIPE) for one in each]
    try:
        errors = [rank.communicate(timeout=120)[1].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * world, "\n".join(errors)
    return [json.loads(path.read_text()) for path in out]


def test_two_learn_what_one_learns(tmp_path):
    """Sums, counts and validations are those of one process; so are the parameters, up to the order of additions.

    With 11 samples a minibatch and sequences of up to 8, parts are uneven, and some are empty.
    """
    (alone,) = job(tmp_path, "alone", 1)
    first, second = job(tmp_path, "together", 2)
    assert first["parameters"] == second["parameters"]
    assert first["samples"] == second["samples"] == alone["samples"]
    for name, values in alone["parameters"].items():
        np.testing.assert_allclose(first["parameters"][name], values, rtol=1e-4, atol=1e-6)
    for ours in (first, second):
        assert [entry[:1] + entry[2:] if entry[0] == "validation" else entry[0] for entry in ours["seen"]] == [
            entry[:1] + entry[2:] if entry[0] == "validation" else entry[0] for entry in alone["seen"]
        ]
        assert [entry[-1] for entry in ours["seen"]] == [entry[-1] for entry in alone["seen"]]


def test_a_validation_that_every_rank_reads_whole_counts_once(tmp_path):
    parts = job(tmp_path, "parts", 2)
    whole = job(tmp_path, "whole", 2, held_out=[0, 1])
    found = [[e for e in ranks[1]["seen"] if e[0] == "validation"] for ranks in (whole, parts)]
    assert found[0] == found[1]
    assert len(found[0]) == 2


def test_one_rank_keeps_the_best_model(tmp_path):
    """And the others read it when it is there."""
    ranks = job(tmp_path, "best", 2, best=str(tmp_path / "best"))
    assert ranks[0]["best"] == ranks[1]["best"]
    assert [path.name[:18] for path in (tmp_path / "best").iterdir()] == ["checkpoint-000002-"]


def test_interrupted_at_one_rank_all_stop_and_resume_as_if_never_stopped(tmp_path):
    """Dropout draws from another generator on each rank: all of them are in the checkpoint."""
    whole = job(tmp_path, "whole", 2, dropout=0.3)
    folder = str(tmp_path / "run")
    cut = job(tmp_path, "cut", 2, dropout=0.3, folder=folder, interrupt=7, interrupted_rank=1)
    assert [rank["interrupted"] for rank in cut] == [True, True]
    assert cut[0]["samples"] == cut[1]["samples"] < whole[0]["samples"]
    resumed = job(tmp_path, "resumed", 2, dropout=0.3, folder=folder)
    assert resumed[0]["parameters"] == resumed[1]["parameters"] == whole[0]["parameters"]
    assert resumed[0]["samples"] == whole[0]["samples"]


def test_another_world_goes_on(tmp_path):
    """One rank goes on where two stopped, with the same minibatches."""
    folder = str(tmp_path / "run")
    (whole,) = job(tmp_path, "whole", 1)
    job(tmp_path, "cut", 2, folder=folder, interrupt=5, interrupted_rank=0)
    (resumed,) = job(tmp_path, "resumed", 1, folder=folder)
    assert resumed["samples"] == whole["samples"]
    for name, values in whole["parameters"].items():
        np.testing.assert_allclose(resumed["parameters"][name], values, rtol=1e-4, atol=1e-6)


def test_some_of_both_is_refused():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    learners = [data_parallel(SGD(model[0].parameters(), 0.1)), SGD(model[1].parameters(), 0.1)]
    with pytest.raises(ValueError, match="some of both"):
        Trainer(model, lambda o, m: o, None, learners)


def test_without_torch_distributed_it_says_so():
    model = torch.nn.Linear(2, 2)
    learner = data_parallel(SGD(model.parameters(), 0.1))
    with pytest.raises(RuntimeError, match="init_process_group"):
        learner.workers.sum(list(model.parameters()), [])
