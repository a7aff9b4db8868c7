"""Common parts of importers of torch modules: parameters, types of tensors, scopes, and arguments from ``inputs``."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx.operator_schemas import get_signature_for_torch_op
from torch.nn.parameter import is_lazy

from feedline.graph.costs import activations, multiply_adds
from feedline.graph.graph import Graph, Operation, OutputReference, Parameter, Path, Scope, Setting, TensorType, unique
from feedline.graph.op_families import family
from feedline.graph.settings import HAVE_SETTINGS, ShapesAround, settings_of


def type_of(tensor: Any) -> TensorType:
    """Return the type of a tensor, possibly a fake one. The type of other objects and uninitialized parameters is
    unknown."""
    if not isinstance(tensor, torch.Tensor) or is_lazy(tensor):
        return TensorType()
    shape = tuple(n if isinstance(n, int) else str(n) for n in tensor.shape)
    return TensorType(shape, str(tensor.dtype).removeprefix("torch."))


def arguments(model: torch.nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments: ``inputs`` with tensors for arrays, and zeros for shapes."""
    like = next(model.parameters(), torch.empty(0))
    like = like if like.is_floating_point() else torch.empty(0, device=like.device)

    def convert(value: Any) -> Any:
        if _is_shape(value):
            if min(value) < 0:
                raise ValueError(f"expected a shape of lengths of at least 0, got {value}")
            return torch.zeros(value, dtype=like.dtype, device=like.device)
        if isinstance(value, np.ndarray):
            return torch.from_numpy(value).to(like.device)
        if isinstance(value, Mapping):
            return {key: convert(part) for key, part in value.items()}
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            return type(value)(convert(part) for part in value)
        return value

    if isinstance(inputs, Mapping):
        return (), convert(dict(inputs))
    if isinstance(inputs, (list, tuple)) and not _is_shape(inputs) and not hasattr(inputs, "_fields"):
        return tuple(convert(part) for part in inputs), {}
    return (convert(inputs),), {}


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(type(n) is int for n in value)


def layer_settings(module: torch.nn.Module, _: ShapesAround | None = None) -> tuple[Setting, ...]:
    """Return the settings of a layer of the library, which do not depend on the shapes around it."""
    return settings_of(type(module).__name__, vars(module))


def call_settings(
    function: Any, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any], around: ShapesAround
) -> tuple[Setting, ...]:
    """Return the settings of a call of a torch function or operator."""
    if family(kind) not in HAVE_SETTINGS:
        return ()
    return settings_of(kind, {**dict(zip(_argument_names(function), args, strict=False)), **kwargs}, around)


@functools.cache
def _argument_names(function: Any) -> tuple[str, ...]:
    """Return the names of the positional parameters of a function of torch."""
    schema = getattr(function, "_schema", None)
    if schema is not None:
        return tuple(argument.name for argument in schema.arguments)
    try:
        signatures = [inspect.signature(function)]
    except (ValueError, TypeError):  # written in C++
        signatures = get_signature_for_torch_op(function) or []
    for signature in signatures:
        if all(p.kind is not p.VAR_POSITIONAL for p in signature.parameters.values()):
            return tuple(signature.parameters)
    return ("input", "kernel_size", "stride", "padding")  # of pooling functions that dispatch to one of two functions


