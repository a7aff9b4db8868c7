"""Generate docs/reference/json.md from the schemas of commands. `python -m tests.docs.json_page` writes it."""

from __future__ import annotations

from typing import Any

from feedline.cli.app import COMMANDS
from feedline.cli.schemas import schema
from tests.docs import tables
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "reference" / "json.md"

_HEAD = """# JSON of commands

Every command takes `--json`, and then prints one JSON document to stdout, in UTF-8. This page lists the fields of the
documents. `python -m tests.docs.json_page` writes it.

- **Nothing else is on stdout.** Progress and errors go to stderr. So does the output of your own code, as in `feedline
  bench --loader` and `feedline run`.
- **An error is a document, too**: a `CommandFailure`. Its message is also on stderr. The exit code is 1, 2 for wrong
  usage, and 130 after Ctrl-C. Only a process that is killed prints nothing.
- **Every field is there**, unless it is optional. A number that is not finite is null.
- **Units** are in the names or the descriptions of fields. Sizes are in bytes, and shares are from 0 to 1.
- **Names are fixed**, except in an *object of* values of one type. Its names are data, such as names of streams.
- New versions may add fields. The schema is that of this version, and refuses others.

`feedline --json-schema COMMAND` prints the same as a JSON Schema, of draft 2020-12, which refuses unknown fields.

```console
$ feedline --json-schema report
{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "feedline report --json",
  "anyOf": [
    {
      "$ref": "#/$defs/ReportDocument"
    },
    {
      "$ref": "#/$defs/CommandFailure"
    }
  ],
  ...
```
"""
_PLURAL = {"integer": "integers", "number": "numbers", "string": "strings", "boolean": "booleans", "value": "values"}


def page() -> str:
    """Return the text of the page."""
    lines, listed = [_HEAD, "## Errors"], set()
    for command in [None, *COMMANDS]:
        described = schema(command or next(iter(COMMANDS)))
        names = ["CommandFailure", "CommandError"] if command is None else list(described["$defs"])
        if command is not None:
            *documents, _ = described["anyOf"]  # without CommandFailure
            lines += ["", f"## feedline {command}"]
            if len(documents) > 1:
                lines += ["", f"Prints {_listed([_type(document) for document in documents])}."]
        for name in names:
            if name not in listed:
                listed.add(name)
                lines += _section(name, described["$defs"][name])
    return tables.wrapped("\n".join(lines)) + "\n"


def _section(name: str, described: dict[str, Any]) -> list[str]:
    lines = ["", f"### {name}", "", described["description"], ""]
    for field, about in described["properties"].items():
        optional = "" if field in described["required"] else ", optional"
        lines.append(f"- `{field}`: {_type(about)}{optional}. {about['description']}")
    return lines


def _type(described: dict[str, Any], many: bool = False) -> str:
    """Return the type of a schema, in words."""
    if "$ref" in described:
        return described["$ref"].rpartition("/")[2]
    if "anyOf" in described:
        return _listed([_type(kind, many) for kind in described["anyOf"]])
    if "enum" in described:
        return _listed([f'`"{value}"`' for value in described["enum"]])
    kind = described.get("type", "value")
    if kind == "object":
        return f"object{'s' * many} of {_many(described['additionalProperties'])}"
    if kind != "array":
        return _PLURAL.get(kind, kind) if many else kind
    if "prefixItems" in described:
        return f"array{'s' * many} [{', '.join(_type(item) for item in described['prefixItems'])}]"
    return f"array{'s' * many} of {_many(described['items'])}"


def _many(described: dict[str, Any]) -> str:
    """Return the type of the elements of an array or an object, in words."""
    return f"({_type(described, many=True)})" if "anyOf" in described else _type(described, many=True)


def _listed(kinds: list[str]) -> str:
    return kinds[0] if len(kinds) == 1 else f"{', '.join(kinds[:-1])} or {kinds[-1]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
