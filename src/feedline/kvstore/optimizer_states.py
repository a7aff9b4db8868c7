"""The states of an optimizer in a file: tensors as safetensors, everything else as JSON, nothing pickled.

A file appears whole or not at all, and a file that was there before stays until then.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feedline.errors import StateError
from feedline.interop.tensor_file import load_tensors, replace_tensors
from feedline.kvstore.arguments import checked_key
from feedline.kvstore.base import Key
from feedline.kvstore.optimizers import Optimizer, optimizer

VERSION = 1


def save_states(path: str | os.PathLike[str], rule: Optimizer, dump_optimizer: bool) -> None:
    """Write all states of an optimizer, and its parameters if ``dump_optimizer``, but for those of the run at hand.

    Raises:
        OSError: no space, no permission; what was there before is untouched.
    """
    # A number may have changed since the last push, and with it what the rule keeps.
    found = {key: one for key, one in rule.states().items() if set(one[0]) == set(rule.keeps)}
    tensors = {f"{i}.{name}": t for i, (states, _) in enumerate(found.values()) for name, t in states.items()}
    about: dict[str, Any] = {
        "feedline": VERSION,
        "optimizer": rule.name,
        "parameters": rule.lasting_parameters() if dump_optimizer else None,
        "states": list(rule.keeps),
        "keys": list(found),
        "counts": [count for _, count in found.values()],
    }
    replace_tensors(Path(path), tensors, about)


def load_states(path: str | os.PathLike[str], rule: Optimizer, weights: Mapping[Key, Any]) -> None:
    """Take over what `save_states` wrote; all of it or, after an error, nothing.

    Numbers of the run at hand (``rescale_grad``) stay as they are, whatever is in the file: older ones have them.

    Args:
        path: of the file.
        rule: the optimizer that gets it.
        weights: by key, where there are any, to hold shapes against.

    Raises:
        StateError: the file is missing or damaged, or was written by another optimizer or for other shapes.
    """
    tensors, about = load_tensors(Path(path))
    try:
        saved = {"version": about["feedline"], "optimizer": about["optimizer"], "states": about["states"]}
        parameters, keys, counts = about["parameters"], about["keys"], about["counts"]
    except (KeyError, TypeError) as error:
        raise StateError(f"expected states of an optimizer in {path}, got something else: no {error}") from error
    try:
        again = rule if parameters is None or about["optimizer"] != rule.name else optimizer(rule.name, **parameters)
        current = {"version": VERSION, "optimizer": rule.name, "states": list(again.keeps)}
        if saved != current:
            raise StateError(f"expected states of this store's optimizer in {path}", saved=saved, current=current)
        found: dict[Key, tuple[dict[str, Any], int]] = {
            checked_key(key): ({name: tensors[f"{i}.{name}"] for name in again.keeps}, _checked_count(count))
            for i, (key, count) in enumerate(zip(keys, counts, strict=True))
        }
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"expected whole states of an optimizer in {path}, got some that do not fit: {error}"
        ) from error
    for key, (states, _) in found.items():
        for name, state in states.items():
            if not state.dtype.is_floating_point:
                raise StateError(f"expected {name} of key {key!r} in {path} in floating point, got {state.dtype}")
            if key in weights and state.shape != weights[key].shape:
                raise StateError(
                    f"expected {name} of key {key!r} in {path} in the shape of what is stored",
                    saved={"shape": tuple(state.shape)},
                    current={"shape": tuple(weights[key].shape)},
                )
    rule.set_parameters(again.lasting_parameters())
    rule.forget()
    rule.set_states(found)


def _checked_count(count: Any) -> int:
    if type(count) is not int or not 0 <= count < 1 << 63:
        raise ValueError(f"expected a number of updates, got {count!r}")
    return count
