"""`mxnet.optimizer`: optimizers that users write, and MXNet's rules, which are optimizers of stores.

A user writes an optimizer as a subclass of `Optimizer` with `Optimizer.update`, and `Optimizer.create_state` if it
keeps states. `feedline.mxnet._user_rules` passes it to stores. MXNet's rules are those of
`feedline.kvstore.optimizers`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from feedline import kvstore
from feedline.kvstore import optimizers as rules
from feedline.kvstore.optimizers import KeyUpdate
from feedline.mxnet import _rarer_rules
from feedline.mxnet._names import absent_members, names_of
from feedline.mxnet.base import MXNetError, as_mxnet
from feedline.mxnet.ndarray import NDArray

__all__, __getattr__ = names_of(__name__)

_Class = TypeVar("_Class", bound="type[Optimizer]")

# Parameters that MXNet's optimizers take and that have no effect here, as there is one implementation of each rule.
_NO_EFFECT = {"aggregate_num", "use_fused_step"}

# Rules with a default learning rate of their own. The others take a scheduler's, if there is one.
_RATED = {"adam", "adamax", "ftrl", "lamb", "nadam", "rmsprop", "signum"}

_HALF = (torch.float16, torch.bfloat16)


class Optimizer:
    """Base class of optimizers. A subclass defines `update`, and `create_state` if it keeps states.

    The number of a key's update counts ``begin_num_update`` and all updates of the key up to it. The scheduler gets
    ``num_update``, the largest of these numbers of all keys. A key's learning rate and weight decay are multiplied by
    ``lr_mult`` and ``wd_mult`` of its object in ``param_dict``, or of its key, or of its name.

    Args:
        rescale_grad: factor of gradients.
        param_idx2name: names of parameters by key. Names that do not end with ``_weight`` or ``_gamma`` have a
            ``wd_mult`` of 0 by default.
        wd: weight decay.
        clip_gradient: largest absolute value of a gradient's elements. None means no limit.
        learning_rate: learning rate, which is set as ``base_lr`` of the scheduler. None means the scheduler's, or 0.01.
        lr_scheduler: function of ``num_update`` that returns the learning rate.
        sym: symbol whose variables have ``lr_mult`` and ``wd_mult`` as attributes.
        begin_num_update: number of updates before the first one.
        multi_precision: whether weights of half precision, and their states, are kept in single precision.
        param_dict: objects with ``lr_mult`` and ``wd_mult``, by key.

    Attributes:
        lr: learning rate that was set. A scheduler, if there is one, determines another.
        lr_scheduler: see Args.
        lr_mult: factors of the learning rate by name or key.
        wd_mult: factors of the weight decay by name or key.
        idx2name: see ``param_idx2name``.
        begin_num_update: see Args.
        num_update: largest number of updates of a key so far.
    """

    #: Classes by the lower-case name under which `register` has put them.
    opt_registry: ClassVar[dict[str, type[Optimizer]]] = {}
    #: Endings of names with a weight decay by default.
    _decaying: ClassVar[tuple[str, ...]] = ("_weight", "_gamma")
    #: Whether a state of a weight in half precision is ``(weight in single precision, state)``, or the reverse.
    _master_first: ClassVar[bool] = True
    lr_scheduler: Any = None
    _schedule = ""

    def __init__(
        self,
        rescale_grad: float = 1.0,
        param_idx2name: Mapping[Any, str] | None = None,
        wd: float = 0.0,
        clip_gradient: float | None = None,
        learning_rate: float | None = None,
        lr_scheduler: Any = None,
        sym: Any = None,
        begin_num_update: int = 0,
        multi_precision: bool = False,
        param_dict: Mapping[Any, Any] | None = None,
    ) -> None:
        self.rescale_grad, self.wd, self.clip_gradient = rescale_grad, wd, clip_gradient
        self.multi_precision = multi_precision
        self.lr: Any = 0.01 if learning_rate is None else learning_rate
        self._index_update_count: dict[Any, int] = {}
        self._set_up(param_idx2name, param_dict, sym, begin_num_update)
        self._set_scheduler(lr_scheduler, learning_rate is not None)

    def _set_up(self, param_idx2name: Any, param_dict: Any, sym: Any, begin_num_update: int) -> None:
        assert param_idx2name is None or isinstance(param_idx2name, Mapping), "expected param_idx2name as a dict"
        self.idx2name, self.param_dict = dict(param_idx2name or {}), dict(param_dict or {})
        self.begin_num_update = self.num_update = begin_num_update
        self._attributes = {} if sym is None else {name: sym.attr_dict().get(name, {}) for name in sym.list_arguments()}
        self.set_lr_mult({})
        self.set_wd_mult({})

    def _set_scheduler(self, lr_scheduler: Any, overrides: bool) -> None:
        if lr_scheduler is None:
            return
        if overrides or not hasattr(lr_scheduler, "base_lr"):
            lr_scheduler.base_lr = self.lr
        else:
            self.lr = lr_scheduler.base_lr
        self.lr_scheduler = lr_scheduler

    def __setattr__(self, name: str, value: Any) -> None:
        with as_mxnet():
            self._before_setting(name)
        if name == "lr_scheduler":
            # Workers agree on its present state, as it may change itself when it is called.
            self._schedule = "" if value is None else f"{type(value).__name__} {getattr(value, '__dict__', value)}"
        super().__setattr__(name, value)

    def _before_setting(self, name: str) -> None:
        """Notify the stores that use this optimizer before an attribute changes.

        Raises:
            RefusedError: a store has copies of the optimizer, which the change would not reach.
        """
        if not name.startswith("_"):
            for reference in self.__dict__.get("_rules", ()):
                rule = reference()
                if rule is not None:
                    rule.before_change()

    def __getstate__(self) -> dict[str, Any]:
        state: Any = super().__getstate__()
        return {name: value for name, value in (state or {}).items() if name != "_rules"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    # ---- registry -----------------------------------------------------------------------------------------------

    @staticmethod
    def register(klass: _Class) -> _Class:
        """Register a class for `create`, under its name in lower case. Usable as a class decorator.

        Warns:
            UserWarning: the name is taken. The new class replaces the other.
        """
        assert isinstance(klass, type), f"expected a class, got {klass!r}"
        name = klass.__name__.lower()
        old = Optimizer.opt_registry.get(name)
        if old is not None and old is not klass:
            warnings.warn(
                f"optimizer {klass.__module__}.{klass.__name__} replaces {old.__module__}.{old.__name__} as {name!r}",
                stacklevel=2,
            )
        Optimizer.opt_registry[name] = klass
        return klass

    @staticmethod
    def create_optimizer(name: str, **kwargs: Any) -> Any:
        """See `create`."""
        return create(name, **kwargs)

    # ---- rates --------------------------------------------------------------------------------------------------

    @property
    def learning_rate(self) -> float:
        """Learning rate of the last update, or of the next one if there is no scheduler, without multipliers."""
        return self.lr if self.lr_scheduler is None else float(self.lr_scheduler(self.num_update))

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self.lr = rate

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
        self.lr_mult = {**self._of_symbol("__lr_mult__"), **args_lr_mult}

    def set_wd_mult(self, args_wd_mult: Mapping[Any, float]) -> None:
        """Set the factors of the weight decay, by name or key. The rest come from ``sym``, or depend on the name."""
        plain = {name: 0.0 for name in self.idx2name.values() if not name.endswith(self._decaying)}
        self.wd_mult = {**plain, **self._of_symbol("__wd_mult__"), **args_wd_mult}

    def _of_symbol(self, attribute: str) -> dict[Any, float]:
        return {name: float(attrs[attribute]) for name, attrs in self._attributes.items() if attribute in attrs}

    def _multiplier(self, key: Any, what: str) -> float:
        if key in self.param_dict:
            return float(getattr(self.param_dict[key], what))
        factors: dict[Any, float] = getattr(self, what)
        return factors[key] if key in factors else factors.get(self.idx2name.get(key), 1.0)

    def _get_lrs(self, indices: Sequence[Any]) -> list[float]:
        rate = self.lr if self.lr_scheduler is None else float(self.lr_scheduler(self.num_update))
        return [rate * self._multiplier(index, "lr_mult") for index in indices]

    def _get_lr(self, index: Any) -> float:
        return self._get_lrs([index])[0]

    def _get_wds(self, indices: Sequence[Any]) -> list[float]:
        return [self.wd * self._multiplier(index, "wd_mult") for index in indices]

    def _get_wd(self, index: Any) -> float:
        return self._get_wds([index])[0]

    def _update_count(self, index: Any) -> None:
        for key in index if isinstance(index, (list, tuple)) else [index]:
            count = self._index_update_count.get(key, self.begin_num_update) + 1
            self._index_update_count[key] = count
            self.num_update = max(self.num_update, count)

    def _set_count(self, key: Any, count: int) -> None:
        """Set the number of a key's updates, without ``begin_num_update``."""
        self._index_update_count[key] = self.begin_num_update + count

    def _settings(self) -> tuple[Any, ...]:
        """Return the settings in which workers with replicas have to agree."""
        factors = {key: (param.lr_mult, param.wd_mult) for key, param in self.param_dict.items()}
        return self._schedule, self.begin_num_update, self.lr_mult, self.wd_mult, self.idx2name, factors

    # ---- updates ------------------------------------------------------------------------------------------------

    def create_state(self, index: Any, weight: Any) -> Any:
        """Return the state of a weight before its first update: an NDArray, tuples of them, or None.

        Args:
            index: key of the weight.
            weight: the weight, an NDArray.
        """
        return None

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Change a weight and its state in place.

        Args:
            index: key of the weight.
            weight: the weight, an NDArray.
            grad: gradient in the shape of the weight, an NDArray or RowSparseNDArray.
            state: result of `create_state`.

        Raises:
            NotImplementedError: the subclass does not define it.
        """
        raise NotImplementedError(f"expected {type(self).__name__} to define update(index, weight, grad, state)")

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """Return the state of a weight as `create_state`, with a copy in single precision if the weight has one.

        Warns:
            UserWarning: a weight in half precision without ``multi_precision``.
        """
        if not _is_half(weight):
            return self.create_state(index, weight)
        if not self.multi_precision:
            warnings.warn(
                "updates in half precision lose small steps; pass multi_precision=True to the optimizer", stacklevel=2
            )
            return self.create_state(index, weight)
        master = weight.astype(np.float32)
        state = self.create_state(index, master)
        return (master, state) if self._master_first else (state, master)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Change a weight and its state in place, by `update` of the copy in single precision if the weight has one."""
        if not (self.multi_precision and _is_half(weight)):
            self.update(index, weight, grad, state)
            return
        master, inner = state if self._master_first else reversed(state)
        self.update(index, master, grad.astype(np.float32), inner)
        weight[:] = master


