"""The sequences of a corpus that pass a filter on columns or lengths, or that are listed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feedline.data import Chunk, Value
from feedline.data.value import BytesValue, DenseValue
from feedline.errors import DataError, SchemaError
from feedline.feed.composed.concat import check_part, lengths_of
from feedline.feed.composed.subset import Chosen
from feedline.feed.protocol import Deserializer, chunk_starts, num_chunks, whole_number

Mask = NDArray[np.bool_]
Predicate = Callable[[Any], Any]

_PIECE_BYTES = 64 << 20  # of columns, passed to predicates at a time
_PIECE_SEQUENCES = 1 << 20  # lengths looked up at a time


class Filtered(Chosen):
    """The sequences of a corpus for which ``where`` and ``lengths`` hold.

    The constructor decides once, before any order, so that sweeps, states and ranks agree::

        meta = fl.ParquetDeserializer("web/", ["language", "score"])
        good = fl.Filtered(web, {"language": lambda x: x == "de", "score": lambda x: x > 0.8}, columns=meta)

    Ordinals count the remaining sequences, in the order of the corpus, and `original` returns the corpus's ordinals.
    The digest covers the remaining sequences, so that a state still fits after a change of ``where`` that keeps the
    same ones.

    Args:
        corpus: corpus to filter. It must know its sizes before reading, and must not have its own order.
        where: bool (n,), one for each sequence of the corpus, or integers (k,), ordinals in any order, or functions by
            stream, all of which must hold. A function is called with the samples of consecutive sequences, an array (m,
            *shape) (of dtype object for texts and byte strings), and returns bool (m,). None: all.
        lengths: least and greatest number of samples of a sequence. None if there is no bound.
        columns: corpus of the same sequences in the same order, whose streams ``where`` names: the same files opened
            with these streams only, so that nothing else is read. None if all streams of ``corpus`` are read.

    Raises:
        DataError: no sequence remains, or a sequence of ``columns`` is unreadable.
        SchemaError: ``where`` names a stream that is missing or sparse, or does not have one sample for each sequence.
        IndexError: an ordinal is outside the corpus.
        TypeError, ValueError: an argument of another kind, or out of range.
    """

    def __init__(
        self,
        corpus: Deserializer,
        where: ArrayLike | Mapping[str, Predicate] | None = None,
        *,
        lengths: tuple[int | None, int | None] | None = None,
        columns: Deserializer | None = None,
    ) -> None:
        check_part(corpus, type(self).__name__)
        count = int(chunk_starts(corpus)[-1])
        if columns is not None and not isinstance(where, Mapping):
            raise ValueError("expected a function for each stream as where with columns, got none")
        mask = np.ones(count, np.bool_)
        if isinstance(where, Mapping):
            mask &= by_columns(corpus if columns is None else columns, where, count)
        elif where is not None:
            mask &= _mask_of(where, count)
        if lengths is not None:
            mask &= _by_lengths(corpus, lengths, count)
        if not mask.any():
            raise DataError(f"expected sequences for which the filter holds, got none of {count}", path=corpus.name)
        super().__init__(corpus, np.flatnonzero(mask))
        self.name = f"{corpus.name}, filtered"


def _mask_of(where: Any, count: int) -> Mask:
    """Return a mask of the sequences in a list or a mask."""
    if callable(where):
        raise TypeError('expected a function for each stream as where of Filtered, got one: write {"score": function}')
    array = np.asarray(where)
    if array.dtype == np.bool_:
        if array.shape != (count,):
            raise ValueError(f"expected bools of shape ({count},) as where of Filtered, got shape {array.shape}")
        return array
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"expected bools, ordinals or functions of streams as where of Filtered, got {array.dtype}")
    if array.ndim != 1:
        raise ValueError(f"expected ordinals of shape (k,) as where of Filtered, got shape {array.shape}")
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < count:
        raise IndexError(f"expected 0 <= ordinal < {count}, got {array.min()} to {array.max()}")
    mask = np.zeros(count, np.bool_)
    mask[array.astype(np.int64)] = True
    if int(mask.sum()) != array.size:
        raise ValueError(f"expected each ordinal once, got {array.size - int(mask.sum())} repeated")
    return mask


def _by_lengths(corpus: Deserializer, bounds: Any, count: int) -> Mask:
    """Return a mask of the sequences whose length is within bounds."""
    if not isinstance(bounds, Sequence) or isinstance(bounds, str) or len(bounds) != 2:
        raise TypeError(f"expected lengths of Filtered to be (least, most), got {bounds!r}")
    least, most = (None if bound is None else whole_number("lengths of Filtered", bound, 0) for bound in bounds)
    mask = np.ones(count, np.bool_)
    for first in range(0, count, _PIECE_SEQUENCES):
        part = slice(first, min(count, first + _PIECE_SEQUENCES))
        samples = lengths_of(corpus, np.arange(part.start, part.stop, dtype=np.int64))
        mask[part] = (samples >= (least or 0)) & (samples <= (2**63 - 1 if most is None else most))
    return mask


def by_columns(corpus: Deserializer, where: Mapping[str, Predicate], count: int) -> Mask:
    """Return a mask of the sequences for which functions of their streams hold. Reads the corpus once."""
    check_part(corpus, "columns of Filtered")
    for name, predicate in where.items():
        stream = corpus.schema.get(name)
        if stream is None or stream.sparse:
            raise SchemaError(
                f"expected a dense stream, of numbers or texts, for where of Filtered, got {stream or 'none'} as "
                f"`{name}` in {corpus.name}, which has {', '.join(corpus.schema)}"
            )
        if not callable(predicate):
            raise TypeError(f"expected a function for `{name}` in where of Filtered, got {predicate!r}")
    total = int(chunk_starts(corpus)[-1])
    if total != count:
        raise ValueError(f"expected {count} sequences in columns of Filtered, as in the corpus, got {total}")
    mask = np.ones(count, np.bool_)
    first = 0
    for number in range(num_chunks(corpus)):
        # Copies: functions of users must not read mapped files.
        for piece in corpus.read(number).pieces(_PIECE_BYTES):
            _check_read(piece, corpus, first)
            stop = first + piece.num_sequences
            for name, predicate in where.items():
                mask[first:stop] &= _answers(name, predicate, _column(name, piece[name], corpus, first))
            first = stop
    return mask


def _check_read(piece: Chunk, corpus: Deserializer, first: int) -> None:
    if piece.errors:
        i, error = min(piece.errors.items())
        raise DataError(
            f"expected readable sequences to filter by their streams, got: {error.what}",
            path=corpus.name,
            sequence=first + i,
            hint="pass bools or ordinals as where, without the unreadable sequences",
        ) from error


def _column(name: str, value: Value, corpus: Deserializer, first: int) -> NDArray[Any]:
    """Return the samples of sequences that have one each."""
    lengths = value.lengths
    if (lengths != 1).any():
        at = int(np.flatnonzero(lengths != 1)[0])
        raise SchemaError(
            f"expected one sample for each sequence in `{name}`, by which {corpus.name} is filtered, got {lengths[at]} "
            f"in sequence {first + at}"
        )
    if isinstance(value, BytesValue):
        samples = np.empty(value.num_sequences, object)
        samples[:] = [sequence[0] if isinstance(sequence, list) else sequence for sequence in value.tolist()]
        return samples
    assert isinstance(value, DenseValue)
    return value.rows


def _answers(name: str, predicate: Predicate, samples: NDArray[Any]) -> Mask:
    answers = np.asarray(predicate(samples))
    if answers.dtype != np.bool_ or answers.shape != (len(samples),):
        raise TypeError(
            f"expected bools of shape ({len(samples)},) from the function for `{name}` in where of Filtered, got "
            f"{answers.dtype} {answers.shape}"
        )
    return answers
