"""Optimizers that run inside a store. Each has a registered name and numbers, so that it can be sent as JSON.

The rules come from MXNet 1.9.1, with its names and defaults. All of them multiply the gradient by ``rescale_grad``,
then clip it to ``clip_gradient`` in absolute value. ``wd`` is the weight decay. Pushed gradients are sums over devices
and workers: for a mean, set ``rescale_grad`` to one over their number.

A rule is one of `feedline.updates.formulas`: native code scales, clips, decays and updates in one pass. Updates
of weights in half precision are computed in single precision, then rounded, like their states. With ``multi_precision``
a copy of such weights, and their states, are kept in single precision. The copy is updated, and then rounded into the
weight.

With ``lazy_update``, row-sparse gradients update only their rows, with the states and weight decay of these rows.
Without it, all other rows count as zeros.
"""

from __future__ import annotations

import importlib
import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from feedline.collective.refusal import RefusedError
from feedline.errors import StateError
from feedline.kvstore.base import Key
from feedline.updates import formulas
from feedline.updates.adjustments import Adjustments
from feedline.updates.formulas import Formula
from feedline.updates.update import update

States = dict[str, Any]

#: Name of the state that is a copy of a weight in single precision.
MASTER = "master"

#: Largest absolute value of a parameter, so that its products with weights fit into single precision.
MAX_NUMBER = 1e30


class KeyUpdate(NamedTuple):
    """One update of a key, with its numbers.

    Attributes:
        key: the key.
        number: number of updates of this key, including this one.
        learning_rate: factor of the step.
        wd: weight decay.
    """

    key: Key
    number: int
    learning_rate: float
    wd: float


