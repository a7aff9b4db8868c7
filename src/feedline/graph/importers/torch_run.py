"""Import of a module by running it: every torch function called, within the modules that forward hooks report.

It records the control flow of these inputs, through any Python. A function that torch dispatches as one (attention, for
instance) is one operation. Costs one run, and the memory of all its tensors, which are kept to identify them.
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

from feedline.graph.graph import Graph, Operation, OutputReference, TensorType, output_operation
from feedline.graph.importers.torch_parts import OperationList, type_of


def from_run(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], notes: tuple[str, ...]) -> Graph:
    """Return the graph of one run; raises the module's exceptions."""
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
    return record.made.graph("a run", notes)


def from_tree(model: torch.nn.Module, notes: tuple[str, ...]) -> Graph:
    """Return a graph without edges: modules that contain no others, or are of the library, in order of definition."""
    made = OperationList(model)
    done: set[str] = set()
    for name, module in model.named_modules():
        parent, _, _ = name.rpartition(".")
        inner = any(True for _ in module.children())
        if parent in done or (inner and not isinstance(module, torch.nn.MultiheadAttention)):
            done.update([name] if parent in done else [])
            continue
        done.add(name)
        parts = name.split(".") if name else []
        path = made.scopes.path(".".join(parts[: i + 1]) for i in range(len(parts)))
        own = [made.held.first[".".join([*parts, n])] for n, _ in module.named_parameters()]
        key, kind = f"n{len(made.operations)}", type(module).__name__
        made.add(made.operation(key, kind, path, own, [TensorType()], layer=True))
    return made.graph("the module tree", notes)


class _Record(TorchFunctionMode):
    """Recorder of all calls of torch functions that return tensors."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model, self.made = model, OperationList(model)
        self._sources: dict[int, OutputReference] = {}
        self._kept: list[Any] = []  # keeps their ids from being reused
        self._calls: list[str] = []
        self._called: Counter[str] = Counter()
        self._count: Counter[str] = Counter()

    def hooks(self) -> list[Any]:
        """Register hooks that track the running module; the caller removes them."""
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
        """Add the module's inputs."""
        names = list(inspect.signature(self.model.forward).parameters)
        given = {**{names[i] if i < len(names) else str(i): arg for i, arg in enumerate(args)}, **kwargs}
        for path, tensor in pytree.tree_flatten_with_path(given)[0]:
            if isinstance(tensor, torch.Tensor):
                first, rest = path[0].key, pytree.keystr(path[1:])
                key, types = f"input.{len(self.made.operations)}", (type_of(tensor),)
                self._add(Operation(key, "input", f"{first}{rest}", "input", outputs=types), [tensor])

    def outputs(self, result: Any) -> None:
        """Add the module's outputs."""
        if dataclasses.is_dataclass(result) and not isinstance(result, type):
            result = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
        for i, (path, tensor) in enumerate(pytree.tree_flatten_with_path(result)[0]):
            if isinstance(tensor, torch.Tensor):
                given = self._given(tensor)
                sources = (given,) if isinstance(given, OutputReference) else ()
                names = (given,) if isinstance(given, str) else ()
                self.made.operations.append(output_operation(i, pytree.keystr(path), sources, names))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Before the call, since a tensor changed in place counts as a new one afterwards.
        before = [leaf for leaf in pytree.tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        given = [self._given(tensor) for tensor in before]
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", type(func).__name__)
        if name == "__get__":
            name = getattr(func.__self__, "__name__", name)
        changed = args[0] if name == "__setitem__" else result
        tensors = [leaf for leaf in pytree.tree_flatten(changed)[0] if isinstance(leaf, torch.Tensor)]
        # Parameters that it returns, or buffers that it updates, are not results.
        if any(self.made.held.name(t) is None for t in tensors):
            detail = next((a for a in args if isinstance(a, str)), "")
            path = self.made.scopes.path(self._calls)
            kind = name.strip("_") if name.startswith("__") else name
            outputs = [type_of(t) for t in tensors]
            new = not all(_shares(t, before) for t in tensors)
            key = f"{kind}_{self._count[kind]}" if self._count[kind] else kind
            self._count[kind] += 1
            op = self.made.operation(key, kind, path, given, outputs, "", detail, allocates=new)
            self._add(op, tensors)
        return result

    def _given(self, tensor: Any) -> OutputReference | str:
        source = self._sources.get(id(tensor))
        if source is not None:
            return source
        name = self.made.held.name(tensor)
        return self.made.held.constant(tensor) if name is None else name

    def _add(self, op: Operation, tensors: list[Any]) -> None:
        self._kept += tensors
        self._sources.update(zip(map(id, tensors), self.made.add(op), strict=True))


def _shares(tensor: Any, others: list[Any]) -> bool:
    """Return whether a tensor shares memory with another one."""
    here = tensor.untyped_storage().data_ptr()
    return any(here == other.untyped_storage().data_ptr() for other in others)
