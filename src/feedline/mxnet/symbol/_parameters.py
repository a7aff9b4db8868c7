"""Settings of operators: text in files and attributes, numbers and tuples when used.

A symbol keeps its settings as text, as MXNet's files do. The text is parsed once, when a node is created, so that a
wrong setting is reported at its origin.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np

from feedline.mxnet.base import MXNetError

REQUIRED = object()
Kind = Callable[[str], Any]
Shape = tuple[int, ...]
Ends = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One setting: the reader of its text, and its default."""

    kind: Kind
    default: Any = REQUIRED


# Possessive, as the text is untrusted: a text that does not match is refused in time linear in its length.
_INTEGER = re.compile(r"\s*+[+-]?[0-9]++L?\s*+")
_REAL = re.compile(
    r"[+-]?([0-9]++\.?[0-9]*+(e[+-]?[0-9]++)?|\.[0-9]++(e[+-]?[0-9]++)?|nan|inf(inity)?)f?", re.IGNORECASE
)
_DIMS = re.compile(r"\s*+(?:([(\[])\s*+(-?[0-9]++L?\s*+(,\s*+-?[0-9]++L?\s*+)*+(,\s*+)?)?[)\]]|-?[0-9]++L?)\s*+")
_ENDS = re.compile(r"\s*+[(\[]?\s*+((None|-?[0-9]++L?)\s*+(,\s*+(None|-?[0-9]++L?)\s*+)*+(,\s*+)?)?[)\]]?\s*+")
# Supported element types of arrays.
DTYPES = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool")
# Limit on a node's inputs and outputs, each of which is an object.
MOST = 1 << 16


def integer(text: str, bits: int = 32) -> int:
    """Read an integer of at most ``bits`` bits."""
    if not _INTEGER.fullmatch(text):
        raise ValueError("a whole number")
    return _wrap_around(int(text.replace("L", "")), bits)


def _wrap_around(number: int, bits: int) -> int:
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(f"a number of {bits} bits")
    return number


def real(text: str) -> float:
    """Read a number."""
    if not _REAL.fullmatch(text):
        raise ValueError("a number")
    number = float(text.rstrip("f") if text[-2:].lower() != "nf" else text)
    if math.isinf(number) and "inf" not in text.lower():
        raise ValueError("a number of 64 bits")
    return number


def flag(text: str) -> bool:
    """Read True or False, 1 or 0."""
    value = {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if value is None:
        raise ValueError("True or False")
    return value


def dims(text: str) -> tuple[int, ...]:
    """Read integers as MXNet writes shapes: ``(2, 2)``, ``[2, 2]`` or ``2``."""
    if not _DIMS.fullmatch(text):
        raise ValueError("a tuple of whole numbers")
    return tuple(_wrap_around(int(n), 64) for n in re.findall(r"-?[0-9]+", text))


def ends(text: str) -> tuple[int | None, ...]:
    """Read integers as `dims`, some of which may be None."""
    if not _ENDS.fullmatch(text):
        raise ValueError("a tuple of whole numbers or None")
    return tuple(None if n == "None" else _wrap_around(int(n), 64) for n in re.findall(r"None|-?[0-9]+", text))


def between(kind: Kind, low: float, high: float | None = None) -> Kind:
    """Return a reader as ``kind``, limited to ``low`` to ``high``, both included."""

    def read(text: str) -> Any:
        number = kind(text)
        if not (low <= number and (high is None or number <= high)):
            raise ValueError(f"from {low}" + ("" if high is None else f" to {high}"))
        return number

    return read


COUNT = between(integer, 1, MOST)  # of inputs or outputs


def word(*words: str) -> Kind:
    """Return a reader of one of these words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return text

    return read


def optional(kind: Kind) -> Kind:
    """Return a reader as ``kind`` that also accepts None."""
    return lambda value: None if value == "None" else kind(value)


# Types of settings with their own readers.
Count = Annotated[int, COUNT]
ElementType = Annotated[str, word(*DTYPES)]
Long = Annotated[int, partial(integer, bits=64)]
Positive = Annotated[int, between(integer, 1)]
Fraction = Annotated[float, between(real, 0, 1)]

_KINDS: Mapping[Any, Kind] = {bool: flag, int: integer, float: real, str: str, Shape: dims, Ends: ends}


def kind_of(hint: Any) -> Kind:
    """Return the reader of a setting's text, by its type.

    Args:
        hint: plain type, ``Literal`` of words, an optional one of either, or ``Annotated`` with the reader itself.
    """
    if hint in _KINDS:
        return _KINDS[hint]
    if get_origin(hint) is Literal:
        return word(*get_args(hint))
    if get_origin(hint) is Annotated:
        kind: Kind = hint.__metadata__[0]
        return kind
    plain, _ = get_args(hint)  # a type or None
    return optional(kind_of(plain))


def to_text(value: Any) -> str:
    """Return a setting as text, as in MXNet's files."""
    if isinstance(value, (type, np.dtype)):
        return str(np.dtype(value).name)
    return str(_plain(value))


def _plain(value: Any) -> Any:
    """Convert NumPy's numbers, also in tuples and lists, to Python's, whose text has no type."""
    if isinstance(value, (tuple, list)):
        return type(value)(map(_plain, value)) if type(value) in (tuple, list) else value
    return value.item() if isinstance(value, np.generic) else value


def read(operator: str, declared: Mapping[str, Parameter], texts: Mapping[str, str]) -> SimpleNamespace:
    """Return all settings of an operator, as attributes.

    Raises:
        MXNetError: a setting that is unknown, missing or malformed.
    """
    for name in texts:
        if name not in declared:
            raise MXNetError(
                f"Cannot find argument '{name}', Possible Arguments:\n{', '.join(declared) or 'none'}\n"
                f"in operator {operator}"
            )
    result = SimpleNamespace()
    for name, parameter in declared.items():
        if name in texts:
            try:
                value = parameter.kind(texts[name])
            except (TypeError, ValueError) as error:
                raise MXNetError(
                    f"Invalid Parameter format for {name} of operator {operator}: expected {error}, got {texts[name]!r}"
                ) from None
        elif parameter.default is REQUIRED:
            raise MXNetError(f"Required parameter {name} is not presented, in operator {operator}")
        else:
            value = parameter.default
        setattr(result, name, value)
    return result
