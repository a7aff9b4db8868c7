"""States of scripts in files: nested dictionaries and lists of numbers, text and arrays, as JSON and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def flatten_state(value: Any, path: str, parts: dict[str, torch.Tensor]) -> Any:
    """Convert a state to JSON types, and put its arrays into ``parts`` under their path.

    Raises:
        ValueError: a value of another type. The error has its path.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        try:
            parts[path] = torch.from_numpy(np.array(value))
        except TypeError as error:
            raise ValueError(f"expected an array of numbers at {path}, got {value.dtype}") from error
        return {"array": path}
    if isinstance(value, (list, tuple)):
        return [flatten_state(item, f"{path}/{i}", parts) for i, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"mapping": {key: flatten_state(item, f"{path}/{key}", parts) for key, item in value.items()}}
    raise ValueError(
        "expected a state of strings as keys, numbers, text, arrays, lists and dictionaries, got "
        f"{type(value).__name__} at {path}"
    )


def unflatten_state(value: Any, parts: Mapping[str, torch.Tensor]) -> Any:
    """Return the state that `flatten_state` converted."""
    if isinstance(value, list):
        return [unflatten_state(item, parts) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return (
        parts[content].numpy()
        if kind == "array"
        else {key: unflatten_state(item, parts) for key, item in content.items()}
    )
