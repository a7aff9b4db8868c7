"""The learners of CNTK 2.7: after each update the parameters are what its were."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from feedline.train import SGD, AdaDelta, AdaGrad, Adam, FSAdaGrad, MomentumSGD, Nesterov, RMSProp, Schedule
from tests.compat.golden import cases
from tests.compat.test_golden_schedules import translated

RULES = {
    "sgd": SGD,
    "momentum_sgd": MomentumSGD,
    "nesterov": Nesterov,
    "adagrad": AdaGrad,
    "adadelta": AdaDelta,
    "adam": Adam,
    "adamax": Adam,
    "fsadagrad": FSAdaGrad,
    "rmsprop": RMSProp,
}
RENAMED = {
    "l1_regularization_weight": "l1",
    "l2_regularization_weight": "l2",
    "gradient_clipping_threshold_per_sample": "clip",
    "need_ave_multiplier": "average",
}


def learner_of(case, parameters):
    """A call of a CNTK factory as a learner. Without options CNTK takes sums, and divides the rate by the samples."""
    given = dict(case["options"])
    size, epoch_size = given.pop("minibatch_size", None), given.pop("epoch_size", None)
    averages = given.pop("use_mean_gradient", False) or size == 0
    options = {"gradients": "mean" if averages else "sum"}
    for name in ("lr", "momentum", "variance_momentum"):
        if name in given:
            options[name] = schedule_of(given.pop(name), size, epoch_size)
    if case["learner"] == "adadelta":
        options.setdefault("lr", Schedule.per_sample(1.0))
    if case["learner"] == "adamax":
        options["adamax"] = True
    if not given.pop("gradient_clipping_with_truncation", True):
        options["clip_by"] = "norm"
    options |= {RENAMED.get(name, name): value for name, value in given.items()}
    return RULES[case["learner"]](parameters, **options)


def schedule_of(given, size, epoch_size):
    """A schedule's own reference size wins over the learner's."""
    if not isinstance(given, dict):
        return translated("learning_parameter_schedule", given, size or 0, epoch_size)
    given = dict(given)
    if given["kind"] == "learning_parameter_schedule":
        given.setdefault("minibatch_size", size or 0)
    return translated(given.pop("kind"), given.pop("schedule"), **given)


@pytest.mark.parametrize("case", cases("learners.json"))
def test_learner_does_what_cntk_does(case):
    parameters = [torch.tensor(values, dtype=torch.float32) for values in case["parameters"]]
    steps = zip(case["steps"], case["expect"], strict="error" not in case)
    if "error" in case and not case["expect"]:
        with pytest.raises((ValueError, TypeError)):
            one_step(learner_of(case, parameters), case["steps"][0])
        return
    learner = learner_of(case, parameters)
    for step, expected in steps:
        assert learner.learning_rate() == pytest.approx(expected["learning_rate_before"], rel=1e-12)
        assert one_step(learner, step) is expected["returned"]
        for parameter, wanted in zip(parameters, expected["parameters"], strict=True):
            np.testing.assert_allclose(parameter.numpy(), np.array(wanted), rtol=1e-4, atol=1e-5)
        if expected["total_samples"] is not None:
            assert learner.samples == expected["total_samples"]


def one_step(learner, step):
    gradients = [torch.tensor(values, dtype=torch.float32) for values in step["gradients"]]
    return learner.update(step["samples"], gradients, sweep_end=step.get("sweep_end", False))
