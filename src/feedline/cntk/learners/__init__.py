"""`cntk.learners`: update rules, their options and schedules, over `feedline.train.rules`.

Learners take torch parameters: ``model.parameters()`` or ``model.named_parameters()``. All rules share these options,
by keyword, or by position after a rule's specific options:

- ``l1_regularization_weight``, ``l2_regularization_weight``: weights of penalties per sample.
- ``gaussian_noise_injection_std_dev``: standard deviation of the noise added after each update, a number or schedule.
- ``gradient_clipping_threshold_per_sample``: largest gradient per sample.
- ``gradient_clipping_with_truncation``: whether to clip element by element, or each parameter's gradient to that norm.
- ``minibatch_size``: reference size, in samples, of numbers without one. With `IGNORE` the rule uses mean gradients,
  and numbers are for any size. By default the rule uses sums, and rates are divided by the number of samples.
- ``use_mean_gradient``: deprecated spelling of ``minibatch_size=IGNORE``.
- ``epoch_size``: samples in an epoch of schedules that are lists. By default an epoch is a sweep.

``lr`` and ``momentum`` are schedules, numbers, or lists for `learning_parameter_schedule`. All raise:

- ValueError: no parameters, a repeated parameter, or a number out of range.
- TypeError: a parameter that is not a floating-point tensor.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from feedline import train as modern
from feedline.cntk._criterion import tensors_of
from feedline.cntk._names import names_of
from feedline.cntk._nodes import InferredDimension as _INFERRED
from feedline.cntk._seeds import seeds
from feedline.cntk._settings import plain, take_plain_settings
from feedline.cntk.learners._assignments import Assignments
from feedline.cntk.learners._learner import Learner as Learner
from feedline.cntk.learners._learner import UserLearner
from feedline.cntk.learners._schedules import (
    IGNORE,
    TrainingParameterSchedule,
    UnitType,
    as_schedule,
    learning_parameter_schedule,
    learning_parameter_schedule_per_sample,
    learning_rate_schedule,
    momentum_as_time_constant_schedule,
    momentum_schedule,
    momentum_schedule_per_sample,
    training_parameter_schedule,
    with_reference,
)
from feedline.cntk.variables import Parameter
from feedline.train.parameters import parameters_by_name

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
        vars(self).update({name: plain(value) for name, value in vars(self).items()})
        if self.minibatch_size is None and self.use_mean_gradient:
            self.minibatch_size = IGNORE

    def rate(self, value: Any) -> TrainingParameterSchedule:
        """Return the learning rate. With ``use_mean_gradient`` a rate per sample counts for a whole minibatch."""
        schedule = self.momentum(value)
        return with_reference(schedule, IGNORE) if self.use_mean_gradient and schedule.minibatch_size == 1 else schedule

    def momentum(self, value: Any) -> TrainingParameterSchedule:
        """Return the schedule of a momentum."""
        return as_schedule(value, self.minibatch_size, self.epoch_size)

    def learner(self, rule: Any, parameters: Iterable[Any], lr: Any, *, reported: Any = None, **extra: Any) -> Learner:
        """Return a learner with a rule of feedline and the rule's specific options."""
        clip = self.gradient_clipping_threshold_per_sample
        parameters = list(parameters)
        learner = rule(
            tensors_of(parameters),
            self.rate(lr).modern,
            gradients="mean" if self.minibatch_size == IGNORE else "sum",
            l1=self.l1_regularization_weight,
            l2=self.l2_regularization_weight,
            noise=as_schedule(self.gaussian_noise_injection_std_dev, None, None).modern,
            clip=None if clip == math.inf else clip,
            clip_by="value" if self.gradient_clipping_with_truncation else "norm",
            seed=seeds.next(),
            **extra,
        )
        return Learner(learner, self.minibatch_size, reported, parameters=parameters)

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
        **extra: Any,
    ) -> Learner:
        """Return a learner that also has a momentum of squares."""
        variance = momentum_as_time_constant_schedule(720_000) if variance_momentum is None else variance_momentum
        extra |= {"momentum": self.momentum(momentum).modern, "variance_momentum": self.momentum(variance).modern}
        return self.learner(rule, parameters, lr, unit_gain=unit_gain, **extra)


def sgd(parameters: Iterable[Any], lr: Any, *options: Any, **named_options: Any) -> Learner:
    """Return a learner for stochastic gradient descent."""
    return _Options(*options, **named_options).learner(modern.SGD, parameters, lr)


