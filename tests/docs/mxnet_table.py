"""Generate docs/compat/mxnet.md from the façade's table of names. `python -m tests.docs.mxnet_table` writes it."""

from __future__ import annotations

from feedline.mxnet._names import NAMES
from tests.docs import tables
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "compat" / "mxnet.md"

_HEAD = """# MXNet 1.9.1: provided, approximated, absent

This page lists the names of MXNet 1.9.1 in `feedline.mxnet`. There are two ways to use it:

- `feedline run --as mxnet SCRIPT [arguments]` runs a script unchanged;
- `feedline.mxnet.install()` makes `import mxnet` import the façade, in this process.

It covers key-value stores, and Gluon's Trainer for torch parameters; symbols, with their execution, pictures and
tables; iterators over arrays, metrics, initializers and optimizers; and the arrays and contexts that they need. To
replace it by feedline's own interface, see [Coming from MXNet's KVStore](../how-to/from-mxnet-kvstore.md) and [from
mx.viz](../how-to/from-mxnet-symbols.md). `python -m tests.docs.mxnet_table` writes this page.

- **Provided**: behaves as in MXNet, except for the corrected defect if one is described.
- **Approximated**: differs from MXNet as described.
- **Absent**: raises `CompatError` with this description.
- **Added**: not in MXNet.

A call that a store refuses raises `MXNetError` at once. Messages are feedline's.
"""


def page() -> str:
    """Return the text of the page."""
    return tables.page(_HEAD, NAMES)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
