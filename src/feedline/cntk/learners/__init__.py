"""`cntk.learners`: update rules, their options and schedules, over `feedline.train.rules`.

Learners take torch parameters: ``model.parameters()`` or ``model.named_parameters()``. All rules share these options,
by keyword, or by position after their own:

- ``l1_regularization_weight``, ``l2_regularization_weight``: weights of penalties per sample;
- ``gaussian_noise_injection_std_dev``: standard deviation of the noise added after each update; number or schedule;
- ``gradient_clipping_threshold_per_sample``: largest gradient per sample;
  ``gradient_clipping_with_truncation``: clip element by element, otherwise each parameter's gradient to that norm;
- ``minibatch_size``: reference size in samples of numbers without one; `IGNORE`: the rule uses mean gradients, and
  numbers are for any size. By default the rule uses sums, and rates are divided by the samples;
- ``use_mean_gradient``: deprecated spelling of ``minibatch_size=IGNORE``;
- ``epoch_size``: samples in an epoch of lists given as schedules; default: a sweep.

``lr`` and ``momentum`` are schedules, numbers, or lists for `learning_parameter_schedule`. All raise:

- ValueError: no parameters, a repeated one, or a number out of range;
- TypeError: a parameter that is not a floating-point tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from feedline import train as modern
from feedline.cntk._criterion import tensors_of
from feedline.cntk._names import names_of
from feedline.cntk._seeds import pass_over
from feedline.cntk.learners._assignments import Assignments
from feedline.cntk.learners._learner import Learner as Learner
from feedline.cntk.learners._learner import UserLearner
from feedline.cntk.learners._schedules import (
    IGNORE,
    TrainingParameterSchedule,
    UnitType,
    learning_parameter_schedule,
    learning_parameter_schedule_per_sample,
    learning_rate_schedule,
    momentum_as_time_constant_schedule,
    momentum_schedule,
    momentum_schedule_per_sample,
    taken_over,
    training_parameter_schedule,
    with_reference,
)
from feedline.cntk.variables import Parameter
from feedline.train.parameters import named

__all__, __getattr__ = names_of(__name__)

_unit_gain = True


def default_unit_gain_value() -> bool:
    """Return the last value of `set_default_unit_gain_value`."""
    return _unit_gain


def set_default_unit_gain_value(value: bool) -> None:
    """Set a value without effect: as in CNTK, learners without ``unit_gain`` have unit gain."""
    global _unit_gain
    _unit_gain = bool(value)


@dataclass
class _Options:
    """The options that all rules share, in CNTK's order."""

    l1_regularization_weight: float = 0.0
    l2_regularization_weight: float = 0.0
    gaussian_noise_injection_std_dev: Any = 0.0
    gradient_clipping_threshold_per_sample: float = math.inf
    gradient_clipping_with_truncation: bool = True
    use_mean_gradient: bool | None = None
    minibatch_size: int | None = None
    epoch_size: int | None = None

    def __post_init__(self) -> None:
        if self.minibatch_size is None and self.use_mean_gradient:
            self.minibatch_size = IGNORE

    def rate(self, given: Any) -> TrainingParameterSchedule:
        """Return the learning rate; with ``use_mean_gradient`` one per sample counts for a whole minibatch."""
        schedule = self.momentum(given)
        return with_reference(schedule, IGNORE) if self.use_mean_gradient and schedule.minibatch_size == 1 else schedule

    def momentum(self, given: Any) -> TrainingParameterSchedule:
        """A momentum."""
        return taken_over(given, self.minibatch_size, self.epoch_size)

    def learner(self, rule: Any, parameters: Iterable[Any], lr: Any, *, reported: Any = None, **own: Any) -> Learner:
        """Return the learner that a modern rule makes with its specific options."""
        clip = self.gradient_clipping_threshold_per_sample
        given = list(parameters)
        pass_over(None)  # the seed of the noise
        made = rule(
            tensors_of(given),
            self.rate(lr).modern,
            gradients="mean" if self.minibatch_size == IGNORE else "sum",
            l1=self.l1_regularization_weight,
            l2=self.l2_regularization_weight,
            noise=taken_over(self.gaussian_noise_injection_std_dev, None, None).modern,
            clip=None if clip == math.inf else clip,
            clip_by="value" if self.gradient_clipping_with_truncation else "norm",
            **own,
        )
        return Learner(made, self.minibatch_size, reported, parameters=given)

    def with_momentum(self, rule: Any, parameters: Iterable[Any], lr: Any, momentum: Any, unit_gain: bool) -> Learner:
        """Return a learner that also reports its momentum."""
        schedule = self.momentum(momentum)
        return self.learner(rule, parameters, lr, reported=schedule, momentum=schedule.modern, unit_gain=unit_gain)

    def with_variance(
        self,
        rule: Any,
        parameters: Iterable[Any],
        lr: Any,
        momentum: Any,
        unit_gain: bool,
        variance_momentum: Any,
        **own: Any,
    ) -> Learner:
        """Return a learner that also has a momentum of squares."""
        variance = momentum_as_time_constant_schedule(720_000) if variance_momentum is None else variance_momentum
        own |= {"momentum": self.momentum(momentum).modern, "variance_momentum": self.momentum(variance).modern}
        return self.learner(rule, parameters, lr, unit_gain=unit_gain, **own)