def momentum_sgd(
    parameters: Iterable[Any], lr: Any, momentum: Any, unit_gain: bool = True, *options: Any, **named_options: Any
) -> Learner:
    """Return a learner with momentum; ``unit_gain``: multiply gradients by 1 - momentum."""
    shared = _Options(*options, **named_options)
    return shared.with_momentum(modern.MomentumSGD, parameters, lr, momentum, unit_gain)


def nesterov(
    parameters: Iterable[Any], lr: Any, momentum: Any, unit_gain: bool = True, *options: Any, **named_options: Any
) -> Learner:
    """Return a learner with Nesterov's momentum; ``unit_gain``: multiply gradients by 1 - momentum."""
    shared = _Options(*options, **named_options)
    return shared.with_momentum(modern.Nesterov, parameters, lr, momentum, unit_gain)


def adagrad(
    parameters: Iterable[Any], lr: Any, need_ave_multiplier: bool = True, *options: Any, **named_options: Any
) -> Learner:
    """Return an AdaGrad learner; ``need_ave_multiplier``: scale rates as in gradient descent."""
    shared = _Options(*options, **named_options)
    return shared.learner(modern.AdaGrad, parameters, lr, average=need_ave_multiplier)


def adadelta(
    parameters: Iterable[Any],
    lr: Any = None,
    rho: float = 0.95,
    epsilon: float = 1e-8,
    *options: Any,
    **named_options: Any,
) -> Learner:
    """Return an AdaDelta learner; ``lr``: 1 per sample by default."""
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
    """Return an FSAdaGrad learner; ``variance_momentum``: a time constant of 720,000 samples by default."""
    shared = _Options(*options, **named_options)
    return shared.with_variance(modern.FSAdaGrad, parameters, lr, momentum, unit_gain, variance_momentum)


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
    """Return an Adam or AdaMax learner; ``variance_momentum``: a time constant of 720,000 samples by default."""
    specific = {"epsilon": epsilon, "adamax": adamax}
    shared = _Options(*options, **named_options)
    return shared.with_variance(modern.Adam, parameters, lr, momentum, unit_gain, variance_momentum, **specific)


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
    """Return an RMSProp learner with a step size for each element.

    Raises:
        RuntimeError: not 0 < gamma < 1, inc > 1, 0 < dec < 1 and 0 < min < max.
    """
    parameters = list(parameters)
    parameters_by_name(tensors_of(parameters))  # raises ValueError, unlike wrong numbers below
    shared = _Options(*options, **named_options)
    rate = shared.rate(lr)
    specific = {"gamma": gamma, "inc": inc, "dec": dec, "max": max, "min": min, "average": need_ave_multiplier}
    try:
        return shared.learner(modern.RMSProp, parameters, rate, **specific)
    except ValueError as error:
        raise RuntimeError(str(error)) from error


def universal(update_func: Callable[[list[Any], list[Any]], Any], parameters: Iterable[Any]) -> Learner:
    """Return a learner with a user-defined rule.

    Args:
        update_func: function ``update_func(parameters, gradients)`` of sums over the samples. For parameters of
            functions it is called once, with a constant for each gradient, and returns a function of `assign`, which
            runs at every update. Checkpoints include constants that it assigns to. For torch tensors it is called at
            every update, without autograd, and changes the parameters in place.
        parameters: parameters to update.

    Raises:
        TypeError: ``update_func`` returned no function.
        RuntimeError: the function does not have one of the parameters.
        ValueError: ``update_func`` does not take two arguments, or the shape of a parameter is unknown.
    """
    parameters = list(parameters)
    count = len(inspect.signature(update_func).parameters)
    if count != 2:
        raise ValueError(f"expected update_func(parameters, gradients), got a function of {count} arguments")
    for p in parameters:
        if isinstance(p, Parameter) and _INFERRED in p.shape:
            raise ValueError(f"expected parameters of known shapes, got {p!r}; apply its layer to an input first")
    seeds.next()
    if all(isinstance(p, Parameter) for p in parameters):
        update = Assignments(update_func, parameters)
        rule = modern.Universal(tensors_of(parameters), update, gradients="sum", state=update.state)
    else:

        def function(tensors: list[Any], gradients: list[Any], step: modern.Step) -> None:
            update_func(tensors, gradients)

        rule = modern.Universal(tensors_of(parameters), function, gradients="sum")
    return Learner(rule, reports=False, parameters=parameters)


take_plain_settings(globals())