class ModuleTensors:
    """Parameters and buffers of a module by name and by identity. Other tensors count as constants."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.table: dict[str, Parameter] = {}
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []
        self.first: dict[str, str] = {}  # the first name of each tensor, by any of its qualified names
        for buffer, tensors_by_name in ((False, model.named_parameters), (True, model.named_buffers)):
            for name, tensor in tensors_by_name(remove_duplicate=False):
                first_name = self._names.setdefault(id(tensor), name)
                self.first[name] = first_name
                if first_name == name:
                    self.table[name] = Parameter(name, type_of(tensor), tensor.requires_grad and not buffer, buffer)

    def name(self, tensor: Any) -> str | None:
        """Return the name of a parameter or buffer, or None."""
        return self._names.get(id(tensor))

    def constant(self, tensor: Any, preferred: str = "constant") -> str:
        """Return a name for a constant in the code of the module."""
        name = unique(preferred, self.table)
        self._names[id(tensor)] = self.first[name] = name
        self._kept.append(tensor)  # so that its id is not reused
        self.table[name] = Parameter(name, type_of(tensor), trains=False, buffer=True)
        return name


class Scopes:
    """Scopes by path, from the calls of modules around an operation.

    Attributes:
        modules: modules by qualified name.
        table: scopes so far.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self._alone = _is_layer(model) and len(self.modules) - isinstance(model, torch.nn.MultiheadAttention) == 1
        self.table: dict[Path, Scope] = {}

    def path(self, calls: Iterable[str]) -> Path:
        """Return the path for calls of modules, outermost first: qualified names, each with ``@N`` if called before."""
        path: Path = ()
        outer = ""
        for call in calls:
            name, _, number = call.partition("@")
            if not name:
                if self._alone:
                    path = (type(self.modules[""]).__name__,)  # the network is a single layer
                    self.table.setdefault(path, self._scope(self.modules[""]))
                continue
            inside = bool(outer) and name.startswith(f"{outer}.")
            last = name[len(outer) + 1 :] if inside else name
            path = (*path, re.sub(r"[^\w.-]", "_", last) + (f"@{number}" if number else ""))
            outer = name
            if path not in self.table:
                self.table[path] = self._scope(self.modules.get(name))
        return path

    @staticmethod
    def _scope(module: torch.nn.Module | None) -> Scope:
        if module is None:
            return Scope("module")
        builtin = _is_layer(module)
        kind = type(module).__name__
        return Scope(kind, builtin, module.extra_repr(), layer_settings(module)) if builtin else Scope(kind)


def _is_layer(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.modules.")


class OperationList:
    """Operations of a module in order, with the types of their outputs.

    Attributes:
        held: parameters and buffers of the module.
        scopes: scopes of the operations.
        operations: all operations so far.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.held, self.scopes = ModuleTensors(model), Scopes(model)
        self.operations: list[Operation] = []
        self._types: dict[OutputReference, TensorType] = {}

    def add(self, op: Operation) -> list[OutputReference]:
        """Add an operation, and return references to its outputs."""
        self.operations.append(op)
        outputs = [OutputReference(op.key, i) for i in range(len(op.outputs))]
        self._types.update(zip(outputs, op.outputs, strict=True))
        return outputs

    def call(
        self,
        key: str,
        kind: str,
        scope: Path,
        operands: Sequence[OutputReference | str],
        outputs: Sequence[TensorType],
        detail: str = "",
        equation: str = "",
        layer: bool = False,
        allocates: bool = True,
        settings: Callable[[ShapesAround], tuple[Setting, ...]] = lambda _: (),
    ) -> list[OutputReference]:
        """Add an operation on sources and parameters (by name), in the order of its arguments, with its costs."""
        names = tuple(dict.fromkeys(g for g in operands if isinstance(g, str)))
        weights = [self.held.table[name].type.shape for name in names]
        types = [self.held.table[g].type if isinstance(g, str) else self._types[g] for g in operands]
        first = outputs[0].shape if outputs else None
        around = ShapesAround([t.shape for t in types], weights, first)
        op = Operation(
            key=key,
            kind=kind,
            scope=scope,
            inputs=tuple(g for g in operands if isinstance(g, OutputReference)),
            outputs=tuple(outputs),
            parameters=names,
            multiply_adds=multiply_adds(kind, *around, equation, layer),
            activations=activations(kind, outputs) if allocates else 0,
            detail=detail,
            settings=settings(around),
        )
        return self.add(op)

    def graph(self, importer: str) -> Graph:
        """Return the graph, without operations on which no output depends, such as counters of batch normalisation.

        Without outputs, all operations are kept.
        """
        needed = {o.key for o in self.operations if o.role == "output"} or {o.key for o in self.operations}
        operations = []
        for op in reversed(self.operations):
            if op.key in needed or op.role == "input":
                operations.append(op)
                needed.update(source.key for source in op.inputs)
        return Graph(tuple(reversed(operations)), self.held.table, self.scopes.table, importer)
