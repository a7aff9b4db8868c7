"""Importers by `torch.export` and `torch.fx`, which convert graphs of nodes of torch."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import torch
from torch.fx.passes.shape_prop import ShapeProp
from torch.utils import _pytree as pytree

from feedline.graph.graph import Graph, Operation, OutputReference, output_operation
from feedline.graph.importers.torch_parts import OperationList, call_settings, layer_settings, type_of

NUMBERS = ("size", "dim", "numel", "len", "getattr", "shape", "ndim", "ndimension", "get_device")


def from_export(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
    """Return the graph that `torch.export` reads. Raises its exceptions."""
    program = torch.export.export(model, args, kwargs, strict=False)
    walk = _FxWalk(model, shaped=True)
    for spec in program.graph_signature.input_specs:
        if spec.target is not None:
            name = walk.held.first.get(spec.target)
            walk.parameter_of[spec.arg.name] = name or walk.held.constant(program.constants[spec.target], spec.target)
    walk.all(program.graph, _leaf_names(program.call_spec.out_spec))
    return walk.graph("torch.export")


def from_fx(model: torch.nn.Module, args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None) -> Graph:
    """Return the graph that `torch.fx` reads, with shapes if there are inputs. Raises its exceptions."""
    traced = torch.fx.symbolic_trace(model)
    if args is not None:
        kwargs = kwargs or {}
        names = [node.target for node in traced.graph.nodes if node.op == "placeholder"]
        unknown = set(kwargs) - set(names)
        if unknown:
            raise TypeError(f"expected arguments {', '.join(names)}, got {', '.join(sorted(unknown))}")
        with torch.no_grad():
            ShapeProp(traced).propagate(*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs))
    walk = _FxWalk(model, shaped=args is not None)
    walk.all(traced.graph)
    return walk.graph("torch.fx")


def _leaf_names(tree: Any) -> list[str]:
    """Return the keys of the outputs within the result, such as ``["logits"]``."""
    leaves = pytree.tree_flatten_with_path(pytree.tree_unflatten(list(range(tree.num_leaves)), tree))[0]
    return [pytree.keystr(path) for path, _ in leaves]


class _FxWalk(OperationList):
    """Conversion of nodes of torch to operations."""

    def __init__(self, model: torch.nn.Module, shaped: bool) -> None:
        super().__init__(model)
        self.shaped = shaped
        self._numbers: set[Any] = set()
        self.parameter_of: dict[str, str] = {}  # name of a parameter by name of the node
        self._sources: dict[Any, OutputReference] = {}

    def all(self, graph: Any, output_names: Any = ()) -> None:
        """Convert all nodes. ``output_names`` are the names of the leaves of the result."""
        for node in graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "get_attr":
                self._attribute(node)
            elif node.op == "output":
                self._output(node, output_names)
            elif node.target is operator.getitem and self._selects_output(node):
                continue
            else:
                self._call(node)

    def _placeholder(self, node: Any) -> None:
        if node.name not in self.parameter_of and (isinstance(_value(node), torch.Tensor) or _value(node) is None):
            outputs = (type_of(_value(node)),)
            (self._sources[node],) = self.add(Operation(node.name, "input", str(node.target), "input", outputs=outputs))

    def _attribute(self, node: Any) -> None:
        name = self.held.first.get(str(node.target))
        if name is None:
            # A tensor that the code creates. fx keeps it in the traced module.
            name = self.held.constant(operator.attrgetter(node.target)(node.graph.owning_module), str(node.target))
        self.parameter_of[node.name] = name

    def _selects_output(self, node: Any) -> bool:
        """Return whether the node selects one of several outputs of an operation."""
        value, index = node.args
        source = self._sources.get(value)
        if source is None or not isinstance(index, int) or not isinstance(_value(value), (tuple, list)):
            return False
        self._sources[node] = OutputReference(source.key, index % max(1, len(_value(value))))
        return True

    def _call(self, node: Any) -> None:
        if self._is_number(node):
            self._numbers.add(node)
            return
        sources = [self.parameter_of.get(child.name) or self._sources.get(child) for child in _children(node)]
        operands = [source for source in sources if source is not None]
        kind, detail = _kind(node), ""
        settings = partial(call_settings, _function(node), kind, node.args, node.kwargs)
        is_layer = node.op == "call_module"
        if is_layer:
            module = self.scopes.modules[node.target]
            settings = partial(layer_settings, module)
            kind, detail = type(module).__name__, module.extra_repr()
            operands += [self.held.first[f"{node.target}.{name}"] for name, _ in module.named_parameters()]
        value = _value(node)
        outputs = [type_of(v) for v in (value if isinstance(value, (tuple, list)) and value else [value])]
        equation = next((a for a in node.args if isinstance(a, str)), "")
        path = self.scopes.path(str(key).removeprefix("L__self__") for key in node.meta.get("nn_module_stack", {}))
        self._sources[node], *_ = self.call(
            node.name, kind, path, operands, outputs, detail, equation, is_layer, settings=settings
        )

    def _is_number(self, node: Any) -> bool:
        """Return whether the result is a size or a number, which makes no edge."""
        if self.shaped:
            leaves, _ = pytree.tree_flatten(_value(node))
            return not any(isinstance(leaf, torch.Tensor) for leaf in leaves)
        below = _children(node)
        return _kind(node) in NUMBERS or (bool(below) and self._numbers.issuperset(below))

    def _output(self, node: Any, names: Any) -> None:
        leaves, tree = pytree.tree_flatten(node.args[0])
        names = names if len(names) == len(leaves) else _leaf_names(tree)
        for i, (leaf, name) in enumerate(zip(leaves, names, strict=True)):
            sources, parameters = self._sources_of(leaf)
            if sources or parameters:
                self.operations.append(output_operation(i, name, sources, parameters))

    def _sources_of(self, leaf: Any) -> tuple[tuple[OutputReference, ...], tuple[str, ...]]:
        """Return the tensors and parameters of a result, or the ones from which a number or object is computed."""
        sources: dict[OutputReference, None] = {}
        names: dict[str, None] = {}
        waiting, visited = [leaf] if isinstance(leaf, torch.fx.Node) else [], {leaf}
        while waiting:
            node = waiting.pop(0)
            if node in self._sources:
                sources.setdefault(self._sources[node])
            elif node.name in self.parameter_of:
                names.setdefault(self.parameter_of[node.name])
            else:
                waiting += [child for child in _children(node) if child not in visited]
                visited.update(waiting)
        return tuple(sources), tuple(names)


def _children(node: Any) -> list[Any]:
    """Return the nodes among the arguments, in order, with repetitions."""
    leaves, _ = pytree.tree_flatten((node.args, node.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.fx.Node)]


def _value(node: Any) -> Any:
    """Return the metadata of the result of a node: a fake tensor, a tuple of fake tensors, or None."""
    if "val" in node.meta:
        return node.meta["val"]
    return pytree.tree_map(_like, node.meta.get("tensor_meta"), is_leaf=lambda m: hasattr(m, "dtype"))


def _like(meta: Any) -> Any:
    return torch.empty(meta.shape, dtype=meta.dtype, device="meta") if hasattr(meta, "dtype") else meta


def _function(node: Any) -> Any:
    """Return the function that a node calls, methods of tensors included."""
    return getattr(torch.Tensor, node.target, None) if node.op == "call_method" else node.target


def _kind(node: Any) -> str:
    target = node.target
    if isinstance(target, str):
        return target.rpartition(".")[2]
    name = getattr(target, "_opname", None) or getattr(target, "__name__", str(target))
    return str(name)