def _is_half(weight: Any) -> bool:
    return weight.data.tensor.dtype in _HALF if weight.stype == "row_sparse" else weight.tensor.dtype in _HALF


class ScriptOptimizer(Optimizer, rules.Optimizer):
    """One of MXNet's rules: a rule of stores, with the settings of `Optimizer`.

    Args:
        args: parameters of the rule.
        kwargs: parameters of the rule and of `Optimizer`. A ``clip_gradient`` that is not above 0 means no limit.
    """

    #: Whether the scheduler gets the number of an update, or, as for LBSGD, the number of updates before it.
    _counts_first: ClassVar[bool] = True
    #: Whether a single state is a tuple of one array.
    _in_tuple: ClassVar[bool] = False

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
        with as_mxnet():
            super(Optimizer, self).__init__(
                *args, **{name: value for name, value in kwargs.items() if name not in _NO_EFFECT}
            )
        self._set_up(param_idx2name, param_dict, sym, begin_num_update)
        self._set_scheduler(lr_scheduler, bool(args) or "learning_rate" in kwargs or self.name in _RATED)

    def _before_setting(self, name: str) -> None:
        if name in ("lr_scheduler", "lr_mult", "wd_mult"):
            self.before_change()
        super()._before_setting(name)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "learning_rate": self.lr}

    def checked(self, name: str, value: Any) -> Any:
        """See `feedline.kvstore.Optimizer`."""
        value = super().checked(name, value)
        return None if name == "clip_gradient" and value is not None and value <= 0 else value

    # ---- rates --------------------------------------------------------------------------------------------------

    @property
    def learning_rate(self) -> float:
        """See `Optimizer`."""
        return self.lr if self.lr_scheduler is None else float(self.lr_scheduler(self.num_update))

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._lr = rate

    @property
    def lr(self) -> float:
        """See `Optimizer`."""
        return self._lr

    @lr.setter
    def lr(self, rate: float) -> None:
        self.learning_rate = rate

    @property
    def _index_update_count(self) -> dict[Any, int]:  # type: ignore[override]
        return {key: self.begin_num_update + count for key, count in self._counts.items()}

    def _update_count(self, index: Any) -> None:
        for key in index if isinstance(index, (list, tuple)) else [index]:
            self._counts[key] = self._counts.get(key, 0) + 1
            self.num_update = max(self.num_update, self.begin_num_update + self._counts[key])

    def _set_count(self, key: Any, count: int) -> None:
        self._counts[key] = count

    # ---- updates ------------------------------------------------------------------------------------------------

    def at(self, key: Any, count: int) -> KeyUpdate:
        """See `feedline.kvstore.Optimizer`."""
        count += self.begin_num_update
        counted = max(self.num_update, count)
        if self._counts_first:
            self.num_update = counted
        rate = self._get_lr(key)
        self.num_update = counted
        return KeyUpdate(key, count, rate, self._get_wd(key))

    def create_state(self, index: Any, weight: Any) -> Any:
        """See `Optimizer`."""
        tensor = _whole(weight)
        states = tuple([NDArray(self.initial(name, tensor), weight.context) for name in self.keeps])
        return states if len(states) > 1 or (states and self._in_tuple) else next(iter(states), None)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """See `Optimizer`. Lists of keys, weights, gradients and states are updated one after another."""
        if isinstance(index, (list, tuple)):
            for item in zip(index, weight, grad, state, strict=True):
                self.update(*item)
            return
        states = () if state is None else state if isinstance(state, (list, tuple)) else (state,)
        with as_mxnet(), torch.no_grad():
            self._states[index] = {name: _whole(array) for name, array in zip(self.keeps, states, strict=True)}
            self(index, grad.tensor if grad.stype == "default" else grad.coo(), _whole(weight))

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """See `Optimizer`. Lists are updated as by `update`."""
        several = isinstance(index, (list, tuple))
        for item in zip(index, weight, grad, state, strict=True) if several else [(index, weight, grad, state)]:
            super().update_multi_precision(*item)

    def name_of(self, key: Any) -> str:
        """See `feedline.kvstore.Optimizer`."""
        return str(self.idx2name.get(key, key))

    def parameters(self) -> dict[str, Any]:
        """See `feedline.kvstore.Optimizer`."""
        return {**super().parameters(), "learning_rate": self.lr}

    def agreed(self) -> str:
        """See `feedline.kvstore.Optimizer`."""
        return f"{super().agreed()} {self._settings()}"

    def set_states(self, states: Mapping[Any, Any]) -> None:
        """See `feedline.kvstore.Optimizer`."""
        super().set_states(states)
        self.num_update = self.begin_num_update + max(self._counts.values(), default=0)

    def forget(self) -> None:
        """See `feedline.kvstore.Optimizer`."""
        super().forget()
        self.num_update = self.begin_num_update


