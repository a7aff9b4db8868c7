"""A run of a module as a graph: every function of torch that is called, within the modules that forward hooks see.

Sees the one way that the inputs take, through any Python. A function that torch sees as one (attention, for instance)
is one operation. Costs one run, and the memory of all tensors in it, which are kept to tell them apart.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from feedline.graph.graph import Graph, Operation, OutputReference, TensorType
from feedline.graph.importers.torch_parts import ModuleTensors, Scopes, operation, reachable, type_of


def from_run(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], notes: tuple[str, ...]) -> Graph:
    """The graph of one run; raises what the module raises."""
    record = _Record(model)
    record.inputs(args, kwargs)
    hooks = record.hooks()
    try:
        with record:
            result = model(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    record.outputs(result)
    return Graph(reachable(record.operations), record.held.table, record.scopes.table, "a run", notes)


def from_tree(model: torch.nn.Module, notes: tuple[str, ...]) -> Graph:
    """Modules without others inside, or from the library, in the order of their definition; no edges."""
    held, scopes = ModuleTensors(model), Scopes(model)
    operations: list[Operation] = []
    done: set[str] = set()
    types: dict[OutputReference | str, TensorType] = {name: p.type for name, p in held.table.items()}
    for name, module in model.named_modules():
        parent, _, _ = name.rpartition(".")
        inner = any(True for _ in module.children())
        if parent in done or (inner and not isinstance(module, torch.nn.MultiheadAttention)):
            done.update([name] if parent in done else [])
            continue
        done.add(name)
        parts = name.split(".") if name else []
        path = scopes.path(".".join(parts[: i + 1]) for i in range(len(parts)))
        own = [held.first[".".join([*parts, n])] for n, _ in module.named_parameters()]
        made = operation(f"n{len(operations)}", type(module).__name__, path, own, types, [TensorType()], layer=True)
        operations.append(made)
    return Graph(tuple(operations), held.table, scopes.table, "the module tree", notes)


class _Record(TorchFunctionMode):
    """Notes every call of a torch function that gives tensors."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model, self.held, self.scopes = model, ModuleTensors(model), Scopes(model)
        self.operations: list[Operation] = []
        self._sources: dict[int, OutputReference] = {}
        self._types: dict[OutputReference | str, TensorType] = {n: p.type for n, p in self.held.table.items()}
        self._kept: list[Any] = []  # as long as they live, no other tensor has their identity
        self._calls: list[str] = []
        self._called: Counter[str] = Counter()
        self._made: Counter[str] = Counter()

    def hooks(self) -> list[Any]:
        """Hooks that tell which module runs; to be removed."""
        hooks = []
        for name, module in self.model.named_modules():
            hooks.append(module.register_forward_pre_hook(self._entered(name)))
            hooks.append(module.register_forward_hook(self._left, always_call=True))
        return hooks

    def _entered(self, name: str) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            n = self._called[name]
            self._called[name] += 1
            self._calls.append(f"{name}@{n}" if n else name)

        return enter

    def _left(self, *_: Any) -> None:
        self._calls.pop()

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What the module is applied to."""
        names = list(inspect.signature(self.model.forward).parameters)
        given = {**{names[i] if i < len(names) else str(i): arg for i, arg in enumerate(args)}, **kwargs}
        for path, tensor in pytree.tree_flatten_with_path(given)[0]:
            if isinstance(tensor, torch.Tensor):
                first, rest = path[0].key, pytree.keystr(path[1:])
                key, types = f"input.{len(self.operations)}", (type_of(tensor),)
                self._add(Operation(key, "input", f"{first}{rest}", "input", outputs=types), [tensor])

    def outputs(self, result: Any) -> None:
        """What the module gives."""
        if dataclasses.is_dataclass(result) and not isinstance(result, type):
            result = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
        for i, (path, tensor) in enumerate(pytree.tree_flatten_with_path(result)[0]):
            if isinstance(tensor, torch.Tensor):
                given = self._given(tensor)
                sources = (given,) if isinstance(given, OutputReference) else ()
                names = (given,) if isinstance(given, str) else ()
                name = pytree.keystr(path)
                self.operations.append(
                    Operation(f"output.{i}", "output", name, "output", inputs=sources, parameters=names)
                )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Before the call: afterwards a tensor that it changed in place is another one for us.
        before = [leaf for leaf in pytree.tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        given = [self._given(tensor) for tensor in before]
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", type(func).__name__)
        if name == "__get__":
            name = getattr(func.__self__, "__name__", name)
        changed = args[0] if name == "__setitem__" else result
        tensors = [leaf for leaf in pytree.tree_flatten(changed)[0] if isinstance(leaf, torch.Tensor)]
        # Parameters that it hands out, or buffers that it counts in, are no results.
        if any(self.held.name(t) is None for t in tensors):
            detail = next((a for a in args if isinstance(a, str)), "")
            path = self.scopes.path(self._calls)
            kind = name.strip("_") if name.startswith("__") else name
            outputs = [type_of(t) for t in tensors]
            new = not all(_shares(t, before) for t in tensors)
            key = f"{kind}_{self._made[kind]}" if self._made[kind] else kind
            self._made[kind] += 1
            op = operation(key, kind, path, given, self._types, outputs, "", detail, allocates=new)
            self._add(op, tensors)
        return result

    def _given(self, tensor: Any) -> OutputReference | str:
        source = self._sources.get(id(tensor))
        if source is not None:
            return source
        name = self.held.name(tensor)
        if name is None:
            name = self.held.constant(tensor)
            self._types[name] = self.held.table[name].type
        return name

    def _add(self, op: Operation, tensors: list[Any]) -> None:
        self.operations.append(op)
        self._kept += tensors
        for i, tensor in enumerate(tensors):
            self._sources[id(tensor)] = OutputReference(op.key, i)
            self._types[OutputReference(op.key, i)] = op.outputs[i]


def _shares(tensor: Any, others: list[Any]) -> bool:
    """Whether it looks at memory of another one."""
    here = tensor.untyped_storage().data_ptr()
    return any(here == other.untyped_storage().data_ptr() for other in others)
