"""What `snapshot` notices: changes of what workers hold copies of, and nothing else."""

from __future__ import annotations

import copy
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.loader.changes import snapshot
from tests.feed.loader.datasets import Plain


class Bag:
    """An object with attributes; comparing it, or asking for others, runs code that must not run."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def __eq__(self, other):
        raise AssertionError

    __hash__ = None

    def __getattr__(self, name):
        raise AssertionError(name)


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=2), inner, max_size=4)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(lambda attributes: Bag(**attributes))
    ),
    max_leaves=12,
)


@given(trees)
def test_nothing_changed_is_nothing_new(tree):
    assert snapshot(tree) == snapshot(tree)


def places(tree):
    """Every place in a tree where something else can be put, as (container, key)."""
    inside = tree.__dict__ if isinstance(tree, Bag) else tree
    if isinstance(inside, (list, dict)):
        for key in list(inside) if isinstance(inside, dict) else range(len(inside)):
            yield inside, key
            yield from places(inside[key])


@given(trees, st.data())
def test_anything_replaced_is_noticed(tree, data):
    found = list(places(tree))
    if not found:
        return
    before = snapshot(tree)
    inside, key = data.draw(st.sampled_from(found))
    old = inside[key]
    inside[key] = Bag()
    assert snapshot(tree) != before
    inside[key] = old
    assert snapshot(tree) == before


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: list(range(1000)), lambda x: x.append(0)),
        (dict, lambda x: x.update(a=1)),
        (lambda: Bag(x=np.zeros(3)), lambda bag: bag.__dict__.update(x=np.zeros(3))),
        (lambda: Bag(x=1), lambda bag: bag.__dict__.update(x=True)),
        (lambda: Bag(x=1), lambda bag: bag.__dict__.update(y=1)),
        (lambda: Bag(x=Bag(y=1)).x.__init__, lambda method: method.__self__.__dict__.update(y=2)),
    ],
)
def test_noticed(make, change):
    thing = make()
    before = snapshot(thing)
    assert snapshot(thing) == before
    change(thing)
    assert snapshot(thing) != before


def test_an_array_that_takes_the_place_of_another_is_noticed_and_neither_is_kept():
    bag = Bag(x=np.zeros(1000))
    before = snapshot(bag)
    for _ in range(20):  # some of them at the same address
        del bag.x
        bag.x = np.zeros(1000)
        assert snapshot(bag) != before


def test_cycles_and_depths_end():
    bag = Bag(lock=threading.Lock())
    bag.__dict__.update(me=bag, deep=[])
    for _ in range(100_000):
        bag.deep = [bag.deep]
    assert snapshot(bag) == snapshot(bag)
    assert len(snapshot(bag)) < 10_000


def test_a_copy_is_something_else():
    data = Plain(3)
    assert snapshot(copy.copy(data)) != snapshot(data)


def test_workers_stay_while_nothing_changes():
    with fl.DataLoader(Plain(12), batch_size=2, num_workers=2, collate_fn=lambda samples: samples) as loader:
        list(loader)
        pids = loader.pids
        list(loader)
        assert loader.pids == pids
        loader.dataset.note = "seen"
        list(loader)
        assert set(loader.pids).isdisjoint(pids)
