"""Types that hold the values of several, for files of one corpus whose schemas differ (``schema="union"``)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from feedline.data import Stream
from feedline.errors import SchemaError
from feedline.feed.formats.missing import remedy

SchemaRule = Literal["strict", "union"]
"""Whether the files of a corpus must have the same schema, or all values that any of them has are streams."""

_SHOWN = 5
_log = logging.getLogger("feedline")

WAY_OUT = 'pass schema="union" to widen numbers, and for columns that some files lack'


def is_union(schema: SchemaRule) -> bool:
    """Return whether schemas may differ.

    Raises:
        ValueError: ``schema`` is neither ``"strict"`` nor ``"union"``.
    """
    if schema not in ("strict", "union"):
        raise ValueError(f"expected schema to be 'strict' or 'union', got {schema!r}")
    return schema == "union"


def unfilled_error(name: str, stream: Stream, column: str, path: str, other: str) -> SchemaError:
    """Return the error for a file that lacks values of a column, unlike another one, and a stream that fills none."""
    return SchemaError(
        f"expected values of column {column!r} in all files, got none in {path}, unlike {other}; "
        f"{remedy(name, stream)}, or name the streams that you want without it"
    )


def report(path: str, changes: Sequence[str]) -> None:
    """Log how the schemas of files from ``path`` on differ."""
    more = f"; and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    listed = "; ".join(changes[:_SHOWN]) or "columns in another order, or columns that are not streams"
    _log.warning("%s and other files: schemas differ: %s%s", path, listed, more)


def filled_in(name: str, count: int, files: int) -> str:
    """Return the part of a report about a stream that ``count`` of ``files`` files lack."""
    return f"`{name}` is filled in {count} of {files} files, which lack it"


def widened(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any] | None:
    """Return the smallest dtype that holds all values of two dtypes exactly, or None if there is none."""
    if a == b:
        return a
    if a.kind in "iu" and b.kind in "iu":
        wide = np.promote_types(a, b)
        return wide if wide.kind in "iu" else None
    if a.kind in "iuf" and b.kind in "iuf":
        return next((np.dtype(f) for f in (np.float16, np.float32, np.float64) if _holds(f, a) and _holds(f, b)), None)
    return None


def _holds(wide: Any, dtype: np.dtype[Any]) -> bool:
    bits = np.finfo(wide).nmant + 1
    if dtype.kind == "f":
        return bool(dtype.itemsize <= np.dtype(wide).itemsize)
    # The largest float16 is below 2**16, so it holds no integers of 16 bits.
    return bool(8 * dtype.itemsize - (dtype.kind == "i") <= bits and np.iinfo(dtype).max <= np.finfo(wide).max)
