"""Collate samples into a batch: torch's `default_collate` and `default_convert`, with or without torch.

The result is the same tree, written directly into memory that reaches the loop without another copy: arrays and tensors
are stacked, and numbers become an array. Mappings, named tuples and sequences are collated part by part (a tuple
becomes a list). Strings and bytes are kept. If torch is installed the leaves are tensors, and types that only torch
knows (subclasses, registered types) are left to it. Without torch they are NumPy arrays.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from feedline.feed.workers import empty

_KINDS = "?biufc"


@functools.cache
def torch_side() -> Any:
    """Return `feedline.interop.torch_loading`, or None without torch."""
    if importlib.util.find_spec("torch") is None:
        return None
    return importlib.import_module("feedline.interop.torch_loading")


def torch_class(name: str) -> Any:
    """Return torch's class of this name, or ``object`` without torch."""
    return object if torch_side() is None else getattr(torch_side(), name)


def default_functions() -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return (collate, convert), the defaults of `DataLoader.collate_fn`: torch's own if it is installed."""
    torch = torch_side()
    return (collate, convert) if torch is None else (torch.default_collate, torch.default_convert)


def own_form(function: Any) -> Callable[[Any], Any] | None:
    """Return our equivalent of a default function, a function whose batches can be sliced as they are, else None."""
    if function is collate or function is default_functions()[0]:
        return collate
    if function is convert or function is default_functions()[1]:
        return convert
    return function if getattr(function, "slices", False) else None


def collate(samples: Sequence[Any]) -> Any:
    """Return a batch of samples of the same structure.

    Raises:
        RuntimeError: shapes or lengths differ among samples.
        TypeError: a type that cannot be collated, or numbers, arrays and strings mixed.
    """
    torch = torch_side()
    if torch is not None and not torch.collates_as_usual():
        return torch.default_collate(samples)
    return _collate(samples, torch)


def _collate(samples: Sequence[Any], torch: ModuleType | None) -> Any:
    first = samples[0]
    kind = type(first)
    if kind is np.ndarray:
        stacked = _stack(samples, torch)
    elif kind is tuple:
        try:
            columns = [*zip(*samples, strict=True)]
        except ValueError:
            raise _uneven(samples) from None
        return [_collate(column, torch) for column in columns]
    elif torch is not None and kind is torch.Tensor:
        stacked = torch.stack(samples, empty)
    elif kind in _NUMBERS or isinstance(first, np.generic):
        stacked = _numbers(samples, kind, torch)
    elif kind is str or kind is bytes:
        return samples
    elif isinstance(first, Mapping):
        return _mapping(first, lambda key: _collate([sample[key] for sample in samples], torch))
    elif isinstance(first, tuple) and hasattr(first, "_fields"):
        return kind(*(_collate(column, torch) for column in zip(*samples, strict=False)))
    elif isinstance(first, Sequence) and not isinstance(first, (str, bytes)):
        if len(set(map(len, samples))) > 1:
            raise _uneven(samples)
        return _sequence(first, [_collate(column, torch) for column in zip(*samples, strict=False)])
    else:
        stacked = None
    if stacked is not None:
        return stacked
    return torch.default_collate(samples) if torch is not None else _collate_or_refuse(samples)


def _uneven(samples: Sequence[Any]) -> RuntimeError:
    return RuntimeError(
        "expected sequences of equal size in all samples of a batch (each element in list of batch should be of equal "
        f"size), got {sorted(set(map(len, samples)))}; pass a collate_fn"
    )


def _stack(arrays: Sequence[Any], torch: ModuleType | None) -> Any:
    first = arrays[0]
    shape, dtype, n = first.shape, first.dtype, len(arrays)
    if (torch is not None and dtype not in torch.DTYPES) or (dtype.kind not in _KINDS and torch is None):
        return None
    if len(set(map(type, arrays))) > 1:
        return None
    try:
        if not shape or not shape[0]:
            out = empty((n, *shape), dtype)
            np.stack(arrays, out=out, casting="no")
        elif len(set(map(len, arrays))) == 1:
            # A third of the time of np.stack. np.concatenate checks the other dimensions and the dtype.
            out = empty((n * shape[0], *shape[1:]), dtype)
            np.concatenate(arrays, out=out, casting="no")
            out = out.reshape(n, *shape)
        else:
            return None
    except (TypeError, ValueError):  # other shapes or dtypes
        return None
    return out if torch is None else torch.from_numpy(out)


_NUMBERS: dict[type, np.dtype[Any]] = {int: np.dtype("int64"), float: np.dtype("float64"), bool: np.dtype("bool")}


def _numbers(numbers: Sequence[Any], kind: type, torch: ModuleType | None) -> Any:
    if len(set(map(type, numbers))) > 1:
        return None
    dtype = _NUMBERS.get(kind)
    if dtype is None:
        dtype = np.dtype(kind)
        if (torch is not None and dtype not in torch.DTYPES) or dtype.kind not in _KINDS:
            return None
    try:
        array = np.array(numbers, dtype)
    except OverflowError:  # torch raises the error its users know
        return None
    return array if torch is None else torch.from_numpy(array)


