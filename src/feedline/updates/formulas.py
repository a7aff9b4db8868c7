"""The rules of optimizers. Each is a class with the numbers of the rule, and its formula in operations of torch.

The numbers are in the order of the struct of that name in native/src/update_rules.h, which documents them.
`Formula.by_torch` changes lists of weights and states in place. Weights may be of lower precision than gradients and
states.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
import torch

from feedline.updates.native_tensors import Tensors


def complement(fraction: float, dtype: torch.dtype) -> tuple[float, float]:
    """Return 1 - fraction, and its complement, in a precision in which they add up to 1.

    A fraction may be so small that float32 keeps few digits of 1 - fraction. Arithmetic rounds
    that number in any case. The complement is taken of the rounded number, so that the sum of both is exactly 1.
    """
    keep = 1.0 - fraction
    if dtype is not torch.float64:
        keep = float(np.float32(keep))
    return keep, 1.0 - keep


@dataclass(slots=True)
class Formula(ABC):
    """A rule and its numbers."""

    #: Name of the rule in native code.
    native: ClassVar[str]

    def numbers(self) -> tuple[float, ...]:
        """Return the numbers in the order of native code."""
        return _reader(type(self))(self)

    @abstractmethod
    def by_torch(self, weights: Tensors, gradients: Tensors, states: list[Tensors]) -> None:
        """Change weights and states in place. Gradients are read-only and have the dtype of the states."""


@cache
def _reader(kind: type[Formula]) -> Callable[[Formula], tuple[float, ...]]:
    """Return a function that reads all numbers of a formula at once, as a store does for each key."""
    names: tuple[str, ...] = kind.__match_args__  # a dataclass's fields, in order
    return attrgetter(*names) if len(names) > 1 else lambda formula: (getattr(formula, names[0]),)


@dataclass(slots=True)
class StepFormula(Formula):
    """Gradient descent. Accepts sparse gradients."""

    native: ClassVar[str] = "step"
    along: float

    def by_torch(self, weights: Tensors, gradients: Tensors, states: list[Tensors]) -> None:
        """See `Formula`."""
        torch._foreach_add_(weights, gradients, alpha=self.along)


@dataclass(slots=True)
class MomentumFormula(Formula):
    """Gradient descent with momentum, or with Nesterov's momentum if ``ahead`` is not 0."""

    native: ClassVar[str] = "momentum"
    keep: float
    fresh: float
    along: float
    ahead: float = 0.0

    def by_torch(self, weights: Tensors, gradients: Tensors, states: list[Tensors]) -> None:
        """See `Formula`."""
        (smoothed,) = states
        _smooth(smoothed, gradients, self.keep, self.fresh)
        torch._foreach_add_(weights, smoothed, alpha=self.along)
        if self.ahead:
            torch._foreach_add_(weights, gradients, alpha=self.ahead)


@dataclass(slots=True)
class AdaGradFormula(Formula):
    """AdaGrad, or MXNet's RMSProp with ``keep`` below 1."""

    native: ClassVar[str] = "adagrad"
    keep: float
    fresh: float
    epsilon: float
    hold: float
    along: float

    def by_torch(self, weights: Tensors, gradients: Tensors, states: list[Tensors]) -> None:
        """See `Formula`."""
        (squares,) = states
        _add_squares(squares, gradients, self.keep, self.fresh)
        root = torch._foreach_add(squares, self.epsilon)
        torch._foreach_sqrt_(root)
        if self.hold != 1:
            torch._foreach_mul_(weights, self.hold)
        torch._foreach_addcdiv_(weights, gradients, root, value=self.along)


@dataclass(slots=True)
class AveragedAdaGradFormula(Formula):
    """AdaGrad with factors whose mean over each weight is 1."""

    native: ClassVar[str] = "averaged_adagrad"
    fresh: float
    epsilon: float
    along: float

    def by_torch(self, weights: Tensors, gradients: Tensors, states: list[Tensors]) -> None:
        """See `Formula`."""
        (squares,) = states
        _add_squares(squares, gradients, 1.0, self.fresh)
        factors = torch._foreach_add(squares, self.epsilon)
        torch._foreach_sqrt_(factors)
        torch._foreach_reciprocal_(factors)
        _descend_on_average(weights, gradients, factors, self.along)


