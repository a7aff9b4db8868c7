"""Makes docs/compat/cntk.md out of the façade's table of names; `python -m tests.docs.cntk_table` writes it.

A test compares the page with what this makes, and others the table with the modules.
"""

from __future__ import annotations

from feedline.cntk._names import NAMES, Names
from tests.docs.pages import ROOT
from tests.docs.reference import wrapped

PAGE = ROOT / "docs" / "compat" / "cntk.md"

_HEAD = """# CNTK 2.7: provided, approximated, absent

`feedline.cntk` has the names of CNTK 2.7 and translates them onto feedline. Two ways to use it:

- `feedline run --as cntk SCRIPT [arguments]` runs a script unchanged;
- `feedline.cntk.install()` makes `import cntk` mean the façade, in this process.

So far it covers data (sources, deserializers, values, devices, axes), networks (variables, operations, layers,
functions, run by torch) and training (learners, trainers, sessions, progress writers). Distributed learners are absent.
[Moving over from CNTK](../how-to/migrate-cntk.md) leads away from it. This page is made from the table that the façade
itself uses (`python -m tests.docs.cntk_table`).

- **Provided**: as in CNTK. A sentence behind a name says which defect of CNTK is mended.
- **Approximated**: with the difference that the sentence says.
- **Absent**: `CompatError`, with the sentence.
- **Added**: ours.

Errors about data, streams, checkpoints and workers are of feedline's classes and of the built-in class that CNTK
raised: `except RuntimeError` still catches a bad row.
"""


def page() -> str:
    """The text of the page."""
    totals = [sum(column) for column in zip(*(counts(names) for names in NAMES.values()), strict=True)]
    lines = [_HEAD, "| module | provided | approximated | absent | added |", "|---|---:|---:|---:|---:|"]
    lines += [f"| `{module}` | {' | '.join(map(str, counts(names)))} |" for module, names in NAMES.items()]
    lines.append(f"| **all** | {' | '.join(f'**{total}**' for total in totals)} |")
    for module, names in NAMES.items():
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


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
