"""Makes docs/compat/mxnet.md out of the façade's table of names; `python -m tests.docs.mxnet_table` writes it."""

from __future__ import annotations

from feedline.mxnet._names import NAMES
from tests.docs import tables
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "compat" / "mxnet.md"

_HEAD = """# MXNet 1.9.1: provided, approximated, absent

`feedline.mxnet` has the names of MXNet 1.9.1 and translates them onto feedline. Two ways to use it:

- `feedline run --as mxnet SCRIPT [arguments]` runs a script unchanged;
- `feedline.mxnet.install()` makes `import mxnet` mean the façade, in this process.

It covers key-value stores, and Gluon's Trainer over parameters of torch; symbols, their execution, pictures and tables;
iterators over arrays, metrics and initializers; and arrays, contexts and optimizers as far as those need them.
[Coming from MXNet's KVStore](../how-to/from-mxnet-kvstore.md) and [from mx.viz](../how-to/from-mxnet-symbols.md) lead
away from it. This page is made from the table that the façade itself uses (`python -m tests.docs.mxnet_table`).

- **Provided**: as in MXNet. A sentence behind a name says which defect of MXNet is mended.
- **Approximated**: with the difference that the sentence says.
- **Absent**: `CompatError`, with the sentence.
- **Added**: ours.

What the store refuses is an `MXNetError`, at the call itself: nothing runs behind the caller's back. Messages are
feedline's.
"""


def page() -> str:
    """The text of the page."""
    return tables.page(_HEAD, NAMES)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