def _whole(array: Any) -> Any:
    """Return the tensor of a weight or state, of all rows.

    Raises:
        MXNetError: a row-sparse array that lacks rows.
    """
    tensor = array.tensor if array.stype == "default" else array.data.tensor
    if tuple(tensor.shape) != tuple(array.shape):
        raise MXNetError(f"expected all {array.shape[0]} rows of a row_sparse weight, got {tensor.shape[0]}")
    return tensor


class SGD(ScriptOptimizer, rules.SGD):
    """SGD, with momentum or without. See `feedline.kvstore.optimizers`."""

    _master_first: ClassVar[bool] = False


class NAG(ScriptOptimizer, rules.NAG):
    """Nesterov's accelerated gradient. See `feedline.kvstore.optimizers`."""

    _master_first: ClassVar[bool] = False


class Adam(ScriptOptimizer, rules.Adam):
    """Adam. See `feedline.kvstore.optimizers`."""


class RMSProp(ScriptOptimizer, rules.RMSProp):
    """RMSProp, centered or not. See `feedline.kvstore.optimizers`."""

    _in_tuple: ClassVar[bool] = True


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
    _master_first: ClassVar[bool] = False


class LBSGD(ScriptOptimizer, _rarer_rules.LBSGDOptimizer):
    """SGD for large batches. See `feedline.mxnet._rarer_rules`."""

    _counts_first: ClassVar[bool] = False
    _master_first: ClassVar[bool] = False


