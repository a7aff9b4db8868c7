"""Meshes of ranks, of which some read the same samples, by torch's fake process group, in one process."""

from __future__ import annotations

import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

import feedline as fl  # noqa: E402


@pytest.fixture
def ranks():
    torch.distributed.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    yield 4
    torch.distributed.destroy_process_group()
    gc.collect()


def source():
    return fl.MinibatchSource(fl.ArrayDeserializer(x=np.arange(16.0)), max_sweeps=1)


def loader():
    return fl.DataLoader(range(16), batch_size=2, partition="auto")


REFUSED = [
    ((2, 2), ("dp", "tp"), 'partition=(mesh["dp"].get_local_rank(), mesh["dp"].size())'),
    ((2, 2), ("Data", "tensor"), 'mesh["Data"]'),
    ((1, 4), ("dp", "tp"), "partition=(0, 1)"),
    ((4,), ("tp",), "partition=(0, 1)"),
    ((2, 2), None, "counting the ranks that read different samples"),
    ((2, 2), ("pp", "cp"), "pp and cp"),
]
ACCEPTED = [
    ((4,), None),
    ((4, 1), None),
    ((4, 1), ("dp", "tp")),
    ((2, 2), ("dp_replicate", "dp_shard")),
    ((2, 2), ("replicate", "shard")),
    ((4,), ("fsdp",)),
]


@pytest.mark.parametrize(("shape", "names", "written"), REFUSED)
def test_ranks_that_read_the_same_need_a_partition(ranks, shape, names, written):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for read in (lambda: source().next_minibatch(8), lambda: next(iter(loader())), lambda: list(source().plan(8))):
        with pytest.raises(ValueError, match="expected a partition") as refusal:
            read()
        assert written in str(refusal.value)
    assert len(source().next_minibatch(8, partition=(0, 2)).ids) == 4
    given = fl.DataLoader(range(16), batch_size=2, partition=(0, 2))
    assert len(list(given)) == 4
    assert mesh is not None


def test_a_kept_part_represents_the_whole(ranks):
    part = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["dp"]
    with pytest.raises(ValueError, match="expected a partition"):
        source().next_minibatch(8)
    assert part.size() == 2


@pytest.mark.parametrize(("shape", "names"), ACCEPTED)
def test_ranks_that_read_different_samples_need_none(ranks, shape, names):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    assert len(source().next_minibatch(8).ids) == 2
    assert len(next(iter(loader()))) == 2
    assert mesh is not None


def test_parts_and_flattened_dimensions_are_no_separate_meshes(ranks):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    parts = mesh["dp_shard"], mesh._flatten("everything")
    assert len(source().next_minibatch(8).ids) == 2
    assert parts
