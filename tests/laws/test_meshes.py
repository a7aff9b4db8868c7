"""Laws of shares by mesh: ranks that should read the same do, and the others share each minibatch exactly.

Every rank of a mesh is tried in turn, in one process, by torch's fake process group.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402

import feedline as fl  # noqa: E402
from feedline.testing import sequences_of  # noqa: E402
from tests.fake_ranks import as_rank  # noqa: E402

#: Shape, names of dimensions, roles by name, and the dimensions that divide minibatches.
MESHES = [
    ((2,), ("dp",), None, ("dp",)),
    ((3,), ("batch",), None, ("batch",)),
    ((4,), ("tp",), None, ()),
    ((4, 2), ("dp", "tp"), None, ("dp",)),
    ((2, 4), ("tp", "dp"), None, ("dp",)),
    ((2, 2), ("dp_replicate", "dp_shard"), None, ("dp_replicate", "dp_shard")),
    ((2, 2, 2), ("dp_replicate", "dp_shard", "tp"), None, ("dp_replicate", "dp_shard")),
    ((2, 3, 2), ("hsdp", "fsdp", "tensor"), None, ("hsdp", "fsdp")),
    ((2, 2, 2), ("pp", "dp", "tp"), None, ("dp",)),
    ((2, 2, 2, 2), ("pp", "dp_replicate", "dp_shard", "tp"), None, ("dp_replicate", "dp_shard")),
    ((5, 2), ("data", "model"), None, ("data",)),
    ((2, 5), ("replica", "mp"), None, ("replica",)),
    ((1, 8), ("dp", "tp"), None, ()),
    ((8, 1), ("dp", "pp"), None, ("dp",)),
    ((4, 2), ("dp", "ep"), {"ep": "data"}, ("dp", "ep")),
    ((4, 2), ("dp", "ep"), {"ep": "model"}, ("dp",)),
    ((2, 2, 2), ("dp", "cp", "tp"), {"cp": "model"}, ("dp",)),
    ((2, 3), ("outer", "inner"), {"outer": "model", "inner": "data"}, ("inner",)),
    ((3, 2), ("dp", "tp"), {"dp": "model", "tp": "data"}, ("tp",)),
    ((2, 2, 4), ("FSDP", "Pipeline", "TP"), None, ("FSDP",)),
]


def by_rank(shape, names, use):
    """Return ``use(mesh)`` for every rank of a mesh."""
    results = []
    for rank in range(math.prod(shape)):
        with as_rank(rank, math.prod(shape)):
            results.append(use(init_device_mesh("cpu", shape, mesh_dim_names=names)))
    return results


def source(partition=(0, 1)):
    values = [np.full(n, i, np.int16) for i, n in enumerate(np.random.default_rng(3).integers(1, 9, 90))]
    return fl.MinibatchSource(fl.ArrayDeserializer(x=values), seed=5, max_sweeps=1, partition=partition)


@pytest.mark.parametrize(("shape", "names", "roles", "data"), MESHES, ids=lambda value: str(value))
def test_ranks_of_a_group_are_identical_and_groups_share_each_minibatch(shape, names, roles, data):
    def read(mesh):
        own = source(fl.Partition(mesh, roles=roles))
        minibatches = [sequences_of([own.next_minibatch(60)]) for _ in range(4)]
        place = dict(zip(names, mesh.get_coordinate(), strict=True))
        return tuple(place[name] for name in names if name in data), minibatches, own.state_dict()

    groups = defaultdict(list)
    for group, minibatches, state in by_rank(shape, names, read):
        groups[group].append((minibatches, state))
    assert len(groups) == math.prod(n for n, name in zip(shape, names, strict=True) if name in data)
    whole = source()
    wanted = [sequences_of([whole.next_minibatch(60)]) for _ in range(4)]
    for members in groups.values():
        assert all(member == members[0] for member in members)
        assert members[0][1] == whole.state_dict()
    for step, expected in enumerate(wanted):
        got = [one for _, members in sorted(groups.items()) for one in members[0][0][step]]
        assert got == expected


@pytest.mark.parametrize(("shape", "names", "roles", "data"), MESHES[3:12], ids=lambda value: str(value))
def test_a_balance_leaves_each_minibatch_what_it_was(shape, names, roles, data):
    def read(mesh):
        own = source(fl.Partition(mesh, roles=roles, balance="squares"))
        place = dict(zip(names, mesh.get_coordinate(), strict=True))
        return tuple(place[name] for name in names if name in data), sequences_of([own.next_minibatch(60)])

    groups = dict(by_rank(shape, names, read))
    expected = sequences_of([source().next_minibatch(60)])
    assert Counter(one for group in groups.values() for one in group) == Counter(expected)


def test_slices_and_reordered_ranks():
    def read(mesh):
        order = DeviceMesh("cpu", [[3, 1], [0, 2]], mesh_dim_names=("dp", "tp"))
        shares = [fl.Partition(mesh[names]).share() for names in ("dp", "tp", ("dp", "tp"))]
        return [*shares, fl.Partition(order).share()]

    by_slice = by_rank((2, 2), ("dp", "tp"), read)
    assert [shares[0] for shares in by_slice] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert [shares[1] for shares in by_slice] == [(0, 1)] * 4
    assert [shares[2] for shares in by_slice] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert [shares[3] for shares in by_slice] == [(1, 2), (0, 2), (1, 2), (0, 2)]
