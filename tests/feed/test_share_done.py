"""How much of a source, and of a run, is done."""

from __future__ import annotations

import numpy as np
import pytest

import feedline as fl

X = np.arange(40, dtype=np.float32).reshape(20, 2)


def shares(**settings):
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=X), **settings)
    return [source.share_done, *(source.share_done for _ in source.minibatches(5))]


def test_sweeps():
    assert shares(max_sweeps=2) == pytest.approx([i / 8 for i in range(9)])


def test_samples():
    assert shares(max_samples=10) == pytest.approx([0, 0.5, 1])
    assert shares(max_samples=30, max_sweeps=5) == pytest.approx([i / 6 for i in range(7)])


def test_without_an_end_nothing_is_known():
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=X))
    source.next_minibatch(5)
    assert source.share_done is None


def test_a_restored_source_goes_on():
    first, second = (fl.MinibatchSource(fl.ArrayDeserializer(x=X), max_sweeps=4) for _ in range(2))
    first.next_minibatch(10)
    second.load_state_dict(first.state_dict())
    assert second.share_done == first.share_done == 0.125
