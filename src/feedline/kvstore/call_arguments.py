"""The arguments of store calls as one list of tensors for each key. Only types and lengths are checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from feedline.collective.refusal import RefusedError
from feedline.kvstore.base import Key


def plain_key(key: Any) -> Key:
    """Return a key as plain int or str.

    Raises:
        TypeError: the key is neither int nor str.
    """
    if isinstance(key, str):
        return key if type(key) is str else str.__str__(key)  # NumPy's strings subclass str
    if isinstance(key, int):
        return int(key)  # True is 1
    raise TypeError(f"expected an int or str as key, got {key!r}, of type {type(key).__name__}")


def group_by_key(key: Any, value: Any, name: str) -> dict[Key, list[Any]]:
    """Return the arrays of each key, in the order of the call. The arrays of a repeated key are joined.

    Raises:
        TypeError: a key or value of a wrong type, or both int and str keys.
        RefusedError: lists of different lengths, or a key without a value.
    """
    arrays: dict[Key, list[Any]] = {}
    if not isinstance(key, (list, tuple)):
        arrays[plain_key(key)] = as_tensors(value, name)
        return arrays
    keys = [k if type(k) is int or type(k) is str else plain_key(k) for k in key]
    if len({type(k) for k in keys}) > 1:
        raise TypeError(f"expected keys of one kind, got both int and str: {keys}")
    if not isinstance(value, (list, tuple)) or len(value) != len(keys):
        got = len(value) if isinstance(value, (list, tuple)) else type(value).__name__
        raise RefusedError(f"expected a list of {len(keys)} {name}s, one for each key, got {got}")
    for k, item in zip(keys, value, strict=True):
        tensors = as_tensors(item, name)
        if k in arrays:
            arrays[k] += tensors
        else:
            arrays[k] = tensors
    return arrays


def as_tensors(value: Any, name: str) -> list[Any]:
    """Return one value, or a list of them, as a list of tensors."""
    if not isinstance(value, (list, tuple)):
        return [as_tensor(value, name)]
    if not value:
        raise RefusedError(f"expected at least one {name} for each key, got an empty list")
    # Most values are plain tensors already. Calling a function for each would dominate the cost.
    plain = torch.Tensor
    return [item if type(item) is plain and not item.requires_grad else as_tensor(item, name) for item in value]


def as_tensor(value: Any, name: str) -> torch.Tensor:
    """Return a tensor outside autograd that shares the array's memory."""
    if isinstance(value, torch.Tensor):
        return value.detach() if value.requires_grad else value
    if not isinstance(value, np.ndarray):
        raise TypeError(f"expected a torch tensor or NumPy array as {name}, got {type(value).__name__}")
    if not value.flags.writeable or min(value.strides, default=0) < 0:  # torch does not support these arrays
        if name == "out":
            got = "a reversed one" if value.flags.writeable else "a read-only array"
            raise RefusedError(f"expected an out that torch can write to, got {got}")
        value = value.copy()
    try:
        return torch.from_numpy(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"expected {name} to be a NumPy array that torch supports: {error}") from error


def check_priority(priority: Any) -> None:
    """Raise TypeError for a priority that is not an int."""
    if not isinstance(priority, int):
        raise TypeError(f"expected an int as priority, got {priority!r}")
