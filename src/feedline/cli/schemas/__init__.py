"""The JSON Schema of each command's documents, which it prints with ``--json``.

There is a module for each command. Its ``Document`` is a class with typed fields, or a union of them. Types and
docstrings become a schema in which objects have no other fields.
"""

from __future__ import annotations

import importlib
import re
from inspect import getdoc  # a submodule is named inspect, too
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, TypedDict, Union, get_args, get_origin, get_type_hints

_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", NoneType: "null"}
_ENTRY = re.compile(r"^ {4}(\w+(?:, \w+)*): (.+(?:\n {8}.+)*)", re.MULTILINE)


class CommandError(TypedDict):
    """An error.

    Attributes:
        type: name of its class, such as ``"DataError"``. ``"UsageError"`` is wrong usage, and ``"KeyboardInterrupt"``
            is Ctrl-C.
        message: its message, in lines.
    """

    type: str
    message: str


class CommandFailure(TypedDict):
    """The document of a command that failed. Its exit code is not 0.

    Attributes:
        error: reason of the failure.
    """

    error: CommandError


def schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema of the documents of a command, of draft 2020-12."""
    document = importlib.import_module(f"feedline.cli.schemas.{command}").Document
    definitions: dict[str, Any] = {}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"feedline {command} --json",
        **_schema_of(document | CommandFailure, definitions),
        "$defs": definitions,
    }


def _schema_of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type, and add those of the classes in it to ``definitions``."""
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(arguments)}
    kinds = [_schema_of(argument, definitions) for argument in arguments if argument is not ...]
    if origin is NotRequired:
        return kinds[0]
    if origin in (Union, UnionType):
        return {"anyOf": kinds}
    if origin is dict:
        return {"type": "object", "additionalProperties": kinds[1]}
    if origin is list or arguments[1:] == (...,):
        return {"type": "array", "items": kinds[0]}
    if origin is tuple:
        return {"type": "array", "prefixItems": kinds, "minItems": len(kinds), "items": False}
    if kind is Any:
        return {}
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}  # before those of its fields
        definitions[kind.__name__] = _object(kind, definitions)
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _object(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a TypedDict, a dataclass or a NamedTuple."""
    summary, _, attributes = (getdoc(kind) or "").partition("\n\n")
    about = {name: _sentence(text) for names, text in _ENTRY.findall(attributes) for name in names.split(", ")}
    hints = get_type_hints(kind, include_extras=True)
    optional = {name for name, hint in hints.items() if get_origin(hint) is NotRequired}
    optional |= getattr(kind, "__optional_keys__", frozenset())  # of a class that is not total
    return {
        "description": _sentence(summary),
        "type": "object",
        "properties": {
            name: {"description": about.get(name, ""), **_schema_of(hint, definitions)} for name, hint in hints.items()
        },
        "required": [name for name in hints if name not in optional],
        "additionalProperties": False,
    }


def _sentence(text: str) -> str:
    text = re.sub(r"\bNone\b", "`null`", " ".join(text.replace("``", "`").split()))
    return text[:1].upper() + text[1:]
