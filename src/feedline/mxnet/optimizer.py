"""`mxnet.optimizer`: optimizers of stores, with MXNet's update rules; see `feedline.kvstore.optimizers`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from feedline import kvstore
from feedline.errors import CompatError
from feedline.kvstore import optimizers as rules
from feedline.kvstore.optimizers import Optimizer, shown_as
from feedline.mxnet._names import names_of
from feedline.mxnet.base import MXNetError, as_mxnet

__all__, __getattr__ = names_of(__name__)


# Parameters of MXNet's optimizers that have to be left at these values.
_LEFT = {
    "multi_precision": False,
    "param_idx2name": None,
    "param_dict": None,
    "sym": None,
    "begin_num_update": 0,
    "aggregate_num": None,
    "use_fused_step": True,
    "centered": False,
    "clip_weights": None,
}
_WAYS = {
    "multi_precision": "keep weights in float32, as float16 ones are only pulled",
    "centered": "use `feedline.train`",
    "clip_weights": "clamp the weights after a pull",
}


class ScriptOptimizer:
    """What MXNet's optimizers take and do beyond the store's rules: a scheduler, and parameters left as they are.

    Raises:
        CompatError: another value of a parameter that has to be left at its default.
    """

    lr_scheduler: Any = None

    def __init__(self, *args: Any, lr_scheduler: Any = None, **kwargs: Any) -> None:
        given = {}
        for name, value in kwargs.items():
            if name not in _LEFT:
                given[name] = value
            elif value != _LEFT[name] and name not in ("param_idx2name", "param_dict", "sym", "aggregate_num"):
                way = _WAYS.get(name, "leave it out")
                raise CompatError(f"expected {name}={_LEFT[name]!r}, got {value!r}: {way}")
        with as_mxnet():
            super().__init__(*args, **given)
        if lr_scheduler is not None:
            object.__setattr__(self, "lr_scheduler", lr_scheduler)
            lr_scheduler.base_lr = self.lr

    @property
    def lr(self) -> float:
        """Learning rate; `learning_rate` under MXNet's other name."""
        rate: float = self.learning_rate
        return rate

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate of later updates.

        Raises:
            UserWarning: there is a scheduler, which determines it.
        """
        if self.lr_scheduler is not None:
            raise UserWarning("LRScheduler of the optimizer has already been defined: set its base_lr")
        with as_mxnet():
            self.learning_rate = lr

    def set_lr_mult(self, args_lr_mult: Mapping[Any, float]) -> None:
        """Accept factors of 1.

        Raises:
            CompatError: another factor.
        """
        _ones("lr_mult", args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Mapping[Any, float]) -> None:
        """Accept factors of 1; see `set_lr_mult`."""
        _ones("wd_mult", args_wd_mult)

    def scheduled(self, key: Any) -> None:
        """Set the learning rate of the next update of a key, if there is a scheduler."""
        if self.lr_scheduler is not None:
            self.learning_rate = self.lr_scheduler(self._counts.get(key, 0) + 1)  # type: ignore[attr-defined]


def _ones(what: str, factors: Mapping[Any, float]) -> None:
    others = {name: factor for name, factor in factors.items() if factor != 1}
    if others:
        raise CompatError(f"expected {what} of 1, got {others}: scale those gradients before they are pushed")


@shown_as("SGD")
class ScriptSGD(ScriptOptimizer, rules.SGDOptimizer):
    """SGD, with momentum or without; see `feedline.kvstore.optimizers`."""


@shown_as("NAG")
class ScriptNAG(ScriptOptimizer, rules.NAGOptimizer):
    """Nesterov's accelerated gradient; see `feedline.kvstore.optimizers`."""


@shown_as("Adam")
class ScriptAdam(ScriptOptimizer, rules.AdamOptimizer):
    """Adam; see `feedline.kvstore.optimizers`."""


@shown_as("RMSProp")
class ScriptRMSProp(ScriptOptimizer, rules.RMSPropOptimizer):
    """RMSProp, not centered; see `feedline.kvstore.optimizers`."""


@shown_as("AdaGrad")
class ScriptAdaGrad(ScriptOptimizer, rules.AdaGradOptimizer):
    """AdaGrad; see `feedline.kvstore.optimizers`."""


Test = rules.Test
SGD, NAG, Adam, RMSProp, AdaGrad = ScriptSGD, ScriptNAG, ScriptAdam, ScriptRMSProp, ScriptAdaGrad
_BY_NAME = {rule.name: rule for rule in (SGD, NAG, Adam, RMSProp, AdaGrad)}


def create(name: str, **kwargs: Any) -> Optimizer:
    """Return the optimizer of that name, in any case, with these parameters.

    Raises:
        MXNetError: an unknown name or parameter.
    """
    rule = _BY_NAME.get(name.lower())
    if rule is None:
        with as_mxnet():
            return kvstore.optimizer(name.lower(), **kwargs)
    known = {*_LEFT, "lr_scheduler", *(one.name for one in fields(rule) if one.init)}
    unknown = sorted(set(kwargs) - known)
    if unknown:
        raise MXNetError(f"expected parameters of {', '.join(sorted(known))} for {name}, got {', '.join(unknown)}")
    return rule(**kwargs)


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
            if isinstance(self.optimizer, ScriptOptimizer):
                self.optimizer.scheduled(index)
            self.optimizer.prepare(index, weight.tensor)
            self.optimizer(index, grad.tensor if grad.stype == "default" else grad.coo(), weight.tensor)


def get_updater(optimizer: Optimizer) -> Updater:
    """Return the optimizer as a function."""
    return Updater(optimizer)