@dataclass(slots=True)
class AdaDeltaFormula(Formula):
    """AdaDelta."""

    native: ClassVar[str] = "adadelta"
    keep: float
    fresh: float
    epsilon: float
    hold: float
    along: float

    def by_torch(self, weights: Tensors, gradients: Tensors, states: list[Tensors]) -> None:
        """See `Formula`."""
        squares, steps = states
        _add_squares(squares, gradients, self.keep, self.fresh)
        root = torch._foreach_add(squares, self.epsilon)
        torch._foreach_sqrt_(root)
        change = torch._foreach_add(steps, self.epsilon)
        torch._foreach_sqrt_(change)
        torch._foreach_div_(change, root)
        torch._foreach_mul_(change, gradients)
        _add_squares(steps, change, self.keep, self.fresh)
        if self.hold != 1:
            torch._foreach_mul_(weights, self.hold)
        torch._foreach_add_(weights, change, alpha=self.along)


@dataclass(slots=True)
class AdamFormula(Formula):
    """Adam, or Nadam if ``ahead`` is not 0."""

    native: ClassVar[str] = "adam"
    keep_mean: float
    fresh_mean: float
    keep_square: float
    fresh_square: float
    unbias: float
    epsilon: float
    along: float
    ahead: float = 0.0

    def by_torch(self, weights: Tensors, gradients: Tensors, states: list[Tensors]) -> None:
        """See `Formula`."""
        mean, variance = states
        _add_squares(variance, gradients, self.keep_square, self.fresh_square)
        below = _root(variance, self.unbias, self.epsilon)
        _smooth(mean, gradients, self.keep_mean, self.fresh_mean)
        torch._foreach_addcdiv_(weights, mean, below, value=self.along)
        if self.ahead:
            torch._foreach_addcdiv_(weights, gradients, below, value=self.ahead)


@dataclass(slots=True)
class AdaMaxFormula(Formula):
    """AdaMax. A weight whose gradients were all zero is unchanged."""

    native: ClassVar[str] = "adamax"
    keep_mean: float
    fresh_mean: float
    keep_largest: float
    size: float
    epsilon: float
    along: float

    def by_torch(self, weights: Tensors, gradients: Tensors, states: list[Tensors]) -> None:
        """See `Formula`."""
        mean, largest = states
        _smooth(mean, gradients, self.keep_mean, self.fresh_mean)
        torch._foreach_mul_(largest, self.keep_largest)
        size = torch._foreach_abs(gradients)
        if self.size != 1:
            torch._foreach_mul_(size, self.size)
        torch._foreach_maximum_(largest, size)
        del size  # the next line reuses its memory
        below = torch._foreach_add(largest, self.epsilon)
        if self.epsilon == 0:
            for divisor in below:
                divisor.masked_fill_(divisor == 0, 1)
        torch._foreach_addcdiv_(weights, mean, below, value=self.along)


@dataclass(slots=True)
class FSAdaGradFormula(Formula):
    """CNTK's FSAdaGrad."""

    native: ClassVar[str] = "fsadagrad"
    keep_square: float
    fresh_square: float
    size: float
    limit: float
    keep_mean: float
    fresh_mean: float
    along: float
    ahead: float

    def by_torch(self, weights: Tensors, gradients: Tensors, states: list[Tensors]) -> None:
        """See `Formula`."""
        mean, variance = states
        _add_squares(variance, gradients, self.keep_square, self.fresh_square)
        scaled = torch._foreach_sqrt(variance)
        torch._foreach_reciprocal_(scaled)  # infinite where all gradients were 0: clamped, times 0
        torch._foreach_mul_(scaled, self.size)
        torch._foreach_clamp_max_(scaled, self.limit)
        torch._foreach_mul_(scaled, gradients)
        if self.fresh_mean or self.keep_mean != 1:
            _smooth(mean, scaled, self.keep_mean, self.fresh_mean)
        if self.along:
            torch._foreach_add_(weights, mean, alpha=self.along)
        if self.ahead:
            torch._foreach_add_(weights, scaled, alpha=self.ahead)


@dataclass(slots=True)
class RMSPropFormula(Formula):
    """CNTK's RMSProp, whose steps grow while a gradient keeps its sign."""

    native: ClassVar[str] = "rmsprop"
    first: float
    start: float
    first_step: float
    keep: float
    fresh: float
    grow: float
    most: float
    lessen: float
    least: float
    floor: float
    along: float

    def by_torch(self, weights: Tensors, gradients: Tensors, states: list[Tensors]) -> None:
        """See `Formula`."""
        torch._foreach_addcmul_(weights, gradients, self._factors(gradients, states), value=self.along)

    def _factors(self, gradients: Tensors, states: list[Tensors]) -> Tensors:
        variance, steps, signs = states
        if self.first:
            torch._foreach_addcmul_(variance, gradients, gradients, value=self.start)
            torch._foreach_add_(steps, self.first_step)
        _add_squares(variance, gradients, self.keep, self.fresh)
        # 1 if the sign is kept, 0 otherwise. lerp with these weights takes one end or the other exactly.
        now = torch._foreach_sign(gradients)
        torch._foreach_mul_(signs, now)
        torch._foreach_clamp_min_(signs, 0.0)
        grown = torch._foreach_mul(steps, self.grow)
        torch._foreach_clamp_max_(grown, self.most)
        torch._foreach_mul_(steps, self.lessen)
        torch._foreach_clamp_min_(steps, self.least)
        torch._foreach_lerp_(steps, grown, signs)
        torch._foreach_copy_(signs, now)
        root = torch._foreach_add(variance, self.floor)
        torch._foreach_sqrt_(root)
        factors: Tensors = torch._foreach_div(steps, root)
        return factors


