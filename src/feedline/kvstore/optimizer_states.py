"""Files of optimizer states, with tensors as safetensors and everything else as JSON. Nothing is pickled.

A file is replaced atomically.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feedline.errors import StateError
from feedline.interop.tensor_file import load_tensors, replace_tensors
from feedline.kvstore.base import Key
from feedline.kvstore.call_arguments import plain_key
from feedline.kvstore.optimizers import MASTER, Optimizer, optimizer

VERSION = 1


def save_states(path: str | os.PathLike[str], rule: Optimizer, dump_optimizer: bool) -> None:
    """Write all states of an optimizer and, with ``dump_optimizer``, its parameters, except `Optimizer.of_the_run`.

    Raises:
        OSError: no space, no permission. An existing file is untouched.
    """
    # If a parameter has changed since the last push, the rule may now keep other states.
    current = {key: saved for key, saved in rule.states().items() if rule.fits(saved[0])}
    tensors = {f"{i}.{name}": t for i, (states, _) in enumerate(current.values()) for name, t in states.items()}
    metadata: dict[str, Any] = {
        "feedline": VERSION,
        "optimizer": rule.name,
        "parameters": rule.lasting_parameters() if dump_optimizer else None,
        "states": list(rule.keeps),
        "keys": list(current),
        "counts": [count for _, count in current.values()],
    }
    replace_tensors(Path(path), tensors, metadata)


def load_states(path: str | os.PathLike[str], rule: Optimizer, weights: Mapping[Key, Any]) -> None:
    """Load a file of `save_states` into an optimizer. After an error the optimizer is unchanged.

    Parameters of the present run (``rescale_grad``) are ignored. Older files contain them.

    Args:
        path: path of the file.
        rule: optimizer to load into.
        weights: known weights by key, whose shapes the states must have.

    Raises:
        StateError: the file is missing or damaged, or was written by another optimizer or for other shapes.
    """
    tensors, metadata = load_tensors(Path(path))
    try:
        saved = {"version": metadata["feedline"], "optimizer": metadata["optimizer"], "states": metadata["states"]}
        parameters, keys, counts = metadata["parameters"], metadata["keys"], metadata["counts"]
    except (KeyError, TypeError) as error:
        raise StateError(f"expected states of an optimizer in {path}, got something else: no {error}") from error
    try:
        new_rule = rule if not parameters or saved["optimizer"] != rule.name else optimizer(rule.name, **parameters)
        current = {"version": VERSION, "optimizer": rule.name, "states": list(new_rule.keeps)}
        if saved != current:
            raise StateError(f"expected states of this store's optimizer in {path}", saved=saved, current=current)
        loaded: dict[Key, tuple[dict[str, Any], int]] = {}
        states_of: dict[str, dict[str, Any]] = {str(i): {} for i in range(len(keys))}
        for name, tensor in tensors.items():
            place, _, state_name = name.partition(".")
            states_of[place][state_name] = tensor
        for (key, count), states in zip(zip(keys, counts, strict=True), states_of.values(), strict=True):
            if not new_rule.fits(states):
                raise ValueError(f"states {', '.join(states)} of key {key!r}")
            loaded[plain_key(key)] = states, _check_count(count)
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"expected states of an optimizer in {path}, got malformed ones: {error}") from error
    for key, (states, _) in loaded.items():
        for name, state in states.items():
            if name not in (*new_rule.keeps, MASTER):
                continue  # the rule itself compares it
            if not state.dtype.is_floating_point:
                raise StateError(f"expected floating point as {name} of key {key!r} in {path}, got {state.dtype}")
            if key in weights and state.shape != weights[key].shape:
                saved, current = {"shape": tuple(state.shape)}, {"shape": tuple(weights[key].shape)}
                what = f"expected {name} of key {key!r} in {path} in the shape of the stored array"
                raise StateError(what, saved=saved, current=current)
    rule.set_parameters(new_rule.lasting_parameters())
    rule.forget()
    rule.set_states(loaded)


def _check_count(count: Any) -> int:
    if type(count) is not int or not 0 <= count < 1 << 63:
        raise ValueError(f"expected a non-negative count of updates, got {count!r}")
    return count
