"""Imports what cases need, once, before they are forked: a case then takes milliseconds, not seconds."""

from __future__ import annotations

import importlib
import signal

_NAMES = (
    "numpy",
    "pyarrow",
    "pyarrow.ipc",
    "pyarrow.parquet",
    "scipy.sparse",
    "torch",
    "safetensors.torch",
    "feedline",
    "feedline.testing",
    "feedline.train",
    "feedline.train.controllers",
    "feedline.train.report",
    "feedline.kvstore",
    "feedline.mxnet",
    "feedline.feed.loader",
)


def everything() -> None:
    """Import all of it, with one thread each."""
    # Waiting children are told by their pidfd; a handler of somebody else's would eat their status.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for name in _NAMES:
        importlib.import_module(name)
    import pyarrow
    import torch

    torch.set_num_threads(1)
    torch.nn.functional.relu(torch.zeros(1))
    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
