"""Batches of items of varying length, padded or packed.

Every array of an item with at least one dimension is a sequence along its first; numbers and strings are per item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from feedline.feed.loader import collate as collating
from feedline.feed.workers import empty


class Collate:
    """The default ``collate_fn``, except that sequences are padded with zeros or packed.

    The batch also has the lengths of the items, int64 (items,): after the parts of a tuple or list, under ``"lengths"``
    in a mapping; a batch of plain arrays becomes ``[arrays, lengths]``. The length of an item is that of its longest
    sequence, 1 if it has none.

    Args:
        layout: "padded" or "packed".
    """

    slices = True  # see `collate.known`: its batches can be sliced

    def __init__(self, layout: str) -> None:
        self.layout = layout

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Return the batch of ``samples``.

        Raises:
            RuntimeError: samples of sequences differ in shape or dtype.
        """
        lengths = np.array([_length(sample) for sample in samples], np.int64)
        batch = self._tree(samples)
        torch = collating.torch_side()
        counted = lengths if torch is None else torch.from_numpy(lengths)
        if isinstance(batch, Mapping):
            return {**batch, "lengths": counted}
        return [*batch, counted] if isinstance(batch, list) else [batch, counted]

    def _tree(self, samples: Sequence[Any]) -> Any:
        first = samples[0]
        if isinstance(first, Mapping):
            return {key: self._tree([sample[key] for sample in samples]) for key in first}
        if isinstance(first, (tuple, list)):
            return [self._tree(column) for column in zip(*samples, strict=True)]
        if getattr(first, "ndim", 0) == 0:
            return collating.collate(samples)
        arrays = [np.asarray(sample) for sample in samples]
        for array in arrays:
            if array.shape[1:] != arrays[0].shape[1:] or array.dtype != arrays[0].dtype:
                raise RuntimeError(
                    f"expected sequences of samples of {arrays[0].dtype} {arrays[0].shape[1:]}, "
                    f"got {array.dtype} {array.shape[1:]}"
                )
        rest, dtype = arrays[0].shape[1:], arrays[0].dtype
        sizes = [len(array) for array in arrays]
        if self.layout == "packed":
            out = empty((sum(sizes), *rest), dtype)
            np.concatenate(arrays, out=out)
        else:
            out = empty((len(arrays), max(sizes), *rest), dtype)
            for row, array, size in zip(out, arrays, sizes, strict=True):
                row[:size], row[size:] = array, 0
        torch = collating.torch_side()
        return out if torch is None else torch.from_numpy(out)


def _length(sample: Any) -> int:
    found = _lengths(sample)
    return max(found) if found else 1


def _lengths(sample: Any) -> list[int]:
    if isinstance(sample, Mapping):
        return [n for part in sample.values() for n in _lengths(part)]
    if isinstance(sample, (tuple, list)):
        return [n for part in sample for n in _lengths(part)]
    return [len(sample)] if getattr(sample, "ndim", 0) else []
