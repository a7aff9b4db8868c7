"""Rules by which learners update parameters. Their common steps are in `feedline.train.learner`.

All but `Universal` are formulas of `feedline.updates`: a rule computes the numbers of its formula for each update.

**Momentum** s is kept as the weighted mean of past gradients and the sum of the weights, whose product is
s. So one pass over memory updates it, for any rate, gain and scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from feedline.errors import StateError
from feedline.train.learner import Learner, Step
from feedline.train.parameters import ParameterGroup, Tensors, copy_saved
from feedline.train.schedules import Schedule, Values, at_least_zero, momentum_schedule
from feedline.updates import formulas
from feedline.updates.formulas import Formula, complement

#: Lower bounds within roots of mean squares.
ADAGRAD_FLOOR, RMSPROP_FLOOR = 1e-16, 1e-6
RMSPROP_FIRST_STEP = 0.02
#: CNTK's default for Adam and FSAdaGrad: a time constant of 720,000 samples.
VARIANCE_MOMENTUM = Schedule.time_constant(720_000)
#: Largest factor by which gradients are scaled up.
FSADAGRAD_LIMIT = 10.0
#: Function of parameters (to change in place), gradients (after the learner's processing) and numbers of the update.
Update = Callable[[Tensors, Tensors, Step], None]


class SGD(Learner):
    """Stochastic gradient descent without state, for sparse gradients, too. Arguments: `Learner`."""

    rule = "sgd"
    takes_sparse = True

    def _formula(self, numbers: tuple[float, ...], step: Step, dtype: torch.dtype) -> tuple[Formula, tuple[float, ...]]:
        return formulas.StepFormula(-step.rate * step.scale), numbers


class MomentumSGD(Learner):
    """Gradient descent with momentum: ``s = M s + rate u gradient``, then ``w -= s``.

    Args:
        parameters: see `Learner`.
        lr: see `Learner`.
        momentum: M, 0 to 1. With a reference size it is converted to each minibatch's size
            (`Schedule.momentum`), as `Schedule.time_constant` is.
        unit_gain: u = 1 - M, so that momentum smooths a constant gradient without making it larger. Otherwise u = 1,
            as in `torch.optim.SGD`.
        options: further arguments of `Learner`.

    Raises:
        ValueError: a momentum outside 0 to 1, and the errors of `Learner`.
    """

    rule = "momentum_sgd"
    tensors = ("mean",)
    numbers = ("weight",)

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: Schedule | Values,
        momentum: Schedule | Values,
        *,
        unit_gain: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(parameters, lr, **options)
        self._momentum, self._unit_gain = momentum_schedule("momentum", momentum), bool(unit_gain)

    def _formula(self, numbers: tuple[float, ...], step: Step, dtype: torch.dtype) -> tuple[Formula, tuple[float, ...]]:
        weight, keep, fresh = smoothing(numbers[0], *self._momentum_and_gain(step), dtype)
        return formulas.MomentumFormula(keep, fresh, -weight), (weight,)

    def _momentum_and_gain(self, step: Step) -> tuple[float, float]:
        """Return M, and the factor of the gradients."""
        momentum = self._momentum.momentum(step.position, step.samples)
        return momentum, step.rate * step.scale * (1.0 - momentum if self._unit_gain else 1.0)


class Nesterov(MomentumSGD):
    """Nesterov's momentum: ``s = M s + rate u gradient``, then ``w -= M s + rate u gradient``.

    Arguments: `MomentumSGD`.
    """

    rule = "nesterov"

    def _formula(self, numbers: tuple[float, ...], step: Step, dtype: torch.dtype) -> tuple[Formula, tuple[float, ...]]:
        momentum, gain = self._momentum_and_gain(step)
        weight, keep, fresh = smoothing(numbers[0], momentum, gain, dtype)
        return formulas.MomentumFormula(keep, fresh, -momentum * weight, -gain), (weight,)


class AdaGrad(Learner):
    """AdaGrad: ``a += gradient²``, then ``w -= rate / k * gradient / sqrt(a + 1e-16)``.

    Args:
        parameters: see `Learner`.
        lr: see `Learner`.
        average: k is the mean of ``1 / sqrt(a + 1e-16)`` over each parameter, so that the rate has the meaning of
            gradient descent. Otherwise k = 1, as in `torch.optim.Adagrad`.
        options: further arguments of `Learner`.

    Raises:
        ValueError: an error of `Learner`.
    """

    rule = "adagrad"
    tensors = ("squares",)

    def __init__(
        self, parameters: Iterable[Any], lr: Schedule | Values, *, average: bool = True, **options: Any
    ) -> None:
        super().__init__(parameters, lr, **options)
        self._average = bool(average)

    def _formula(self, numbers: tuple[float, ...], step: Step, dtype: torch.dtype) -> tuple[Formula, tuple[float, ...]]:
        fresh, along = step.scale**2, -step.rate * step.scale
        if self._average:
            return formulas.AveragedAdaGradFormula(fresh, ADAGRAD_FLOOR, along), numbers
        return formulas.AdaGradFormula(1.0, fresh, ADAGRAD_FLOOR, 1.0, along), numbers


class AdaDelta(Learner):
    """AdaDelta: ``a = rho a + (1 - rho) gradient²``, ``d = sqrt(x + epsilon) / sqrt(a + epsilon) * gradient``,
    ``x = rho x + (1 - rho) d²``, then ``w -= rate d``.

    Args:
        parameters: see `Learner`.
        lr: see `Learner`. 1 is the rule as published.
        rho: decay of both averages in a minibatch, 0 to 1.
        epsilon: above 0.
        options: further arguments of `Learner`.

    Raises:
        ValueError: an argument out of its range, or an error of `Learner`.
    """

    rule = "adadelta"
    tensors = ("squares", "steps")

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: Schedule | Values = 1.0,
        *,
        rho: float = 0.95,
        epsilon: float = 1e-8,
        **options: Any,
    ) -> None:
        super().__init__(parameters, lr, **options)
        if not epsilon > 0:
            raise ValueError(f"expected epsilon to be above 0, got {epsilon}")
        if not 0 <= rho <= 1:
            raise ValueError(f"expected rho to be between 0 and 1, got {rho}")
        self._rho, self._epsilon = float(rho), float(epsilon)

    def _formula(self, numbers: tuple[float, ...], step: Step, dtype: torch.dtype) -> tuple[Formula, tuple[float, ...]]:
        fresh = (1.0 - self._rho) * step.scale**2
        return formulas.AdaDeltaFormula(self._rho, fresh, self._epsilon, 1.0, -step.rate * step.scale), numbers


class RMSProp(Learner):
    """RMSProp with a step for each element, which grows while the gradient keeps its sign, and shrinks otherwise.

    ``v = gamma v + (1 - gamma) gradient²`` (it starts as the square of the first gradient), and
    ``step = min(step * inc, max)`` if the sign is as in the previous update, otherwise ``max(step * dec, min)`` (it
    starts at 0.02). Then ``w -= rate / k * gradient * step / sqrt(v + 1e-6)``.

    Args:
        parameters: see `Learner`.
        lr: see `Learner`.
        gamma: decay of v in a minibatch, between 0 and 1.
        inc: above 1.
        dec: between 0 and 1.
        max: largest step, above ``min``.
        min: smallest step, above 0.
        average: k is the mean of ``step / sqrt(v + 1e-6)`` over each parameter, so that the rate has the meaning of
            gradient descent. Otherwise k = 1.
        options: further arguments of `Learner`.

    Raises:
        ValueError: an argument out of its range, or an error of `Learner`.
    """

    rule = "rmsprop"
    tensors = ("variance", "steps", "signs")
    numbers = ("updates",)

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: Schedule | Values,
        *,
        gamma: float = 0.95,
        inc: float = 1.2,
        dec: float = 0.7,
        max: float = 10.0,
        min: float = 1e-8,
        average: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(parameters, lr, **options)
        if not 0 < gamma < 1:
            raise ValueError(f"expected gamma to be between 0 and 1, got {gamma}")
        if not inc > 1:
            raise ValueError(f"expected inc to be above 1, got {inc}")
        if not 0 < dec < 1:
            raise ValueError(f"expected dec to be between 0 and 1, got {dec}")
        if not 0 < min < max:
            raise ValueError(f"expected 0 < min < max, got min {min} and max {max}")
        self._gamma, self._inc, self._dec = float(gamma), float(inc), float(dec)
        self._max, self._min, self._average = float(max), float(min), bool(average)

    def _formula(self, numbers: tuple[float, ...], step: Step, dtype: torch.dtype) -> tuple[Formula, tuple[float, ...]]:
        (updates,) = numbers
        kind = formulas.AveragedRMSPropFormula if self._average else formulas.RMSPropFormula
        formula = kind(
            first=1.0 if updates == 0 else 0.0,
            start=step.scale**2,
            first_step=RMSPROP_FIRST_STEP,
            keep=self._gamma,
            fresh=(1.0 - self._gamma) * step.scale**2,
            grow=self._inc,
            most=self._max,
            lessen=self._dec,
            least=self._min,
            floor=RMSPROP_FLOOR,
            along=-step.rate * step.scale,
        )
        return formula, (updates + 1,)


class Adam(Learner):
    """Adam: ``v = V v + (1 - V) gradient²``, ``s = M s + u gradient``, then
    ``w -= rate * b * s / (sqrt(v) + epsilon)``, where b corrects the bias of v and s towards their initial zeros.

    M and V are for one minibatch. With a reference size they follow its size.

    Args:
        parameters: see `Learner`.
        lr: see `Learner`.
        momentum: M, 0 to 1, but not 1.
        variance_momentum: V, 0 to 1. The default counts samples, as `Schedule.time_constant` does.
        epsilon: at least 0.
        adamax: v is the decayed maximum of ``|gradient|``, and replaces the root.
        unit_gain: u = 1 - M, as published. Otherwise u = 1.
        options: further arguments of `Learner`.

    Raises:
        ValueError: an argument out of its range, or an error of `Learner`.
    """

    rule = "adam"
    tensors = ("mean", "variance")
    numbers = ("updates", "weight")

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: Schedule | Values,
        momentum: Schedule | Values = 0.9,
        variance_momentum: Schedule | Values = VARIANCE_MOMENTUM,
        *,
        epsilon: float = 1e-8,
        adamax: bool = False,
        unit_gain: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(parameters, lr, **options)
        self._momentum = momentum_schedule("momentum", momentum, below_one=True)
        self._variance = momentum_schedule("variance_momentum", variance_momentum)
        at_least_zero("epsilon", epsilon)
        self._epsilon, self._adamax, self._unit_gain = float(epsilon), bool(adamax), bool(unit_gain)

    def _formula(self, numbers: tuple[float, ...], step: Step, dtype: torch.dtype) -> tuple[Formula, tuple[float, ...]]:
        updates, weight = numbers
        updates += 1
        momentum = self._momentum.momentum(step.position, step.samples)
        decay = self._variance.momentum(step.position, step.samples)
        gain = step.scale * (1.0 - momentum if self._unit_gain else 1.0)
        weight, keep, fresh = smoothing(weight, momentum, gain, dtype)
        along = -step.rate * weight / (1.0 - momentum**updates)
        if self._adamax:
            return formulas.AdaMaxFormula(keep, fresh, decay, step.scale, self._epsilon, along), (updates, weight)
        along *= (1.0 - decay**updates) ** 0.5
        squares = smoothing_squares(decay, step, dtype)
        return formulas.AdamFormula(keep, fresh, *squares, 1.0, self._epsilon, along), (updates, weight)


class FSAdaGrad(Learner):
    """FSAdaGrad: ``v = V v + (1 - V) gradient²``, ``c = V c + (1 - V) samples``,
    ``s = M s + u gradient * min(sqrt(c) / sqrt(v), 10)``, then ``w -= rate s``.

    Args:
        parameters: see `Learner`.
        lr: see `Learner`.
        momentum: M, 0 to 1. 0 means no momentum, and u = 1.
        variance_momentum: V, 0 to 1, but not 1. The default counts samples, as `Schedule.time_constant` does.
        unit_gain: u = 1 - M. Otherwise u = 1.
        options: further arguments of `Learner`.

    Raises:
        ValueError: an argument out of its range, or an error of `Learner`.
    """

    rule = "fsadagrad"
    tensors = ("mean", "variance")
    numbers = ("count", "weight")

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: Schedule | Values,
        momentum: Schedule | Values = 0.9,
        variance_momentum: Schedule | Values = VARIANCE_MOMENTUM,
        *,
        unit_gain: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(parameters, lr, **options)
        self._momentum = momentum_schedule("momentum", momentum)
        self._variance = momentum_schedule("variance_momentum", variance_momentum, below_one=True)
        self._unit_gain = bool(unit_gain)

    def _formula(self, numbers: tuple[float, ...], step: Step, dtype: torch.dtype) -> tuple[Formula, tuple[float, ...]]:
        count, weight = numbers
        momentum = self._momentum.momentum(step.position, step.samples)
        decay = self._variance.momentum(step.position, step.samples)
        count = decay * count + (1.0 - decay) * step.samples
        if momentum > 0:
            gain = step.scale * (1.0 - momentum if self._unit_gain else 1.0)
            weight, keep, fresh = smoothing(weight, momentum, gain, dtype)
            along, ahead = -step.rate * weight, 0.0
        else:
            keep, fresh, along, ahead = 1.0, 0.0, 0.0, -step.rate * step.scale
        squares = smoothing_squares(decay, step, dtype)
        formula = formulas.FSAdaGradFormula(*squares, math.sqrt(count), FSADAGRAD_LIMIT, keep, fresh, along, ahead)
        return formula, (count, weight)


class Universal(Learner):
    """Updates by a user's function. Rate, penalties, clipping and counters are the same as for other rules.

    Args:
        parameters: see `Learner`.
        function: ``function(parameters, gradients, step)``: lists of tensors in the same order, of all parameters that
            have a gradient. It changes the parameters in place, but not the gradients. ``step.rate`` is the rate,
            ``step.samples`` the minibatch's size. Gradients are scaled already. Called without autograd.
        lr: see `Learner`.
        state: tensors that the function changes and that have to be saved and restored with the learner, by name.
        options: further arguments of `Learner`.

    Raises:
        ValueError: an error of `Learner`.
    """

    rule = "universal"
    whole = True

    def __init__(
        self,
        parameters: Iterable[Any],
        function: Update,
        lr: Schedule | Values = 1.0,
        *,
        state: Mapping[str, torch.Tensor] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(parameters, lr, **options)
        self._function, self._function_state = function, dict(state or {})

    def _apply(self, batch: ParameterGroup, step: Step) -> tuple[float, ...]:
        self._function(batch.parameters, batch.gradients, step)
        return batch.numbers

    def _rule_state(self) -> tuple[dict[str, torch.Tensor], Any]:
        return dict(self._function_state), {}

    def _check_rule_state(self, tensors: Mapping[str, torch.Tensor], rule_state: Any) -> Callable[[], None]:
        if set(tensors) != set(self._function_state):
            saved, current = {"state": sorted(tensors)}, {"state": sorted(self._function_state)}
            what = "the state has other tensors than this learner's function keeps"
            raise StateError(what, saved=saved, current=current)
        copies = {name: copy_saved(name, tensors[name], t, t.dtype) for name, t in self._function_state.items()}

        def restore() -> None:
            with torch.no_grad():
                for name, copy in copies.items():
                    self._function_state[name].copy_(copy)

        return restore


def smoothing(weight: float, momentum: float, gain: float, dtype: torch.dtype) -> tuple[float, float, float]:
    """Return numbers of ``s = M s + gain gradient``, for an s that is kept as ``weight * mean``.

    Returns:
        The new weight, the factor of the old mean, and the factor of the gradient.
    """
    weight = momentum * weight + gain
    return weight, *complement(gain / weight if gain else 0.0, dtype)


def smoothing_squares(decay: float, step: Step, dtype: torch.dtype) -> tuple[float, float]:
    """Return factors for ``v = V v + (1 - V) gradient²``: of v, and of the square of the unscaled gradients."""
    keep, fresh = complement(1.0 - decay, dtype)
    return keep, fresh * step.scale**2
