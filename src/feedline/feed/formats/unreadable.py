"""Chunks, or parts of them, that a disk does not give: their sequences keep their places, and say why."""

from __future__ import annotations

import os
from collections.abc import Collection

import numpy as np

from feedline.data import Chunk, Schema, Value
from feedline.data.value import DenseValue, SparseValue
from feedline.errors import DataError
from feedline.feed.protocol import Unread


def unread(why: Unread, path: str, sequence: int) -> DataError:
    """Why sequence number ``sequence`` could not be read from the file ``path``."""
    got = "got its end: the file was cut" if why.error < 0 else f"got an error of the disk: {os.strerror(why.error)}"
    return DataError(
        f"expected bytes that can be read, {got}",
        path=path,
        byte=why.byte,
        sequence=sequence,
        hint='restore the file, or pass on_error="skip" to the source to go on without such sequences and list them',
    )


def lost_chunk(schema: Schema, ragged: Collection[str], first: int, count: int, path: str, why: Unread) -> Chunk:
    """A chunk none of whose sequences can be read.

    Args:
        schema: of the chunk.
        ragged: streams of several samples a sequence.
        first, count: its sequences, from ordinal ``first`` on.
        path, why: of all of them.
    """
    values: dict[str, Value] = {}
    for name, stream in schema.items():
        offsets = np.zeros(count + 1, np.int64) if name in ragged else None
        rows = 0 if name in ragged else count
        if stream.sparse:
            nothing, bounds = np.empty(0, stream.dtype), np.zeros(rows + 1, np.int64)
            values[name] = SparseValue(bounds, np.empty(0, np.int32), nothing, stream.size, offsets)
        else:
            values[name] = DenseValue(np.zeros((rows, *stream.shape), stream.dtype), offsets)
    return Chunk(schema, values, {i: unread(why, path, first + i) for i in range(count)})
