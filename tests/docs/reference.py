"""Makes docs/reference/index.md out of docstrings; `python -m tests.docs.reference` writes it.

A test compares the page with what this makes, so that neither a name nor a sentence grows old.
"""

from __future__ import annotations

import inspect
from typing import Any

import feedline
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "reference" / "index.md"
WIDTH = 120

_HEAD = """# Reference

Every public name, in the order of `feedline.__all__`, each with the first sentence of its docstring; `help(fl.Window)`
has the rest. This page is made from the docstrings (`python -m tests.docs.reference`).
"""


def page() -> str:
    """The text of the page."""
    parts = [_HEAD]
    for name in feedline.__all__:
        item = getattr(feedline, name)
        parts.append(f"\n- **`{name}`**: {first_sentence(item)}")
        if inspect.isclass(item) and not issubclass(item, Exception):
            bases = [base.__name__ for base in listed_bases(item)]
            parts += [f" It is a `{base}`." for base in bases]
            parts += [f"\n  - `{member}`: {text}" for member, text in members(item)]
    return wrapped("".join(parts)) + "\n"


def listed_bases(item: type) -> list[type]:
    """Public classes that a class is derived from."""
    return [base for base in inspect.getmro(item)[1:] if base.__name__ in feedline.__all__]


def members(item: type) -> list[tuple[str, str]]:
    """Public methods and properties that a class adds, in the order of its source; those of its kinds behind."""
    found: dict[str, str] = {}
    known = {name for base in listed_bases(item) for name in dir(base)}
    kinds = [kind for kind in item.__subclasses__() if kind.__module__ == item.__module__]
    for owner in [*inspect.getmro(item), *kinds]:
        if not owner.__module__.startswith("feedline"):
            continue
        for name, member in list(vars(owner).items()):
            function = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
            is_property = isinstance(function, property)
            shown = name if is_property else f"{name}()"
            if name.startswith("_") or name in known or shown in found or name in getattr(item, "__annotations__", {}):
                continue
            if (is_property or inspect.isfunction(function)) and inspect.getdoc(function):
                found[shown] = first_sentence(function)
    return list(found.items())


def first_sentence(item: Any) -> str:
    """Up to the first full stop or blank line of a docstring, on one line."""
    paragraph = " ".join((inspect.getdoc(item) or "").split("\n\n")[0].split()).replace("``", "`")
    sentence = paragraph.split(". ")[0].split("; ")[0].rstrip(".:;")
    return sentence + "."


def wrapped(part: str) -> str:
    """Long list items broken at blanks, behind their indent."""
    lines = []
    for line in part.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        while len(line) > WIDTH:
            at = line.rfind(" ", 0, WIDTH)
            lines.append(line[:at])
            line = indent + line[at + 1 :]
        lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
