"""Arrow's numbers in memory: timestamps, dates, times and durations as int64, decimals as float64 or scaled int64.

A unit names what the integers count, with the codes of NumPy's units: ``timestamp[us]``, with a time zone
``timestamp[us, Europe/Berlin]`` (whose integers count from 1970 in UTC), ``date[D]``, ``time[ns]``, ``duration[s]``,
and ``decimal[1e-2]`` for hundredths.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_INT64, _FLOAT64 = np.dtype(np.int64), np.dtype(np.float64)
_EXACT = 1 << 53  # integers up to this are exact in float64
_EXACT_POWER = 22  # so are powers of ten up to this one


class Quantity(NamedTuple):
    """The dtype of numbers in memory, and their unit."""

    dtype: np.dtype[Any]
    unit: str | None = None


def quantity_of(kind: Any, dtype: np.dtype[Any] | None = None) -> Quantity | None:
    """Return what numbers of an Arrow type become, or None if the type is not of numbers.

    Args:
        kind: the type.
        dtype: the declared dtype, if there is one.
    """
    import pyarrow as pa

    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return Quantity(np.dtype(kind.to_pandas_dtype()))
    if types.is_decimal(kind):
        return Quantity(_INT64, f"decimal[1e{-kind.scale}]") if dtype == _INT64 else Quantity(_FLOAT64)
    if types.is_timestamp(kind):
        zone = f", {kind.tz}" if kind.tz else ""
        return Quantity(_INT64, f"timestamp[{kind.unit}{zone}]")
    if types.is_date(kind):
        return Quantity(_INT64, "date[D]" if types.is_date32(kind) else "date[ms]")
    if types.is_time(kind):
        return Quantity(_INT64, f"time[{kind.unit}]")
    if types.is_duration(kind):
        return Quantity(_INT64, f"duration[{kind.unit}]")
    return None


def stored_dtype(kind: Any) -> np.dtype[Any]:
    """Return the dtype of the buffer of a type. Decimals are integers of up to 32 bytes, for which NumPy has none."""
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        return np.dtype(f"V{kind.byte_width}")
    if pa.types.is_temporal(kind):
        return np.dtype(f"i{kind.bit_width // 8}")
    dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
    return dtype


def as_integers(array: Any) -> Any:
    """Return timestamps, dates, times and durations as the integers that store them, and any other array as it is."""
    import pyarrow as pa

    return array.view(pa.int64() if array.type.bit_width == 64 else pa.int32()) if _is_temporal(array.type) else array


def _is_temporal(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_temporal(kind) and not pa.types.is_interval(kind))


# ---- decimals -------------------------------------------------------------------------------------------


def decimal_integers(array: Any) -> NDArray[Any]:
    """Return the integers that store decimals, as a copy with zeros in the place of nulls."""
    dtype, buffer = stored_dtype(array.type), array.buffers()[1]
    if buffer is None:  # of an array without items
        return np.zeros(len(array), dtype)
    stored = np.frombuffer(buffer, np.uint8)
    begin = array.offset * dtype.itemsize
    integers = stored[begin : begin + len(array) * dtype.itemsize].copy().view(dtype)
    if array.null_count:
        integers[~array.is_valid().to_numpy(zero_copy_only=False)] = bytes(dtype.itemsize)
    return integers


def decimal_numbers(integers: NDArray[Any], scale: int, dtype: np.dtype[Any] | None) -> NDArray[Any]:
    """Return decimals as numbers: nearest float64, or the integers as int64, 0 where `too_large`.

    Args:
        integers: as in Arrow's buffers, void (n,).
        scale: their negated power of ten.
        dtype: int64, or another dtype for floats.
    """
    low, fits = _low_words(integers)
    if dtype == _INT64:
        return np.where(fits, low, 0)
    # A quotient of two exact numbers is rounded once. Arrow's own cast multiplies by an inexact power, so that 0.29
    # becomes another number than 0.29 elsewhere.
    power = 10.0 ** min(abs(scale), _EXACT_POWER)
    numbers: NDArray[Any] = low / power if scale >= 0 else low * power
    exact = fits & (low <= _EXACT) & (low >= -_EXACT) & (abs(scale) <= _EXACT_POWER)
    for i in np.flatnonzero(~exact).tolist():
        integer = int.from_bytes(integers[i].tobytes(), "little", signed=True)
        numbers[i] = integer / 10**scale if scale >= 0 else integer * 10**-scale
    return numbers


def too_large(integers: NDArray[Any]) -> NDArray[np.bool_]:
    """Return the mask of the integers that int64 cannot hold."""
    return ~_low_words(integers)[1]


def _low_words(integers: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the low 64 bits of integers, and the mask of the integers that these hold."""
    size = integers.dtype.itemsize
    if size < 8:
        return integers.view(f"<i{size}").astype(np.int64), np.ones(len(integers), np.bool_)
    words = integers.view("<i8").reshape(len(integers), size // 8)
    fits: NDArray[np.bool_] = np.asarray((words[:, 1:] == (words[:, :1] >> 63)).all(axis=1))
    return np.ascontiguousarray(words[:, 0]), fits
