"""The names of MXNet 1.9.1, implemented over feedline, with one file for each of its modules.

``feedline.mxnet.install()``, or ``feedline run --as mxnet SCRIPT``, makes ``import mxnet`` import this package, in that
process only. docs/compat/mxnet.md, generated from `_names`, lists supported, approximated and absent names. Requires
torch.
"""

from __future__ import annotations

from feedline import _facades
from feedline.mxnet import (
    attribute,
    base,
    callback,
    context,
    executor,
    gluon,
    image,
    initializer,
    io,
    kvstore,
    lr_scheduler,
    metric,
    model,
    name,
    ndarray,
    optimizer,
    random,
    recordio,
    symbol,
    test_utils,
    util,
    visualization,
)
from feedline.mxnet import image as img
from feedline.mxnet import initializer as init
from feedline.mxnet import kvstore as kv
from feedline.mxnet import ndarray as nd
from feedline.mxnet import random as rnd
from feedline.mxnet import symbol as sym
from feedline.mxnet import visualization as viz
from feedline.mxnet._launch import set_torch_variables
from feedline.mxnet._names import names_of
from feedline.mxnet.attribute import AttrScope
from feedline.mxnet.base import MXNetError
from feedline.mxnet.context import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
from feedline.mxnet.util import is_np_shape, np_shape, set_np_shape

__version__ = "1.9.1"

__all__, __getattr__ = names_of(__name__)


def install() -> None:
    """Register the façade as ``mxnet`` in this process. Idempotent.

    Started by MXNet's ``launch.py``, servers and the scheduler end here. See `feedline.mxnet._launch`.

    Raises:
        CompatError: another package was already imported as ``mxnet``.
    """
    set_torch_variables()
    _facades.install("mxnet")
