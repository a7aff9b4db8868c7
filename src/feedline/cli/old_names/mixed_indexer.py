"""The indexer ``ix`` of old versions of pandas."""

from __future__ import annotations

from typing import Any

import numpy as np


class MixedIndexer:
    """The indexer ``ix``: keys are labels. Integers are positions where an axis has no integers as labels.

    Args:
        data: a DataFrame or a Series.
    """

    def __init__(self, data: Any) -> None:
        self._data = data

    def __getitem__(self, key: Any) -> Any:
        labels = self._labels(key)
        return self._data.loc[key] if labels else self._data.iloc[self._positions(key)]

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._labels(key):
            self._data.loc[key] = value
        else:
            self._data.iloc[self._positions(key)] = value

    def _keys(self, key: Any) -> list[tuple[Any, Any]]:
        """Return pairs of an axis and its key."""
        keys = key if isinstance(key, tuple) and self._data.ndim > 1 else (key,)
        return list(zip(self._data.axes, keys, strict=False))

    def _labels(self, key: Any) -> bool:
        """Return whether all keys are labels."""
        return not any(_is_position(axis, k) for axis, k in self._keys(key))

    def _positions(self, key: Any) -> Any:
        return tuple(k if _is_position(axis, k) else _positions_of(axis, k) for axis, k in self._keys(key))


def _is_position(axis: Any, key: Any) -> bool:
    if axis.dtype.kind in "iu":
        return False
    if isinstance(key, slice):
        return any(isinstance(bound, (int, np.integer)) for bound in (key.start, key.stop))
    if isinstance(key, (str, bytes)) or np.ndim(key) == 0:
        return isinstance(key, (int, np.integer))
    return np.asarray(key).dtype.kind in "iu"


def _positions_of(axis: Any, key: Any) -> Any:
    if isinstance(key, slice):
        return axis.slice_indexer(key.start, key.stop, key.step)
    if isinstance(key, (str, bytes)) or np.ndim(key) == 0:
        return axis.get_loc(key)
    keys = np.asarray(key)
    return keys if keys.dtype.kind == "b" else axis.get_indexer_for(keys)
