"""Identify a dataset, so that a state is not loaded over other data of the same length.

These are identified: arrays and tensors (memory-mapped or not), and tuples, dictionaries and torch's datasets of them;
ranges; lists and dictionaries of numbers, strings and arrays; and Hugging Face datasets, by their fingerprint. A
user-defined class is not identified: only its length can be compared.

A digest costs the same for any size. It covers sizes, dtypes, and blocks of 64 KiB (16 items of a list) from head,
middle and tail. Of a dictionary it covers the first 48 items. It detects replaced, sorted or re-encoded data, but not a
value changed in place outside the blocks.
"""

from __future__ import annotations

import io
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline.feed.loader.collate import torch_side
from feedline.feed.loader.gather import columnar

if TYPE_CHECKING:
    from feedline.feed.files.digest import ContentDigest

ITEMS = 16
"""Items of each of the three blocks of a list."""

_DEPTH = 8  # of nested lists. Deeper or recursive ones are not identified


def digest_of(dataset: Any) -> str | None:
    """Return 32 hex digits that identify a dataset, or None if it cannot be identified."""
    from feedline.feed.files.digest import ContentDigest

    digest = ContentDigest()
    return digest.hexdigest() if _add(digest, dataset, _DEPTH) else None


def head_of(dataset: Any, items: int) -> Any:
    """Return the dataset as it was when it had only the first items, or None if its kind does not show it."""
    torch, kind = torch_side(), type(dataset)
    if kind in (np.ndarray, np.memmap, list, range) or (torch is not None and kind is torch.Tensor):
        return dataset[:items]
    if columnar(dataset):
        if kind is tuple:
            return tuple(column[:items] for column in dataset)
        return {name: column[:items] for name, column in dataset.items()} if kind is dict else None
    if torch is None:
        return None
    if kind is torch.TensorDataset:
        return kind(*(tensor[:items] for tensor in dataset.tensors))
    if kind is torch.Subset:
        return kind(dataset.dataset, dataset.indices[:items])
    if kind is torch.ConcatDataset:
        number = bisect_left(dataset.cumulative_sizes, items)
        before = dataset.cumulative_sizes[number - 1] if number else 0
        last = dataset.datasets[number]
        last = last if len(last) == items - before else head_of(last, items - before)
        return None if last is None else kind([*dataset.datasets[:number], last])
    return None


def _add(digest: ContentDigest, value: Any, depth: int) -> bool:
    """Add ``value`` to the digest. Return False if part of it cannot be identified."""
    torch = torch_side()
    kind = type(value)
    # Arrays count as the same data wherever they are stored.
    if kind in (np.ndarray, np.memmap) or isinstance(value, np.generic):
        return _array(digest, np.asarray(value), depth)
    if torch is not None and kind is torch.Tensor:
        return bool(torch.is_plain(value)) and _array(digest, value.detach().numpy(), depth)
    _text(digest, kind.__name__)
    if value is None:
        return True
    if kind in (bool, int):
        return _text(digest, hex(value))
    if kind in (float, complex):
        return _text(digest, repr(value))
    if kind is str or isinstance(value, PurePath):
        return _text(digest, str(value))
    if kind in (bytes, bytearray):
        digest.file(io.BytesIO(value), len(value))
        return True
    if kind is range:
        digest.numbers(value.start, value.stop, value.step)
        return True
    if kind.__module__.partition(".")[0] == "datasets" and isinstance(getattr(value, "_fingerprint", None), str):
        return _text(digest, value._fingerprint)
    if depth == 0:
        return False
    if kind in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return _items(digest, len(value), value.__getitem__, depth)
    if kind is dict:
        digest.numbers(len(value))
        return _all(digest, islice(value.items(), 3 * ITEMS), depth)
    if torch is not None:
        if kind is torch.TensorDataset:
            return _all(digest, value.tensors, depth)
        if kind is torch.Subset:
            return _all(digest, (value.dataset, value.indices), depth)
        if kind is torch.ConcatDataset:
            return _all(digest, value.datasets, depth)
        if kind is torch.StackDataset:
            parts = value.datasets
            return _all(digest, parts.items() if isinstance(parts, dict) else parts, depth)
    return False


def _array(digest: ContentDigest, array: Any, depth: int) -> bool:
    _text(digest, array.dtype.str)
    digest.numbers(*array.shape)
    if array.ndim == 0:
        array = array.reshape(1)
    if array.dtype.hasobject:
        return array.dtype.kind == "O" and depth > 0 and _items(digest, len(array), array.__getitem__, depth)
    digest.array(array)
    return True


def _items(digest: ContentDigest, count: int, item: Callable[[int], Any], depth: int) -> bool:
    digest.numbers(count)
    last = max(0, count - ITEMS)
    places = sorted({i for start in (0, last // 2, last) for i in range(start, min(start + ITEMS, count))})
    return _all(digest, map(item, places), depth)


def _all(digest: ContentDigest, values: Iterable[Any], depth: int) -> bool:
    return all(_add(digest, value, depth - 1) for value in values)


def _text(digest: ContentDigest, text: str) -> bool:
    encoded = text.encode(errors="surrogatepass")
    digest.file(io.BytesIO(encoded), len(encoded))
    return True
