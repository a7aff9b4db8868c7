"""The names of CNTK 2.7, translated onto feedline: one file for each of its modules, nothing new inside.

``feedline.cntk.install()``, or ``feedline run --as cntk SCRIPT``, makes ``import cntk`` mean this package, in that
process only. What is there, what is approximated and what is absent stands in docs/compat/cntk.md, made from `_names`.
Importing it needs NumPy alone; torch comes when a device is asked for, or a name that has to do with training.
"""

from __future__ import annotations

import importlib
from typing import Any

from feedline.cntk import axis, cntk_py, core, device, io, logging, variables
from feedline.cntk._install import install
from feedline.cntk._names import explain
from feedline.cntk.axis import Axis
from feedline.cntk.core import NDArrayView, Value, asarray, asvalue
from feedline.cntk.device import (
    DeviceDescriptor,
    DeviceKind,
    all_devices,
    cpu,
    get_gpu_properties,
    gpu,
    set_default_device,
    set_excluded_devices,
    try_set_default_device,
    use_default_device,
)

__version__ = "2.7"

# Modules that import torch, and what the package offers of them.
_WITH_TORCH = {
    "learners": (
        "IGNORE",
        "Learner",
        "UnitType",
        "UserLearner",
        "adadelta",
        "adagrad",
        "adam",
        "default_unit_gain_value",
        "fsadagrad",
        "learning_parameter_schedule",
        "learning_parameter_schedule_per_sample",
        "learning_rate_schedule",
        "momentum_as_time_constant_schedule",
        "momentum_schedule",
        "momentum_schedule_per_sample",
        "momentum_sgd",
        "nesterov",
        "rmsprop",
        "set_default_unit_gain_value",
        "sgd",
        "training_parameter_schedule",
        "universal",
    ),
    "train": (
        "CheckpointConfig",
        "CrossValidationConfig",
        "DataUnit",
        "TestConfig",
        "Trainer",
        "TrainingSession",
        "minibatch_size_schedule",
        "training_session",
    ),
}

__all__ = [
    "IGNORE",
    "Axis",
    "CheckpointConfig",
    "CrossValidationConfig",
    "DataUnit",
    "DeviceDescriptor",
    "DeviceKind",
    "Learner",
    "NDArrayView",
    "TestConfig",
    "Trainer",
    "TrainingSession",
    "UnitType",
    "UserLearner",
    "Value",
    "adadelta",
    "adagrad",
    "adam",
    "all_devices",
    "asarray",
    "asvalue",
    "axis",
    "cntk_py",
    "core",
    "cpu",
    "default_unit_gain_value",
    "device",
    "fsadagrad",
    "get_gpu_properties",
    "gpu",
    "install",
    "io",
    "learners",
    "learning_parameter_schedule",
    "learning_parameter_schedule_per_sample",
    "learning_rate_schedule",
    "logging",
    "minibatch_size_schedule",
    "momentum_as_time_constant_schedule",
    "momentum_schedule",
    "momentum_schedule_per_sample",
    "momentum_sgd",
    "nesterov",
    "rmsprop",
    "set_default_device",
    "set_default_unit_gain_value",
    "set_excluded_devices",
    "sgd",
    "train",
    "training_parameter_schedule",
    "training_session",
    "try_set_default_device",
    "universal",
    "use_default_device",
    "variables",
]


def __getattr__(name: str) -> Any:
    for module, names in _WITH_TORCH.items():
        if name == module or name in names:
            found = importlib.import_module(f"{__name__}.{module}")
            return found if name == module else getattr(found, name)
    raise explain("cntk", name)
