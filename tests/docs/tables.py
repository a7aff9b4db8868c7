"""Generate docs/compat/*.md from the façades' tables of names."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import feedline
from feedline._facades import Names

WIDTH = 120


def page(head: str, tables: dict[str, Names]) -> str:
    """Return the text of a page: the head, the counts of names, one section per module."""
    repeats = repeats_of(next(iter(tables)))
    totals = [sum(column) for column in zip(*(counts(names) for names in tables.values()), strict=True)]
    lines = [head, "In all, {} names are provided, {} approximated, {} absent and {} added.".format(*totals)]
    for module, names in tables.items():
        lines.append(f"\n## {module}\n")
        others = repeats.get(module, ())
        lines += section(unrepeated(names, [tables[other] for other in others]))
        if others:
            lines.append(f"- **Repeated**: all names of {listed(others)}.")
    return wrapped("\n".join(lines)) + "\n"


def repeats_of(package: str) -> dict[str, list[str]]:
    """Return the modules whose names a module re-exports, by module, of those that do."""
    with Path(feedline.__file__).with_name(package).joinpath("names.toml").open("rb") as file:
        return {module: table["repeats"] for module, table in tomllib.load(file).items() if "repeats" in table}


def unrepeated(names: Names, others: Sequence[Names]) -> Names:
    """Return the names that no other module lists with the same status and sentence."""

    def left(key: str) -> dict[str, str]:
        listed = [item for other in others for item in getattr(other, key).items()]
        return {name: sentence for name, sentence in getattr(names, key).items() if (name, sentence) not in listed}

    elsewhere = {name for other in others for name in other.provided.split()}
    provided = " ".join(name for name in names.provided.split() if name not in elsewhere)
    keys = ("corrected", "approximated", "absent", "added")
    return replace(names, provided=provided, **{key: left(key) for key in keys})


def counts(names: Names) -> tuple[int, int, int, int]:
    """Return the numbers of provided, approximated, absent and added names."""
    provided = len(names.provided.split()) + len(names.corrected)
    return provided, len(names.approximated), len(names.absent), len(names.added)


def section(names: Names) -> list[str]:
    """Return one list item per status, and one per sentence."""
    items = []
    if names.provided:
        items.append(f"- **Provided**: {listed(names.provided.split())}.")
    items += said("Provided", names.corrected)
    items += said("Approximated", names.approximated)
    items += said("Absent", names.absent)
    items += said("Added", names.added)
    if names.handed:
        items.append(f"- **Handed on** by `import *`: {listed(names.handed.split())}.")
    return items


def said(status: str, sentences: dict[str, str]) -> list[str]:
    """Return one list item per sentence, with all names that share it."""
    together: dict[str, list[str]] = {}
    for name, sentence in sentences.items():
        together.setdefault(sentence, []).append(name)
    return [f"- **{status}**: {listed(group)}: {sentence}." for sentence, group in together.items()]


def listed(names: Sequence[str]) -> str:
    """Return sorted names, formatted as code."""
    return ", ".join(f"`{name}`" for name in sorted(names, key=lambda name: (name.lower(), name)))


def wrapped(part: str) -> str:
    """Return the text with long list items broken at blanks, and indented."""
    lines = []
    for line in part.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        while len(line) > WIDTH:
            at = line.rfind(" ", 0, WIDTH)
            lines.append(line[:at])
            line = indent + line[at + 1 :]
        lines.append(line)
    return "\n".join(lines)
