"""Settings of operators: strings in files and attributes, numbers and tuples where they are used.

A symbol keeps what it was given, as text, for that is what MXNet's files hold; `Parameters` reads the text once, when
a node is made, so that a wrong setting is refused where it stands.
"""

from __future__ import annotations

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


def integer(text: str) -> int:
    """A whole number."""
    return int(text)


def real(text: str) -> float:
    """A number."""
    return float(text)


def flag(text: str) -> bool:
    """True or False, 1 or 0."""
    found = {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if found is None:
        raise ValueError("True or False")
    return found


def dims(text: str) -> tuple[int, ...]:
    """Whole numbers as MXNet writes shapes: ``(2, 2)``, ``[2, 2]`` or ``2``."""
    if not re.fullmatch(r"\s*[(\[]?\s*(-?\d+L?\s*(,\s*-?\d+L?\s*)*,?\s*)?[)\]]?\s*", text):
        raise ValueError("a tuple of whole numbers")
    return tuple(int(n) for n in re.findall(r"-?\d+", text))


def ends(text: str) -> tuple[int | None, ...]:
    """As `dims`, and None among them."""
    return tuple(None if n == "None" else int(n) for n in re.findall(r"None|-?\d+", text))


def dtype(text: str) -> str:
    """Name of an element type, as in NumPy."""
    return str(np.dtype(text).name)


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
