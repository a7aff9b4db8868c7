"""`mxnet.optimizer`: optimizers of stores, with MXNet's update rules. See `feedline.kvstore.optimizers`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

import torch

from feedline import kvstore
from feedline.kvstore import optimizers as rules
from feedline.kvstore.optimizers import KeyUpdate, Optimizer
from feedline.mxnet import _rarer_rules
from feedline.mxnet._names import names_of
from feedline.mxnet.base import MXNetError, as_mxnet

__all__, __getattr__ = names_of(__name__)


# Parameters that MXNet's optimizers take and that have no effect here, as there is one implementation of each rule.
_NO_EFFECT = {"aggregate_num", "use_fused_step"}


class ScriptOptimizer(Optimizer):
    """Additions of MXNet's optimizers to the store's rules: a scheduler, and multipliers by parameter.

    The number of a key's update counts ``begin_num_update`` and all updates of the key up to it. The scheduler gets
    ``num_update``, the largest of these numbers of all keys. A key's learning rate and weight decay are multiplied by
    ``lr_mult`` and ``wd_mult`` of its object in ``param_dict``, or of its key, or of its name.

    Args:
        args: parameters of the rule.
        lr_scheduler: function of ``num_update`` that returns the learning rate. Its ``base_lr`` is set to
            ``learning_rate``.
        param_idx2name: names of parameters by key. Names that do not end with ``_weight`` or ``_gamma`` have a
            ``wd_mult`` of 0 by default.
        param_dict: objects with ``lr_mult`` and ``wd_mult``, by key.
        sym: symbol whose variables have ``lr_mult`` and ``wd_mult`` as attributes.
        begin_num_update: number of updates before the first one.
        kwargs: parameters of the rule. A ``clip_gradient`` that is not above 0 means no limit.

    Attributes:
        lr_scheduler: see Args.
        lr_mult: factors of the learning rate by name or key.
        wd_mult: factors of the weight decay by name or key.
        idx2name: see ``param_idx2name``.
        begin_num_update: see Args.
        num_update: largest number of updates of a key so far.
    """

    lr_scheduler: Any = None
    _schedule = ""
    #: Endings of names with a weight decay by default.
    _decaying: ClassVar[tuple[str, ...]] = ("_weight", "_gamma")
    #: Whether the scheduler gets the number of an update, or, as for LBSGD, the number of updates before it.
    _counts_first: ClassVar[bool] = True

    def __init__(
        self,
        *args: Any,
        lr_scheduler: Any = None,
        param_idx2name: Mapping[Any, str] | None = None,
        param_dict: Mapping[Any, Any] | None = None,
        sym: Any = None,
        begin_num_update: int = 0,
        **kwargs: Any,
    ) -> None:
        assert param_idx2name is None or isinstance(param_idx2name, Mapping), "expected param_idx2name as a dict"
        with as_mxnet():
            super().__init__(*args, **{name: value for name, value in kwargs.items() if name not in _NO_EFFECT})
        self.idx2name, self.param_dict = dict(param_idx2name or {}), dict(param_dict or {})
        self.begin_num_update = self.num_update = begin_num_update
        self._attributes = {} if sym is None else {name: sym.attr_dict().get(name, {}) for name in sym.list_arguments()}
        self.set_lr_mult({})
        self.set_wd_mult({})
        if lr_scheduler is not None:
            lr_scheduler.base_lr = self.lr
            self.lr_scheduler = lr_scheduler

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "lr_scheduler":
            self.before_change()
            # Workers agree on its present state, as it may change itself when it is called.
            self._schedule = "" if value is None else f"{type(value).__name__} {getattr(value, '__dict__', value)}"
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "learning_rate": self.lr}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def checked(self, name: str, value: Any) -> Any:
        """See `feedline.kvstore.Optimizer`."""
        value = super().checked(name, value)
        return None if name == "clip_gradient" and value is not None and value <= 0 else value

    # ---- rates --------------------------------------------------------------------------------------------------

    @property
    def learning_rate(self) -> float:
        """Learning rate of the last update, or of the next one if there is no scheduler, without multipliers."""
        return self.lr if self.lr_scheduler is None else float(self.lr_scheduler(self.num_update))

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._lr = rate

    @property
    def lr(self) -> float:
        """Learning rate that was set. A scheduler, if there is one, determines another."""
        return self._lr

    @lr.setter
    def lr(self, rate: float) -> None:
        with as_mxnet():
            self.learning_rate = rate

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate of later updates.

        Raises:
            UserWarning: there is a scheduler, which determines it.
        """
        if self.lr_scheduler is not None:
            raise UserWarning("LRScheduler of the optimizer has already been defined: set its base_lr")
        self.lr = lr

    def set_lr_mult(self, args_lr_mult: Mapping[Any, float]) -> None:
        """Set the factors of the learning rate, by name or key. The rest come from ``sym``, or are 1."""
        with as_mxnet():
            self.before_change()
        self.lr_mult = {**self._of_symbol("__lr_mult__"), **args_lr_mult}

    def set_wd_mult(self, args_wd_mult: Mapping[Any, float]) -> None:
        """Set the factors of the weight decay, by name or key. The rest come from ``sym``, or depend on the name."""
        with as_mxnet():
            self.before_change()
        plain = {name: 0.0 for name in self.idx2name.values() if not name.endswith(self._decaying)}
        self.wd_mult = {**plain, **self._of_symbol("__wd_mult__"), **args_wd_mult}

    def _of_symbol(self, attribute: str) -> dict[Any, float]:
        return {name: float(attrs[attribute]) for name, attrs in self._attributes.items() if attribute in attrs}

    def _multiplier(self, key: Any, what: str) -> float:
        if key in self.param_dict:
            return float(getattr(self.param_dict[key], what))
        factors: dict[Any, float] = getattr(self, what)
        return factors[key] if key in factors else factors.get(self.idx2name.get(key), 1.0)

    # ---- updates ------------------------------------------------------------------------------------------------

    def at(self, key: Any, count: int) -> KeyUpdate:
        """See `feedline.kvstore.Optimizer`."""
        before, count = self.num_update, self.begin_num_update + count
        self.num_update = max(before, count)
        rate = self.lr
        if self.lr_scheduler is not None:
            rate = float(self.lr_scheduler(self.num_update if self._counts_first else before))
        return KeyUpdate(
            key, count, rate * self._multiplier(key, "lr_mult"), self.wd * self._multiplier(key, "wd_mult")
        )

    def name_of(self, key: Any) -> str:
        """See `feedline.kvstore.Optimizer`."""
        return self.idx2name.get(key, str(key))

    def parameters(self) -> dict[str, Any]:
        """See `feedline.kvstore.Optimizer`."""
        return {**super().parameters(), "learning_rate": self.lr}

    def agreed(self) -> str:
        """See `feedline.kvstore.Optimizer`."""
        factors = {key: (param.lr_mult, param.wd_mult) for key, param in self.param_dict.items()}
        settings = (self._schedule, self.begin_num_update, self.lr_mult, self.wd_mult, self.idx2name, factors)
        return f"{super().agreed()} {settings}"

    def set_states(self, states: Mapping[Any, Any]) -> None:
        """See `feedline.kvstore.Optimizer`."""
        super().set_states(states)
        self.num_update = self.begin_num_update + max(self._counts.values(), default=0)

    def forget(self) -> None:
        """See `feedline.kvstore.Optimizer`."""
        super().forget()
        self.num_update = self.begin_num_update


