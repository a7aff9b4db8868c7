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


class ListLengths(NamedTuple):
    """Samples per chunk, and per sequence as a mapped int32 array."""

    samples: list[int]
    table: NDArray[np.int32]


def count_lengths(tables: Iterable[tuple[int, Any]], fields: Sequence[str], *, path: str, shortest: int) -> ListLengths:
    """Count the samples of the sequences in Arrow tables, one for each chunk: the longest of the lists ``fields``.

    Args:
        tables: number of rows and table of each chunk. Only one is in memory at a time.
        fields: names of columns of lists, which a table may lack.
        path: path of their corpus, for errors.
        shortest: samples of a sequence whose lists are all empty.

    Raises:
        DataError: there is no room for the temporary file.
    """
    samples = []
    what, hint = "the lengths of sequences", "set TMPDIR to a folder with 4 bytes of space for each sequence"
    with room_for(what, tempfile.gettempdir(), path, hint), tempfile.TemporaryFile() as file:
        for rows, table in tables:
            longest = np.full(rows, shortest, np.int64)
            for field in fields:
                if field not in table.column_names:
                    continue
                chunks = [getattr(chunk, "storage", chunk) for chunk in table.column(field).chunks]
                lengths = [np.diff(chunk.offsets.to_numpy().astype(np.int64)) for chunk in chunks]
                np.maximum(longest, np.concatenate(lengths), out=longest)
            samples.append(int(longest.sum()))
            file.write(longest.astype(np.int32).tobytes())
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return ListLengths(samples, np.frombuffer(mapped, np.int32))
