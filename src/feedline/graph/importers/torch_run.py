"""Import of a module by running it. Every call of a torch function is recorded, in the module that forward hooks
report.

A *dry* run has tensors without data. It computes only shapes, and fails where the module asks for a value. So its graph
is correct for all inputs of these shapes. The tensors are on the device ``meta`` (see `torch_meta`). For modules that
mix devices or have tensors of other kinds they are in the `FakeTensorMode` of torch, whose first use in a process takes
a second. An operation takes some tenths of a millisecond. A run on data records the control flow of its inputs, through
any Python code. It costs the time of the run, and the memory of all its tensors, which are kept to identify them.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from feedline.graph.graph import Graph, Operation, OutputReference, TensorType, output_operation, unique
from feedline.graph.importers.torch_meta import DIFFER, NoTwinError, TrueDevice, device_of, twin, twins
from feedline.graph.importers.torch_parts import OperationList, call_settings, layer_settings, type_of
from feedline.graph.importers.torch_shapes import result_of


class UnseenOperationError(RuntimeError):
    """A tensor came from code that torch functions do not report, such as compiled code."""


def from_dry_run(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
    """Return the graph of one run on tensors without data. Raises the module's exceptions.

    Raises:
        UnseenOperationError: an operation used a tensor of unknown origin.
    """
    try:
        return from_twins(model, args, kwargs)
    except Exception:  # a module's code may fail in any way, and fails again if the module itself is wrong
        return from_fakes(model, args, kwargs)


def from_twins(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
    """Return the graph of a dry run on the device ``meta``, as `from_dry_run` does.

    Raises:
        NoTwinError: a tensor has no twin.
    """
    device = TrueDevice(device_of(model, args, kwargs))
    args, kwargs = pytree.tree_map_only(torch.Tensor, twin, (args, kwargs))
    with twins(model):
        return _Record(model, dry=True, device=device).record(args, kwargs).graph("a dry run")


def from_fakes(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
    """Return the graph of a dry run on torch's fake tensors, as `from_dry_run` does."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        args, kwargs = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
        return _Record(model, dry=True).record(args, kwargs).graph("a dry run")


