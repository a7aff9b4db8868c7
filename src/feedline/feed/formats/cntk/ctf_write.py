"""Write CTF. `CTFDeserializer` reads the same numbers back.

Cost: 1 to 3 million numbers per second. Memory takes one block of sequences as Python strings.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline.data import Value
from feedline.data.value import BytesValue, DenseValue, SparseValue
from feedline.feed.files.atomic import atomic_file
from feedline.feed.files.paths import PathLike

_BLOCK_SEQUENCES = 1024  # sequences formatted before they are written


def write_ctf(
    path: PathLike,
    streams: Mapping[str, Any] | None = None,
    *,
    keys: Sequence[int] | None = None,
    lenient: bool = False,
    **stream_kwargs: Any,
) -> None:
    """Write streams as a CTF file, which appears complete or not at all.

    Numbers are written with as many digits as their dtype needs for an exact round trip.

    Args:
        path: path of the file. An existing file is replaced.
        streams: field name to data, also as keyword arguments. Data is a `Value`, an array ``(n, ...)`` or SciPy
            sparse matrix with one row per sequence, or a list with one array ``(length, ...)`` or sparse matrix per
            sequence. All streams have the same number of sequences, but lengths may differ.
        keys: id of each sequence, below 2**64. Neighbours must differ. By default 0, 1, 2, ..., or no ids if every
            sequence has one sample.
        lenient: whether to write nan and infinity, which only readers with ``lenient=True`` accept.
        stream_kwargs: more streams.

    Raises:
        ValueError: streams disagree on the number of sequences, a sequence has no samples, a name is invalid in CTF, a
            number is nan or infinity, or neighbouring keys are equal.
        DataError: the disk is full, or a view of a damaged file has an invalid class index.
    """
    by_name = dict(streams or {}) | stream_kwargs
    if not by_name:
        raise ValueError("expected at least one stream, got none")
    values = {name: _as_value(data) for name, data in by_name.items()}
    for name in values:
        if not name or name.startswith("#") or not all("!" <= c <= "~" and c != "|" for c in name):
            raise ValueError(
                f"expected printable ASCII without spaces, `|` or a leading `#` as field name, got {name!r}"
            )
    counts = {name: value.num_sequences for name, value in values.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(f"expected the same number of sequences in all streams, got {counts}")
    n = next(iter(counts.values()))
    for name, value in values.items():
        if isinstance(value, BytesValue):
            raise ValueError(f"expected numbers in stream `{name}`, got {value.kind}: CTF has no others; write a store")
        if (value.lengths == 0).any():
            raise ValueError(
                f"expected at least one sample in every sequence of stream `{name}`, got none in sequence "
                f"{int(np.argmin(value.lengths))}: CTF cannot represent that"
            )
    if keys is None and any((value.lengths != 1).any() for value in values.values()):
        keys = range(n)
    if keys is not None:
        if len(keys) != n:
            raise ValueError(f"expected {n} keys, one per sequence, got {len(keys)}")
        if any(a == b for a, b in itertools.pairwise(keys)):
            raise ValueError("expected neighbouring sequences to have different keys, as CTF separates them by key")
        if any(not 0 <= key < 2**64 for key in keys):
            raise ValueError("expected keys from 0 to 2**64 - 1, got others")
    for value in values.values():
        if isinstance(value, SparseValue):
            value.checked_indices()
    with atomic_file(Path(path)) as file:
        for start in range(0, n, _BLOCK_SEQUENCES):
            _write_block(file, values, keys, start=start, stop=min(start + _BLOCK_SEQUENCES, n), lenient=lenient)


def _write_block(
    file: BinaryIO, values: Mapping[str, Value], keys: Sequence[int] | None, *, start: int, stop: int, lenient: bool
) -> None:
    columns = []
    for name, value in values.items():
        bounds = value.offsets[start : stop + 1]
        columns.append((_samples(name, value, int(bounds[0]), int(bounds[-1]), lenient), (bounds - bounds[0]).tolist()))
    lines = []
    for i in range(stop - start):
        prefix = "" if keys is None else f"{keys[start + i]}\t"
        for row in range(max(bounds[i + 1] - bounds[i] for _, bounds in columns)):
            parts = [texts[bounds[i] + row] for texts, bounds in columns if row < bounds[i + 1] - bounds[i]]
            lines.append(prefix + "\t".join(parts) + "\n")
    file.write("".join(lines).encode())


def _samples(name: str, value: Value, begin: int, end: int, lenient: bool) -> list[str]:
    """Return the samples ``begin:end`` as texts ``|name values``."""
    if isinstance(value, SparseValue):
        bounds = value.indptr[begin : end + 1]
        low, high = int(bounds[0]), int(bounds[-1])
        numbers = _texts(name, value.values[low:high], lenient)
        pairs = [f"{i}:{v}" for i, v in zip(value.indices[low:high].tolist(), numbers, strict=True)]
        ends = (bounds - low).tolist()
        return [" ".join([f"|{name}", *pairs[a:b]]) for a, b in itertools.pairwise(ends)]
    assert isinstance(value, DenseValue)
    rows = np.asarray(value.rows[begin:end]).reshape(end - begin, -1)
    width = rows.shape[1]
    numbers = _texts(name, rows.ravel(), lenient)
    return [" ".join([f"|{name}", *numbers[i * width : (i + 1) * width]]) for i in range(end - begin)]


def _texts(name: str, numbers: NDArray[Any], lenient: bool) -> list[str]:
    """Return the shortest decimals that round-trip in the dtype of ``numbers``."""
    if numbers.dtype.kind == "f":
        if not lenient and not np.isfinite(numbers).all():
            raise ValueError(
                f"expected finite numbers in stream `{name}`, got nan or infinity; lenient=True writes them for "
                f"readers with lenient=True"
            )
        # NumPy prints the shortest digits of a float32. A Python float would print the digits of a double.
        return [t[:-2] if t.endswith(".0") else t for t in numbers.astype(str).tolist()]
    if numbers.dtype.kind in "iub":
        return [str(int(v)) for v in numbers.tolist()]
    raise ValueError(f"expected numbers in stream `{name}`, got {numbers.dtype}")


def _as_value(data: Any) -> Value:
    if isinstance(data, Value):
        return data
    if hasattr(data, "tocsr"):
        return Value.from_scipy(data)
    if isinstance(data, np.ndarray) and data.dtype != object:
        return Value.from_dense(data)
    return Value.from_sequences(data)
