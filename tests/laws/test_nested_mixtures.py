"""Laws of mixtures of mixtures: an inner mixture gives the same sequences as by itself."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline import _native
from feedline.feed.composed.mixture import PART
from feedline.feed.reading.reader_factory import order_of
from tests.effort import examples
from tests.laws.test_mixtures import Chunked

SEED = 3


def part(kind, size, first):
    values = np.arange(first, first + size, dtype=np.int64)
    return fl.ArrayDeserializer(x=values) if kind == "array" else Chunked(values)


def inner_of(kinds, sizes, weights, when_empty):
    parts = {f"c{k}": part(kind, size, 1000 * k) for k, (kind, size) in enumerate(zip(kinds, sizes, strict=True))}
    return fl.Mixture(parts, {f"c{k}": w for k, w in enumerate(weights)}, when_empty=when_empty, block=4)


def alone(inner, share, window, count):
    """The sequences that the inner mixture delivers by itself, with the seed and share of the window of the part."""
    if not count:
        return []
    shuffle = True if window is None else fl.Window(chunks=max(1, int(window * share)))
    with fl.MinibatchSource(
        inner, seed=_native.hash_key([SEED, 0, PART]), max_samples=count, shuffle=shuffle
    ) as source:
        return [x for minibatch in source.minibatches(50) for x in minibatch["x"].rows.tolist()]


@settings(max_examples=examples(15))
@given(
    st.lists(st.sampled_from(["array", "read"]), min_size=2, max_size=2),
    st.lists(st.integers(1, 90), min_size=2, max_size=2),
    st.lists(st.integers(1, 4), min_size=2, max_size=2),
    st.sampled_from(["repeat", "stop", "drop"]),
    st.sampled_from([2, 12, 60]),
    st.lists(st.integers(20, 120), min_size=1, max_size=3),
)
@example(["array", "read"], [3, 9], [1, 3], "stop", 2, [20])
@example(["array", "read"], [1, 8], [1, 2], "stop", 2, [20])
def test_an_inner_mixture_gives_the_same_as_by_itself(kinds, sizes, weights, when_empty, window, batches):
    """In all of its sweeps, whose windows have different chunks."""
    outer = fl.Mixture(
        {"inner": inner_of(kinds, sizes, weights, when_empty), "other": part("read", 40, 5000)},
        {"inner": 2, "other": 1},
        block=8,
    )
    values = []
    with fl.MinibatchSource(outer, seed=SEED, shuffle=fl.Window(chunks=window)) as source:
        while len(values) < 200:
            for size in batches:
                values += [x for x in source.next_minibatch(size)["x"].rows.tolist() if x < 5000]
    inner = inner_of(kinds, sizes, weights, when_empty)
    assert values == alone(inner, 2 / 3, window, len(values))


@given(
    st.lists(st.sampled_from(["array", "read"]), min_size=2, max_size=2),
    st.lists(st.integers(1, 30), min_size=2, max_size=2),
    st.lists(st.integers(1, 4), min_size=2, max_size=2),
    st.sampled_from(["stop", "drop"]),
    st.sampled_from([2, 5, 12]),
)
@example(["array", "read"], [1, 8], [1, 2], "stop", 2)
def test_windows_divide_the_places_of_a_sweep(kinds, sizes, weights, when_empty, window):
    """Requested by any of its places, a window has the same places and chunks."""
    outer = fl.Mixture(
        {"inner": inner_of(kinds, sizes, weights, when_empty), "other": part("read", 40, 5000)},
        {"inner": 2, "other": 1},
        block=8,
    )
    order, _ = order_of(outer, order="feedline", seed=SEED, shuffle=fl.Window(chunks=window))
    place = 0
    while place < 160:
        plan = order.window_at(0, place)
        assert plan.first == place
        for other in range(place, place + plan.count):
            again = order.window_at(0, other)
            assert (again.first, again.count, again.chunks.tolist()) == (place, plan.count, plan.chunks.tolist())
        place += plan.count


def test_an_inner_mixture_without_end_goes_on_in_the_next_sweep():
    """And it does not end the outer one."""

    def inner():
        return inner_of(["array", "array"], [9, 7], [2, 1], "repeat")

    outer = fl.Mixture(
        {"inner": inner(), "other": part("array", 20, 5000)}, when_empty="stop", weights={"inner": 1, "other": 1}
    )
    values = []
    with fl.MinibatchSource(outer, seed=SEED, max_sweeps=3) as source:
        assert source.num_sequences == 41
        for minibatch in source.minibatches(15):
            values += [x for x in minibatch["x"].rows.tolist() if x < 5000]
            assert "inner" not in minibatch.sweep_ends
    assert values == alone(inner(), 1, None, 63)


def test_only_completed_sweeps_of_a_corpus_are_named():
    """A mixture that ends has delivered parts of its corpora, which are no sweeps of them."""
    corpora = {"short": part("array", 10, 0), "long": part("array", 100, 1000)}
    mixture = fl.Mixture(corpora, {"short": 1, "long": 1}, when_empty="stop", block=1)
    with fl.MinibatchSource(mixture, seed=SEED, max_sweeps=3) as source:
        ends = [name for minibatch in source.minibatches(8) for name in minibatch.sweep_ends]
    assert ends == ["short"] * 3
