"""Optimizers whose step depends on the norms of a whole array, for large batches: LAMB, LARS, LBSGD.

The formulas are MXNet 1.9.1's, with its names and defaults. A server of ``dist_async`` computes the norms of the part
of an array that it holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from feedline.collective.refusal import RefusedError
from feedline.kvstore.optimizers import SGD, FormulaOptimizer, FormulaStep, KeyUpdate, States, register_optimizer
from feedline.updates import formulas
from feedline.updates.formulas import norm


@register_optimizer
@dataclass
class LAMBOptimizer(FormulaOptimizer):
    """LAMB (You et al., 2020): Adam's step, as long as the weight.

    With Adam's mean ``m`` and mean square ``v``, ``s = m / (sqrt(v) + epsilon) + wd w`` and
    ``w -= lr |w| / |s| s``; a norm of zero makes the quotient one.

    Attributes:
        beta1: decay of the mean.
        beta2: decay of the mean square.
        epsilon: added to the root of the mean square.
        lower_bound: lowest norm of the weight in the quotient; None: no bound.
        upper_bound: highest one; None: no bound.
        bias_correction: whether mean and mean square are divided by one minus their beta to the power of the count.
    """

    name: ClassVar[str] = "lamb"
    keeps: ClassVar[tuple[str, ...]] = ("mean", "variance")
    decays: ClassVar[tuple[str, ...]] = ("beta1", "beta2")
    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    lower_bound: float | None = None
    upper_bound: float | None = None
    bias_correction: bool = True

    def step(self, weight: Any, gradient: Any, states: States, now: KeyUpdate) -> FormulaStep | None:
        """See `FormulaOptimizer`."""
        whole1 = whole2 = 1.0
        if self.bias_correction:
            whole1, whole2 = 1 - self.beta1**now.number, 1 - self.beta2**now.number
        formula = formulas.LAMBFormula(
            self.beta1,
            1 - self.beta1,
            self.beta2,
            1 - self.beta2,
            1 / whole1,
            1 / whole2,
            self.epsilon,
            now.wd,
            -now.learning_rate,
            -math.inf if self.lower_bound is None else self.lower_bound,
            math.inf if self.upper_bound is None else self.upper_bound,
        )
        return FormulaStep(formula, [states["mean"], states["variance"]])


class _LargeBatch(SGD):
    """SGD with a learning rate for each array; rows of sparse gradients have no norm of their own."""

    def checked(self, name: str, value: Any) -> Any:
        """See `Optimizer`."""
        if name == "lazy_update" and value is True:
            raise RefusedError(
                f"expected lazy_update=False for {self.name}, which needs the norm of all rows, got True"
            )
        return super().checked(name, value)


@register_optimizer
@dataclass
class LARSOptimizer(_LargeBatch):
    """LARS (You et al., 2017): SGD with the learning rate times ``eta |w| / (|g| + wd |w| + eps)``.

    The factor is one for keys whose name ends with ``gamma``, ``beta`` or ``bias``, and where a norm is zero.

    Attributes:
        eta: factor of the quotient.
        eps: added to its denominator.
        momentum_correction: whether the momentum is multiplied by the quotient of a key's learning rate and its last
            one (Goyal et al., 2017); the last one is not saved with the states.
    """

    name: ClassVar[str] = "lars"
    lazy_update: bool = False
    eta: float = 0.001
    eps: float = 0.0
    momentum_correction: bool = True

    def __post_init__(self) -> None:
        self._last: dict[Any, float] = {}

    def forget(self) -> None:
        """See `Optimizer`."""
        super().forget()
        self._last.clear()

    def step(self, weight: Any, gradient: Any, states: States, now: KeyUpdate) -> FormulaStep | None:
        """See `FormulaOptimizer`."""
        rate, last = now.learning_rate, self._last.get(now.key, now.learning_rate)
        self._last[now.key] = rate
        momentum = self.momentum * rate / last if self.momentum_correction and last else self.momentum
        if not self.name_of(now.key).endswith(("gamma", "beta", "bias")):
            length, of_gradient = norm(weight), norm(gradient) * abs(self.rescale_grad)
            if length and of_gradient:
                rate *= self.eta * length / (of_gradient + now.wd * length + self.eps)
        if "momentum" not in states:
            return FormulaStep(formulas.StepFormula(-rate), outer=now.wd)
        return FormulaStep(formulas.MomentumFormula(momentum, -rate, 1.0), [states["momentum"]], outer=now.wd)


@register_optimizer
@dataclass
class LBSGDOptimizer(_LargeBatch):
    """SGD for large batches: the mean of ``batch_scale`` gradients, with a learning rate that warms up.

    The rate is multiplied by ``1 + (batch_scale - 1) p``, where ``p`` goes from 0 to 1 over the warm-up: as the
    progress (``linear``), its square (``power2``) or its root (``sqrt``); or, throughout, by LARS's
    ``sqrt(|w|^2 / (|g|^2 + wd |w|^2))`` from 0.01 to 100 (``lars``).

    Attributes:
        warmup_strategy: ``linear``, ``power2``, ``sqrt`` or ``lars``.
        warmup_epochs: length of the warm-up.
        batch_scale: number of gradients of a key for each update.
        updates_per_epoch: number of gradients of a key in an epoch.
        begin_epoch: epoch of the first gradient.
        num_epochs: no effect, as in MXNet.
    """

    name: ClassVar[str] = "lbsgd"
    lazy_update: bool = False
    warmup_strategy: str = "linear"
    warmup_epochs: int = 5
    batch_scale: int = 1
    updates_per_epoch: int = 32
    begin_epoch: int = 0
    num_epochs: int = 60

    @property
    def keeps(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `Optimizer`."""
        return (*super().keeps, "gradients") if self.batch_scale > 1 else super().keeps

    def checked(self, name: str, value: Any) -> Any:
        """See `Optimizer`."""
        strategies = ("linear", "power2", "sqrt", "lars")
        if name == "warmup_strategy":
            if value not in strategies:
                raise RefusedError(f"expected a warmup_strategy of {', '.join(strategies)}, got {value!r}")
            return value
        value = super().checked(name, value)
        if name == "batch_scale" and (value < 1 or value != int(value)):
            raise RefusedError(f"expected a whole number from 1 as batch_scale of {self.name}, got {value}")
        return value

    def step(self, weight: Any, gradient: Any, states: States, now: KeyUpdate) -> FormulaStep | None:
        """See `FormulaOptimizer`."""
        seen = self.begin_epoch * self.updates_per_epoch + now.number
        if "gradients" in states:
            total = states["gradients"].add_(gradient)
            if seen % self.batch_scale:
                return None
            gradient = total / self.batch_scale
            total.zero_()
        rate = now.learning_rate * self._factor(weight, gradient, now.wd, seen)
        step = super().step(weight, gradient, states, now._replace(learning_rate=rate))
        return None if step is None else step._replace(gradient=gradient)

    def _factor(self, weight: Any, gradient: Any, wd: float, seen: int) -> float:
        if self.warmup_strategy == "lars":
            length2, gradient2 = norm(weight) ** 2, norm(gradient) ** 2
            return min(max(math.sqrt(length2 / (gradient2 + wd * length2 + 1e-18)), 0.01), 100.0)
        length = self.warmup_epochs * self.updates_per_epoch
        if seen >= length:
            return float(self.batch_scale)
        if length <= 1:
            return 1.0
        power = {"linear": 1.0, "power2": 2.0, "sqrt": 0.5}[self.warmup_strategy]
        return 1.0 + (self.batch_scale - 1) * math.pow(seen / length, power)
