"""Checks of the fields of a log line, each of which is validated before use.

An invalid field is a ValueError that names the field. `log.read_log` turns it into a DataError with file and line. A
check takes a few hundred nanoseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from feedline.errors import shown

T = TypeVar("T")
MAX_COUNT = (1 << 63) - 1
LATEST = 253402300799  # the last second of the year 9999, in Unix time


def whole(value: Any, name: str) -> int:
    """Check a count."""
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise ValueError(f"{name}: expected a whole number from 0 to 2**63 - 1, got {shown(value, 40)}")
    return value


def real(value: Any, name: str) -> float:
    """Check a finite number."""
    if type(value) is int and abs(value) <= MAX_COUNT:
        return value
    if type(value) is not float or not math.isfinite(value):
        raise ValueError(f"{name}: expected a finite number, got {shown(value, 40)}")
    return value


def amount(value: Any, name: str) -> float:
    """Check a number that is not negative: seconds, or a share of them."""
    if not 0 <= real(value, name) <= MAX_COUNT:
        raise ValueError(f"{name}: expected a number from 0 to 2**63 - 1, got {shown(value, 40)}")
    return real(value, name)


def average(value: Any, name: str) -> float | None:
    """Check a number. Return None if it is not finite, which other programs may write as NaN or Infinity."""
    if value is None or (type(value) is float and not math.isfinite(value)):
        return None
    return real(value, name)


def moment(value: Any, name: str) -> float:
    """Check a Unix time, in seconds."""
    if not 0 <= real(value, name) <= LATEST:
        raise ValueError(f"{name}: expected seconds from 1970 to the year 9999, got {shown(value, 40)}")
    return real(value, name)


def words(value: Any, name: str) -> str:
    """Check a string."""
    if not isinstance(value, str):
        raise ValueError(f"{name}: expected a string, got {shown(value, 40)}")
    return value


def maybe(check: Callable[[Any, str], T], value: Any, name: str) -> T | None:
    """Check a field that older logs lack. Return None if it is missing."""
    return None if value is None else check(value, name)


def several(check: Callable[[Any, str], T], value: Any, name: str) -> list[T]:
    """Check a list of fields."""
    if not isinstance(value, list):
        raise ValueError(f"{name}: expected a list, got {shown(value, 40)}")
    return [check(part, name) for part in value]


def table(check: Callable[[Any, str], T], value: Any, name: str) -> dict[str, T]:
    """Check an object of fields."""
    if not isinstance(value, dict):
        raise ValueError(f"{name}: expected an object, got {shown(value, 40)}")
    return {key: check(part, f"{name}.{key}") for key, part in value.items()}


def anything(value: Any, name: str) -> Any:
    """Accept any field unchanged."""
    return value
