"""What importers of torch modules share: parameters, types of tensors, scopes, and arguments made from ``inputs``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from feedline.graph.costs import activations, multiply_adds
from feedline.graph.graph import Operation, OutputReference, Parameter, Path, Scope, Shape, TensorType


def type_of(tensor: Any) -> TensorType:
    """Type of a tensor, fake ones included; unknown for anything else, and for parameters that are made later."""
    if not isinstance(tensor, torch.Tensor) or is_lazy(tensor):
        return TensorType()
    shape = tuple(n if isinstance(n, int) else str(n) for n in tensor.shape)
    return TensorType(shape, str(tensor.dtype).removeprefix("torch."))


def arguments(model: torch.nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments: ``inputs`` with tensors for arrays, and zeros for shapes."""
    like = next(model.parameters(), torch.empty(0))
    like = like if like.is_floating_point() else torch.empty(0, device=like.device)

    def made(value: Any) -> Any:
        if _is_shape(value):
            if min(value) < 0:
                raise ValueError(f"expected a shape of lengths from 0, got {value}")
            return torch.zeros(value, dtype=like.dtype, device=like.device)
        if isinstance(value, np.ndarray):
            return torch.from_numpy(value).to(like.device)
        if isinstance(value, Mapping):
            return {key: made(part) for key, part in value.items()}
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            return type(value)(made(part) for part in value)
        return value

    if isinstance(inputs, Mapping):
        return (), made(dict(inputs))
    if isinstance(inputs, (list, tuple)) and not _is_shape(inputs) and not hasattr(inputs, "_fields"):
        return tuple(made(part) for part in inputs), {}
    return (made(inputs),), {}


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(type(n) is int for n in value)


class ModuleTensors:
    """Parameters and buffers of a module by name and by identity; further tensors are taken for constants."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.table: dict[str, Parameter] = {}
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []
        self.first: dict[str, str] = {}  # every qualified name of a tensor, and the first of them
        for buffer, listed in ((False, model.named_parameters), (True, model.named_buffers)):
            for name, tensor in listed(remove_duplicate=False):
                known = self._names.setdefault(id(tensor), name)
                self.first[name] = known
                if known == name:
                    self.table[name] = Parameter(name, type_of(tensor), tensor.requires_grad and not buffer, buffer)

    def name(self, tensor: Any) -> str | None:
        """The name of a parameter or buffer; None of other tensors."""
        return self._names.get(id(tensor))

    def constant(self, tensor: Any, wanted: str = "constant") -> str:
        """The name of a tensor that the module's code holds."""
        name, n = wanted, 1
        while name in self.table:
            n += 1
            name = f"{wanted}_{n}"
        self._names[id(tensor)] = self.first[name] = name
        self._kept.append(tensor)  # so that no other tensor gets its identity
        self.table[name] = Parameter(name, type_of(tensor), trains=False, buffer=True)
        return name


class Scopes:
    """Scopes by path, from the calls of modules that stand around an operation."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self.table: dict[Path, Scope] = {}

    def path(self, calls: Iterable[str]) -> Path:
        """The path for calls of modules, outermost first: qualified names, each with ``@N`` if called before."""
        path: Path = ()
        outer = ""
        for call in calls:
            name, _, number = call.partition("@")
            if not name:
                continue
            inside = bool(outer) and name.startswith(f"{outer}.")
            last = name[len(outer) + 1 :] if inside else name
            path = (*path, re.sub(r"[^\w.-]", "_", last) + (f"@{number}" if number else ""))
            outer = name
            if path not in self.table:
                self.table[path] = self._scope(self._modules.get(name))
        return path

    @staticmethod
    def _scope(module: torch.nn.Module | None) -> Scope:
        if module is None:
            return Scope("module")
        builtin = type(module).__module__.startswith("torch.nn.modules.")
        return Scope(type(module).__name__, builtin, module.extra_repr() if builtin else "")


def operation(
    key: str,
    kind: str,
    scope: Path,
    given: Sequence[OutputReference | str],
    types: Mapping[OutputReference | str, TensorType],
    outputs: Sequence[TensorType],
    detail: str = "",
    equation: str = "",
    layer: bool = False,
    allocates: bool = True,
) -> Operation:
    """An operation applied to sources and parameters (by name), in the order of its arguments, with what it costs."""
    names = tuple(dict.fromkeys(g for g in given if isinstance(g, str)))
    operands: list[Shape | None] = [types[g].shape for g in given]
    weights: list[Shape | None] = [types[name].shape for name in names]
    first = outputs[0].shape if outputs else None
    return Operation(
        key=key,
        kind=kind,
        scope=scope,
        inputs=tuple(g for g in given if isinstance(g, OutputReference)),
        outputs=tuple(outputs),
        parameters=names,
        multiply_adds=multiply_adds(kind, operands, weights, first, equation, layer),
        activations=activations(kind, outputs) if allocates else 0,
        detail=detail,
    )


def reachable(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """Without operations that no output depends on: bookkeeping, such as the counters of batch normalisation.

    All of them, where the importer saw no output: what gives no tensor is not used by nothing.
    """
    needed = {o.key for o in operations if o.role == "output"} or {o.key for o in operations}
    kept = []
    for op in reversed(operations):
        if op.key in needed or op.role == "input":
            kept.append(op)
            needed.update(source.key for source in op.inputs)
    return tuple(reversed(kept))