@dataclass(slots=True)
class AveragedRMSPropFormula(RMSPropFormula):
    """CNTK's RMSProp with factors whose mean over each weight is 1."""

    native: ClassVar[str] = "averaged_rmsprop"

    def by_torch(self, weights: Tensors, gradients: Tensors, states: list[Tensors]) -> None:
        """See `Formula`."""
        _descend_on_average(weights, gradients, self._factors(gradients, states), self.along)


@dataclass(slots=True)
class CenteredRMSPropFormula(Formula):
    """RMSProp over the variance (Graves, 2013)."""

    native: ClassVar[str] = "centered_rmsprop"
    keep: float
    fresh: float
    epsilon: float
    pace: float
    along: float

    def by_torch(self, weights: Tensors, gradients: Tensors, states: list[Tensors]) -> None:
        """See `Formula`."""
        _add_squares(states[0], gradients, self.keep, self.fresh)
        _smooth(states[1], gradients, self.keep, self.fresh)
        for weight, gradient, square, mean, step in zip(weights, gradients, *states, strict=True):
            root = (square - mean * mean).add_(self.epsilon).sqrt_()
            weight.add_(step.mul_(self.pace).addcdiv_(gradient, root, value=self.along))


@dataclass(slots=True)
class FTMLFormula(Formula):
    """Follow the moving leader."""

    native: ClassVar[str] = "ftml"
    keep_mean: float
    fresh_mean: float
    keep_square: float
    fresh_square: float
    unbias: float
    epsilon: float
    size: float

    def by_torch(self, weights: Tensors, gradients: Tensors, states: list[Tensors]) -> None:
        """See `Formula`."""
        divisors, variance, leaders = states
        _add_squares(variance, gradients, self.keep_square, self.fresh_square)
        now = _root(variance, self.unbias, self.epsilon)
        torch._foreach_mul_(now, self.size)
        for weight, gradient, before, divisor, leader in zip(weights, gradients, divisors, now, leaders, strict=True):
            change = before.mul_(-self.keep_mean).add_(divisor)
            leader.mul_(self.keep_mean).add_(gradient, alpha=self.fresh_mean).addcmul_(change, weight, value=-1)
            before.copy_(divisor)
            weight.copy_(leader).div_(divisor).neg_()


@dataclass(slots=True)
class FtrlFormula(Formula):
    """Follow the regularized leader."""

    native: ClassVar[str] = "ftrl"
    rate: float
    threshold: float
    beta: float
    decay: float

    def by_torch(self, weights: Tensors, gradients: Tensors, states: list[Tensors]) -> None:
        """See `Formula`."""
        for weight, gradient, leader, square in zip(weights, gradients, *states, strict=True):
            before = square.sqrt()
            root = square.addcmul_(gradient, gradient).sqrt()
            leader.add_(gradient).addcmul_(root - before, weight, value=-1 / self.rate)
            beyond = torch.nn.functional.softshrink(leader, self.threshold).neg_()
            weight.copy_(beyond.div_(root.add_(self.beta).div_(self.rate).add_(self.decay)))


@dataclass(slots=True)
class SignumFormula(Formula):
    """Steps of one size along the sign of the momentum."""

    native: ClassVar[str] = "signum"
    keep: float
    fresh: float
    hold: float
    along: float

    def by_torch(self, weights: Tensors, gradients: Tensors, states: list[Tensors]) -> None:
        """See `Formula`."""
        (smoothed,) = states
        _smooth(smoothed, gradients, self.keep, self.fresh)
        torch._foreach_mul_(weights, self.hold)
        torch._foreach_add_(weights, torch._foreach_sign(smoothed), alpha=self.along)


@dataclass(slots=True)
class SignFormula(Formula):
    """Steps of one size along the sign of the gradient."""

    native: ClassVar[str] = "sign"
    hold: float
    along: float

    def by_torch(self, weights: Tensors, gradients: Tensors, states: list[Tensors]) -> None:
        """See `Formula`."""
        torch._foreach_mul_(weights, self.hold)
        torch._foreach_add_(weights, torch._foreach_sign(gradients), alpha=self.along)


