"""The lengths of lists, for formats that do not record them: their columns are decoded once.

They are kept in a mapped temporary file without a name, which takes 4 bytes of disk per sequence (in ``TMPDIR``) and no
private memory.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.feed.files.atomic import room_for
from feedline.feed.formats.arrow.columns import ArrowItems, Column, Source, lengths_of
from feedline.feed.protocol import Ints


class ListLengths(NamedTuple):
    """Samples per chunk, and per sequence as a mapped int32 array."""

    samples: list[int]
    table: NDArray[np.int32]


def count_lengths(chunks: Iterable[Ints], path: str) -> ListLengths:
    """Keep the samples of the sequences of chunks, int64 (rows,) each. Only one chunk is in memory at a time.

    Args:
        chunks: the samples of each chunk.
        path: path of their corpus, for errors.

    Raises:
        DataError: there is no room for the temporary file.
    """
    samples = []
    what, hint = "the lengths of sequences", "set TMPDIR to a folder with 4 bytes of space for each sequence"
    with room_for(what, tempfile.gettempdir(), path, hint), tempfile.TemporaryFile() as file:
        for lengths in chunks:
            samples.append(int(lengths.sum()))
            file.write(lengths.astype(np.int32).tobytes())
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return ListLengths(samples, np.frombuffer(mapped, np.int32))


def longest_lists(
    table: Any, columns: Sequence[Column], *, shortest: int, memory_bytes: int, source: Source, what: str
) -> Ints:
    """Return the samples of the sequences in an Arrow table, int64 (rows,): the longest of their lists.

    Args:
        table: the table.
        columns: its ragged columns.
        shortest: samples of a sequence whose lists are all empty.
        memory_bytes: bytes that a decoded column may take.
        source: its file, for errors.
        what: name of its rows, for errors.

    Raises:
        DataError: a column cannot be read.
    """
    longest = np.full(table.num_rows, shortest, np.int64)
    for column in columns:
        with source.converting_errors(f"{what}, column {column.field!r},"):
            chunks = [ArrowItems(chunk, memory_bytes) for chunk in table.column(column.path.column).chunks]
            lengths = [np.empty(0, np.int64), *(lengths_of(chunk, column) for chunk in chunks)]
        np.maximum(longest, np.concatenate(lengths), out=longest)
    return longest


def column_per_list(columns: Sequence[Column]) -> list[Column]:
    """Return a column of each list of structs, whose fields have the same lengths, and all other columns."""
    by_list: dict[Any, Column] = {}
    for column in columns:
        path = column.path
        steps = path.steps[: path.steps.index(None)] if path.in_list else path.steps
        key = (path.column, steps, path.in_list, column.filling is None)
        if key not in by_list or not column.stream.is_bytes:
            by_list[key] = column
    return list(by_list.values())
