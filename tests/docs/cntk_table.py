"""Generate docs/compat/cntk.md from the façade's table of names. `python -m tests.docs.cntk_table` writes it.

A test compares the page with the generated text, and others compare the table with the modules.
"""

from __future__ import annotations

from feedline.cntk._names import NAMES
from tests.docs import tables
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "compat" / "cntk.md"

_HEAD = """# CNTK 2.7: provided, approximated, absent

This page lists the names of CNTK 2.7 in `feedline.cntk`. There are two ways to use it:

- `feedline run --as cntk SCRIPT [arguments]` runs a script unchanged;
- `feedline.cntk.install()` makes `import cntk` import the façade, in this process.

[Moving over from CNTK](../how-to/migrate-cntk.md) replaces it by feedline's own interface. `python -m
tests.docs.cntk_table` writes this page.

- **Provided**: behaves as in CNTK, except for the corrected defect if one is described.
- **Approximated**: differs from CNTK as described.
- **Absent**: raises `CompatError` with this description.
- **Added**: not in CNTK.
- **Repeated**: has the names of other modules, as those modules list them.

Errors about data, streams, checkpoints and workers are instances of both feedline's class and the built-in class that
CNTK raised: `except RuntimeError` still catches a bad row.
"""


def page() -> str:
    """Return the text of the page."""
    return tables.page(_HEAD, NAMES)


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
