"""The JSON documents of commands, compared with their schemas."""

from __future__ import annotations

import json
from functools import cache

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from feedline.cli.schemas import schema


@cache
def validator(command):
    """Return what checks the documents of a command."""
    described = schema(command)
    Draft202012Validator.check_schema(described)
    return Draft202012Validator(described)


def document_in(printed, command):
    """Return the document that a command printed, which has the command's schema. Nothing else was printed."""
    document = json.loads(printed, parse_constant=_refuse)
    error = best_match(validator(command).iter_errors(document))
    assert error is None, f"{command} at {error.json_path}: {error.message}"
    return document


def objects_in(command, document):
    """Yield (name of the definition, object) for each object of a document that has fixed fields."""
    described = schema(command)

    def visit(kind, value):
        if "$ref" in kind:
            name = kind["$ref"].rpartition("/")[2]
            yield name, value
            fields = described["$defs"][name]["properties"]
            parts = [(fields[field], item) for field, item in value.items()]
        elif "anyOf" in kind:
            parts = [next((each, value) for each in kind["anyOf"] if _fits(each, value, described["$defs"]))]
        elif kind and isinstance(value, dict):
            parts = [(kind["additionalProperties"], item) for item in value.values()]
        elif kind and isinstance(value, list):
            parts = zip(kind.get("prefixItems") or [kind["items"]] * len(value), value, strict=True)
        else:
            parts = []
        for each, item in parts:
            yield from visit(each, item)

    yield from visit({"anyOf": described["anyOf"]}, document)


def _fits(kind, value, definitions):
    return Draft202012Validator({**kind, "$defs": definitions}).is_valid(value)


def _refuse(constant):
    raise ValueError(f"expected JSON, got {constant}")
