"""Attention between two rates in packed rows equals attention in each document alone, by each of the masks of
docs/how-to/packing.md."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import feedline as fl

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

ROW, HEADS, FEATURES = 48, 2, 8
ROUNDING = {"rtol": 0, "atol": 1e-12}


@pytest.fixture(scope="module")
def minibatch():
    """Rows of documents of 1 to 30 tokens and 0 to 60 patches. Some rows are full, in others there is padding."""
    rng = np.random.default_rng(0)
    lengths = [(int(rng.integers(1, 31)), int(rng.choice([0, 0, 4, 20, 60]))) for _ in range(24)]
    documents = fl.ArrayDeserializer(
        tokens=[rng.integers(1, 99, tokens).astype(np.int32) for tokens, _ in lengths],
        patches=[rng.normal(size=(patches, FEATURES)) for _, patches in lengths],
    )
    packed = fl.Packed(documents, ROW, cost={"tokens": 1, "patches": 0.25})
    with fl.MinibatchSource(packed, seed=1, max_sweeps=1) as source:
        return source.next_minibatch(1 << 20)


def attended_alone(q, k, v, minibatch, names, causal):
    """Attention of each document alone, by a plain loop over rows and documents: zeros where there is nothing to see.

    Args:
        q: (rows, heads, places, features).
        k, v: lists of (heads, places, features) by row, as long as the row.
        names: streams with the documents of queries and of keys.
    """
    out = torch.zeros_like(q)
    queries, keys = (minibatch[name].sequences() for name in names)
    for row, documents in enumerate(minibatch["document"].sequences()):
        for number in range(1, len(documents) + 1):
            at, seen = (torch.from_numpy(np.flatnonzero(places[row] == number)) for places in (queries, keys))
            for nth, place in enumerate(at.tolist()):
                visible = seen[: nth + 1] if causal else seen
                if len(visible):
                    scores = q[row, :, place, None] @ k[row][:, visible].mT / FEATURES**0.5
                    out[row, :, place] = (scores.softmax(-1) @ v[row][:, visible])[:, 0]
    return out


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.fixture
def worlds(minibatch):
    """By names of the documents of queries and keys: queries, keys and values, padded, and the expected result."""
    torch.manual_seed(0)
    rows, longest = minibatch.num_sequences, int(minibatch["patches"].lengths.max())
    worlds = {}
    for names in itertools.product(("segment", "patches_segment"), repeat=2):
        q, k, v = (
            draw(rows, HEADS, longest if name == "patches_segment" else ROW, FEATURES) for name in (*names, names[1])
        )
        worlds[names] = q, k, v, attended_alone(q, k, v, minibatch, names, causal=names == ("segment", "segment"))
    return worlds


def real(minibatch, name, result):
    """The result in places that are no padding."""
    return result.transpose(1, 2)[minibatch[name].torch() > 0]


def dense_mask(minibatch, names):
    queries, keys = (minibatch[name].torch() for name in names)
    same = queries[:, :, None] == keys[:, None, :]
    return (torch.tril(same) if names == ("segment", "segment") else same)[:, None]


def test_rows_have_what_the_masks_must_tell_apart(minibatch):
    segment = minibatch["segment"].torch()
    assert 0 < int((segment == 0).sum()) < segment.numel() / 2
    assert minibatch["document"].lengths.max() > 2
    assert (np.diff(minibatch["patches_cu_seqlens"].rows) == 0).sum() > 5
    assert (minibatch["patches"].lengths == 0).any()


def test_a_dense_mask_matches_each_document_alone(minibatch, worlds):
    for names, (q, k, v, expected) in worlds.items():
        result = scaled_dot_product_attention(q, k, v, attn_mask=dense_mask(minibatch, names))
        torch.testing.assert_close(
            real(minibatch, names[0], result), real(minibatch, names[0], expected), **ROUNDING, msg=str(names)
        )


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_matches_each_document_alone(minibatch, worlds):
    flex = pytest.importorskip("torch.nn.attention.flex_attention", reason="torch is older than 2.5")
    for names, (q, k, v, expected) in worlds.items():
        queries, keys = (minibatch[name].torch() for name in names)
        causal = names == ("segment", "segment")

        def same(row, head, query, key, queries=queries, keys=keys, causal=causal):
            return (queries[row, query] == keys[row, key]) & ((query >= key) | (not causal))

        mask = flex.create_block_mask(same, len(q), None, q.shape[2], k.shape[2], device="cpu")
        result = flex.flex_attention(q, k, v, block_mask=mask)
        torch.testing.assert_close(
            real(minibatch, names[0], result), real(minibatch, names[0], expected), **ROUNDING, msg=str(names)
        )


def test_bounds_match_each_document_alone(minibatch, worlds):
    """As functions of variable length take them: the k-th pair of bounds of both streams is of the same document."""
    bounds = {
        "segment": minibatch["cu_seqlens"].rows.tolist(),
        "patches_segment": minibatch["patches_cu_seqlens"].rows.tolist(),
    }
    assert len(bounds["segment"]) == len(bounds["patches_segment"])
    for names, (q, k, v, expected) in worlds.items():
        present = [torch.from_numpy(minibatch[name].mask) for name in (*names, names[1])]
        flat = [each.transpose(1, 2)[at].transpose(0, 1) for each, at in zip((q, k, v), present, strict=True)]
        parts = []
        for (a, b), (c, d) in zip(*(itertools.pairwise(bounds[name]) for name in names), strict=True):
            causal = names == ("segment", "segment")
            part = scaled_dot_product_attention(flat[0][:, a:b], flat[1][:, c:d], flat[2][:, c:d], is_causal=causal)
            parts.append(part if d > c else torch.zeros_like(flat[0][:, a:b]))
        kept = minibatch[names[0]].torch(layout="packed") > 0
        result = torch.cat(parts, 1).transpose(0, 1)[kept]
        torch.testing.assert_close(result, real(minibatch, names[0], expected), **ROUNDING, msg=str(names))