class ccSGD(SGD):  # noqa: N801  # MXNet's name
    """SGD's former name."""


class Test(ScriptOptimizer, rules.Test):
    """Exact sums for tests of stores. See `feedline.kvstore.optimizers`."""


_BUILT_IN: tuple[type[ScriptOptimizer], ...] = (*ScriptOptimizer.__subclasses__(), ccSGD)
Optimizer.opt_registry.update({rule.__name__.lower(): rule for rule in _BUILT_IN})
register = Optimizer.register


def create(name: str, **kwargs: Any) -> Any:
    """Return the optimizer of that name, in any case, with these parameters: MXNet's, or one that was registered.

    Raises:
        MXNetError: an unknown name, or an unknown parameter of one of MXNet's.
    """
    rule = Optimizer.opt_registry.get(name.lower())
    if rule is None:
        with as_mxnet():
            return kvstore.optimizer(name.lower(), **kwargs)
    if rule in _BUILT_IN:
        names = {"lr_scheduler", "param_idx2name", "param_dict", "sym", "begin_num_update"}
        accepted = {*names, *_NO_EFFECT, *(field.name for field in fields(rule) if field.init)}
        unknown = sorted(set(kwargs) - accepted)
        if unknown:
            raise MXNetError(
                f"expected parameters of {', '.join(sorted(accepted))} for {name}, got {', '.join(unknown)}"
            )
    return rule(**kwargs)


@absent_members("mxnet.optimizer")
class Updater:
    """An optimizer as a function ``(index, gradient, weight)``, which changes a weight in place.

    Attributes:
        optimizer: optimizer.
        states: state of each key, as `Optimizer.create_state_multi_precision` returned it.
    """

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.states: dict[Any, Any] = {}

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        """Update a weight in place, or each weight of a list."""
        several = isinstance(index, (list, tuple))
        for key, gradient, array in zip(index, grad, weight, strict=True) if several else [(index, grad, weight)]:
            if not isinstance(self.optimizer, Optimizer):  # a rule of feedline's, by its name
                with as_mxnet(), torch.no_grad():
                    self.optimizer.prepare(key, array.tensor)
                    self.optimizer(
                        key, gradient.tensor if gradient.stype == "default" else gradient.coo(), array.tensor
                    )
                continue
            if key not in self.states:
                self.states[key] = self.optimizer.create_state_multi_precision(key, array)
            self.optimizer.update_multi_precision(key, array, gradient, self.states[key])


def get_updater(optimizer: Any) -> Updater:
    """Return the optimizer as a function."""
    return Updater(optimizer)
