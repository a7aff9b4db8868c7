"""Imports modules for all cases once, before they are forked, so that a case takes milliseconds, not seconds."""

from __future__ import annotations

import contextlib
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
    "feedline.images",
    "PIL.JpegImagePlugin",
    "PIL.PngImagePlugin",
)


def everything() -> None:
    """Import all modules, with one thread each."""
    # Children are awaited by their pidfd. A foreign handler would consume their status.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for name in _NAMES:
        module = importlib.import_module(name)
        # What is imported when it is first asked for.
        for public in dir(module) if name.startswith("feedline") else ():
            with contextlib.suppress(ImportError):
                getattr(module, public)
    with contextlib.suppress(ImportError):
        importlib.import_module("obstore.store")
    import pyarrow
    import torch

    torch.set_num_threads(1)
    torch.nn.functional.relu(torch.zeros(1))
    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