def from_run(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
    """Return the graph of one run on data. Raises the module's exceptions."""
    return _Record(model).record(args, kwargs).graph("a run")


def from_tree(model: torch.nn.Module) -> Graph:
    """Return a graph without edges: modules without submodules, and layers of the library, in order of definition."""
    layers = OperationList(model)
    done: set[str] = set()
    for name, module in model.named_modules():
        parent, _, _ = name.rpartition(".")
        inner = any(True for _ in module.children())
        if parent in done or (inner and not isinstance(module, torch.nn.MultiheadAttention)):
            done.update([name] if parent in done else [])
            continue
        done.add(name)
        parts = name.split(".") if name else []
        path = layers.scopes.path(".".join(parts[: i + 1]) for i in range(len(parts)))
        parameters = [layers.held.first[".".join([*parts, n])] for n, _ in module.named_parameters()]
        key, kind = f"n{len(layers.operations)}", type(module).__name__
        layers.call(key, kind, path, parameters, [TensorType()], layer=True, settings=partial(layer_settings, module))
    return layers.graph("the module tree")


class _Record(TorchFunctionMode):
    """Recorder of all calls of torch functions that return tensors."""

    def __init__(self, model: torch.nn.Module, dry: bool = False, device: TrueDevice | None = None) -> None:
        super().__init__()
        self.model, self.ops, self._dry, self._device = model, OperationList(model), dry, device
        self._sources: dict[int, OutputReference] = {}
        self._kept: list[Any] = []  # so that the ids of tensors are not reused
        self._calls: list[str] = []
        self._called: Counter[str] = Counter()
        self._count: Counter[str] = Counter()
        self._recording_inside = False

    def record(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OperationList:
        """Run the module, with hooks that track the running submodule."""
        self._inputs(args, kwargs)
        hooks = []
        for name, module in self.model.named_modules():
            hooks.append(module.register_forward_pre_hook(partial(self._enter_module, name)))
            hooks.append(module.register_forward_hook(self._leave_module, always_call=True))
        try:
            with self:
                result = self.model(*args, **kwargs)
        finally:
            for hook in hooks:
                hook.remove()
        self._outputs(result)
        return self.ops

    def _enter_module(self, name: str, *_: Any) -> None:
        n = self._called[name]
        self._called[name] += 1
        self._calls.append(f"{name}@{n}" if n else name)

    def _leave_module(self, *_: Any) -> None:
        self._calls.pop()

    def _inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = list(inspect.signature(self.model.forward).parameters)
        named = {**{names[i] if i < len(names) else str(i): arg for i, arg in enumerate(args)}, **kwargs}
        for path, tensor in pytree.tree_flatten_with_path(named)[0]:
            if isinstance(tensor, torch.Tensor):
                first, suffix = path[0].key, pytree.keystr(path[1:])
                name, types = f"{first}{suffix}", (type_of(tensor),)
                key = unique(re.sub(r"[^\w.@-]+", "_", name), [op.key for op in self.ops.operations])
                self._count[key] += 1  # operations of this kind get other keys
                self._keep([tensor], self.ops.add(Operation(key, "input", name, "input", outputs=types)))

    def _outputs(self, result: Any) -> None:
        if dataclasses.is_dataclass(result) and not isinstance(result, type):
            result = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
        for i, (path, tensor) in enumerate(pytree.tree_flatten_with_path(result)[0]):
            if isinstance(tensor, torch.Tensor):
                origin = self._origin(tensor)
                sources = (origin,) if isinstance(origin, OutputReference) else ()
                names = (origin,) if isinstance(origin, str) else ()
                self.ops.operations.append(output_operation(i, pytree.keystr(path), sources, names))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._device is not None:
            if func in self._device.answers:
                return self._device.answers[func]
            args, kwargs = self._device.move(args, kwargs)
        recordable = _RECORDED_INSIDE.get(func)
        if recordable is not None and not self._recording_inside:
            self._recording_inside = True
            try:
                with self:
                    return recordable(*args, **kwargs)
            finally:
                self._recording_inside = False
        # Before the call, since a tensor that it changes in place counts as a new one afterwards.
        before = [leaf for leaf in pytree.tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        origins = [self._origin(tensor) for tensor in before]
        result = self._result(func, args, kwargs)
        name = str(getattr(func, "_opname", None) or getattr(func, "__name__", type(func).__name__))
        if name == "__get__":
            name = getattr(func.__self__, "__name__", name)
        changed = args[0] if name == "__setitem__" else result
        tensors = [leaf for leaf in pytree.tree_flatten(changed)[0] if isinstance(leaf, torch.Tensor)]
        # Returned parameters and updated buffers are not results.
        if any(self.ops.held.name(t) is None for t in tensors):
            detail = next((a for a in args if isinstance(a, str)), "")
            path = self.ops.scopes.path(self._calls)
            kind = name.strip("_") if name.startswith("__") else name
            outputs = [type_of(t) for t in tensors]
            new = not all(_shares(t, before) for t in tensors)
            key = f"{kind}_{self._count[kind]}" if self._count[kind] else kind
            self._count[kind] += 1
            settings = partial(call_settings, func, kind, args, kwargs)
            references = self.ops.call(key, kind, path, origins, outputs, "", detail, allocates=new, settings=settings)
            self._keep(tensors, references)
        return result

    def _result(self, func: Any, args: Any, kwargs: Any) -> Any:
        device = None if self._device is None else self._device.device
        computed = result_of(func, args, kwargs, device) if self._dry else None
        if computed is None and self._device is not None and func in DIFFER:
            raise NoTwinError(f"{func.__name__} depends on the device")
        return func(*args, **kwargs) if computed is None else computed

    def _origin(self, tensor: Any) -> OutputReference | str:
        source = self._sources.get(id(tensor))
        if source is not None:
            return source
        name = self.ops.held.name(tensor)
        without_data = isinstance(tensor, FakeTensor) or (self._device is not None and tensor.is_meta)
        if name is None and without_data:  # made in this run, as the tensors of the module have data or names
            raise UnseenOperationError(f"a tensor of {type_of(tensor)} comes from code that reports no torch function")
        return self.ops.held.constant(tensor) if name is None else name

    def _keep(self, tensors: list[Any], sources: list[OutputReference]) -> None:
        self._kept += tensors
        self._sources.update(zip(map(id, tensors), sources, strict=True))


def _shares(tensor: Any, tensors: list[Any]) -> bool:
    """Return whether a tensor shares memory with another one."""
    storage = tensor.untyped_storage()._cdata  # identity of the storage: tensors without data have no address
    return any(storage == t.untyped_storage()._cdata for t in tensors)


def _recordable_copy(function: Any) -> Any:
    """Return a copy of a Python function of torch that calls torch functions even while these are recorded.

    The original reports itself as one operation to the recorder, which hides its computations and allocations.
    """
    content = {**function.__globals__, "has_torch_function": lambda _: False}
    copy = FunctionType(function.__code__, content, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_RECORDED_INSIDE: dict[Any, Callable[..., Any]] = {
    functional.multi_head_attention_forward: _recordable_copy(functional.multi_head_attention_forward)
}
