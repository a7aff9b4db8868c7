"""`mxnet.optimizer`: optimizers of stores, with MXNet's update rules; see `feedline.kvstore.optimizers`."""

from __future__ import annotations

from typing import Any

import torch

from feedline import kvstore
from feedline.kvstore.optimizers import SGD, AdaGrad, Adam, Optimizer, RMSProp, Test  # noqa: F401  # named in __all__
from feedline.mxnet._names import names_of
from feedline.mxnet.base import as_mxnet

__all__, __getattr__ = names_of(__name__)


def create(name: str, **kwargs: Any) -> Optimizer:
    """Return the optimizer of that name, in any case, with these parameters.

    Raises:
        MXNetError: an unknown name or parameter.
    """
    with as_mxnet():
        return kvstore.optimizer(name.lower(), **kwargs)


class Updater:
    """An optimizer as a function ``(index, gradient, weight)``.

    Attributes:
        optimizer: optimizer.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        """Update a weight in place."""
        with as_mxnet(), torch.no_grad():
            self.optimizer.prepare(index, weight.tensor)
            self.optimizer(index, grad.tensor if grad.stype == "default" else grad.coo(), weight.tensor)


def get_updater(optimizer: Optimizer) -> Updater:
    """Return the optimizer as a function."""
    return Updater(optimizer)
