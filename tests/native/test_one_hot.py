"""Classes of one-hot rows equal a scan of each element, and other rows have none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline import _native


def slow(rows):
    """Return each row's class, from the definition. None if one of them is not zeros and a single 1."""
    found = []
    for row in rows.tolist():
        places = [k for k, element in enumerate(row) if element != 0]
        if len(places) != 1 or row[places[0]] != 1:
            return None
        found.append(places[0])
    return found


ELEMENTS = st.sampled_from([0.0, 0.0, 0.0, -0.0, 1.0, 1.0, 0.5, -1.0, float("nan"), float("inf")])


@given(st.integers(0, 4), st.integers(0, 5), st.data(), st.sampled_from(["float32", "float64"]))
def test_equals_definition(count, width, data, dtype):
    elements = data.draw(st.lists(ELEMENTS, min_size=count * width, max_size=count * width))
    rows = np.array(elements, dtype).reshape(count, width)
    found = _native.one_hot_classes(rows)
    assert (None if found is None else found.tolist()) == slow(rows)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", [1, 300])  # few elements with the GIL, many without
def test_one_hot_rows_have_classes(dtype, count):
    classes = np.random.default_rng(count).integers(0, 100, count)
    rows = np.eye(100, dtype=dtype)[classes]
    found = _native.one_hot_classes(rows)
    assert found.dtype == np.int64
    assert found.tolist() == classes.tolist()
    for wrong in (0.0, 2.0):
        rows[-1, classes[-1]] = wrong
        assert _native.one_hot_classes(rows) is None
    rows[-1] = 0
    rows[-1, [3, 99]] = 1
    assert _native.one_hot_classes(rows) is None


@pytest.mark.parametrize(
    "rows", [np.eye(3, dtype=np.int64), np.eye(4)[:, ::2], np.ones(3), np.eye(3, dtype=">f4"), [1]]
)
def test_other_arrays_are_refused(rows):
    with pytest.raises(TypeError, match="expected a C-contiguous matrix of float32 or float64, got"):
        _native.one_hot_classes(rows)
