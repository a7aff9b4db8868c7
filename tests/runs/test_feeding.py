"""Sums over fed data equal those computed sequence by sequence, however the run is split."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.runs import feeding
from feedline.runs.feeding import Fed, Feeding
from tests.effort import examples
from tests.oracles.fed import add_up


@st.composite
def minibatches(draw):
    """Minibatches of a ragged stream, one of single samples and one that is ragged at times. Some are empty."""
    made = []
    for count in draw(st.lists(st.integers(0, 6), max_size=12)):
        ragged = draw(st.lists(st.integers(0, 40), min_size=count, max_size=count))
        sometimes = draw(st.sampled_from([[1] * count, ragged]))
        made.append((draw(st.lists(st.integers(0, 99), min_size=count, max_size=count)), ragged, sometimes))
    return made


def value(lengths):
    """Rows of sequences of these lengths."""
    return fl.Value.from_dense(np.zeros((sum(lengths), 2), "f4"), np.cumsum([0, *lengths]))


def minibatch(ids, ragged, sometimes):
    """A minibatch with these sequences."""
    values = {
        "ragged": value(ragged),
        "single": fl.Value.from_dense(np.zeros(len(ids), "f4")),
        "sometimes": value(sometimes),
    }
    schema = fl.Schema({"ragged": fl.Stream(2), "single": fl.Stream(()), "sometimes": fl.Stream(2)})
    ids = np.array(ids, np.int64)
    return fl.Minibatch(
        schema,
        values,
        ids,
        num_samples=sum(ragged),
        global_samples=sum(ragged),
        position=fl.Position(),
        sweep_end=False,
    )


@given(minibatches(), st.integers(0, 12), st.integers(1, 5))
@settings(max_examples=examples(75), deadline=None)
def test_sums_are_the_oracles(made, cut, at_once):
    """At any number looked at together, and after a checkpoint anywhere."""
    saved = feeding._AT_ONCE
    feeding._AT_ONCE = at_once
    try:
        first = Feeding()
        for one in made[:cut]:
            first.add(minibatch(*one))
        second = Feeding(Fed.from_json(json.loads(json.dumps(first.fed().to_json()))))
        for one in made[cut:]:
            second.add(minibatch(*one))
        found = second.fed().to_json()
    finally:
        feeding._AT_ONCE = saved
    expected = [(ids, {"ragged": r, "single": [1] * len(ids), "sometimes": s}, sum(r)) for ids, r, s in made]
    assert found == add_up(expected)


def test_many_sequences_are_not_held():
    """Memory is bounded by a number of sequences, too."""
    counted = Feeding()
    big = minibatch(list(range(feeding._SEQUENCES_AT_ONCE)), *([[1] * feeding._SEQUENCES_AT_ONCE] * 2))
    counted.add(big)
    assert counted.pending_sequences == 0
    assert counted.fed().sequences == feeding._SEQUENCES_AT_ONCE
