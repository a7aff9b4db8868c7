"""Models inside their wrappers for training: `torch.compile` and `DistributedDataParallel`.

A state has the names of the model inside, so that it can be loaded with another wrapper or none. Older states, with the
names of a `DistributedDataParallel`, can be loaded, too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

import torch

T = TypeVar("T")

#: Prefixes that wrappers add to the names of parameters.
_COMPILED, _PARALLEL = "_orig_mod.", "module."


def unwrap_compiled(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model inside a compiled one, or the model itself."""
    return getattr(model, "_orig_mod", model)


def unwrap_model(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model inside all wrappers."""
    while True:
        inner = unwrap_compiled(model)
        if isinstance(inner, torch.nn.parallel.DistributedDataParallel):
            inner = inner.module
        if inner is model:
            return model
        model = inner


def plain_names(names: Iterable[str]) -> list[str]:
    """Return names of parameters without the prefixes of wrappers."""
    plain = [name.removeprefix(_COMPILED) for name in names]
    if plain and all(name.startswith(_PARALLEL) for name in plain):
        return plain_names([name.removeprefix(_PARALLEL) for name in plain])
    return plain


def rename_tensors(tensors: Mapping[str, T], names: Collection[str]) -> dict[str, T]:
    """Return the tensors of a model by ``names``, if the names of an older state differ by prefixes of wrappers
    alone."""
    if tensors.keys() != set(names):
        plain, current = plain_names(tensors), dict(zip(plain_names(names), names, strict=True))
        if set(plain) == set(current):
            return {current[name]: tensor for name, tensor in zip(plain, tensors.values(), strict=True)}
    return dict(tensors)


def plain_learner_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a learner, maybe an older one, with parameters under the names of `plain_names`."""
    names = [name for name, _ in state["parameters"]]
    plain = dict(zip(names, plain_names(names), strict=True))
    if list(plain.values()) == names:
        return dict(state)
    # A name is separated from others before and after it by dots.
    either = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    named = re.compile(rf"(?<![^.])(?:{either})(?![^.])")

    def without(value: Any) -> Any:
        if isinstance(value, str):
            return named.sub(lambda match: plain[match[0]], value, count=1)
        if isinstance(value, Mapping):
            return {without(key): without(item) for key, item in value.items()}
        return [without(item) for item in value] if isinstance(value, list) else value

    parameters = [[plain[name], shape] for name, shape in state["parameters"]]
    tensors = {without(name): tensor for name, tensor in state["tensors"].items()}
    return {**state, "parameters": parameters, "own": without(state["own"]), "tensors": tensors}