def _collate_or_refuse(samples: Sequence[Any]) -> Any:
    """Collate numbers and arrays of several dtypes with NumPy, or raise an error with the reason."""

    first = samples[0]
    if isinstance(first, (np.ndarray, np.generic, int, float)):
        shapes = {np.shape(sample) for sample in samples}
        if len(shapes) > 1:
            raise RuntimeError(
                f"expected arrays of equal shape in all samples of a batch (stack expects each to be of equal size), "
                f"got {sorted(shapes)[:4]}; pass a collate_fn, or "
                "batch_sampler=fl.BatchByLength(...) for items of varying length"
            )
        stacked = np.stack([np.asarray(sample) for sample in samples])
        if stacked.dtype.kind in _KINDS:
            return stacked
    raise TypeError(
        "default_collate: expected arrays, numbers, strings, mappings, named tuples or sequences in a batch, got "
        f"{type(first).__name__}{f' of {first.dtype}' if hasattr(first, 'dtype') else ''}; pass a collate_fn"
    )


def convert(sample: Any) -> Any:
    """Return one sample as delivered if batching is disabled: arrays become tensors if torch is installed."""
    torch = torch_side()
    return sample if torch is None else torch.default_convert(sample)


def empty_like(batch: Any) -> Any:
    """Return ``batch``, made by `collate`, without its samples. Shapes and dtypes stay."""
    if isinstance(batch, Mapping):
        return _mapping(batch, lambda key: empty_like(batch[key]))
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(empty_like(part) for part in batch))
    if isinstance(batch, (list, tuple)) and not all(isinstance(part, (str, bytes)) for part in batch):
        return [empty_like(part) for part in batch]
    return batch[:0]


def _mapping(like: Mapping[Any, Any], value: Callable[[Any], Any]) -> Any:
    """Return the values for all keys of ``like``, in a mapping of its type if possible."""
    values = {key: value(key) for key in like}
    if type(like) is dict:
        return values
    with contextlib.suppress(TypeError):
        if isinstance(like, MutableMapping):
            twin = copy.copy(like)
            twin.update(values)
            return twin
        return type(like)(values)  # type: ignore[call-arg]
    return values


def _sequence(like: Sequence[Any], parts: list[Any]) -> Any:
    """Return the parts in a sequence of the type of ``like`` if possible; tuples become lists, as in torch."""
    if type(like) is list or isinstance(like, tuple):
        return parts
    with contextlib.suppress(TypeError):
        if isinstance(like, MutableSequence):
            twin = copy.copy(like)
            for i, part in enumerate(parts):
                twin[i] = part
            return twin
        return type(like)(parts)  # type: ignore[call-arg]
    return parts


# ---- items of varying length -------------------------------------------------------------------------------


class RaggedCollate:
    """The default ``collate_fn``, except that sequences are padded with zeros or packed.

    The batch also has the lengths of the items, int64 (items,): after the parts of a tuple or list, under ``"lengths"``
    in a mapping. A batch of plain arrays becomes ``[arrays, lengths]``. The length of an item is the length of its
    longest sequence, or 1 if it has none.

    Args:
        layout: "padded" or "packed".
    """

    slices = True  # see `own_form`: its batches can be sliced

    def __init__(self, layout: str) -> None:
        self.layout = layout

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Return the batch of ``samples``.

        Raises:
            RuntimeError: samples of sequences differ in shape or dtype.
        """
        lengths = np.array([max(_lengths(sample), default=1) for sample in samples], np.int64)
        batch = self._collate_tree(samples)
        torch = torch_side()
        counted = lengths if torch is None else torch.from_numpy(lengths)
        if isinstance(batch, Mapping):
            return {**batch, "lengths": counted}
        return [*batch, counted] if isinstance(batch, list) else [batch, counted]

    def _collate_tree(self, samples: Sequence[Any]) -> Any:
        first = samples[0]
        if isinstance(first, Mapping):
            return {key: self._collate_tree([sample[key] for sample in samples]) for key in first}
        if isinstance(first, (tuple, list)):
            return [self._collate_tree(column) for column in zip(*samples, strict=True)]
        if getattr(first, "ndim", 0) == 0:
            return collate(samples)
        arrays = [np.asarray(sample) for sample in samples]
        for array in arrays:
            if array.shape[1:] != arrays[0].shape[1:] or array.dtype != arrays[0].dtype:
                raise RuntimeError(
                    f"expected sequences of samples of {arrays[0].dtype} {arrays[0].shape[1:]}, "
                    f"got {array.dtype} {array.shape[1:]}"
                )
        sample_shape, dtype = arrays[0].shape[1:], arrays[0].dtype
        sizes = [len(array) for array in arrays]
        if self.layout == "packed":
            out = empty((sum(sizes), *sample_shape), dtype)
            np.concatenate(arrays, out=out)
        else:
            out = empty((len(arrays), max(sizes), *sample_shape), dtype)
            for row, array, size in zip(out, arrays, sizes, strict=True):
                row[:size], row[size:] = array, 0
        torch = torch_side()
        return out if torch is None else torch.from_numpy(out)


def _lengths(sample: Any) -> list[int]:
    if isinstance(sample, (Mapping, tuple, list)):
        parts = sample.values() if isinstance(sample, Mapping) else sample
        return [n for part in parts for n in _lengths(part)]
    return [len(sample)] if getattr(sample, "ndim", 0) else []
