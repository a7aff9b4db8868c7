"""Meshes of ranks, of which some read the same samples, by torch's fake process group, in one process."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402

import feedline as fl  # noqa: E402
from tests.fake_ranks import as_rank  # noqa: E402


@pytest.fixture
def ranks():
    with as_rank(1, 4) as world_size:
        yield world_size


def source():
    return fl.MinibatchSource(fl.ArrayDeserializer(x=np.arange(16.0)), max_sweeps=1)


def loader():
    return fl.DataLoader(range(16), batch_size=2, partition="auto")


#: Mesh of 4 ranks, its names, and the share of rank 1.
SHARES = [
    ((4,), None, (1, 4)),
    ((4, 1), None, (1, 4)),
    ((4, 1), ("dp", "tp"), (1, 4)),
    ((4,), ("fsdp",), (1, 4)),
    ((2, 2), ("dp_replicate", "dp_shard"), (1, 4)),
    ((2, 2), ("replicate", "shard"), (1, 4)),
    ((2, 2), ("dp", "tp"), (0, 2)),
    ((2, 2), ("tp", "dp"), (1, 2)),
    ((2, 2), ("Data", "tensor"), (0, 2)),
    ((1, 4), ("dp", "tp"), (0, 1)),
    ((4,), ("pp",), (0, 1)),
    ((2, 2), ("data_parallel", "tensor_parallel"), (0, 2)),  # of Lightning
    ((2, 1, 2), ("hsdp", "pp", "tp"), (0, 2)),
]
REFUSED = [
    ((2, 2), None, "expected names of the dimensions of the mesh, got none for dimension 0: 2, dimension 1: 2"),
    ((2, 2), ("dp", "ep"), r'where ep may .*=fl.Partition\(mesh, roles=\{"ep": \.\.\.\}\)'),
    ((2, 2), ("inner", "outer"), r'inner and outer may .* roles=\{"inner": \.\.\., "outer": \.\.\.\}'),
]


def delivered(partition=None):
    """Return ids of the first minibatch of a source and items of the first batch of a loader, under a partition."""
    own = fl.MinibatchSource(
        fl.ArrayDeserializer(x=np.arange(16.0)), seed=3, max_sweeps=1, partition=partition
    ).next_minibatch(8)
    items = fl.DataLoader(range(16), batch_size=2, shuffle=True, seed=3, partition=partition or "auto")
    return own.ids.tolist(), next(iter(items)).tolist()


@pytest.mark.parametrize(("shape", "names", "share"), SHARES)
def test_ranks_get_the_share_of_their_place_in_the_mesh(ranks, shape, names, share):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    expected = delivered(share)
    assert delivered(mesh) == expected
    assert delivered(fl.Partition(mesh)) == expected
    assert delivered() == expected  # the mesh that the program has made
    per_call = source().next_minibatch(8, partition=mesh)
    assert len(per_call.ids) == 8 // share[1]


def test_roles_are_those_of_the_user_first(ranks):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ep", "tp"))
    assert fl.Partition(mesh, roles={"ep": "data"}).share() == (0, 2)
    assert fl.Partition(mesh, roles={"ep": "model"}).share() == (0, 1)
    assert fl.Partition(mesh, roles={"ep": "data", "tp": "data"}).share() == (1, 4)


def test_a_slice_of_a_mesh_is_a_mesh(ranks):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ep", "tp"))
    whole = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    assert fl.Partition(mesh["tp"]).share() == (0, 1)
    assert fl.Partition(whole["dp"]).share() == (0, 2)
    assert fl.Partition(whole["dp", "tp"]).share() == (0, 2)


@pytest.mark.parametrize(("shape", "names", "message"), REFUSED)
def test_a_mesh_of_unknown_meaning_is_refused(ranks, shape, names, message):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for read in (lambda: source().next_minibatch(8), lambda: next(iter(loader())), lambda: list(source().plan(8))):
        with pytest.raises(ValueError, match=message):
            read()
    with pytest.raises(ValueError, match=message):
        fl.MinibatchSource(fl.ArrayDeserializer(x=np.arange(16.0)), partition=mesh)
    assert len(source().next_minibatch(8, partition=(0, 2)).ids) == 4


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"roles": {"ep": "data"}}, ValueError, "roles of dimensions of the mesh, dp: 2, tp: 2, got 'ep'"),
        ({"roles": {"tp": "both"}}, ValueError, "role of 'tp' to be one of data, model, context, got 'both'"),
    ],
)
def test_roles_that_do_not_fit_are_refused(ranks, arguments, error, message):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    with pytest.raises(error, match=message):
        fl.Partition(mesh, **arguments)


@pytest.mark.parametrize("partition", ["dp", 3, fl.Partition((0, 2))], ids=str)
def test_what_is_no_share_is_refused_with_all_that_is(partition):
    with pytest.raises(ValueError, match=r'\(index, count\), a mesh, "auto" or an fl\.Partition'):
        fl.Partition(partition)


def test_roles_need_a_mesh():
    with pytest.raises(TypeError, match=r"expected roles by the names of dimensions, .* got 'squares'"):
        fl.Partition((0, 2), "squares")
    with pytest.raises(TypeError, match=r"expected roles with a mesh, got \(0, 2\)"):
        fl.Partition((0, 2), roles={"dp": "data"})


def test_several_meshes_are_refused_unless_they_agree(ranks):
    kept = [init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))]
    kept.append(init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "pp")))
    assert len(source().next_minibatch(8).ids) == 4
    kept.append(init_device_mesh("cpu", (4,), mesh_dim_names=("dp",)))
    with pytest.raises(ValueError, match=r"several meshes \(.*: 2, .*: 2.*\), which give its ranks different shares"):
        source().next_minibatch(8)
    assert len(source().next_minibatch(8, partition=kept[0]).ids) == 4


@pytest.mark.parametrize("rank", range(4))
def test_all_ranks_refuse_meshes_that_some_agree_on(rank):
    """Ranks 0 and 3 have the same shares in both."""
    with as_rank(rank, 4):
        meshes = [init_device_mesh("cpu", (2, 2), mesh_dim_names=names) for names in (("dp", "tp"), ("tp", "dp"))]
        for feed in (source(), loader()):
            with pytest.raises(ValueError, match="several meshes"):
                next(iter(feed))
        del meshes


def test_a_mesh_of_some_ranks_is_refused(ranks):
    mesh = DeviceMesh("cpu", [0, 1], mesh_dim_names=("dp",))
    with pytest.raises(ValueError, match=r"a mesh of some of its 4 ranks \(dp: 2\)"):
        source().next_minibatch(8)
    assert fl.Partition(mesh).share() == (1, 2)


def test_a_mesh_without_this_rank_is_refused(ranks):
    mesh = DeviceMesh("cpu", [2, 3], mesh_dim_names=("dp",))
    with pytest.raises(ValueError, match="expected a mesh with this rank, got dp: 2 without it"):
        fl.Partition(mesh)
    with pytest.raises(ValueError, match=r"a mesh of some of its 4 ranks \(dp: 2\)"):  # as on ranks 2 and 3
        source().next_minibatch(8)


def test_a_part_that_is_kept_stands_for_the_whole(ranks):
    part = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["tp"]
    assert len(source().next_minibatch(8).ids) == 4
    assert part.size() == 2


def test_parts_and_flattened_dimensions_are_no_meshes_of_their_own(ranks):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    parts = mesh["dp_shard"], mesh._flatten("everything")
    assert len(source().next_minibatch(8).ids) == 2
    assert parts


def test_a_line_of_ranks_that_was_given_dimensions_counts_by_them(ranks):
    world = init_device_mesh("cpu", (4,), mesh_dim_names=("world",))
    mesh = world._unflatten(0, (2, 2), ("dp", "tp"))
    assert len(source().next_minibatch(8).ids) == 4
    assert mesh.size() == 4
