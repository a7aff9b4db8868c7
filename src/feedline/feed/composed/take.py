"""The sequences of a corpus at some places, or with some keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.feed.composed.concat import Concat, check_part
from feedline.feed.composed.filtered import by_columns
from feedline.feed.composed.subset import Chosen
from feedline.feed.protocol import Deserializer, Ints, Keyed, chunk_starts, keys_of, whole_number

Keys = Collection[Any] | Mapping[str, Collection[Any]]

_KEYS_AT_A_TIME = 1 << 20
_SHOWN_KEYS = 5


class Take(Chosen):
    """A run of the sequences of a corpus: ``Take(corpus, stop)`` or ``Take(corpus, start, stop)``. Or the sequences
    with some keys, in the order of the corpus.

    Ordinals are counted from the first sequence taken. Only the necessary chunks are read, and mapped ones stay mapped.

    Args:
        corpus: corpus to take from. It must know its sizes before reading, and must not have its own order.
        *bounds: number of sequences to take, or the ordinals of the first and of the end (exclusive). None: the
            beginning, or the end of the corpus. Negative ones count from the end, as in slices.
        keys: instead of bounds, keys of sequences. Integers are ids of CTF, or in formats without keys the ordinals.
            Texts are names of tar samples, pictures or utterances, without suffix. Tar counts ``0017`` as 17. Or
            ``{"id": values}``: values of a stream with one sample for each sequence, which is read completely.

    Raises:
        DataError: no sequence is taken.
        IndexError: the corpus has fewer sequences.
        KeyError: the corpus has no sequence with one of the keys.
        TypeError, ValueError: other bounds than one or two integers, both bounds and keys, or a corpus of another kind.
    """

    def __init__(self, corpus: Deserializer, *bounds: int | None, keys: Keys | None = None) -> None:
        check_part(corpus, type(self).__name__)
        if keys is not None:
            if bounds:
                raise ValueError(f"expected bounds or keys of Take, got both: {', '.join(map(str, bounds))} and keys")
            super().__init__(corpus, _with_keys(corpus, keys))
            self.name = f"{corpus.name}, {self._count} by key"
            return
        if not 1 <= len(bounds) <= 2:
            raise TypeError(f"expected Take(corpus, stop) or Take(corpus, start, stop), got {len(bounds)} bounds")
        count = int(chunk_starts(corpus)[-1])
        start, stop = (None, *bounds)[-2:]
        first, end = _place("start", start, 0, count), _place("stop", stop, count, count)
        super().__init__(corpus, range(first, max(first, end)))
        self.name = f"{corpus.name}[{first}:{end}]"


def _with_keys(corpus: Deserializer, keys: Any) -> Ints:
    """Return the ordinals of the sequences with some keys, ascending.

    Raises:
        KeyError: there is none with one of them.
    """
    count = int(chunk_starts(corpus)[-1])
    if isinstance(keys, Mapping):
        return _with_values(corpus, keys, count)
    _check_list(keys)
    numbers = {key: _numbers(key) for key in keys}
    # Parts without keys would each count from 0.
    by_ordinal = isinstance(corpus, Concat) and all(part.capability(Keyed) is None for part in corpus.parts)
    numbers_of_keys = np.unique(np.array([n for alternatives in numbers.values() for n in alternatives], np.uint64))
    matching, ordinals = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for first in range(0, count, _KEYS_AT_A_TIME):
        some = np.arange(first, min(count, first + _KEYS_AT_A_TIME))
        of_some = some.astype(np.uint64) if by_ordinal else keys_of(corpus, some)
        at = np.isin(of_some, numbers_of_keys)
        matching.append(of_some[at])
        ordinals.append(some[at])
    have = set(np.concatenate(matching).tolist())
    _check_all([key for key, alternatives in numbers.items() if not have & set(alternatives)], corpus)
    return np.concatenate(ordinals)


def _with_values(corpus: Deserializer, keys: Mapping[str, Any], count: int) -> Ints:
    """Return the ordinals of the sequences with some values of a stream."""
    if len(keys) != 1:
        raise ValueError(f"expected the values of one stream as keys of Take, got {', '.join(keys) or 'none'}")
    ((name, values),) = keys.items()
    _check_list(values)
    # As they are: an array of all would round integers, and cut zeros off byte strings.
    requested, have = {value.item() if isinstance(value, np.generic) else value for value in values}, set[Any]()

    def is_requested(samples: NDArray[Any]) -> NDArray[np.bool_]:
        if samples.ndim > 1:
            raise TypeError(f"expected a stream with shape () for keys of Take, got `{name}` {samples.shape[1:]}")
        mask = np.fromiter((sample in requested for sample in samples.tolist()), np.bool_, len(samples))
        have.update(samples[mask].tolist())
        return mask

    mask = by_columns(corpus, {name: is_requested}, count)
    _check_all(sorted(requested - have, key=str), corpus)
    return np.flatnonzero(mask)


def _check_list(keys: Any) -> None:
    if isinstance(keys, (str, bytes)) or not isinstance(keys, (Collection, np.ndarray)):
        raise TypeError(f"expected a list of keys for Take, got {keys!r}")


def _numbers(key: Any) -> list[int]:
    """Return the numbers that stand for a key: formats use a name's number, or its hash."""
    if isinstance(key, (str, bytes)):
        name = key.encode() if isinstance(key, str) else key
        bounds = np.array([0, len(name)], np.int64)
        hashed = [int(_native.name_keys(name, bounds[:1], bounds[1:])[0])]
        return [int(name), *hashed] if name.isdigit() and int(name) < 1 << 64 else hashed
    number = whole_number("a key of Take", key, 0)
    if number >= 1 << 64:
        raise ValueError(f"expected a key of Take below 2**64, got {key}")
    return [number]


def _check_all(missing: list[Any], corpus: Deserializer) -> None:
    if missing:
        listed = ", ".join(map(repr, missing[:_SHOWN_KEYS])) + (", ..." if len(missing) > _SHOWN_KEYS else "")
        raise KeyError(f"expected sequences with all keys in {corpus.name}, got none with {listed}")


def _place(what: str, bound: Any, default: int, count: int) -> int:
    """Return a bound counted from the beginning."""
    if bound is None:
        return default
    place = whole_number(f"{what} of Take", bound, -(2**63))
    if not -count <= place <= count:
        raise IndexError(f"expected {what} of Take from {-count} to {count}, the sequences of the corpus, got {bound}")
    return place + count if place < 0 else place
