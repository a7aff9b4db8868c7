"""Ranks by the variables of mpiexec and srun, wherever ranks count."""

from __future__ import annotations

import os

import numpy as np
import pytest

import feedline as fl
from feedline.feed.partition import ranks as shares
from feedline.interop.launchers import launcher_rank
from tests.ranks import Failure, Job, run

NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM", "PMI_", "SLURM_")
STEP = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}
JOB = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}  # as a batch script has them


@pytest.fixture
def variables(monkeypatch):
    for name in list(os.environ):
        if name.startswith(NAMES):
            monkeypatch.delenv(name)
    return lambda values: [monkeypatch.setenv(*pair) for pair in values.items()]


def mpi(rank, size, kind="OMPI_COMM_WORLD"):
    return {f"{kind}_RANK": str(rank), f"{kind}_SIZE": str(size)}


@pytest.mark.parametrize(
    ("values", "share"),
    [
        ({}, None),
        (mpi(1, 2), (1, 2)),
        (mpi(1, 2, "PMI"), (1, 2)),
        (mpi(0, 1), None),
        (STEP, (1, 2)),
        (STEP | {"SLURM_STEP_NUM_TASKS": "4"}, (1, 4)),
        (JOB, None),
        (JOB | {"SLURM_STEP_ID": "4294967291"}, None),  # the batch script
        (JOB | {"SLURM_STEP_ID": "4294967290"}, None),  # an interactive shell
        (STEP | mpi(3, 4), (3, 4)),  # Open MPI's helpers, started by srun
        (JOB | mpi(0, 1), None),
        (mpi(1, 4) | mpi(0, 1, "PMI"), (1, 4)),  # an mpiexec in another's only rank
        (mpi(1, 2) | {"RANK": "0"}, None),
        (mpi("one", 2) | {"RANK": "0"}, None),
    ],
)
def test_rank_and_size_of_each_launcher(variables, values, share):
    variables(values)
    assert launcher_rank() == share
    assert shares() == (share or (0, 1))


@pytest.mark.parametrize(
    "values",
    [
        mpi(2, 2),
        mpi(0, 0),
        mpi(-1, 2),
        mpi("", 2),
        mpi("one", 2),
        {"OMPI_COMM_WORLD_RANK": "0"},
        {"PMI_SIZE": "2"},
        mpi(0, 2) | mpi(1, 2, "PMI"),
        STEP | {"SLURM_PROCID": "2"},
        {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"},
        {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"},
    ],
)
def test_variables_that_cannot_be_right_are_an_error(variables, values):
    variables(values)
    with pytest.raises(RuntimeError, match=r"(?s)expected .* rank.*RANK=0 WORLD_SIZE=1"):
        launcher_rank()


def test_sources_and_loaders_share_by_them(variables):
    whole = fl.MinibatchSource(fl.ArrayDeserializer(x=np.arange(8)), max_sweeps=1).next_minibatch(8)
    variables(mpi(1, 2))
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=np.arange(8)), max_sweeps=1)
    assert source.next_minibatch(8).ids.tolist() == whole.ids.tolist()[4:]
    loader = fl.DataLoader(range(8), batch_size=2, partition="auto", shuffle=False)
    assert np.concatenate([np.asarray(batch) for batch in loader]).tolist() == [2, 3, 6, 7]


def test_loaders_need_a_seed_where_nothing_connects_the_ranks(variables):
    variables(mpi(1, 2))
    with pytest.raises(ValueError, match=r"expected a seed, .* Pass seed="):
        iter(fl.DataLoader(range(8), batch_size=2, partition="auto", shuffle=True))
    assert iter(fl.DataLoader(range(8), batch_size=2, partition="auto", shuffle=True, seed=1))


def by_mpiexec(meets=True):
    os.environ.update(mpi(os.environ.pop("RANK"), os.environ.pop("WORLD_SIZE")))
    if not meets:
        del os.environ["MASTER_ADDR"]


def under_each_name(rank):
    by_mpiexec()
    from feedline.collective.communicator import Communicator
    from feedline.kvstore import create

    direct = Communicator()
    told = [(direct.rank, direct.count), direct.gather([rank])]
    direct.close()
    with create("dist_sync") as store:
        told.append((store.rank, store.num_workers))
    import feedline.cntk as C

    told.append((C.Communicator.rank(), C.Communicator.num_workers()))
    C.Communicator.finalize()
    return told


def test_every_front_door_connects_them():
    for rank, told in enumerate(run(under_each_name, 2)):
        assert told == [(rank, 2), [[0.0], [1.0]], (rank, 2), (rank, 2)]


def cntk_without_a_place(rank):
    by_mpiexec(meets=False)
    import feedline.cntk as C

    return C.Communicator.rank()


def session_that_nothing_connects(rank):
    by_mpiexec()
    from feedline.collective.ranks import Ranks

    return Ranks().count


@pytest.mark.parametrize(
    ("program", "told"),
    [(cntk_without_a_place, "set MASTER_ADDR"), (session_that_nothing_connects, "call torch.distributed.init")],
)
def test_ranks_that_cannot_meet_get_an_error_with_the_settings(program, told):
    with Job(program, 2) as job:
        for failure in job.results():
            assert isinstance(failure, Failure)
            assert failure.kind == "RuntimeError"
            assert told in failure.text
