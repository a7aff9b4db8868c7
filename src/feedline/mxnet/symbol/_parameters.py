"""Settings of operators: strings in files and attributes, numbers and tuples where they are used.

A symbol keeps what it was given, as text, for that is what MXNet's files hold; `Parameters` reads the text once, when
a node is made, so that a wrong setting is refused where it stands.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from feedline.mxnet.base import MXNetError

REQUIRED = object()
Kind = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One setting: how its text is read, and what it is when it is not given."""

    kind: Kind
    default: Any = REQUIRED


# Possessive, for texts of strangers: what does not match is refused in a time linear in its length.
_INTEGER = re.compile(r"\s*+[+-]?[0-9]++L?\s*+")
_REAL = re.compile(
    r"[+-]?([0-9]++\.?[0-9]*+(e[+-]?[0-9]++)?|\.[0-9]++(e[+-]?[0-9]++)?|nan|inf(inity)?)f?", re.IGNORECASE
)
_DIMS = re.compile(r"\s*+(?:([(\[])\s*+(-?[0-9]++L?\s*+(,\s*+-?[0-9]++L?\s*+)*+(,\s*+)?)?[)\]]|-?[0-9]++L?)\s*+")
_ENDS = re.compile(r"\s*+[(\[]?\s*+((None|-?[0-9]++L?)\s*+(,\s*+(None|-?[0-9]++L?)\s*+)*+(,\s*+)?)?[)\]]?\s*+")
# Element types that arrays can have here.
DTYPES = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool")
# A node takes so many inputs and has so many outputs at most: every one of them is an object.
MOST = 1 << 16


def integer(text: str) -> int:
    """A whole number of 32 bits."""
    if not _INTEGER.fullmatch(text):
        raise ValueError("a whole number")
    return _held(int(text.replace("L", "")), 32)


def long_integer(text: str) -> int:
    """A whole number of 64 bits."""
    if not _INTEGER.fullmatch(text):
        raise ValueError("a whole number")
    return _held(int(text.replace("L", "")), 64)


def _held(number: int, bits: int) -> int:
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(f"a number of {bits} bits")
    return number


def real(text: str) -> float:
    """A number."""
    if not _REAL.fullmatch(text):
        raise ValueError("a number")
    number = float(text.rstrip("f") if text[-2:].lower() != "nf" else text)
    if math.isinf(number) and "inf" not in text.lower():
        raise ValueError("a number of 64 bits")
    return number


def flag(text: str) -> bool:
    """True or False, 1 or 0."""
    found = {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if found is None:
        raise ValueError("True or False")
    return found


def dims(text: str) -> tuple[int, ...]:
    """Whole numbers as MXNet writes shapes: ``(2, 2)``, ``[2, 2]`` or ``2``."""
    if not _DIMS.fullmatch(text):
        raise ValueError("a tuple of whole numbers")
    return tuple(_held(int(n), 64) for n in re.findall(r"-?[0-9]+", text))


def ends(text: str) -> tuple[int | None, ...]:
    """As `dims`, and None among them."""
    if not _ENDS.fullmatch(text):
        raise ValueError("a tuple of whole numbers or None")
    return tuple(None if n == "None" else _held(int(n), 64) for n in re.findall(r"None|-?[0-9]+", text))


def dtype(text: str) -> str:
    """Name of an element type, as in NumPy."""
    if text not in DTYPES:
        raise ValueError(f"one of {', '.join(DTYPES)}")
    return text


def between(kind: Kind, low: float, high: float | None = None) -> Kind:
    """As ``kind``, from ``low`` to ``high`` with both."""

    def read(text: str) -> Any:
        number = kind(text)
        if not (low <= number and (high is None or number <= high)):
            raise ValueError(f"from {low}" + ("" if high is None else f" to {high}"))
        return number

    return read


COUNT = between(integer, 1, MOST)  # of inputs or outputs


def word(*words: str) -> Kind:
    """One of these words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return text

    return read


def text(value: str) -> str:
    """Anything."""
    return value


def optional(kind: Kind) -> Kind:
    """As ``kind``, or None."""
    return lambda value: None if value == "None" else kind(value)


def written(value: Any) -> str:
    """A setting as MXNet's files have it."""
    if isinstance(value, (type, np.dtype)):
        return str(np.dtype(value).name)
    return str(value)


def read(operator: str, declared: Mapping[str, Parameter], given: Mapping[str, str]) -> SimpleNamespace:
    """All settings of an operator, as attributes.

    Raises:
        MXNetError: one that is unknown, missing, or not of its kind.
    """
    for name in given:
        if name not in declared:
            raise MXNetError(
                f"Cannot find argument '{name}', Possible Arguments:\n{', '.join(declared) or 'none'}\n"
                f"in operator {operator}"
            )
    found = SimpleNamespace()
    for name, parameter in declared.items():
        if name in given:
            try:
                value = parameter.kind(given[name])
            except (TypeError, ValueError) as error:
                raise MXNetError(
                    f"Invalid Parameter format for {name} of operator {operator}: expected {error}, got {given[name]!r}"
                ) from None
        elif parameter.default is REQUIRED:
            raise MXNetError(f"Required parameter {name} is not presented, in operator {operator}")
        else:
            value = parameter.default
        setattr(found, name, value)
    return found
