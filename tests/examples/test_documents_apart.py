"""A model computes the same in a packed row as in each document alone, by each of the masks of
docs/how-to/packing.md."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import feedline as fl
from tests.docs.pages import ROOT

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.nn.functional import cross_entropy, scaled_dot_product_attention  # noqa: E402

EXAMPLE = ROOT / "examples" / "language_model.py"
ROW = 48
#: Sums of up to ROW numbers near 1, in float64.
ROUNDING = {"rtol": 0, "atol": 1e-12}

pytestmark = pytest.mark.skipif(not EXAMPLE.is_file(), reason="examples are out of reach of a test of the wheel")


@pytest.fixture(scope="module")
def language_model():
    spec = importlib.util.spec_from_file_location("language_model", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def model(language_model):
    torch.manual_seed(0)
    return language_model.LanguageModel().double()


@pytest.fixture(scope="module")
def documents():
    """Return documents of 1 to 60 tokens. Some are longer than a row."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, size=length, dtype=np.uint8) for length in rng.integers(1, 61, size=60)]


def packed(documents, method="best-fit"):
    """All rows of the documents."""
    rows = fl.Packed(fl.ArrayDeserializer(tokens=documents), row=ROW, method=method)
    with fl.MinibatchSource(rows, seed=1, max_sweeps=1) as source:
        return source.next_minibatch(1 << 20)


def pieces(minibatch):
    """Of each document, or piece of one: its row, its first place in the row, the one after its last, its ordinal."""
    bounds, ordinals = minibatch["cu_seqlens"].rows, iter(minibatch["document"].rows)
    segment = minibatch["segment"].rows
    return [
        (start // ROW, start % ROW, start % ROW + stop - start, next(ordinals))
        for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        if segment[start]
    ]


def logits(model, minibatch, mask):
    with torch.no_grad():
        return model(minibatch["tokens"].torch().long(), minibatch["positions"].torch(), mask)


def alone(language_model, model, tokens):
    """The logits of tokens that are no part of a row."""
    with torch.no_grad():
        mask = language_model.within_documents(torch.ones(1, len(tokens), dtype=torch.int32))
        return model(torch.from_numpy(tokens)[None].long(), torch.arange(len(tokens))[None], mask)[0]


@pytest.mark.parametrize("method", ["best-fit", "first-fit", "split"])
def test_logits_match_each_document_alone(language_model, model, documents, method):
    minibatch = packed(documents, method)
    got = logits(model, minibatch, language_model.within_documents(minibatch["segment"].torch()))
    positions, found = minibatch["positions"].torch(), pieces(minibatch)
    assert len(found) > len(documents)  # some are cut
    assert len({row for row, *_ in found}) < len(documents)  # rows have several
    for row, start, stop, ordinal in found:
        first = int(positions[row, start])
        expected = alone(language_model, model, documents[ordinal][first : first + stop - start])
        torch.testing.assert_close(got[row, start:stop], expected, **ROUNDING)


def test_without_the_mask_of_documents_they_are_not(language_model, model, documents):
    minibatch = packed(documents)
    causal = torch.ones(ROW, ROW, dtype=torch.bool).tril()
    got = logits(model, minibatch, causal)
    positions = minibatch["positions"].torch()
    for row, start, stop, ordinal in pieces(minibatch):
        first = int(positions[row, start])
        expected = alone(language_model, model, documents[ordinal][first : first + stop - start])
        difference = (got[row, start:stop] - expected).abs().max()
        assert difference > 0.01 if start else difference < 1e-12


def test_the_loss_matches_all_documents(language_model, model):
    """Labels: every token but the first of each document, none across documents, none in padding."""
    rng = np.random.default_rng(1)
    documents = [rng.integers(0, 256, size=length, dtype=np.uint8) for length in rng.integers(1, ROW + 1, size=40)]
    minibatch = packed(documents)
    got = logits(model, minibatch, language_model.within_documents(minibatch["segment"].torch()))
    labels = minibatch["labels"].torch()
    assert int((labels != -100).sum()) == sum(len(document) - 1 for document in documents)
    expected = sum(
        cross_entropy(
            alone(language_model, model, document)[:-1], torch.from_numpy(document[1:]).long(), reduction="sum"
        )
        for document in documents
    )
    found = cross_entropy(got.flatten(0, 1), labels.flatten(), reduction="sum")
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@pytest.fixture
def attended(language_model, documents):
    """A minibatch, queries, keys and values (rows, heads, ROW, features), and the result of the dense mask."""
    minibatch = packed(documents)
    generator = torch.Generator().manual_seed(2)
    shape = (minibatch.num_sequences, 2, ROW, 8)
    qkv = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3)]
    mask = language_model.within_documents(minibatch["segment"].torch())
    return minibatch, qkv, scaled_dot_product_attention(*qkv, attn_mask=mask)


def test_bounds_match_the_mask(attended):
    """As functions of variable length take them: over the tokens of all rows, causal within each pair of bounds."""
    minibatch, qkv, expected = attended
    bounds = minibatch["cu_seqlens"].rows
    assert (bounds.dtype, bounds[0], bounds[-1]) == (np.int32, 0, minibatch.num_samples)
    q, k, v = (each.transpose(0, 1).flatten(1, 2) for each in qkv)  # (heads, tokens, features)
    parts = [
        scaled_dot_product_attention(q[:, a:b], k[:, a:b], v[:, a:b], is_causal=True)
        for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]
    got = torch.cat(parts, 1).unflatten(1, (-1, ROW)).transpose(0, 1)
    torch.testing.assert_close(got, expected, **ROUNDING)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_matches_the_mask(attended):
    flex = pytest.importorskip("torch.nn.attention.flex_attention", reason="torch is older than 2.5")
    minibatch, qkv, expected = attended
    segment = minibatch["segment"].torch()

    def within(row, head, query, key):
        return (query >= key) & (segment[row, query] == segment[row, key])

    mask = flex.create_block_mask(within, minibatch.num_sequences, None, ROW, ROW, device="cpu")
    got = flex.flex_attention(*qkv, block_mask=mask)
    torch.testing.assert_close(got, expected, **ROUNDING)