@dataclass
class Optimizer(ABC):
    """An update rule with its parameters, and the states and update count of each key.

    Parameters may be changed at any time, with effect from the next push. A store of type ``dist_async`` refuses such a
    change, as its servers have copies of the rule.

    Attributes:
        learning_rate: factor of the step.
        wd: weight decay.
        rescale_grad: factor of gradients, never saved, as it depends on the number of workers.
        clip_gradient: largest absolute value of a gradient's elements. None means no limit.
        multi_precision: whether weights and states of half precision are kept in single precision.
        key: key of the current update, for rules that depend on it.
    """

    #: Name of the rule in `optimizer`.
    name: ClassVar[str]
    #: Names of the rule's states: tensors of the weight's shape, zero at first.
    keeps: ClassVar[tuple[str, ...]] = ()
    #: Whether the rule cannot fail after `prepare`, with gradients of any floating-point dtype. The store then keeps no
    #: copy to undo an update, and converts no gradients for weights that are kept in single precision.
    cannot_fail: ClassVar[bool] = False
    #: Parameters that are decays, from 0 to below 1.
    decays: ClassVar[tuple[str, ...]] = ()
    #: Parameters that depend on the number of workers, devices or samples in a push. They belong to the present run and
    #: are never saved, as another run may differ. A rule with more of them adds their names.
    of_the_run: ClassVar[tuple[str, ...]] = ("rescale_grad",)

    learning_rate: float = 0.01
    wd: float = 0.0
    rescale_grad: float = 1.0
    clip_gradient: float | None = None
    multi_precision: bool = field(default=False, kw_only=True)
    _states: dict[Key, States] = field(default_factory=dict, init=False, repr=False, compare=False)
    _counts: dict[Key, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    #: Weak references to the stores that use this rule.
    _stores: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)
    #: Weak references to weights whose states fit, by key. Emptied when a parameter or state changes.
    _prepared: dict[Key, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    key: Key = field(default="", init=False, repr=False, compare=False)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dataclass_fields__ and self.__dataclass_fields__[name].init:
            value = self.checked(name, value)
            self.before_change()
            self._prepared = {}
        super().__setattr__(name, value)

    def before_change(self) -> None:
        """Notify the stores that use this rule before one of its numbers changes.

        Raises:
            RefusedError: a store has copies of the rule, which the change would not reach.
        """
        for store in _alive(getattr(self, "_stores", ())):
            store._before_numbers_change()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stores": [], "_prepared": {}}

    def checked(self, name: str, value: Any) -> Any:
        """Return a parameter's value, normalized.

        Raises:
            RefusedError: the value is not a number, or out of range.
        """
        if isinstance(value, np.generic):
            value = value.item()
        number = not isinstance(value, bool) and isinstance(value, (int, float)) and abs(value) <= MAX_NUMBER
        default = self.__dataclass_fields__[name].default
        flag = isinstance(default, bool)
        if not (isinstance(value, bool) if flag else number or (default is None and value is None)):
            raise RefusedError(f"expected a number of at most {MAX_NUMBER:g} as {name} of {self.name}, got {value!r}")
        if name in self.decays and not 0 <= value < 1:
            raise RefusedError(f"expected {name} of {self.name} from 0 to below 1, got {value}")
        # torch accepts integer factors of up to 64 bits, and any float.
        return float(value) if number and abs(value) >= 2**63 else value

    def lasting_parameters(self) -> dict[str, Any]:
        """Return all `parameters` except `of_the_run`, which depend on the number of workers."""
        return {name: value for name, value in self.parameters().items() if name not in self.of_the_run}

    def agreed(self) -> str:
        """Return the text on which workers with replicas of a table have to agree."""
        return str(self.parameters())

    def set_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Set parameters without notifying stores. A store calls this itself.

        Raises:
            RefusedError: an unknown name, or a value that is not a number.
        """
        unknown = sorted(set(parameters) - set(self.parameters()))
        if unknown:
            raise RefusedError(f"expected parameters of {self.name}, got {', '.join(unknown)}")
        for name, value in {name: self.checked(name, value) for name, value in parameters.items()}.items():
            super().__setattr__(name, value)
        self._prepared = {}

    # ---- stores ---------------------------------------------------------------------------------------------

    def check_free(self, store: Any) -> None:
        """Raise RefusedError if another store uses this rule, as the states of both would mix."""
        if self.keeps and any(user is not store for user in _alive(self._stores)):
            raise RefusedError(f"expected one optimizer per store, as {self.name} keeps states, got one for two")

    def hold(self, store: Any) -> None:
        """Register a store that uses this rule, to be notified before a parameter changes."""
        self._stores = [*(reference for reference in self._stores if reference() is not None), weakref.ref(store)]

    def release(self, store: Any) -> None:
        """Unregister a store."""
        self._stores = [reference for reference in self._stores if reference() not in (None, store)]
        self._prepared = {}

    @abstractmethod
    def rule(self, weight: Any, gradient: Any, states: States, count: int) -> None:
        """Change weight and states in place.

        Args:
            weight: dense weight.
            gradient: pushed gradient, dense, of the weight's shape, read-only.
            states: states of this weight.
            count: number of updates of this key, including this one.
        """

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that `optimizer` takes: JSON types."""
        return {parameter.name: getattr(self, parameter.name) for parameter in fields(self) if parameter.init}

    def prepare(self, key: Key, weight: Any) -> None:
        """Create the states that a key lacks.

        Raises:
            RefusedError: the weight is not floating point.
            StateError: loaded states have another shape.
        """
        fitting = self._prepared.get(key)
        if fitting is not None and fitting() is weight:
            return
        if not weight.dtype.is_floating_point:
            raise RefusedError(f"expected floating point for key {key!r} under {self.name}, got {weight.dtype}")
        # The states that a rule keeps depend on its parameters, which may have changed.
        old = self._states.get(key, {})
        wide = self.multi_precision and weight.dtype in (torch.float16, torch.bfloat16)
        dtype = torch.float32 if wide else weight.dtype
        names = (*self.keeps, MASTER) if wide else self.keeps
        states = {name: old[name] if name in old else self.initial(name, weight.to(dtype, copy=wide)) for name in names}
        for name, state in states.items():
            if state.shape != weight.shape:
                saved, current = {"shape": tuple(state.shape)}, {"shape": tuple(weight.shape)}
                raise StateError(f"expected {name} of key {key!r} in its weight's shape", saved=saved, current=current)
            states[name] = state.to(weight.device, dtype)  # loaded states are on the CPU
        self._states[key], self._prepared[key] = states, weakref.ref(weight)

    def initial(self, name: str, weight: Any) -> Any:
        """Return the state of that name before the first update: zeros in the shape of the weight."""
        return weight if name == MASTER else torch.zeros_like(weight)

    def at(self, key: Key, count: int) -> KeyUpdate:
        """Return the numbers for an update of a key. They are the parameters, unless they depend on key or count."""
        return KeyUpdate(key, count, self.learning_rate, self.wd)

    def _begin(self, weight: Any, gradient: Any, states: States, now: KeyUpdate, rounded: Any) -> list[_PlannedUpdate]:
        """Apply the rule, or return the update that remains to be made, which then writes ``rounded``, a copy of the
        weight."""
        self.key = now.key
        self.rule(weight, gradient, states, now.number)
        return []

    def name_of(self, key: Key) -> str:
        """Return the name of the parameter of a key, by default the key."""
        return str(key)

    def __call__(self, key: Key, gradient: Any, weight: Any) -> None:
        """Update a weight in place by a dense gradient, or a coalesced ``torch.sparse_coo`` one."""
        self._run(self._update(key, gradient, weight))

    def update_all(self, updates: Iterable[tuple[Key, Any, Any]]) -> None:
        """Update many weights, as calls with (key, gradient, weight) would. Keys differ.

        One native call makes all updates of a `FormulaOptimizer` with the same numbers.
        """
        planned: list[_PlannedUpdate] = []
        plain = type(self).__call__ is Optimizer.__call__  # a subclass may do more than the update
        try:
            for key, gradient, weight in updates:
                if plain:
                    planned += self._update(key, gradient, weight)
                else:
                    self(key, gradient, weight)
        finally:
            # After a failure, the updates before it are made, as they have been counted.
            self._run(planned)

    def _update(self, key: Key, gradient: Any, weight: Any) -> list[_PlannedUpdate]:
        """Update a weight. Return the updates that remain to be made."""
        if key not in self._states:
            self.prepare(key, weight)
        count, states = self._counts.get(key, 0) + 1, self._states[key]
        target, planned = weight, []
        if MASTER in states:
            states = dict(states)
            target = states.pop(MASTER)
            if not self.cannot_fail or gradient.layout is not torch.strided:
                gradient = gradient.to(target.dtype)
        now = self.at(key, count)
        if gradient.layout is torch.strided:
            planned = self._begin(target, gradient, states, now, None if target is weight else weight)
        elif not getattr(self, "lazy_update", False):
            self._run(self._begin(target, gradient.to_dense(), states, now, None))
        else:
            rows = gradient.indices()[0]
            parts = {name: state.index_select(0, rows) for name, state in states.items()}
            part = target.index_select(0, rows)
            self._run(self._begin(part, gradient.values(), parts, now, None))
            target.index_copy_(0, rows, part)
            for name, changed in parts.items():
                states[name].index_copy_(0, rows, changed)
        if target is not weight and not planned:
            weight.copy_(target)
        self._counts[key] = count
        return planned

    def _run(self, planned: list[_PlannedUpdate]) -> None:
        """Make updates, with one native call for all that have the same formula and numbers."""
        groups: dict[Any, list[_PlannedUpdate]] = {}
        limit = math.inf if self.clip_gradient is None else self.clip_gradient
        for plan in planned:
            step, weight, _, rounded = plan
            numbers = step.formula.numbers(), step.early_decay, step.late_decay, step.bound, step.noise_factor
            kind = type(step.formula), numbers, weight.dtype, weight.device, rounded is None, step.noise is None
            groups.setdefault(kind, []).append(plan)
        for group in groups.values():
            step, _, _, rounded = group[0]
            update(
                step.formula,
                [plan.weight for plan in group],
                [plan.gradient for plan in group],
                [list(states) for states in zip(*[plan.step.states for plan in group], strict=True)],
                Adjustments(step.early_decay, limit, step.late_decay, step.noise_factor, bound=step.bound),
                factors=[self.rescale_grad] * len(group),
                noise=None if step.noise is None else [plan.step.noise for plan in group],
                copies=None if rounded is None else [plan.rounded for plan in group],
            )

    # ---- states ---------------------------------------------------------------------------------------------

    def states(self, keys: Iterable[Key] | None = None) -> dict[Key, tuple[States, int]]:
        """Return states and counts of the keys (default: all) that have any, without copying."""
        selected = self._states if keys is None else keys
        return {key: (self._states[key], self._counts.get(key, 0)) for key in selected if key in self._states}

    def set_states(self, states_by_key: Mapping[Key, tuple[States, int]]) -> None:
        """Replace the states of these keys.

        Raises:
            StateError: the names of the states do not fit this rule.
        """
        for key, (states, _) in states_by_key.items():
            if not self.fits(states):
                saved, current = {"states": sorted(states)}, {"states": sorted(self.keeps)}
                raise StateError(f"expected the states of {self.name} for key {key!r}", saved=saved, current=current)
        self._prepared = {}
        for key, (states, count) in states_by_key.items():
            self._states[key], self._counts[key] = dict(states), count

    def fits(self, states: States) -> bool:
        """Return whether a weight's states have the names of those that this rule keeps."""
        return {*states} - {MASTER} == {*self.keeps}

    def forget(self) -> None:
        """Drop all states and counts."""
        self._states, self._counts, self._prepared = {}, {}, {}


class FormulaStep(NamedTuple):
    """Update of a weight by a rule, after ``rescale_grad`` and ``clip_gradient``.

    Attributes:
        formula: formula.
        states: states in the formula's order.
        early_decay: weight decay that is added to the gradient before it is clipped.
        late_decay: weight decay that is added afterwards.
        bound: largest absolute value of the weight's elements.
        gradient: gradient that replaces the pushed one. None means the pushed one.
        noise: noise added to the weight, times ``noise_factor``. None means no noise.
        noise_factor: factor of the noise.
    """

    formula: Formula
    states: Sequence[Any] = ()
    early_decay: float = 0.0
    late_decay: float = 0.0
    bound: float = math.inf
    gradient: Any = None
    noise: Any = None
    noise_factor: float = 1.0


class FormulaOptimizer(Optimizer):
    """A rule that is a formula, with numbers for each weight and update. One call can then update many weights."""

    cannot_fail: ClassVar[bool] = True

    @abstractmethod
    def step(self, weight: Any, gradient: Any, states: States, now: KeyUpdate) -> FormulaStep | None:
        """Return the step of a weight, or None to make no step in this update.

        Args:
            weight: see `Optimizer.rule`.
            gradient: see `Optimizer.rule`.
            states: see `Optimizer.rule`.
            now: numbers of the update.
        """

    def rule(self, weight: Any, gradient: Any, states: States, count: int) -> None:
        """See `Optimizer`."""
        self._run(self._plan(weight, gradient, states, KeyUpdate(self.key, count, self.learning_rate, self.wd), None))

    def _begin(self, weight: Any, gradient: Any, states: States, now: KeyUpdate, rounded: Any) -> list[_PlannedUpdate]:
        if type(self).rule is not FormulaOptimizer.rule:  # it may do more than the formula
            return super()._begin(weight, gradient, states, now, rounded)
        return self._plan(weight, gradient, states, now, rounded)

    def _plan(self, weight: Any, gradient: Any, states: States, now: KeyUpdate, rounded: Any) -> list[_PlannedUpdate]:
        step = self.step(weight, gradient, states, now)
        if step is None:
            return []
        planned = [_PlannedUpdate(step, weight, gradient if step.gradient is None else step.gradient, rounded)]
        if step.noise is None:
            return planned
        self._run(planned)  # at once, so that memory holds the noise of only one weight
        return []


class _PlannedUpdate(NamedTuple):
    """An update of a weight. ``rounded`` is its copy in another precision, if it has one."""

    step: FormulaStep
    weight: Any
    gradient: Any
    rounded: Any


@dataclass
class SGD(FormulaOptimizer):
    """SGD: ``v = momentum v - lr (g + wd w)``, ``w += v``. Stateless without momentum.

    Attributes:
        momentum: 0 to 1.
        lazy_update: whether row-sparse gradients update only their rows.
    """

    name: ClassVar[str] = "sgd"
    momentum: float = 0.0
    lazy_update: bool = True

    @property
    def keeps(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `Optimizer`."""
        return ("momentum",) if self.momentum else ()

    def step(self, weight: Any, gradient: Any, states: States, now: KeyUpdate) -> FormulaStep | None:
        """See `FormulaOptimizer`."""
        if "momentum" not in states:
            return FormulaStep(formulas.StepFormula(-now.learning_rate), late_decay=now.wd)
        formula = formulas.MomentumFormula(self.momentum, -now.learning_rate, 1.0)
        return FormulaStep(formula, [states["momentum"]], late_decay=now.wd)


@dataclass
class Momentum(SGD):
    """`SGD` with a default momentum of 0.9."""

    name: ClassVar[str] = "momentum"
    momentum: float = 0.9


@dataclass
class NAG(SGD):
    """Nesterov's momentum: ``v = momentum v - lr (g + wd w)``, ``w += momentum v - lr (g + wd w)``.

    Without momentum it is SGD.
    """

    name: ClassVar[str] = "nag"
    lazy_update: bool = False

    def step(self, weight: Any, gradient: Any, states: States, now: KeyUpdate) -> FormulaStep | None:
        """See `FormulaOptimizer`."""
        if "momentum" not in states:
            return super().step(weight, gradient, states, now)
        formula = formulas.MomentumFormula(self.momentum, -now.learning_rate, self.momentum, -now.learning_rate)
        return FormulaStep(formula, [states["momentum"]], late_decay=now.wd)


@dataclass
class Adam(FormulaOptimizer):
    """Adam with bias correction in the learning rate. Weight decay is added to the gradient before clipping.

    Attributes:
        beta1: decay of the mean.
        beta2: decay of the mean square.
        epsilon: added to the root of the mean square.
        lazy_update: whether row-sparse gradients update only their rows.
    """

    name: ClassVar[str] = "adam"
    keeps: ClassVar[tuple[str, ...]] = ("mean", "variance")
    decays: ClassVar[tuple[str, ...]] = ("beta1", "beta2")
    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    lazy_update: bool = True

    def step(self, weight: Any, gradient: Any, states: States, now: KeyUpdate) -> FormulaStep | None:
        """See `FormulaOptimizer`."""
        beta1, beta2 = self.beta1, self.beta2
        rate = now.learning_rate * math.sqrt(1 - beta2**now.number) / (1 - beta1**now.number)
        formula = formulas.AdamFormula(beta1, _complement(beta1), beta2, _complement(beta2), 1.0, self.epsilon, -rate)
        return FormulaStep(formula, [states["mean"], states["variance"]], early_decay=now.wd)


@dataclass
class RMSProp(FormulaOptimizer):
    """RMSProp: ``n = gamma1 n + (1 - gamma1) g^2``, ``w -= lr g / sqrt(n + epsilon)``. ``g`` includes weight decay.

    Centered (Graves, 2013), with the mean ``m = gamma1 m + (1 - gamma1) g``, it is
    ``d = gamma2 d - lr g / sqrt(n - m^2 + epsilon)``, ``w += d``.

    Attributes:
        gamma1: decay of the mean square, and of the mean.
        gamma2: momentum of the centered rule.
        epsilon: added to the mean square.
        centered: whether the square of the mean is subtracted from the mean square.
        clip_weights: largest absolute value of a weight's elements after an update. None, or a number not above 0,
            means no limit.
    """

    name: ClassVar[str] = "rmsprop"
    learning_rate: float = 0.001
    gamma1: float = 0.9
    gamma2: float = 0.9
    epsilon: float = 1e-8
    centered: bool = False
    clip_weights: float | None = None

    @property
    def keeps(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `Optimizer`."""
        return ("square", "mean", "step") if self.centered else ("square",)

    def step(self, weight: Any, gradient: Any, states: States, now: KeyUpdate) -> FormulaStep | None:
        """See `FormulaOptimizer`."""
        keep, fresh, along = self.gamma1, 1 - self.gamma1, -now.learning_rate
        bound = self.clip_weights if self.clip_weights is not None and self.clip_weights > 0 else math.inf
        formula: Formula
        if "mean" in states:
            formula = formulas.CenteredRMSPropFormula(keep, fresh, self.epsilon, self.gamma2, along)
            state_list = [states["square"], states["mean"], states["step"]]
        else:
            formula, state_list = formulas.AdaGradFormula(keep, fresh, self.epsilon, 1.0, along), [states["square"]]
        return FormulaStep(formula, state_list, early_decay=now.wd, bound=bound)


@dataclass
class AdaGrad(FormulaOptimizer):
    """AdaGrad: ``h += g^2``, ``w -= lr (g / sqrt(h + eps) + wd w)``.

    Attributes:
        eps: added to the sum of squares.
        lazy_update: whether row-sparse gradients update only their rows.
    """

    name: ClassVar[str] = "adagrad"
    keeps: ClassVar[tuple[str, ...]] = ("history",)
    eps: float = 1e-7
    lazy_update: bool = True

    def step(self, weight: Any, gradient: Any, states: States, now: KeyUpdate) -> FormulaStep | None:
        """See `FormulaOptimizer`."""
        formula = formulas.AdaGradFormula(1.0, 1.0, self.eps, 1 - now.learning_rate * now.wd, -now.learning_rate)
        return FormulaStep(formula, [states["history"]])


@dataclass
class Test(Optimizer):
    """Exact sums for tests of stores: ``w += rescale_grad g``. Other parameters are ignored."""

    name: ClassVar[str] = "test"
    cannot_fail: ClassVar[bool] = True

    def rule(self, weight: Any, gradient: Any, states: States, count: int) -> None:
        """See `Optimizer`."""
        update(formulas.StepFormula(self.rescale_grad), [weight], [gradient], [])


@cache
def _complement(beta: float) -> float:
    """Return one minus beta in single precision, as MXNet's Adam does. In double precision steps would differ by
    1e-5."""
    return float(np.float32(1) - np.float32(beta))


def _alive(stores: Iterable[Any]) -> list[Any]:
    return [store for store in (reference() for reference in stores) if store is not None]


#: MXNet's rarer rules, and the module that registers them.
_RARER = ("adadelta", "adamax", "dcasgd", "ftml", "ftrl", "lamb", "lars", "lbsgd", "nadam", "sgld", "signum")
_RARER_RULES = "feedline.mxnet._rarer_rules"
#: Rules by name, or the name of the module that defines the rule and is not imported yet.
_RULES: dict[str, type[Optimizer] | str] = {
    **{rule.name: rule for rule in (SGD, Momentum, NAG, Adam, RMSProp, AdaGrad, Test)},
    **dict.fromkeys(_RARER, _RARER_RULES),
}


def register_optimizer(rule: type[Optimizer]) -> type[Optimizer]:
    """Register a rule for `optimizer` under its ``name``. Usable as a class decorator.

    Raises:
        ValueError: the name is taken, or not in lower case.
    """
    if _RULES.get(rule.name, rule.__module__) != rule.__module__ or rule.name != rule.name.lower():
        raise ValueError(f"expected a new name in lower case, got {rule.name!r}")
    _RULES[rule.name] = rule
    return rule


def in_every_process(rule: Optimizer) -> bool:
    """Return whether feedline registers the rule, so that any process can create it from name and parameters."""
    return _RULES.get(rule.name) is type(rule) and type(rule).__module__.startswith("feedline.")


def optimizer(name: str, **parameters: Any) -> Optimizer:
    """Return the rule of that name with these parameters.

    Raises:
        RefusedError: an unknown name or parameter, or a value that is not a number.
    """
    if name not in _RULES:
        raise RefusedError(f"expected an optimizer of {', '.join(map(repr, sorted(_RULES)))}, got {name!r}")
    rule = _RULES[name]
    if isinstance(rule, str):
        importlib.import_module(rule)
        rule = _RULES[name]
    assert not isinstance(rule, str), "expected the module to register the rule"
    expected = [parameter.name for parameter in fields(rule) if parameter.init]
    unknown = sorted(set(parameters) - set(expected))
    if unknown:
        raise RefusedError(f"expected parameters of {', '.join(expected)} for {name}, got {', '.join(unknown)}")
    return rule(**parameters)


def optimizer_for(rule: str | Optimizer, parameters: Mapping[str, Any], owner: Any) -> Optimizer:
    """Return an optimizer without states, for the store or table ``owner``."""
    if isinstance(rule, str):
        return optimizer(rule, **parameters)
    if not isinstance(rule, Optimizer):
        raise TypeError(f"expected the name of an optimizer, or a feedline.kvstore.Optimizer, got {rule!r}")
    if parameters:
        got = ", ".join(parameters)
        raise RefusedError(f"expected parameters only with the name of an optimizer, got {got} with an object")
    rule.check_free(owner)
    rule.forget()
    return rule
