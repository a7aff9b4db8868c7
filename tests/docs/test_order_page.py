"""docs/explanation/order.md is correct: its code runs, and defines the order that sources deliver."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.composed.weights import quotas_of
from feedline.feed.protocol import ChunkInfo
from feedline.feed.timeline import ArcBlockOrder, ArcOrder, BlockOrder, block_order
from feedline.feed.timeline.elements import ChunkTable, Window
from feedline.feed.timeline.feedline import FeedlineOrder

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "order.md"


def run_page():
    """Run every block in one namespace, as a reader would, with the line numbers of the page."""
    names = {}
    text = PAGE.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    assert blocks
    for block in blocks:
        lines_before = text.count("\n", 0, block.start(1))
        exec(compile("\n" * lines_before + block[1], str(PAGE), "exec"), names)
    return names


@pytest.fixture(scope="module")
def page():
    return run_page()


def test_every_block_runs(page):
    assert page["LIMIT"] == 2**20


chunk = st.builds(ChunkInfo, st.integers(0, 9), st.integers(0, 20), st.integers(0, 99))


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32),
    st.lists(chunk, min_size=1, max_size=12),
    st.integers(1, 60),
    st.data(),
)
def test_the_timeline_delivers_the_order_of_the_page(page, seed, sweep, infos, budget, data):
    unit = data.draw(st.sampled_from(["chunks", "samples", "bytes", None]))
    if not sum(info.sequences for info in infos):
        return
    cost = [getattr(info, unit) if unit in ("samples", "bytes") else 1 for info in infos]
    window = Window(**{unit: budget}) if unit else None
    expected = page["sweep_order"](
        seed, sweep, [info.sequences for info in infos], cost, budget if unit else float("inf")
    )
    assert delivered(FeedlineOrder(ChunkTable(infos), seed, True, window), sweep, len(expected)) == expected


@given(
    st.integers(0, 2**64 - 1),
    st.lists(st.builds(ChunkInfo, st.integers(0, 9), st.integers(0, 20), st.integers(0, 99)), min_size=1, max_size=12),
    st.integers(1, 60),
    st.sampled_from(["samples", "bytes"]),
    st.integers(1, 40),
    st.sampled_from([1, 7, 2**20]),
)
def test_blocks_match_the_page(page, seed, infos, budget, unit, size, most):
    if not sum(info.sequences for info in infos):
        return
    cut = page["blocks"]([tuple(info) for info in infos], size, most)
    column = ("sequences", "samples", "bytes").index(unit)
    expected = page["sweep_order"](seed, 3, [b[0] for b in cut], [b[column] for b in cut], budget)
    with mock.patch.multiple(block_order, BLOCK_BYTES=size, MAX_BLOCKS=most):
        timeline = BlockOrder(ChunkTable(infos), seed, True, Window(**{unit: budget}))
    table = timeline.blocks.table
    assert list(zip(table.sequences, table.samples, table.bytes, strict=True)) == cut
    assert delivered(timeline, 3, len(expected)) == expected


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32),
    st.lists(chunk, min_size=1, max_size=12),
    st.integers(1, 90),
    st.integers(1, 9),
    st.data(),
)
def test_lanes_match_the_page(page, seed, sweep, infos, budget, arcs, data):
    total = sum(info.sequences for info in infos)
    if total < arcs:
        return
    unit = data.draw(st.sampled_from(["chunks", "samples", "bytes", None]))
    cost = [getattr(info, unit) if unit in ("samples", "bytes") else 1 for info in infos]
    window = Window(**{unit: budget}) if unit else None
    sequences = [info.sequences for info in infos]
    expected = page["arcs_order"](seed, sweep, sequences, cost, budget if unit else 10**9, arcs)
    assert delivered(ArcOrder(ChunkTable(infos), seed, True, window, arcs), sweep, total) == expected


@given(
    st.integers(0, 2**64 - 1),
    st.lists(chunk, min_size=1, max_size=9),
    st.integers(1, 60),
    st.integers(1, 9),
    st.integers(5, 40),
)
def test_lanes_over_blocks_match_the_page(page, seed, infos, budget, arcs, size):
    total = sum(info.sequences for info in infos)
    if total < arcs:
        return
    cut = page["blocks"]([tuple(info) for info in infos], size)
    expected = page["arcs_order"](seed, 3, [b[0] for b in cut], [b[2] for b in cut], budget, arcs)
    with mock.patch.object(block_order, "BLOCK_BYTES", size):
        timeline = ArcBlockOrder(ChunkTable(infos), seed, True, Window(bytes=budget), arcs)
    assert delivered(timeline, 3, total) == expected


def test_blocks_of_huge_corpora_are_larger():
    """Ten tebibytes in chunks of 32 MiB stay within 2^20 blocks, each part of one chunk."""
    n = 10 * 2**15
    table = ChunkTable.of_columns(*(np.full(n, value) for value in (10**5, 10**15, 32 << 20)))
    cut = block_order.Blocks(table)
    assert len(cut.table) == 2 * n <= 2**20
    assert cut.table.samples.tolist() == [5 * 10**14] * (2 * n)
    assert cut.first[:4].tolist() == [0, 50000, 0, 50000]


def delivered(timeline, sweep, count):
    """Ordinals of a sweep of ``count`` sequences."""
    ordinals = []
    while len(ordinals) < count:
        plan = timeline.window_at(sweep, len(ordinals))
        ordinals += timeline.segment(plan, 0, plan.count).ordinals.tolist()
    return ordinals


@given(
    st.integers(0, 2**64 - 1),
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.sampled_from([1, 3, 8]),
    st.sampled_from(["repeat", "stop", "drop"]),
    st.data(),
)
def test_a_mixture_delivers_the_order_of_the_page(page, seed, sizes, block, when_empty, data):
    names = [f"c{k}" for k in range(len(sizes))]
    weight = st.decimals("0", "3", places=2)
    weights = st.lists(weight, min_size=len(sizes), max_size=len(sizes)).filter(any)
    starts = [0, *sorted(data.draw(st.sets(st.integers(1, 60), max_size=2)))]
    stages = [(start, data.draw(weights)) for start in starts]
    limits = [None if when_empty == "repeat" else 2 * size for size in sizes]
    given_stages = [(start, [Fraction(w) for w in numbers]) for start, numbers in stages]
    expected = page["mixture_order"](seed, given_stages, sizes, limits, when_empty == "drop", block, 120)
    corpora = {name: fl.ArrayDeserializer(x=np.arange(size)) for name, size in zip(names, sizes, strict=True)}
    declared = [(start, dict(zip(names, map(float, numbers), strict=True))) for start, numbers in stages]
    options = {} if when_empty == "repeat" else {"when_empty": when_empty, "max_sweeps": 2}
    mixture = fl.Mixture(corpora, declared[0][1], stages=declared[1:], block=block, **options)
    with fl.MinibatchSource(mixture, seed=seed, max_sweeps=None if when_empty == "repeat" else 1) as source:
        ids = [i for _, m in zip(range(4), source.minibatches(30), strict=False) for i in m.ids.tolist()]
    assert ids == expected


@given(st.lists(st.fractions(0, 1, max_denominator=10**6), min_size=1, max_size=12).filter(any))
def test_quotas_match_the_page(page, weights):
    assert quotas_of(weights) == page["quotas_of"](weights)
