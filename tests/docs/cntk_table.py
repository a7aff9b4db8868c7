"""Makes docs/compat/cntk.md out of the façade's table of names; `python -m tests.docs.cntk_table` writes it.

A test compares the page with what this makes, and others the table with the modules.
"""

from __future__ import annotations

from feedline.cntk._names import NAMES
from tests.docs import tables
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "compat" / "cntk.md"

_HEAD = """# CNTK 2.7: provided, approximated, absent

`feedline.cntk` has the names of CNTK 2.7 and translates them onto feedline. Two ways to use it:

- `feedline run --as cntk SCRIPT [arguments]` runs a script unchanged;
- `feedline.cntk.install()` makes `import cntk` mean the façade, in this process.

So far it covers data (sources, deserializers, values, devices, axes), networks (variables, operations, layers,
functions, run by torch) and training (learners, trainers, sessions, progress writers, several workers by torchrun).
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
    return tables.page(_HEAD, NAMES)


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
