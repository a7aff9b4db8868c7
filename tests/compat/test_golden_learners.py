"""The learners of CNTK 2.7 through the façade: after each update the parameters are what its were."""

from __future__ import annotations

import builtins

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline.cntk as C  # noqa: E402
from tests.compat.golden import cases  # noqa: E402
from tests.compat.test_golden_schedules import made  # noqa: E402


def learner_of(name, options, parameters):
    """Call a factory with the file's arguments."""
    given = {key: made(**value) if isinstance(value, dict) else value for key, value in options.items()}
    given |= {"adamax": True} if name == "adamax" else {}
    return getattr(C, "adam" if name == "adamax" else name)(parameters, **given)


@pytest.mark.parametrize("case", cases("learners.json"))
def test_learner_does_what_cntk_does(case):
    parameters = [torch.tensor(values, dtype=torch.float32) for values in case["parameters"]]
    if "error" in case:
        assert not case["expect"]
        with pytest.raises(getattr(builtins, case["error"]["type"])):
            one_step(learner_of(case["learner"], case["options"], parameters), parameters, case["steps"][0])
        return
    learner = learner_of(case["learner"], case["options"], parameters)
    state = {"minibatch_size": learner.minibatch_size, "is_compatible_mode": learner.is_compatible_mode()}
    assert state == case["learner_state"]
    for step, expected in zip(case["steps"], case["expect"], strict=True):
        assert learner.learning_rate() == pytest.approx(expected["learning_rate_before"], rel=1e-12)
        assert one_step(learner, parameters, step) is expected["returned"]
        for parameter, wanted in zip(parameters, expected["parameters"], strict=True):
            np.testing.assert_allclose(parameter.numpy(), np.array(wanted), rtol=1e-4, atol=1e-5)
        if expected["total_samples"] is not None:
            assert learner.total_number_of_samples_seen() == expected["total_samples"]


def one_step(learner, parameters, step):
    gradients = dict(zip(parameters, (np.array(values, np.float32) for values in step["gradients"]), strict=True))
    return learner.update(gradients, step["samples"], step.get("sweep_end", False))
