"""Chunks, or parts of them, that a disk cannot read. Their sequences keep their places and report why."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Sequence

import numpy as np

from feedline.data import Chunk, Schema, Value
from feedline.data.chunk import LazyErrors
from feedline.errors import DataError
from feedline.feed.protocol import Ints, Unread


def read_error(failure: Unread, path: str, sequence: int) -> DataError:
    """Return the error for sequence number ``sequence``, which could not be read from the file ``path``."""
    got = "got the end of the file" if failure.error < 0 else f"got a disk error: {os.strerror(failure.error)}"
    return DataError(
        f"expected readable bytes, {got}",
        path=path,
        byte=failure.byte,
        sequence=sequence,
        hint='restore the file, or pass on_error="skip" to the source to skip such sequences and list them',
    )


def reraise_if_transient(error: BaseException) -> None:
    """Raise ``error`` if its cause is a lack of descriptors, as the same sequences can be read later.

    Call this before an error makes sequences unreadable, which they remain as long as their chunk is in memory.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE):
            raise error
        cause = cause.__cause__


def lost_chunk(schema: Schema, ragged: Collection[str], count: int, error_of: Callable[[int], DataError]) -> Chunk:
    """Return a chunk of unreadable sequences.

    Args:
        schema: schema of the chunk.
        ragged: streams with several samples per sequence.
        count: number of sequences.
        error_of: function that returns the error of a sequence by its index.
    """
    return Chunk(schema, no_values(schema, ragged, count), LazyErrors(np.arange(count), error_of))


def mark_gaps(
    chunk: Chunk, gaps: Sequence[tuple[int, int, int]], begin: Ints, end: Ints, *, path: str, first: int
) -> Chunk:
    """Make sequences unreadable if the disk lost a part of them, and return the chunk.

    Args:
        chunk: the chunk.
        gaps: the lost parts of the file, see `read_most`.
        begin, end: first bytes and ends of the sequences in the file.
        path: path of the file.
        first: ordinal of the first sequence.
    """
    assert isinstance(chunk.errors, dict)
    for low, high, error in gaps:
        for i in np.flatnonzero((begin < high) & (end > low)).tolist():
            chunk.errors[i] = read_error(Unread(error, max(low, int(begin[i]))), path, first + i)
    return chunk


def no_values(schema: Schema, ragged: Collection[str], count: int) -> dict[str, Value]:
    """Return values for ``count`` unreadable sequences, with no samples in the streams ``ragged``, else one."""
    return {name: Value.empty(stream, name in ragged, count) for name, stream in schema.items()}
