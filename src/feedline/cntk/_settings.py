"""Settings of operations, layers, schedules and learners, as plain Python values.

Scripts pass shapes, strides, axes and counts as numbers, tuples, lists, NumPy arrays or NumPy numbers. The façade's
functions convert them when they are called, so that no operation has to, and saved graphs contain Python's types only.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

#: Parameters that are settings. Others are operands, initial values, names and functions.
SETTINGS = frozenset(
    {
        # shapes
        *("shape", "filter_shape", "pooling_window_shape", "unpooling_window_shape", "roi_output_shape"),
        *("output_shape", "cell_shape"),
        # a value for each axis
        *("strides", "pad", "auto_padding", "sharing", "dilation", "pattern"),
        # axes and places
        *("axis", "axes", "axis1", "axis2", "begin_axis", "end_axis", "attention_axis", "perm"),
        *("begin_index", "end_index", "offset_x", "offset_y"),
        # counts
        *("num_filters", "groups", "reduction_rank", "input_rank", "map_rank", "output_rank", "filter_rank"),
        *("infer_input_rank_to_map", "num_classes", "k", "topN", "block_size", "depth_radius", "window_size"),
        *("T", "time_step", "shift", "hidden_size", "num_layers", "num_samples", "num_negative_samples"),
        *("kernel_width", "kernel_height", "attention_dim", "attention_span", "tokensToIgnore"),
        # schedules and learners
        *("schedule", "lr", "lr_schedule", "momentum", "variance_momentum", "minibatch_size", "epoch_size"),
        # other numbers
        *("dropout_rate", "keep_prob", "keepdims", "seed"),
    }
)


def plain(value: Any) -> Any:
    """Return a setting with lists in place of arrays, tuples of ranges, and Python's numbers in place of NumPy's."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, range):
        return tuple(value)
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    return value


def with_plain_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is called with plain settings, or the function itself if it has none."""
    parameters = inspect.signature(function).parameters
    places = [i for i, p in enumerate(parameters.values()) if p.name in SETTINGS and p.kind is p.POSITIONAL_OR_KEYWORD]
    if not places and not any(p.name in SETTINGS or p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return function

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if args:
            values = list(args)
            for i in places:
                if i < len(values):
                    values[i] = plain(values[i])
            args = tuple(values)
        return function(*args, **{name: plain(v) if name in SETTINGS else v for name, v in kwargs.items()})

    return wrapper


def take_plain_settings(namespace: dict[str, Any]) -> None:
    """Replace the public functions that a module defines, from its ``globals()``, by functions with plain settings."""
    home, replaced = namespace["__name__"], dict[int, Any]()
    for name, value in list(namespace.items()):
        if not name.startswith("_") and isinstance(value, FunctionType) and value.__module__ == home:
            namespace[name] = replaced.setdefault(id(value), with_plain_settings(value))
