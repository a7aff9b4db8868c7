"""The law of lengths: `len` equals the number of minibatches that iterating delivers, or is a TypeError."""

from __future__ import annotations

import operator
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from tests.laws.corpora import CountedCorpus, worlds

limits = st.fixed_dictionaries(
    {},
    optional={"max_sweeps": st.integers(0, 3), "max_samples": st.integers(1, 300)},
).filter(bool)
rules = st.sampled_from([{}, {}, {"filling": "cntk"}, {"truncation_length": 2}, {"on_error": "skip"}])
spans = st.sampled_from([fl.samples, fl.minibatches, fl.sweeps]).flatmap(
    lambda unit: st.builds(unit, st.integers(0, 5))
)


@given(worlds(), limits, rules, st.integers(1, 40), st.integers(0, 12), st.data())
def test_the_length_of_an_iterator_is_its_number_of_minibatches(world, limits, rule, size, stop, data):
    """From the start, after minibatches, after a restore with another size, for any partition, with or without span."""
    ranks = data.draw(st.integers(1, 3))
    share = (data.draw(st.integers(0, ranks - 1)), ranks)
    until = data.draw(st.none() | spans)
    source = world.source(**limits, **rule)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a size too small for every rank, under CNTK's filling
        if rule == {"truncation_length": 2}:
            size = max(size, 2 * ranks)
        iterator = source.minibatches(size, partition=share)
        for _ in range(stop):
            if next(iterator, None) is None:
                break
        other = data.draw(st.integers(2 * ranks, 40))
        if data.draw(st.booleans()):
            state = source.state_dict()
            source = world.source(**limits, **rule)
            source.load_state_dict(state)
        remaining = source.minibatches(other, until, share)
        before = source.state_dict()
        expected = len(remaining)
        assert source.state_dict() == before
        delivered = 0
        while True:
            assert len(remaining) == expected - delivered
            if next(remaining, None) is None:
                break
            delivered += 1
        assert delivered == expected
        assert len(remaining) == 0


@given(worlds(), limits, st.integers(0, 4))
def test_the_length_of_a_source_equals_its_iterators(world, limits, stop):
    """Its length is the number of remaining minibatches of 256 samples, over all sweeps."""
    source = world.source(**limits)
    for _ in range(stop):
        source.next_minibatch(7)
    expected = len(source)
    assert expected == operator.length_hint(source) == len(list(source))
    assert len(source) == 0
    assert source  # a source is true, even at its end


@pytest.mark.parametrize("until", [fl.samples(1000), fl.minibatches(7), fl.sweeps(2)])
def test_a_span_of_a_source_without_end(until):
    source = fl.MinibatchSource(CountedCorpus([1] * 100, [50, 50]))
    iterator = source.minibatches(30, until)
    assert len(iterator) == len(list(iterator)) > 0


class Unsized(fl.UserDeserializer):
    schema = fl.Schema({"x": fl.Stream()})

    def num_chunks(self):
        return 3

    def get_chunk(self, chunk):
        return {"x": np.arange(10)}


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (lambda: fl.MinibatchSource(CountedCorpus([1] * 9, [9])), "pass max_sweeps or max_samples"),
        (lambda: fl.MinibatchSource(Unsized(), max_sweeps=1), "without chunk_info is unknown"),
    ],
)
def test_an_unknown_length_is_a_type_error(source, says):
    """`list`, `tqdm` and `operator.length_hint` then work without it."""
    source = source()
    for sized in (source, source.minibatches(5)):
        with pytest.raises(TypeError, match=says):
            len(sized)
        assert operator.length_hint(sized, 3) == 3
        assert sized
    assert len(list(source.minibatches(5, fl.minibatches(2)))) == 2


def test_large_sources_are_counted_at_once():
    """With one sample each, by a division and not a plan of every minibatch."""
    source = fl.MinibatchSource(Huge(), max_sweeps=1000)
    source.seek(fl.Position(3, 17, 3 * Huge.COUNT + 17))
    assert len(source.minibatches(100)) == -(-(997 * Huge.COUNT - 17) // 100)


class Huge(fl.Deserializer):
    """Ten billion sequences, which must not be read."""

    COUNT = 10**10
    schema = fl.Schema({"x": fl.Stream()})
    name = "huge"

    def chunks(self):
        return [fl.ChunkInfo(self.COUNT // 100, self.COUNT // 100, 1 << 30)] * 100

    def read(self, chunk):
        raise AssertionError("read")

    def digest(self):
        return "00"


def test_tqdm_shows_a_total_where_it_is_known():
    tqdm = pytest.importorskip("tqdm").tqdm
    corpus = CountedCorpus([1] * 1000, [500, 500])
    source = fl.MinibatchSource(corpus, max_sweeps=2)
    for feed, total in (
        (source, 8),
        (source.minibatches(100), 20),
        (source.minibatches(100, fl.sweeps(1)), 10),
        (fl.MinibatchSource(corpus), None),
    ):
        with open("/dev/null", "w") as nowhere:
            assert tqdm(feed, file=nowhere).total == total
