"""`mxnet.optimizer`: the rules that stores know, which are MXNet's; see `feedline.kvstore.optimizers`."""

from __future__ import annotations

from typing import Any

import torch

from feedline import kvstore
from feedline.kvstore.optimizers import (
    AdaGradOptimizer,
    AdamOptimizer,
    Optimizer,
    RMSPropOptimizer,
    SGDOptimizer,
    Test,
)
from feedline.mxnet._names import explain
from feedline.mxnet.base import as_mxnet

__all__ = ["SGD", "AdaGrad", "Adam", "Optimizer", "RMSProp", "Test", "Updater", "create", "get_updater"]

SGD, AdaGrad, Adam, RMSProp = SGDOptimizer, AdaGradOptimizer, AdamOptimizer, RMSPropOptimizer


def create(name: str, **kwargs: Any) -> Optimizer:
    """The optimizer of that name, in any case of letters, with such numbers.

    Raises:
        MXNetError: an unknown name, or a number that it does not take.
    """
    with as_mxnet():
        return kvstore.optimizer(name.lower(), **kwargs)


class Updater:
    """An optimizer as function ``(index, gradient, weight)``.

    Attributes:
        optimizer: the optimizer.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        """Change a weight in place."""
        with as_mxnet(), torch.no_grad():
            self.optimizer.prepare(index, weight.tensor)
            self.optimizer(index, grad.tensor if grad.stype == "default" else grad.coo(), weight.tensor)


def get_updater(optimizer: Optimizer) -> Updater:
    """The optimizer as function."""
    return Updater(optimizer)


def __getattr__(name: str) -> Any:
    raise explain("mxnet.optimizer", name)
