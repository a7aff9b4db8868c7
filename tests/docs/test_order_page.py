"""docs/explanation/order.md is true: its code runs, and defines the order that sources deliver."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.feed.protocol import ChunkInfo
from feedline.feed.timeline.feedline import FeedlineOrder
from feedline.feed.timeline.plan import ChunkTable, Window

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "order.md"


def run_page():
    """Run every block in one namespace, as a reader would, with line numbers of the page."""
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
    timeline = FeedlineOrder(ChunkTable(infos), seed, True, window)
    delivered = []
    while len(delivered) < len(expected):
        plan = timeline.window_at(sweep, len(delivered))
        delivered += timeline.segment(plan, 0, plan.count).ordinals.tolist()
    assert delivered == expected