def sgd(parameters: Iterable[Any], lr: Any, *options: Any, **named_options: Any) -> Learner:
    """Stochastic gradient descent."""
    return _Options(*options, **named_options).learner(modern.SGD, parameters, lr)


def momentum_sgd(
    parameters: Iterable[Any], lr: Any, momentum: Any, unit_gain: bool = True, *options: Any, **named_options: Any
) -> Learner:
    """Gradient descent with momentum; ``unit_gain``: gradients are multiplied by 1 - momentum."""
    given = _Options(*options, **named_options)
    return given.with_momentum(modern.MomentumSGD, parameters, lr, momentum, unit_gain)


def nesterov(
    parameters: Iterable[Any], lr: Any, momentum: Any, unit_gain: bool = True, *options: Any, **named_options: Any
) -> Learner:
    """Gradient descent with Nesterov's momentum; ``unit_gain``: gradients are multiplied by 1 - momentum."""
    given = _Options(*options, **named_options)
    return given.with_momentum(modern.Nesterov, parameters, lr, momentum, unit_gain)


def adagrad(
    parameters: Iterable[Any], lr: Any, need_ave_multiplier: bool = True, *options: Any, **named_options: Any
) -> Learner:
    """AdaGrad; ``need_ave_multiplier``: rates are scaled as in gradient descent."""
    given = _Options(*options, **named_options)
    return given.learner(modern.AdaGrad, parameters, lr, average=need_ave_multiplier)


def adadelta(
    parameters: Iterable[Any],
    lr: Any = None,
    rho: float = 0.95,
    epsilon: float = 1e-8,
    *options: Any,
    **named_options: Any,
) -> Learner:
    """AdaDelta; ``lr`` is 1 per sample by default."""
    rate = learning_parameter_schedule_per_sample(1.0) if lr is None else lr
    return _Options(*options, **named_options).learner(modern.AdaDelta, parameters, rate, rho=rho, epsilon=epsilon)


def fsadagrad(
    parameters: Iterable[Any],
    lr: Any,
    momentum: Any,
    unit_gain: bool = True,
    variance_momentum: Any = None,
    *options: Any,
    **named_options: Any,
) -> Learner:
    """FSAdaGrad; ``variance_momentum`` is a time constant of 720,000 samples by default."""
    given = _Options(*options, **named_options)
    return given.with_variance(modern.FSAdaGrad, parameters, lr, momentum, unit_gain, variance_momentum)


def adam(
    parameters: Iterable[Any],
    lr: Any,
    momentum: Any,
    unit_gain: bool = True,
    variance_momentum: Any = None,
    *options: Any,
    epsilon: float = 1e-8,
    adamax: bool = False,
    **named_options: Any,
) -> Learner:
    """Adam, or AdaMax; ``variance_momentum`` is a time constant of 720,000 samples by default."""
    own = {"epsilon": epsilon, "adamax": adamax}
    given = _Options(*options, **named_options)
    return given.with_variance(modern.Adam, parameters, lr, momentum, unit_gain, variance_momentum, **own)


def rmsprop(
    parameters: Iterable[Any],
    lr: Any,
    gamma: float,
    inc: float,
    dec: float,
    max: float,
    min: float,
    need_ave_multiplier: bool = True,
    *options: Any,
    **named_options: Any,
) -> Learner:
    """RMSProp with a step size for each element.

    Raises:
        RuntimeError: not 0 < gamma < 1, inc > 1, 0 < dec < 1 and 0 < min < max.
    """
    taken = list(parameters)
    named(tensors_of(taken))  # raises its own errors, unlike those of numbers below
    given = _Options(*options, **named_options)
    rate = given.rate(lr)
    own = {"gamma": gamma, "inc": inc, "dec": dec, "max": max, "min": min, "average": need_ave_multiplier}
    try:
        return given.learner(modern.RMSProp, taken, rate, **own)
    except ValueError as error:
        raise RuntimeError(str(error)) from error


def universal(update_func: Callable[[list[Any], list[Any]], Any], parameters: Iterable[Any]) -> Learner:
    """Return a learner with a user-defined rule.

    Args:
        update_func: function ``update_func(parameters, gradients)`` of sums over the samples. For parameters of
            functions it is called once, with them and a constant for each gradient, and returns a function of `assign`,
            which is run at every update; constants that it assigns to are in checkpoints. For torch tensors it is
            called at every update, without autograd, and changes the parameters in place.
        parameters: parameters to update.

    Raises:
        TypeError: ``update_func`` returned no function.
        RuntimeError: a parameter is not in that function.
    """
    taken = list(parameters)
    pass_over(None)
    if all(isinstance(p, Parameter) for p in taken):
        update = Assignments(update_func, taken)
        rule = modern.Universal(tensors_of(taken), update, gradients="sum", state=update.state)
    else:

        def function(given: list[Any], gradients: list[Any], step: modern.Step) -> None:
            update_func(given, gradients)

        rule = modern.Universal(tensors_of(taken), function, gradients="sum")
    return Learner(rule, reports=False, parameters=taken)
