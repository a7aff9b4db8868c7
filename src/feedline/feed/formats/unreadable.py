"""Chunks, or parts of them, that a disk cannot read: their sequences keep their places, and report why."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection

import numpy as np

from feedline.data import Chunk, Schema, Value
from feedline.data.chunk import LazyErrors
from feedline.data.value import BytesValue, DenseValue, SparseValue
from feedline.errors import DataError
from feedline.feed.protocol import Unread


def unread(why: Unread, path: str, sequence: int) -> DataError:
    """Return why sequence number ``sequence`` could not be read from the file ``path``."""
    got = "got the end of the file" if why.error < 0 else f"got a disk error: {os.strerror(why.error)}"
    return DataError(
        f"expected readable bytes, {got}",
        path=path,
        byte=why.byte,
        sequence=sequence,
        hint='restore the file, or pass on_error="skip" to the source to skip such sequences and list them',
    )


def require_damage(error: BaseException) -> None:
    """Raise an error that comes from a lack of descriptors: the same sequences can be read when there are some again.

    To be called before an error becomes that of sequences, which stay unreadable as long as their chunk is held.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE):
            raise error
        cause = cause.__cause__


def lost_chunk(schema: Schema, ragged: Collection[str], *, first: int, count: int, path: str, why: Unread) -> Chunk:
    """Return a chunk none of whose sequences can be read.

    Args:
        schema: schema of the chunk.
        ragged: streams with several samples per sequence.
        first, count: its sequences, from ordinal ``first`` on.
        path, why: file and reason, the same for all of them.
    """
    errors = LazyErrors(np.arange(count), lambda i: unread(why, path, first + i))
    return Chunk(schema, no_values(schema, ragged, count), errors)


def no_values(schema: Schema, ragged: Collection[str], count: int) -> dict[str, Value]:
    """Return values for ``count`` sequences that cannot be read; no samples in the streams ``ragged``, else one."""
    values: dict[str, Value] = {}
    for name, stream in schema.items():
        offsets = np.zeros(count + 1, np.int64) if name in ragged else None
        rows = 0 if name in ragged else count
        if stream.sparse:
            nothing, bounds = np.empty(0, stream.dtype), np.zeros(rows + 1, np.int64)
            values[name] = SparseValue(bounds, np.empty(0, np.int32), nothing, stream.size, offsets)
        elif stream.is_bytes:
            bounds, none = np.zeros(rows + 1, np.int64), np.empty(0, np.uint8)
            values[name] = BytesValue(bounds, none, offsets, text=stream.is_text)
        else:
            # No memory, however large the damage says that samples are.
            nothing = np.zeros((), stream.dtype)
            values[name] = DenseValue(np.broadcast_to(nothing, (rows, *stream.shape)), offsets)
    return values
