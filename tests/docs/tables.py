"""Generate docs/compat/*.md from the façades' tables of names."""

from __future__ import annotations

from feedline._facades import Names

WIDTH = 120


def page(head: str, tables: dict[str, Names]) -> str:
    """Return the text of a page: the head, a table of counts, one section per module."""
    totals = [sum(column) for column in zip(*(counts(names) for names in tables.values()), strict=True)]
    lines = [head, "| module | provided | approximated | absent | added |", "|---|---:|---:|---:|---:|"]
    lines += [f"| `{module}` | {' | '.join(map(str, counts(names)))} |" for module, names in tables.items()]
    lines.append(f"| **all** | {' | '.join(f'**{total}**' for total in totals)} |")
    for module, names in tables.items():
        lines.append(f"\n## {module}\n")
        lines += section(names)
    return wrapped("\n".join(lines)) + "\n"


def counts(names: Names) -> tuple[int, int, int, int]:
    """Return the numbers of provided, approximated, absent and added names."""
    provided = len(names.provided.split()) + len(names.corrected)
    return provided, len(names.approximated), len(names.absent), len(names.added)


def section(names: Names) -> list[str]:
    """Return one list item per status, and one per sentence."""
    found = []
    if names.provided:
        found.append(f"- **Provided**: {listed(names.provided.split())}.")
    found += said("Provided", names.corrected)
    found += said("Approximated", names.approximated)
    found += said("Absent", names.absent)
    found += said("Added", names.added)
    if names.handed:
        found.append(f"- **Handed on** by `import *`: {listed(names.handed.split())}.")
    return found


def said(status: str, sentences: dict[str, str]) -> list[str]:
    """Return one list item per sentence, with all names that share it."""
    together: dict[str, list[str]] = {}
    for name, sentence in sentences.items():
        together.setdefault(sentence, []).append(name)
    return [f"- **{status}**: {listed(group)}: {sentence}." for sentence, group in together.items()]


def listed(names: list[str]) -> str:
    """Return sorted names, formatted as code."""
    return ", ".join(f"`{name}`" for name in sorted(names, key=lambda name: (name.lower(), name)))


def wrapped(part: str) -> str:
    """Return the text with long list items broken at blanks, behind their indent."""
    lines = []
    for line in part.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        while len(line) > WIDTH:
            at = line.rfind(" ", 0, WIDTH)
            lines.append(line[:at])
            line = indent + line[at + 1 :]
        lines.append(line)
    return "\n".join(lines)
