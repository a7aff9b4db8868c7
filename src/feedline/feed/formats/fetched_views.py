"""Views of mapped files, parts of which may be missing, over fetched bytes.

A mapped file of an object in a store has holes, which read as zeros, where nothing was fetched. But the views of a
chunk have addresses, which locate its bytes in the file. These bytes are fetched, and the same arrays are created over
them. Other columns, and other parts of the chunk, need not be fetched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk
from feedline.errors import DataError
from feedline.feed.files.remote import object_at
from feedline.feed.formats.unreadable import read_error
from feedline.feed.joined_values import map_arrays
from feedline.feed.protocol import Deserializer, Extent, MappedFile, Piece, RandomAccess, Unread, can
from feedline.feed.remote.pages import MIN_CACHE_BYTES, PAGE_BYTES

_MAX_GAP_BYTES = 4096  # largest gap between arrays that are fetched as one extent


def may_lack_parts(corpus: Deserializer, complete: Collection[str] = ()) -> bool:
    """Return whether chunks are views of files of which parts may be missing. The files ``complete`` do not count."""
    partial = (object_at(path) is not None and path not in complete for path in corpus.paths())
    return can(corpus, RandomAccess) and any(partial)


def page_runs(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the pages of a file that hold the spans ``(begin, end)``, as runs of bytes. No page is in two runs."""
    runs: list[tuple[int, int]] = []
    for begin, end in sorted((begin // PAGE_BYTES, -(-end // PAGE_BYTES)) for begin, end in spans if begin < end):
        if runs and begin <= runs[-1][1]:
            runs[-1] = runs[-1][0], max(end, runs[-1][1])
        else:
            runs.append((begin, end))
    return [(begin * PAGE_BYTES, end * PAGE_BYTES) for begin, end in runs]


def check_room_for_bounds(sizes: Sequence[int], paths: Sequence[str], name: str, streams: int) -> None:
    """Check that the cache has room for the bounds of sequences, if some of ``paths`` are objects.

    Args:
        sizes: bytes of each part of the bounds, which are separate in the cache.
        paths: paths of files and placeholders.
        name: name of the corpus.
        streams: number of its streams.

    Raises:
        DataError: the cache has no room.
    """
    room_bytes = next((remote.room_bytes for path in paths if (remote := object_at(path)) is not None), None)
    needed = sum(sizes)
    if room_bytes is not None and needed > room_bytes:
        max_needed = sum(size // PAGE_BYTES + 2 for size in sizes) * PAGE_BYTES
        raise DataError(
            f"expected a cache with room for the {needed} bytes of offsets of the sequences in {streams} streams, got "
            f"one of {room_bytes} bytes",
            path=name,
            hint=f"raise the cache_bytes of fl.Remote to {max_needed + MIN_CACHE_BYTES}, or read fewer streams",
        )


def extents_of(views: Chunk, files: Sequence[MappedFile]) -> list[Extent]:
    """Return the parts of ``files`` that the arrays of a chunk are views of, without reading them."""
    extents: list[Extent] = []
    for extent in sorted(part for array in _arrays(views) if (part := _span(array, files)) is not None):
        last = extents[-1] if extents else None
        if last is not None and last.path == extent.path and extent.offset <= last.offset + last.size + _MAX_GAP_BYTES:
            extents[-1] = last._replace(size=max(last.size, extent.offset + extent.size - last.offset))
        else:
            extents.append(extent)
    return extents


def fetched_chunk(views: Chunk, files: Sequence[MappedFile], pieces: Sequence[Piece]) -> Chunk:
    """Return a chunk like ``views`` over the bytes of its `extents_of`.

    If a piece is missing, all sequences are unreadable.
    """
    extents = extents_of(views, files)

    def zeros_like(array: NDArray[Any]) -> NDArray[Any]:
        return array if _span(array, files) is None else np.zeros(array.shape, array.dtype)

    for extent, piece in zip(extents, pieces, strict=True):
        if isinstance(piece, Unread):
            lost = {i: read_error(piece, extent.path, i) for i in range(views.num_sequences)}
            zeros = {name: map_arrays(value, zeros_like) for name, value in views.values.items()}
            return Chunk(views.schema, zeros, lost)

    def over_piece(array: NDArray[Any]) -> NDArray[Any]:
        span = _span(array, files)
        if span is None:
            return array
        for extent, piece in zip(extents, pieces, strict=True):
            assert not isinstance(piece, Unread)
            if extent.path == span.path and extent.offset <= span.offset < extent.offset + extent.size:
                view = np.ndarray(array.shape, array.dtype, piece, span.offset - extent.offset, array.strides)
                return view if view.flags.aligned else view.copy()
        raise AssertionError(f"no piece has {span}")

    fetched = {name: map_arrays(value, over_piece) for name, value in views.values.items()}
    return Chunk(views.schema, fetched, views.errors)


def _span(array: NDArray[Any], files: Sequence[MappedFile]) -> Extent | None:
    """Return the extent of an array in a file, or None if it is in memory."""
    if not array.size:
        return None
    low, high = np.lib.array_utils.byte_bounds(array)
    for file in files:
        if file.address + file.first <= low and high <= file.address + file.size:
            return Extent(file.path, low - file.address, high - low)
    return None


def _arrays(chunk: Chunk) -> Iterator[NDArray[Any]]:
    arrays: list[NDArray[Any]] = []

    def note(array: NDArray[Any]) -> NDArray[Any]:
        arrays.append(array)
        return array

    for value in chunk.values.values():
        map_arrays(value, note)
    yield from arrays
