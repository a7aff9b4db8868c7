"""What does pulling 10^4 of 10^6 rows of 16 floats cost, and pushing them with SGD?

Peer: ``index_select`` of the same rows into the same memory, for the pull, and ``index_add_`` for the push, without the
merging of rows that come twice. Unit: microseconds a call. Measured: CPU time of the thread, torch on one thread.
"""

from __future__ import annotations

import torch

from benchmarks.harness import Answer, Stage, race
from benchmarks.kvstore import answer, repeated
from feedline import kvstore


def run(stage: Stage) -> list[Answer]:
    """The pull, then the push."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows, width = stage.size(1_000_000, 10_000), 16
    ids = torch.randint(rows, (10_000,), generator=torch.Generator().manual_seed(0))
    table, out, gradient = torch.randn(rows, width), torch.empty(len(ids), width), torch.randn(len(ids), width)
    store = kvstore.create("local")
    store.init("table", table)
    store.set_optimizer("sgd", learning_rate=0.1)
    sparse = torch.sparse_coo_tensor(ids[None], gradient, table.shape, check_invariants=True)
    try:
        pull = race(
            {
                "ours": repeated(lambda: store.row_sparse_pull("table", out, ids), 20),
                "index_select": repeated(lambda: torch.index_select(table, 0, ids, out=out), 20),
            },
            stage.rounds(15),
        )
        push = race(
            {
                "ours": repeated(lambda: store.push("table", sparse), 5),
                "index_add_": repeated(lambda: table.index_add_(0, ids, gradient, alpha=-0.1), 5),
            },
            stage.rounds(15),
        )
    finally:
        torch.set_num_threads(threads)
    what = f"{len(ids):,} of {rows:,} rows of {width} floats"
    return [
        answer(pull, "index_select", f"pull {what}", "us", 2, "1/2"),
        answer(push, "index_add_", f"push {what}, merged, with SGD", "us"),
    ]
