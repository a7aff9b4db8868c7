"""Views of mapped files of which parts may be missing, made of what was fetched instead.

A mapped file of an object in a store has holes where nothing was fetched, which read as zeros. The places of a chunk's
views in it still say which bytes the chunk consists of. These are fetched, and the same arrays are made over them:
other columns, or the rest of the chunk, need not be fetched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk
from feedline.errors import DataError
from feedline.feed.files.remote import object_at
from feedline.feed.formats.unreadable import unread
from feedline.feed.joined_values import mapped
from feedline.feed.protocol import Deserializer, Extent, MappedFile, Piece, RandomAccess, Unread, can
from feedline.feed.remote.cache import LEAST_BYTES
from feedline.feed.remote.pages import PAGE_BYTES

_TOGETHER_BYTES = 4096  # between arrays that are fetched as one extent


def in_parts(corpus: Deserializer, settled: Collection[str] = ()) -> bool:
    """Return whether parts of the files that chunks are views of may be missing when those in ``settled`` are there."""
    return can(corpus, RandomAccess) and any(
        object_at(path) is not None and path not in settled for path in corpus.paths()
    )


def runs_of(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the pages of a file that bytes ``(begin, end)`` lie in, as runs of bytes; no page is in two of them."""
    runs: list[tuple[int, int]] = []
    for begin, end in sorted((begin // PAGE_BYTES, -(-end // PAGE_BYTES)) for begin, end in spans if begin < end):
        if runs and begin <= runs[-1][1]:
            runs[-1] = runs[-1][0], max(end, runs[-1][1])
        else:
            runs.append((begin, end))
    return [(begin * PAGE_BYTES, end * PAGE_BYTES) for begin, end in runs]


def check_room_for_bounds(sizes: Sequence[int], paths: Sequence[str], name: str, streams: int) -> None:
    """Check that the cache has room for what says where sequences lie, if some of ``paths`` are objects.

    Args:
        sizes: bytes of each of its parts, which are kept apart.
        paths: paths of files and placeholders.
        name: of the corpus.
        streams: number of its streams.

    Raises:
        DataError: it has not.
    """
    room_bytes = next((one.room_bytes for path in paths if (one := object_at(path)) is not None), None)
    least = sum(sizes)
    if room_bytes is not None and least > room_bytes:
        most = sum(size // PAGE_BYTES + 2 for size in sizes) * PAGE_BYTES
        raise DataError(
            f"expected a cache with room for the {least} bytes that say where the sequences of {streams} streams lie, "
            f"got one of {room_bytes} bytes",
            path=name,
            hint=f"raise the cache_bytes of fl.Remote to {most + LEAST_BYTES}, or read fewer streams",
        )


def extents_of(views: Chunk, files: Sequence[MappedFile]) -> list[Extent]:
    """Return the parts of ``files`` that the arrays of a chunk are views of; reads none of them."""
    extents: list[Extent] = []
    for one in sorted(found for array in _arrays(views) if (found := _span(array, files)) is not None):
        last = extents[-1] if extents else None
        if last is not None and last.path == one.path and one.offset <= last.offset + last.size + _TOGETHER_BYTES:
            extents[-1] = last._replace(size=max(last.size, one.offset + one.size - last.offset))
        else:
            extents.append(one)
    return extents


def fetched_chunk(views: Chunk, files: Sequence[MappedFile], pieces: Sequence[Piece]) -> Chunk:
    """Return a chunk like ``views`` over the bytes of its `extents_of`.

    A sequence is unreadable if some of its bytes could not be fetched: all of them, where a piece is missing.
    """
    extents = extents_of(views, files)

    def nothing(array: NDArray[Any]) -> NDArray[Any]:
        return array if _span(array, files) is None else np.zeros(array.shape, array.dtype)

    for extent, piece in zip(extents, pieces, strict=True):
        if isinstance(piece, Unread):
            lost = {i: unread(piece, extent.path, i) for i in range(views.num_sequences)}
            return Chunk(views.schema, {name: mapped(value, nothing) for name, value in views.values.items()}, lost)

    def fetched(array: NDArray[Any]) -> NDArray[Any]:
        span = _span(array, files)
        if span is None:
            return array
        for extent, piece in zip(extents, pieces, strict=True):
            assert not isinstance(piece, Unread)
            if extent.path == span.path and extent.offset <= span.offset < extent.offset + extent.size:
                found = np.ndarray(array.shape, array.dtype, piece, span.offset - extent.offset, array.strides)
                return found if found.flags.aligned else found.copy()
        raise AssertionError(f"no piece has {span}")

    return Chunk(views.schema, {name: mapped(value, fetched) for name, value in views.values.items()}, views.errors)


def _span(array: NDArray[Any], files: Sequence[MappedFile]) -> Extent | None:
    """Return where an array lies in a file; None: in memory."""
    if not array.size:
        return None
    low, high = np.lib.array_utils.byte_bounds(array)
    for file in files:
        if file.address + file.first <= low and high <= file.address + file.size:
            return Extent(file.path, low - file.address, high - low)
    return None


def _arrays(chunk: Chunk) -> Iterator[NDArray[Any]]:
    found: list[NDArray[Any]] = []

    def note(array: NDArray[Any]) -> NDArray[Any]:
        found.append(array)
        return array

    for value in chunk.values.values():
        mapped(value, note)
    yield from found
