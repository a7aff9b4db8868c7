"""Folds by key, which appended data does not change: `folds`.

A fold is computed from a hash of the key, so it depends on no other key. With strata, the keys of a stratum are dealt
to the folds in turns, in the order in which they first appear. A turn deals one key to every fold, in a hashed order.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from feedline.errors import shown
from feedline.feed.protocol import Ints, check_seed, whole_number


def folds(keys: Iterable[Any], count: int, *, strata: Iterable[Any] | None = None, seed: int = 0) -> Ints:
    """Return the fold of each key, int64 (n,), from 0 to ``count`` - 1.

    Equal keys are in the same fold. Data appended later changes no fold of the data before it. Without strata, a fold
    depends on nothing but the key, ``count`` and ``seed``, so any part of the data may be passed::

        fold = fl.folds(users, 5)
        train, held_out = fl.Filtered(corpus, fold != 0), fl.Filtered(corpus, fold == 0)

    Takes about a microsecond for each key.

    Args:
        keys: (n,) integers, texts or byte strings, one for each sequence or item. An integer is the same key as its
            decimal digits.
        count: number of folds, at least 2.
        strata: (n,) integers, texts or byte strings, such as the classes. The folds get equally many keys of each
            stratum, up to one. A fold then also depends on the keys before it: pass all of them, in a fixed order.
        seed: other seeds give other folds. Below 2**64.

    Raises:
        TypeError: a key or stratum is of another kind.
        ValueError: ``count`` or ``seed`` is out of range, there is not one stratum for each key, or a key is in
            several.
    """
    count, salt = whole_number("count", count, 2), check_seed(seed).to_bytes(8, "little")
    names = _bytes_of("keys", keys)
    if strata is None:
        fold = {name: _hash(name, salt) % count for name in dict.fromkeys(names)}
    else:
        fold = _dealt(_strata_by_name(names, _bytes_of("strata", strata)), count, salt)
    return np.fromiter((fold[name] for name in names), np.int64, len(names))


def _bytes_of(what: str, values: Iterable[Any]) -> list[bytes]:
    if isinstance(values, (str, bytes)):
        raise TypeError(f"expected a list or array of {what} for folds, got one {type(values).__name__}")
    tolist = getattr(values, "tolist", None)  # arrays and tensors: Python's numbers
    return [_bytes(what, value) for value in (values if tolist is None else tolist())]


def _bytes(what: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return b"%d" % value
    raise TypeError(
        f"expected {what} that are integers, texts or byte strings for folds, got {type(value).__name__} "
        f"({shown(value, 60)}): make a text of each"
    )


def _hash(name: bytes, salt: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(name, digest_size=8, salt=salt).digest(), "little")


def _strata_by_name(names: list[bytes], strata: list[bytes]) -> dict[bytes, bytes]:
    """Return the stratum of each key, in the order in which keys first appear."""
    if len(strata) != len(names):
        raise ValueError(f"expected one of strata for each key of folds, got {len(strata)} for {len(names)} keys")
    by_name: dict[bytes, bytes] = {}
    for name, stratum in zip(names, strata, strict=True):
        if by_name.setdefault(name, stratum) != stratum:
            raise ValueError(
                f"expected a key in one of strata of folds, got key {shown(name, 60)} in {shown(by_name[name], 60)} "
                f"and {shown(stratum, 60)}: give a key one stratum, such as its most frequent class"
            )
    return by_name


def _dealt(strata: dict[bytes, bytes], count: int, salt: bytes) -> dict[bytes, int]:
    dealt: Counter[bytes] = Counter()
    order: dict[bytes, list[int]] = {}
    fold = {}
    for name, stratum in strata.items():
        turn, place = divmod(dealt[stratum], count)
        if not place:
            hashes = [_hash(b"%d %d %d %s" % (k, count, turn, stratum), salt) for k in range(count)]
            order[stratum] = sorted(range(count), key=hashes.__getitem__)
        fold[name] = order[stratum][place]
        dealt[stratum] += 1
    return fold
