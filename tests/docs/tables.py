"""Makes docs/compat/*.md out of the façades' tables of names."""

from __future__ import annotations

from feedline._facades import Names
from tests.docs.reference import wrapped


def page(head: str, tables: dict[str, Names]) -> str:
    """The text of a page: the head, a table of numbers, a section a module."""
    totals = [sum(column) for column in zip(*(counts(names) for names in tables.values()), strict=True)]
    lines = [head, "| module | provided | approximated | absent | added |", "|---|---:|---:|---:|---:|"]
    lines += [f"| `{module}` | {' | '.join(map(str, counts(names)))} |" for module, names in tables.items()]
    lines.append(f"| **all** | {' | '.join(f'**{total}**' for total in totals)} |")
    for module, names in tables.items():
        lines.append(f"\n## {module}\n")
        lines += section(names)
    return wrapped("\n".join(lines)) + "\n"


def counts(names: Names) -> tuple[int, int, int, int]:
    """How many names are provided, approximated, absent, added."""
    provided = len(names.provided.split()) + len(names.mended)
    return provided, len(names.approximated), len(names.absent), len(names.added)


def section(names: Names) -> list[str]:
    """One list item for each status, and one for each name with a sentence of its own."""
    found = []
    if names.provided:
        found.append(f"- **Provided**: {listed(names.provided.split())}.")
    found += said("Provided", names.mended)
    found += said("Approximated", names.approximated)
    found += said("Absent", names.absent)
    found += said("Added", names.added)
    return found


def said(status: str, sentences: dict[str, str]) -> list[str]:
    """Names that share a sentence stand together."""
    together: dict[str, list[str]] = {}
    for name, sentence in sentences.items():
        together.setdefault(sentence, []).append(name)
    return [f"- **{status}**: {listed(group)}: {sentence}." for sentence, group in together.items()]


def listed(names: list[str]) -> str:
    """Names as code."""
    return ", ".join(f"`{name}`" for name in sorted(names, key=lambda name: (name.lower(), name)))
