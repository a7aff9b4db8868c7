"""Gathers as plain Python: one sequence at a time, by slicing."""

from __future__ import annotations

from itertools import pairwise

import numpy as np


def dense(chunks, slots, index):
    """chunks: {slot: (rows, offsets | None)}. slots None means 0. Returns (rows, offsets | None)."""
    some = next(iter(chunks.values()))[0]
    pieces, lengths, ragged = [], [], False
    for slot, i in zip(slots if slots is not None else [0] * len(index), index, strict=True):
        rows, offsets = chunks[int(slot)]
        first, last = (i, i + 1) if offsets is None else (offsets[i], offsets[i + 1])
        ragged |= offsets is not None
        pieces.append(rows[first:last])
        lengths.append(int(last - first))
    rows = np.concatenate([some[:0], *pieces], dtype=some.dtype)
    return rows, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64) if ragged else None


def sparse(chunks, slots, index):
    """chunks: {slot: (indptr, indices, values, offsets | None)}. Returns the same four."""
    some = next(iter(chunks.values()))
    indptr, indices, values, bounds, ragged = [0], [some[1][:0]], [some[2][:0]], [0], False
    for slot, i in zip(slots if slots is not None else [0] * len(index), index, strict=True):
        starts, columns, numbers, offsets = chunks[int(slot)]
        first, last = (i, i + 1) if offsets is None else (offsets[i], offsets[i + 1])
        ragged |= offsets is not None
        for row in range(first, last):
            indptr.append(indptr[-1] + int(starts[row + 1] - starts[row]))
            indices.append(columns[starts[row] : starts[row + 1]])
            values.append(numbers[starts[row] : starts[row + 1]])
        bounds.append(bounds[-1] + int(last - first))
    return (
        np.array(indptr, np.int64),
        np.concatenate(indices),
        np.concatenate(values),
        np.array(bounds, np.int64) if ragged else None,
    )


def bad_index(indices, classes):
    """Place of the first index outside [0, classes), or -1."""
    return next((i for i, index in enumerate(indices.tolist()) if not 0 <= index < classes), -1)


def uneven(offsets, lengths):
    """Place of the first length that is not the difference of two neighbours, or -1."""
    pairs = zip(pairwise(offsets.tolist()), lengths.tolist(), strict=True)
    return next((i for i, ((a, b), length) in enumerate(pairs) if b - a != length), -1)


def mended(value, good):
    """What `dense` or `sparse` returned, with 0 where an entry is not ``good``, and the first such of each sequence."""
    entries, bounds = (value[1], value[0]) if len(value) == 4 else (value[0].view(np.uint8).reshape(-1), None)
    offsets = value[-1]
    whole, found = entries.copy(), {}
    rows = len(value[0]) - (bounds is not None)
    for sequence in range(rows if offsets is None else len(offsets) - 1):
        first, last = (sequence, sequence + 1) if offsets is None else offsets[sequence : sequence + 2]
        width = len(entries) // max(rows, 1)
        low, high = (first * width, last * width) if bounds is None else (bounds[first], bounds[last])
        for at in range(low, high):
            if not good(int(entries[at])):
                found.setdefault(sequence, int(entries[at]))
                whole[at] = 0
    if bounds is None:
        return (whole.view(value[0].dtype).reshape(value[0].shape), offsets), found
    return (value[0], whole, value[2], offsets), found


def pad(rows, offsets, fill, length=-1):
    lengths = [int(b - a) for a, b in pairwise(offsets)]
    longest = max(lengths, default=0) if length < 0 else length
    padded = np.empty((len(lengths), longest, *rows.shape[1:]), rows.dtype)
    padded[...] = fill.reshape(())
    mask = np.zeros((len(lengths), longest), bool)
    for i, n in enumerate(lengths):
        padded[i, :n] = rows[offsets[i] : offsets[i + 1]]
        mask[i, :n] = True
    return padded, mask
