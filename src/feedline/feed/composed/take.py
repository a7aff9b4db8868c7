"""The first sequences of a corpus, or a run of them."""

from __future__ import annotations

from typing import Any

from feedline.feed.composed.chosen import Chosen
from feedline.feed.composed.concat import check_part
from feedline.feed.protocol import Deserializer, chunk_starts, whole_number


class Take(Chosen):
    """A run of the sequences of a corpus: ``Take(corpus, stop)`` or ``Take(corpus, start, stop)``.

    Ordinals are counted from the first one taken. Reads only the chunks concerned; mapped ones stay mapped.

    Args:
        corpus: corpus to take from; it must know its sizes before reading, and have no order of its own.
        *bounds: number of sequences to take; or ordinal of the first, and of the one behind the last. None: the
            beginning, or the end of the corpus. Negative ones count from the end, as in slices.

    Raises:
        DataError: nothing is taken.
        IndexError: there are fewer sequences.
        TypeError, ValueError: something else than one or two integers, or a corpus of another kind.
    """

    def __init__(self, corpus: Deserializer, *bounds: int | None) -> None:
        check_part(corpus, type(self).__name__)
        if not 1 <= len(bounds) <= 2:
            raise TypeError(f"expected Take(corpus, stop) or Take(corpus, start, stop), got {len(bounds)} bounds")
        count = int(chunk_starts(corpus)[-1])
        start, stop = (None, *bounds)[-2:]
        first, end = _place("start", start, 0, count), _place("stop", stop, count, count)
        super().__init__(corpus, range(first, max(first, end)))
        self.name = f"{corpus.name}[{first}:{end}]"


def _place(what: str, given: Any, default: int, count: int) -> int:
    """Return a bound counted from the beginning."""
    if given is None:
        return default
    place = whole_number(f"{what} of Take", given, -(2**63))
    if not -count <= place <= count:
        raise IndexError(f"expected {what} of Take from {-count} to {count}, the sequences of the corpus, got {given}")
    return place + count if place < 0 else place
