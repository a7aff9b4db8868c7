"""The matrix of the page on frameworks, made from trainings: ``python -m tests.frameworks.table`` runs all of it.

The command writes the table between the two marks of the page, and takes minutes. Tests try a part of the cells, and
compare the results with the committed table.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.frameworks.cells import ROWS, WORKERS, WORLDS, Row, judged

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "frameworks.md"
BEGIN, END = "<!-- matrix: python -m tests.frameworks.table -->\n", "<!-- end of the matrix -->\n"
STATES = ("fresh", "resumed")

Found = dict[tuple[str, int, int, str], str]


def rendered(found: Found) -> str:
    """Return the table of the results, "a / b" where they differ between numbers of processes and workers."""
    heads = ["framework", "what is used", "loader", "reader", *STATES]
    rows = [
        [row.framework, row.what, row.loader, row.reader, *(_cell(row, found, state) for state in STATES)]
        for row in ROWS
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in (heads, ["---"] * len(heads), *rows))


def _cell(row: Row, found: Found, state: str) -> str:
    each = [found[row.name, world, count, state].replace("equal", "=") for world in WORLDS for count in WORKERS]
    return each[0] if len(set(each)) == 1 else " / ".join(each)


def committed() -> str:
    """The table of the page."""
    text = PAGE.read_text()
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip("\n") + "\n"


def main() -> None:
    """Run all trainings and write the table."""
    found: Found = {}
    for world in WORLDS:
        with tempfile.TemporaryDirectory() as folder:
            found |= judged(list(ROWS), world, WORKERS, Path(folder))
        print(f"{world} processes: {len(found)} cells so far", flush=True)
    for cell, what in found.items():
        if len(what) > 10:
            print(cell, what)
    text = PAGE.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(f"{text[:begin]}\n{rendered(found)}\n{text[end:]}")


if __name__ == "__main__":
    main()
