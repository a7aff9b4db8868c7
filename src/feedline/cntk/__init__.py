"""The names of CNTK 2.7, translated onto feedline: one file for each of its modules, nothing new inside.

``feedline.cntk.install()``, or ``feedline run --as cntk SCRIPT``, makes ``import cntk`` mean this package, in that
process only. What is there, what is approximated and what is absent stands in docs/compat/cntk.md, made from `_names`.
Importing it needs NumPy alone; torch comes when a device is asked for, or a name that has to do with training.
"""

from __future__ import annotations

import importlib
from typing import Any

from feedline import _facades
from feedline.cntk import (
    axis,
    cntk_py,
    core,
    debugging,
    device,
    initializer,
    io,
    layers,
    logging,
    losses,
    metrics,
    ops,
    random,
)
from feedline.cntk import variables as variables
from feedline.cntk._names import explain
from feedline.cntk._nodes import FreeDimension, InferredDimension
from feedline.cntk._operand import register
from feedline.cntk.axis import Axis
from feedline.cntk.core import NDArrayView, Value, asarray, asvalue
from feedline.cntk.default_options import (
    default_options,
    default_options_for,
    default_override_or,
    get_default_override,
    is_default_override,
)
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
from feedline.cntk.initializer import *  # noqa: F403
from feedline.cntk.io import INFINITELY_REPEAT, MinibatchData
from feedline.cntk.ops import *  # noqa: F403
from feedline.cntk.ops import eval as eval
from feedline.cntk.ops import sequence
from feedline.cntk.variables import Constant, Parameter, Variable

__version__ = "2.7"

# What variables and functions call, though it is made of them.
register("feedline.cntk.ops._function", "operand_of")
register(
    "feedline.cntk.ops",
    *("abs", "element_divide", "element_times", "greater", "greater_equal", "less", "less_equal", "minus", "negate"),
    *("plus", "pow", "slice", "times"),
)
register("feedline.cntk.layers.higher_order_layers", "Sequential", "then")
register("feedline.cntk.train._quick", "test", "train")

# Modules that import torch, and what the package offers of them.
_WITH_TORCH = {
    "train._evaluator": ("Evaluator",),
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
        "Communicator",
        "CrossValidationConfig",
        "DataUnit",
        "DistributedLearner",
        "TestConfig",
        "Trainer",
        "TrainingSession",
        "WorkerDescriptor",
        "block_momentum_distributed_learner",
        "data_parallel_distributed_learner",
        "distributed",
        "minibatch_size_schedule",
        "mpi_communicator",
        "training_session",
    ),
}

__all__ = [
    "Axis",
    "CheckpointConfig",
    "Communicator",
    "Constant",
    "CrossValidationConfig",
    "DataUnit",
    "DeviceDescriptor",
    "DeviceKind",
    "DistributedLearner",
    "Evaluator",
    "FreeDimension",
    "IGNORE",
    "INFINITELY_REPEAT",
    "InferredDimension",
    "Learner",
    "MinibatchData",
    "NDArrayView",
    "Parameter",
    "TestConfig",
    "Trainer",
    "TrainingSession",
    "UnitType",
    "UserLearner",
    "Value",
    "Variable",
    "WorkerDescriptor",
    "adadelta",
    "adagrad",
    "adam",
    "all_devices",
    "asarray",
    "asvalue",
    "axis",
    "block_momentum_distributed_learner",
    "cntk_py",
    "core",
    "cpu",
    "data_parallel_distributed_learner",
    "default_options",
    "default_options_for",
    "default_override_or",
    "debugging",
    "default_unit_gain_value",
    "device",
    "distributed",
    "eval",
    "fsadagrad",
    "get_default_override",
    "get_gpu_properties",
    "gpu",
    "initializer",
    "install",
    "io",
    "is_default_override",
    "layers",
    "learners",
    "learning_parameter_schedule",
    "learning_parameter_schedule_per_sample",
    "learning_rate_schedule",
    "logging",
    "losses",
    "metrics",
    "minibatch_size_schedule",
    "momentum_as_time_constant_schedule",
    "momentum_schedule",
    "momentum_schedule_per_sample",
    "momentum_sgd",
    "mpi_communicator",
    "nesterov",
    "ops",
    "random",
    "rmsprop",
    "sequence",
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
    *initializer.__all__,
    *ops.__all__,
]


def install() -> None:
    """Register the façade under the name ``cntk``, for this process; again is as once.

    Raises:
        CompatError: another package has been imported as ``cntk`` already.
    """
    _facades.install("cntk")


def __getattr__(name: str) -> Any:
    for module, names in _WITH_TORCH.items():
        if name == module or name in names:
            found = importlib.import_module(f"{__name__}.{module}")
            return found if name == module else getattr(found, name)
    raise explain("cntk", name)
