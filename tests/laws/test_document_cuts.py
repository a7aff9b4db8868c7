"""Laws of cuts along the sequence: the pieces of the ranks, joined, are the documents, and nothing else changes.

Every rank of a mesh is tried in turn, in one process, by torch's fake process group.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

import feedline as fl  # noqa: E402
from tests.effort import examples  # noqa: E402
from tests.fake_ranks import as_rank  # noqa: E402

RULES = ("contiguous", "zigzag")
CUT = ("tokens", "labels", "segment", "positions", "score")


def by_rank(shape, names, use):
    """Return ``use(mesh)`` for every rank of a mesh."""
    results = []
    for rank in range(int(np.prod(shape))):
        with as_rank(rank, int(np.prod(shape))):
            results.append(use(init_device_mesh("cpu", shape, mesh_dim_names=names)))
    return results


def documents(lengths):
    tokens = [np.arange(n, dtype=np.int32) + 1000 * i for i, n in enumerate(lengths)]
    scores = [np.random.default_rng(i).normal(size=(n, 2)).astype(np.float32) for i, n in enumerate(lengths)]
    return fl.ArrayDeserializer(tokens=tokens, score=scores)


def packed(lengths, method="best-fit"):
    return fl.Packed(documents(lengths), 24, method=method, tokens="tokens", pad=7, seed=3)


def joined(pieces, bounds, padded_bounds, rule):
    """Return the documents of whole sequences from the samples of each rank, by the definition of the cut."""
    count = len(pieces)
    parts = 2 * count if rule == "zigzag" else count
    whole = []
    for begin, end, length in zip(padded_bounds[:-1], padded_bounds[1:], np.diff(bounds), strict=True):
        assert begin % parts == end % parts == 0
        size, document = (end - begin) // parts, {}
        for rank, samples in enumerate(pieces):
            own = samples[begin // count : end // count]
            places = [rank, 2 * count - 1 - rank] if rule == "zigzag" else [rank]
            document |= {place: own[k * size : (k + 1) * size] for k, place in enumerate(places)}
        whole.append((np.concatenate([document[place] for place in range(parts)]), length))
    return whole


def assert_cut(minibatches, expected, rule, names, fills):
    """Assert that the minibatches of the ranks of a group are the pieces of ``expected``."""
    first = minibatches[0]
    bounds, padded = first["cu_seqlens"].rows, first["cu_seqlens_padded"].rows
    assert first["cu_seqlens_padded"].lengths.tolist() == first["cu_seqlens"].lengths.tolist()
    assert first["cu_seqlens_padded"].lengths.sum() == len(padded) == len(bounds)
    for minibatch in minibatches:
        assert minibatch.ids.tolist() == expected.ids.tolist()
        assert minibatch.position == expected.position
        assert minibatch.global_samples == expected.global_samples
        assert minibatch["cu_seqlens"] == first["cu_seqlens"]
        assert minibatch["cu_seqlens_padded"] == first["cu_seqlens_padded"]
        assert all(np.array_equal(minibatch[name].lengths, first["tokens"].lengths) for name in names)
    assert sum(minibatch.num_samples for minibatch in minibatches) == expected.num_samples
    for name in names:
        pieces = joined([minibatch[name].rows for minibatch in minibatches], bounds, padded, rule)
        if name in expected:
            whole = np.concatenate([document[:length] for document, length in pieces] or [expected[name].rows])
            np.testing.assert_array_equal(whole, expected[name].rows)
        assert all((document[length:] == fills.get(name, 0)).all() for document, length in pieces)


def assert_dense(minibatches, expected):
    """Assert that dense copies of cut rows add no label and no token of their own."""
    for name, fill in {"tokens": 7, "labels": -100, "segment": 0}.items():
        dense = np.concatenate([minibatch[name].torch().numpy().reshape(-1) for minibatch in minibatches])
        assert np.count_nonzero(dense != fill) == np.count_nonzero(expected[name].rows != fill)
    for minibatch in minibatches:
        dense = minibatch["tokens"].torch()
        assert dense.numel() * len(minibatches) == max(minibatch["cu_seqlens_padded"].rows, default=0)


SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(any)


@settings(max_examples=examples(30))
@given(SIZES, st.integers(1, 4), st.integers(1, 3), st.sampled_from(RULES), st.sampled_from(("best-fit", "split")))
def test_the_pieces_of_packed_rows_are_the_rows(lengths, cuts, parts, rule, method):
    corpus = packed(lengths, method)

    def read(mesh):
        source = fl.MinibatchSource(corpus, max_sweeps=2, seed=4, partition=fl.Partition(mesh, cut=rule))
        return mesh.get_coordinate(), list(source.minibatches(96)), source.state_dict()

    ranks = by_rank((parts, cuts), ("dp", "cp"), read)
    for part in range(parts):
        whole = fl.MinibatchSource(corpus, max_sweeps=2, seed=4, partition=(part, parts))
        group = [minibatches for (own, _), minibatches, _ in ranks if own == part]
        for step in zip(*group, list(whole.minibatches(96)), strict=True):
            assert_cut(step[:-1], step[-1], rule, CUT, {"tokens": 7, "labels": -100})
            assert_dense(step[:-1], step[-1])
            np.testing.assert_array_equal(step[0]["cu_seqlens"].rows, step[-1]["cu_seqlens"].rows)
            assert all(minibatch["document"] == step[-1]["document"] for minibatch in step[:-1])
        assert all(state == whole.state_dict() for _, _, state in ranks)


#: Shape, names of dimensions, and the dimensions of the slice that is passed.
MESHES = [
    ((2, 2, 2), ("dp_shard", "tp", "cp"), None),
    ((2, 2, 2), ("dp_replicate", "dp_shard", "cp"), None),
    ((2, 2, 2, 2), ("dp_replicate", "dp_shard", "tp", "cp"), None),
    ((2, 3, 2), ("pp", "cp", "dp"), None),
    ((2, 2), ("sequence", "tensor"), None),
    ((2, 2, 2), ("cp", "sp", "batch"), None),
    ((2, 2, 2), ("pp", "dp", "cp"), ("dp", "cp")),
    ((2, 2, 2), ("dp", "cp", "tp"), ("cp",)),
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("shape", "names", "slice_of"), MESHES, ids=str)
def test_meshes_of_all_roles(shape, names, slice_of, rule):
    corpus = packed(np.random.default_rng(0).integers(1, 40, 60))
    used = slice_of or names

    def read(mesh):
        partition = fl.Partition(mesh if slice_of is None else mesh[slice_of], cut=rule, balance="squares")
        source = fl.MinibatchSource(corpus, max_sweeps=1, seed=4, partition=partition)
        place = {name: i for name, i in zip(names, mesh.get_coordinate(), strict=True) if name in used}
        return place, list(source.minibatches(144)), source.state_dict()

    def along(place, role):
        return tuple(i for name, i in place.items() if ROLES.get(name, "data") == role)

    groups, states = {}, []
    for place, minibatches, state in by_rank(shape, names, read):
        states.append(state)
        copies = groups.setdefault(along(place, "data"), {}).setdefault(along(place, "context"), [])
        copies.append(minibatches)
        assert minibatches == copies[0]  # whatever its place along dimensions of the model
    whole = [
        fl.MinibatchSource(corpus, max_sweeps=1, seed=4, partition=fl.Partition((i, len(groups)), balance="squares"))
        for i in range(len(groups))
    ]
    for part, (_, cuts) in zip(whole, sorted(groups.items()), strict=True):
        pieces = [copies[0] for _, copies in sorted(cuts.items())]
        for *step, expected in zip(*pieces, list(part.minibatches(144)), strict=True):
            assert_cut(step, expected, rule, CUT, {"tokens": 7, "labels": -100})
            assert_dense(step, expected)
        assert all(state == part.state_dict() for state in states)


ROLES = {"tp": "model", "pp": "model", "tensor": "model"} | dict.fromkeys(("cp", "sp", "sequence"), "context")


@given(SIZES, st.integers(1, 4), st.sampled_from(RULES))
def test_a_sequence_without_rows_is_a_document(lengths, cuts, rule):
    corpus = documents(lengths)
    streams = {"tokens": 5, "score": -1}

    def read(mesh):
        partition = fl.Partition(mesh, cut=fl.Cut(rule, streams))
        return list(fl.MinibatchSource(corpus, max_sweeps=1, seed=4, partition=partition).minibatches(96))

    whole = list(fl.MinibatchSource(corpus, max_sweeps=1, seed=4, partition=(0, 1)).minibatches(96))
    for *pieces, expected in zip(*by_rank((cuts,), ("cp",), read), whole, strict=True):
        assert_cut(pieces, expected, rule, ("tokens", "score", "positions"), streams)
        assert np.diff(pieces[0]["cu_seqlens"].rows).tolist() == expected["tokens"].lengths.tolist()
        positions = joined(
            [piece["positions"].rows for piece in pieces], *(pieces[0][n].rows for n in BOUNDS), rule=rule
        )
        assert all(document[:length].tolist() == list(range(length)) for document, length in positions)


BOUNDS = ("cu_seqlens", "cu_seqlens_padded")


@pytest.mark.parametrize("rule", RULES)
def test_a_loader_delivers_the_same_pieces(rule):
    corpus = packed(np.random.default_rng(0).integers(1, 40, 60))

    def read(mesh):
        partition = fl.Partition(mesh, cut=rule, balance="squares")
        loader = fl.DataLoader(corpus, batch_size=2, shuffle=True, seed=9, partition=partition, drop_last=True)
        return mesh.get_coordinate(), list(loader), len(loader)

    ranks = by_rank((2, 2), ("dp", "cp"), read)
    for part in range(2):
        partition = fl.Partition((part, 2), balance="squares")
        whole = list(fl.DataLoader(corpus, batch_size=2, shuffle=True, seed=9, partition=partition, drop_last=True))
        group = [batches for (own, _), batches, length in ranks if own == part and length == len(whole)]
        for first, second, expected in zip(*group, whole, strict=True):
            assert first["tokens"].shape == second["tokens"].shape
            bounds, padded = first["cu_seqlens"].numpy(), first["cu_seqlens_padded"].numpy()
            lengths = first["lengths"]["tokens"].tolist()
            rows = [
                np.concatenate([row[:length] for row, length in zip(batch["tokens"].numpy(), lengths, strict=True)])
                for batch in (first, second)
            ]
            pieces = joined(rows, bounds, padded, rule)
            tokens = np.concatenate([document[:length] for document, length in pieces])
            np.testing.assert_array_equal(tokens, expected["tokens"].numpy().reshape(-1))
            labels = sum((batch["labels"] != -100).sum() for batch in (first, second))
            assert labels == (expected["labels"] != -100).sum()


def test_zigzag_gives_every_rank_the_same_causal_attention():
    corpus = fl.Packed(documents([64]), 64, tokens="tokens")

    def keys(mesh):
        source = fl.MinibatchSource(corpus, partition=fl.Partition(mesh, cut="zigzag"))
        return int(source.next_minibatch(64)["positions"].rows.sum())

    assert len(set(by_rank((8,), ("cp",), keys))) == 1


def test_a_repartition_keeps_the_cut():
    corpus = packed(np.random.default_rng(0).integers(1, 40, 60))

    def read(mesh):
        source = fl.MinibatchSource(corpus, seed=1, partition=fl.Partition(mesh, cut="zigzag"))
        source.repartition((1, 3))
        by_pair = source.next_minibatch(96)
        source.seek(samples=0)
        source.repartition(mesh)
        return by_pair, source.next_minibatch(96), source.next_minibatch(96, partition=(1, 3))

    ranks = by_rank((2,), ("cp",), read)
    for step, (part, parts) in ((0, (1, 3)), (1, (0, 1))):
        expected = fl.MinibatchSource(corpus, seed=1, partition=(part, parts)).next_minibatch(96)
        assert_cut([rank[step] for rank in ranks], expected, "zigzag", CUT, {"tokens": 7, "labels": -100})
    assert ranks[0][2] != ranks[1][2]


def test_what_cannot_be_cut_is_refused():
    lengths = [5, 8]
    with as_rank(0, 2):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("cp",))
        with pytest.raises(fl.SchemaError, match=r'fl.Cut\("contiguous", {"tokens": 0}\)'):
            fl.MinibatchSource(documents(lengths), partition=mesh)
        with pytest.raises(fl.SchemaError, match="got `words`"):
            fl.MinibatchSource(documents(lengths), partition=fl.Partition(mesh, cut=fl.Cut(streams={"words": 0})))
        cut = fl.Partition(mesh, cut=fl.Cut(streams={"tokens": 0}))
        with pytest.raises(fl.DataError, match=r'(?s)stream `score`.*fl.Cut\(streams={"score": 0}\)'):
            fl.MinibatchSource(documents(lengths), partition=cut).next_minibatch(8)
        whole = fl.Partition(mesh, cut=fl.Cut(streams={"tokens": 0, "score": None}))
        source = fl.MinibatchSource(documents(lengths), partition=whole, shuffle=False)
        assert source.next_minibatch(5)["score"].lengths.tolist() == [5]
        uneven = fl.Partition(mesh, cut=fl.Cut("zigzag", {"tokens": 0, "score": 0}, uneven="error"))
        source = fl.MinibatchSource(documents(lengths), partition=uneven, shuffle=False)
        with pytest.raises(fl.DataError, match=r"(?s)multiple of 4 tokens to cut, got one of 5.*sequence 0"):
            source.next_minibatch(5)
        source.seek(fl.Position(0, 1))
        assert source.next_minibatch(8).num_samples == 4
        for settings in ({"frame_mode": True}, {"truncation_length": 4}):
            with pytest.raises(ValueError, match="expected whole sequences to cut"):
                fl.MinibatchSource(packed(lengths), partition=mesh, **settings)
        with pytest.raises(ValueError, match="no known axis of tokens"):
            fl.DataLoader(range(9), partition=mesh, seed=1)
        with pytest.raises(ValueError, match="expected the cut of the feed, None"):
            fl.MinibatchSource(packed(lengths), partition=(0, 1)).repartition(mesh)
        with pytest.raises(ValueError, match="expected a cut, as the mesh of this program cuts sequences in 2"):
            fl.MinibatchSource(packed(lengths)).next_minibatch(24)
        auto = fl.MinibatchSource(packed(lengths), partition=fl.Partition(cut="zigzag"))
        assert auto.next_minibatch(24)["cu_seqlens_padded"].rows.tolist()[-1] % 4 == 0
    with pytest.raises(TypeError, match="expected a cut with a mesh"):
        fl.Partition((0, 2), cut="zigzag")
    with pytest.raises(ValueError, match="expected a cut"):
        fl.Cut("zig")


def test_lengths_of_one_stream_that_differ_are_an_error_with_their_place():
    corpus = fl.ArrayDeserializer(tokens=[np.zeros(4, np.int32)] * 2, score=[np.zeros(4), np.zeros(3)])
    with as_rank(0, 2):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("cp",))
        partition = fl.Partition(mesh, cut=fl.Cut(streams={"tokens": 0, "score": 0}))
        source = fl.MinibatchSource(corpus, partition=partition, shuffle=False)
        with pytest.raises(fl.DataError, match=r"(?s)4 samples in stream `score`.*sequence 1"):
            source.next_minibatch(8)
