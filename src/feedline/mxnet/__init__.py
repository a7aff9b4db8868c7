"""The names of MXNet 1.9.1, translated onto feedline: one file for each of its modules, nothing new inside.

``feedline.mxnet.install()``, or ``feedline run --as mxnet SCRIPT``, makes ``import mxnet`` mean this package, in that
process only. What is there, what is approximated and what is absent stands in docs/compat/mxnet.md, made from `_names`.
Needs torch.
"""

from __future__ import annotations

from typing import Any

from feedline import _facades
from feedline.mxnet import (
    attribute,
    base,
    context,
    executor,
    gluon,
    initializer,
    io,
    kvstore,
    metric,
    name,
    ndarray,
    optimizer,
    symbol,
    visualization,
)
from feedline.mxnet import initializer as init
from feedline.mxnet import kvstore as kv
from feedline.mxnet import ndarray as nd
from feedline.mxnet import symbol as sym
from feedline.mxnet import visualization as viz
from feedline.mxnet._names import explain
from feedline.mxnet.attribute import AttrScope
from feedline.mxnet.base import MXNetError
from feedline.mxnet.context import Context, cpu, cpu_pinned, current_context, gpu, num_gpus

__version__ = "1.9.1"

__all__ = [
    "AttrScope",
    "Context",
    "MXNetError",
    "attribute",
    "base",
    "context",
    "cpu",
    "cpu_pinned",
    "current_context",
    "executor",
    "gluon",
    "gpu",
    "init",
    "initializer",
    "install",
    "io",
    "kv",
    "kvstore",
    "metric",
    "name",
    "nd",
    "ndarray",
    "num_gpus",
    "optimizer",
    "sym",
    "symbol",
    "visualization",
    "viz",
]


def install() -> None:
    """Register the façade as ``mxnet`` in this process. Idempotent.

    Raises:
        CompatError: another package was already imported as ``mxnet``.
    """
    _facades.install("mxnet")


def __getattr__(name: str) -> Any:
    raise explain("mxnet", name)
