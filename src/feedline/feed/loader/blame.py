"""Name the items of a dataset that an error is about.

Reading an item, or collating several, runs the user's code. Its errors keep their type and text, and get a note with
the item. Samples that cannot be collated because they differ are compared, and the first difference is reported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from feedline.errors import shown

_LISTED = 8  # items of a batch in a note


class Difference(NamedTuple):
    """Two samples of a batch that differ.

    Attributes:
        path: the part that differs, as Python writes it: ``["box"][0]``.
        place: place in the batch of the sample that differs from the first.
        expected, got: description of that part in the first sample and in this one.
    """

    path: str
    place: int
    expected: str
    got: str


def in_item(error: Exception, dataset: Any, index: Any) -> None:
    """Note in ``error`` that it was raised while an item was read."""
    error.add_note(f"raised while reading item {shown(index, 80)} of {type(dataset).__name__}")


def in_items(error: Exception, dataset: Any, indices: Sequence[Any]) -> None:
    """Note in ``error`` that it was raised while several items were read at once."""
    error.add_note(f"raised while reading items {_list(indices)} of {type(dataset).__name__} together")


def in_iterator(error: Exception, dataset: Any, samples: int) -> None:
    """Note in ``error`` that an iterable dataset raised it after ``samples`` samples."""
    error.add_note(f"raised by the iterator of {type(dataset).__name__} after {samples} samples")


def in_collate(error: Exception, items: Sequence[Any]) -> None:
    """Note in ``error`` that the user's ``collate_fn`` raised it."""
    error.add_note(f"raised by collate_fn for {_list(items)}")


def in_default_collate(error: Exception, samples: Sequence[Any], items: Sequence[str], *, ragged: bool) -> None:
    """Add to ``error`` which of the samples differ, and where.

    Args:
        error: error that collating the samples raised.
        samples: the samples.
        items: name of each sample in messages.
        ragged: whether the first dimension of arrays may differ.
    """
    mismatch = None
    with contextlib.suppress(Exception):  # samples are the user's objects, and access to their parts may raise
        mismatch = difference(samples, ragged=ragged)
    if mismatch is None:
        error.add_note(f"raised while collating {_list(items)}")
        return
    text = (
        f"sample{mismatch.path} is {mismatch.expected} in {items[0]}, but {mismatch.got} in {items[mismatch.place]}: "
        "make them equal in the dataset, or pass a collate_fn"
    )
    if not ragged:
        text += "; for sequences of varying length, batch_sampler=fl.BatchByLength(...) pads or packs them"
    if type(error) in (RuntimeError, TypeError, ValueError) and len(error.args) == 1:
        error.args = (f"{error}\n{text}",)
    else:
        error.add_note(text)


def difference(samples: Sequence[Any], path: str = "", *, ragged: bool = False) -> Difference | None:
    """Return the first difference in structure, shape, dtype or type among samples, or None if there is none."""
    first = samples[0]
    for i, current in enumerate(samples):
        mine, its = _kind(first, ragged), _kind(current, ragged)
        if mine != its:
            return Difference(path, i, mine, its)
    if isinstance(first, Mapping):
        parts = [(f"[{key!r}]", [sample[key] for sample in samples]) for key in first]
    elif isinstance(first, (tuple, list)):
        parts = [(f"[{i}]", [sample[i] for sample in samples]) for i in range(len(first))]
    else:
        parts = []
    differences = (difference(column, path + name, ragged=ragged) for name, column in parts)
    return next((each for each in differences if each is not None), None)


def _kind(value: Any, ragged: bool) -> str:
    """Describe the properties that must be equal among samples."""
    name = type(value).__name__
    if isinstance(value, Mapping):
        return f"a {name} with {', '.join(sorted(map(repr, value))) or 'no keys'}"
    if isinstance(value, (tuple, list)):
        return f"a {name} of length {len(value)}"
    shape = getattr(value, "shape", None)
    if shape is None:
        return name
    shape, dtype = tuple(shape), str(getattr(value, "dtype", "")).removeprefix("torch.")
    inner = f"({', '.join(['any', *map(str, shape[1:])])})" if ragged and shape else f"{shape}"
    return f"{name} {dtype} {inner}"


def _list(items: Sequence[Any]) -> str:
    listed = ", ".join(str(item) for item in items[:_LISTED])
    return listed if len(items) <= _LISTED else f"{listed} and {len(items) - _LISTED} more"