@dataclass(slots=True)
class DCASGDFormula(Formula):
    """Gradient descent that compensates for delay. States are the previous weight and the momentum."""

    native: ClassVar[str] = "dcasgd"
    keep: float
    along: float
    correction: float
    decay: float

    def by_torch(self, weights: Tensors, gradients: Tensors, states: list[Tensors]) -> None:
        """See `Formula`."""
        for weight, gradient, previous, momentum in zip(weights, gradients, *states, strict=True):
            step = _compensate(weight, gradient, previous, self.correction, self.decay).mul_(self.along)
            previous.copy_(weight)
            weight.add_(momentum.mul_(self.keep).add_(step))


@dataclass(slots=True)
class PlainDCASGDFormula(Formula):
    """Gradient descent that compensates for delay, without momentum."""

    native: ClassVar[str] = "plain_dcasgd"
    along: float
    correction: float
    decay: float

    def by_torch(self, weights: Tensors, gradients: Tensors, states: list[Tensors]) -> None:
        """See `Formula`."""
        for weight, gradient, previous in zip(weights, gradients, *states, strict=True):
            step = _compensate(weight, gradient, previous, self.correction, self.decay).mul_(self.along)
            previous.copy_(weight)
            weight.add_(step)


@dataclass(slots=True)
class LAMBFormula(Formula):
    """Adam with steps as long as the weight."""

    native: ClassVar[str] = "lamb"
    keep_mean: float
    fresh_mean: float
    keep_square: float
    fresh_square: float
    unbias_mean: float
    unbias: float
    epsilon: float
    decay: float
    along: float
    lowest: float = -math.inf
    highest: float = math.inf

    def by_torch(self, weights: Tensors, gradients: Tensors, states: list[Tensors]) -> None:
        """See `Formula`."""
        mean, variance = states
        _smooth(mean, gradients, self.keep_mean, self.fresh_mean)
        _add_squares(variance, gradients, self.keep_square, self.fresh_square)
        below = _root(variance, self.unbias, self.epsilon)
        for weight, average, root in zip(weights, mean, below, strict=True):
            step = (average * self.unbias_mean).div_(root).add_(weight, alpha=self.decay)
            length, of_step = norm(weight), norm(step)
            length = min(max(length, self.lowest), self.highest)
            ratio = length / of_step if length and of_step else 1.0
            weight.add_(step, alpha=self.along * ratio)


def norm(array: Any) -> float:
    """Return the Euclidean norm, computed in single precision at least."""
    return float((array if array.dtype.itemsize >= 4 else array.float()).norm())


def _smooth(smoothed: Tensors, gradients: Tensors, keep: float, fresh: float) -> None:
    """``s = keep s + fresh g``, in one operation if that is a weighted mean."""
    if keep + fresh == 1.0:
        torch._foreach_lerp_(smoothed, gradients, fresh)
    else:
        torch._foreach_mul_(smoothed, keep)
        torch._foreach_add_(smoothed, gradients, alpha=fresh)


def _add_squares(squares: Tensors, gradients: Tensors, keep: float, fresh: float) -> None:
    """``v = keep v + fresh g²``."""
    if keep != 1:
        torch._foreach_mul_(squares, keep)
    torch._foreach_addcmul_(squares, gradients, gradients, value=fresh)


def _root(variance: Tensors, unbias: float, epsilon: float) -> Tensors:
    """Return ``sqrt(unbias v) + epsilon``."""
    root: Tensors
    if unbias == 1:
        root = torch._foreach_sqrt(variance)
    else:
        root = torch._foreach_mul(variance, unbias)
        torch._foreach_sqrt_(root)
    torch._foreach_add_(root, epsilon)
    return root


def _descend_on_average(weights: Tensors, gradients: Tensors, factors: Tensors, along: float) -> None:
    """``w += along g f / mean(f)``, the mean over each weight. Overwrites factors."""
    means = torch._foreach_norm(factors, 1)  # factors are positive
    torch._foreach_div_(means, [float(max(factor.numel(), 1)) for factor in factors])
    torch._foreach_mul_(factors, gradients)
    torch._foreach_div_(factors, means)
    torch._foreach_add_(weights, factors, alpha=along)


def _compensate(weight: Any, gradient: Any, previous: Any, correction: float, decay: float) -> Any:
    """Return ``g + correction g² (w - p) + decay w``."""
    step = (gradient * gradient).mul_(weight - previous).mul_(correction)
    return step.add_(gradient).add_(weight, alpha=decay)
