"""Transforms that contradict their declarations: errors name the transform, the stream and the sequence."""

from __future__ import annotations

import numpy as np
import pytest

import feedline as fl
from tests.laws.corpora import CountedCorpus


def first(transform, **streams):
    """The first minibatch of three sequences of one sample through a transform."""
    source = fl.MinibatchSource(CountedCorpus([1] * 3, [3]), transforms=[fl.Map(transform, **streams)], shuffle=False)
    return source.next_minibatch(3)


def augment(sequence, rng):
    """A common first attempt: the noise is float64."""
    return {"x": sequence["x"] + rng.normal(size=sequence["x"].shape)}


def test_results_take_the_declared_dtype():
    """Only precision is lost."""
    assert first(augment)["x"].dtype == np.float32
    with pytest.raises(fl.SchemaError, match=r"int64, got float32 \(stream `x` from the transform .*lambda"):
        first(lambda s: s, x=fl.Stream(2, dtype="int64"))


@pytest.mark.parametrize(
    ("transform", "streams", "message"),
    [
        (lambda s: None, {}, "expected a mapping .* got None"),
        (lambda s: {}, {"z": fl.Stream(2)}, "expected stream `z` from the transform .* got none"),
        (lambda s: {"z": s["x"]}, {}, "expected streams x, y, t from the transform .* got `z`; declare it"),
        (lambda s: {"x": s["x"]} if s["x"][0, 0] else {}, {}, "for all 3 sequences from the transform .* for 2"),
        (lambda s: {"x": np.ones(3)}, {}, r"expected an array \(length, 2\).*from the transform"),
    ],
)
def test_what_does_not_fit_is_an_error(transform, streams, message):
    with pytest.raises(fl.SchemaError, match=message):
        first(transform, **streams)


def test_an_exception_has_its_place():
    """The notes of the function's exception name the sequence."""

    def fails(sequence):
        return {"x": sequence["x"] / (1 // int(sequence["x"][0, 0] - 1))}

    with pytest.raises(ZeroDivisionError) as caught:
        first(fails)
    (note,) = caught.value.__notes__
    assert note.endswith("fails for sequence 1 in sweep 0")


def test_sparse_streams_and_empty_sequences():
    """Sparse streams are values of one sequence. The result may be shorter."""
    corpus = CountedCorpus([0, 3, 1, 0], [2, 2], bad=[2])

    def halve(sequence):
        matrix = sequence["y"].to_scipy()
        return {"y": matrix[: matrix.shape[0] // 2] * 2, "x": sequence["x"][: len(sequence["x"]) // 2]}

    with pytest.raises(fl.DataError, match="planted"):
        fl.MinibatchSource(corpus, transforms=[halve]).next_minibatch(9)
    source = fl.MinibatchSource(
        corpus, transforms=[halve], on_error=fl.Quarantine("/dev/null"), shuffle=False, max_sweeps=1
    )
    minibatch = source.next_minibatch(9)
    assert minibatch.ids.tolist() == [0, 1, 3]
    assert minibatch["y"].lengths.tolist() == minibatch["x"].lengths.tolist() == [0, 1, 0]
    assert minibatch["y"].values.tolist() == [2.0]


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="expected a function of a sequence, got 3"):
        fl.Map(3)
