"""Identify a dataset, so that a state is not loaded over other data of the same length.

Identified are arrays and tensors (also memory-mapped), tuples, dictionaries and torch's datasets of them, ranges, lists
and dictionaries of numbers, strings and arrays, and Hugging Face datasets, which have a fingerprint. User-defined
classes are not: only their length can be compared.

A digest costs the same for any size: it covers sizes, dtypes, and blocks of 64 KiB (of lists, 16 items) from head,
middle and tail; of dictionaries, the first 48 items. It detects replaced, sorted or re-encoded data, but not a value
changed in place outside the blocks.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline.feed.loader.collate import torch_side

if TYPE_CHECKING:
    from feedline.feed.files.digest import ContentDigest

ITEMS = 16
"""Items of each of the three blocks of a list."""

_DEPTH = 8  # of nested lists; anything deeper, or recursive, is not identified


def digest_of(dataset: Any) -> str | None:
    """Return 32 hex digits that identify a dataset; None: it cannot be identified."""
    from feedline.feed.files.digest import ContentDigest

    digest = ContentDigest()
    return digest.hexdigest() if _add(digest, dataset, _DEPTH) else None


def _add(digest: ContentDigest, thing: Any, depth: int) -> bool:
    """Add ``thing`` to the digest; return False if part of it cannot be identified."""
    torch = torch_side()
    kind = type(thing)
    # Arrays count as the same data wherever they are stored.
    if kind in (np.ndarray, np.memmap) or isinstance(thing, np.generic):
        return _array(digest, np.asarray(thing), depth)
    if torch is not None and kind is torch.Tensor:
        return bool(torch.is_plain(thing)) and _array(digest, thing.detach().numpy(), depth)
    _text(digest, kind.__name__)
    if thing is None:
        return True
    if kind in (bool, int):
        return _text(digest, hex(thing))
    if kind in (float, complex):
        return _text(digest, repr(thing))
    if kind is str or isinstance(thing, PurePath):
        return _text(digest, str(thing))
    if kind in (bytes, bytearray):
        digest.file(io.BytesIO(thing), len(thing))
        return True
    if kind is range:
        digest.numbers(thing.start, thing.stop, thing.step)
        return True
    if kind.__module__.partition(".")[0] == "datasets" and isinstance(getattr(thing, "_fingerprint", None), str):
        return _text(digest, thing._fingerprint)
    if depth == 0:
        return False
    if kind in (list, tuple) or (isinstance(thing, tuple) and hasattr(thing, "_fields")):
        return _items(digest, len(thing), thing.__getitem__, depth)
    if kind is dict:
        digest.numbers(len(thing))
        return _all(digest, islice(thing.items(), 3 * ITEMS), depth)
    if torch is not None:
        if kind is torch.TensorDataset:
            return _all(digest, thing.tensors, depth)
        if kind is torch.Subset:
            return _all(digest, (thing.dataset, thing.indices), depth)
        if kind is torch.ConcatDataset:
            return _all(digest, thing.datasets, depth)
        if kind is torch.StackDataset:
            parts = thing.datasets
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
    wanted = sorted({i for start in (0, last // 2, last) for i in range(start, min(start + ITEMS, count))})
    return _all(digest, map(item, wanted), depth)


def _all(digest: ContentDigest, things: Iterable[Any], depth: int) -> bool:
    return all(_add(digest, thing, depth - 1) for thing in things)


def _text(digest: ContentDigest, text: str) -> bool:
    encoded = text.encode(errors="surrogatepass")
    digest.file(io.BytesIO(encoded), len(encoded))
    return True