class SGD(ScriptOptimizer, rules.SGD):
    """SGD, with momentum or without. See `feedline.kvstore.optimizers`."""


class NAG(ScriptOptimizer, rules.NAG):
    """Nesterov's accelerated gradient. See `feedline.kvstore.optimizers`."""


class Adam(ScriptOptimizer, rules.Adam):
    """Adam. See `feedline.kvstore.optimizers`."""


class RMSProp(ScriptOptimizer, rules.RMSProp):
    """RMSProp, centered or not. See `feedline.kvstore.optimizers`."""


class AdaGrad(ScriptOptimizer, rules.AdaGrad):
    """AdaGrad. See `feedline.kvstore.optimizers`."""


class AdaDelta(ScriptOptimizer, _rarer_rules.AdaDeltaOptimizer):
    """AdaDelta. See `feedline.mxnet._rarer_rules`."""


class Adamax(ScriptOptimizer, _rarer_rules.AdamaxOptimizer):
    """Adamax. See `feedline.mxnet._rarer_rules`."""


class Nadam(ScriptOptimizer, _rarer_rules.NadamOptimizer):
    """Nadam. See `feedline.mxnet._rarer_rules`."""


class FTML(ScriptOptimizer, _rarer_rules.FTMLOptimizer):
    """Follow the moving leader. See `feedline.mxnet._rarer_rules`."""


class Ftrl(ScriptOptimizer, _rarer_rules.FtrlOptimizer):
    """Follow the regularized leader. See `feedline.mxnet._rarer_rules`."""


class Signum(ScriptOptimizer, _rarer_rules.SignumOptimizer):
    """Signs of the momentum, or of gradients. See `feedline.mxnet._rarer_rules`."""


class DCASGD(ScriptOptimizer, _rarer_rules.DCASGDOptimizer):
    """SGD that compensates for delay. See `feedline.mxnet._rarer_rules`."""


class SGLD(ScriptOptimizer, _rarer_rules.SGLDOptimizer):
    """Langevin dynamics. See `feedline.mxnet._rarer_rules`."""


class LAMB(ScriptOptimizer, _rarer_rules.LAMBOptimizer):
    """LAMB. See `feedline.mxnet._rarer_rules`."""


class LARS(ScriptOptimizer, _rarer_rules.LARSOptimizer):
    """LARS. See `feedline.mxnet._rarer_rules`. Only names that end with ``_weight`` have weight decay by default."""

    _decaying: ClassVar[tuple[str, ...]] = ("_weight",)


class LBSGD(ScriptOptimizer, _rarer_rules.LBSGDOptimizer):
    """SGD for large batches. See `feedline.mxnet._rarer_rules`."""

    _counts_first: ClassVar[bool] = False


class ccSGD(SGD):  # noqa: N801  # MXNet's name
    """SGD's former name."""


Test = rules.Test
_BY_NAME = {rule.__name__.lower(): rule for rule in ScriptOptimizer.__subclasses__()}
_BY_NAME["ccsgd"] = ccSGD


def create(name: str, **kwargs: Any) -> Optimizer:
    """Return the optimizer of that name, in any case, with these parameters.

    Raises:
        MXNetError: an unknown name or parameter.
    """
    rule = _BY_NAME.get(name.lower())
    if rule is None:
        with as_mxnet():
            return kvstore.optimizer(name.lower(), **kwargs)
    names = {"lr_scheduler", "param_idx2name", "param_dict", "sym", "begin_num_update"}
    accepted = {*names, *_NO_EFFECT, *(field.name for field in fields(rule) if field.init)}
    unknown = sorted(set(kwargs) - accepted)
    if unknown:
        raise MXNetError(f"expected parameters of {', '.join(sorted(accepted))} for {name}, got {', '.join(unknown)}")
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
            self.optimizer.prepare(index, weight.tensor)
            self.optimizer(index, grad.tensor if grad.stype == "default" else grad.coo(), weight.tensor)


def get_updater(optimizer: Optimizer) -> Updater:
    """Return the optimizer as a function."""
    return Updater(optimizer)
