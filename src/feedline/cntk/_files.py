"""Files of functions: the graph as JSON and its tensors, in one safetensors file.

Nothing is pickled, so reading a file never executes code from it. Nodes come after their inputs; attributes are
numbers, strings and lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feedline.errors import StateError
from feedline.networks import Node, Type, Weights, apply
from feedline.networks.node import parameter_node
from feedline.networks.traverse import topological

_FORMAT, _VERSION = "feedline.graph", 1
_DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")


def save(path: str | Path, roots: Sequence[Node], arguments: Sequence[Node]) -> None:
    """Write a graph. See `Function.save`."""
    from feedline.interop.tensor_file import replace_tensors
    from feedline.networks.compile import tensor_of

    order = topological(roots)
    number = {node: i for i, node in enumerate(order)}
    tensors = {str(number[n]): tensor_of(n.weights) for n in order if n.weights is not None}
    state = {
        "format": _FORMAT,
        "version": _VERSION,
        "nodes": [_told(node, number) for node in order],
        "roots": [number[root] for root in roots],
        "arguments": [number[node] for node in arguments],
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)  # as CNTK does
    replace_tensors(Path(path), tensors, state)


def load(path: str | Path) -> tuple[list[Node], list[Node]]:
    """Read the roots and arguments of a graph.

    Raises:
        StateError: the file is missing, damaged, or of another kind.
    """
    from feedline.interop.tensor_file import load_tensors

    tensors, state = load_tensors(Path(path))
    found = (state.get("format"), state.get("version"))
    if found != (_FORMAT, _VERSION):
        raise StateError(
            f"expected a function in {path}",
            saved=dict(zip(("format", "version"), found, strict=True)),
            current={"format": _FORMAT, "version": _VERSION},
        )
    nodes: list[Node] = []
    try:
        for i, about in enumerate(state["nodes"]):
            nodes.append(_made(about, nodes, tensors.get(str(i))))
        if not state["roots"]:
            raise ValueError("no root")
        return _chosen(nodes, state["roots"]), _chosen(nodes, state["arguments"])
    except StateError:
        raise
    except Exception as error:  # creating a node validates much, and raises errors of many types
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise StateError(
            f"expected a function in {path}, got one whose node {len(nodes)} cannot be created: {what}",
            hint="the file is damaged; save the function again",
        ) from error


def _chosen(nodes: Sequence[Node], places: Any) -> list[Node]:
    if not isinstance(places, list) or not all(type(i) is int and 0 <= i < len(nodes) for i in places):
        raise ValueError(f"expected indices of the {len(nodes)} nodes, got {str(places)[:80]}")
    return [nodes[i] for i in places]


def _dtype(name: Any) -> str:
    if name not in _DTYPES:
        raise ValueError(f"expected a dtype of {', '.join(_DTYPES)}, got {str(name)[:80]!r}")
    return str(name)


def take_values(roots: Sequence[Node], saved: Sequence[Node]) -> None:
    """Copy the values of another graph's weights, node by node in order.

    Raises:
        StateError: the graphs differ.
    """
    import torch

    from feedline.networks.compile import tensor_of

    mine, other = topological(roots), topological(saved)
    shapes = [[(n.op, n.weights and n.weights.shape) for n in order] for order in (mine, other)]
    if shapes[0] != shapes[1]:
        at = next((i for i, (a, b) in enumerate(zip(*shapes, strict=False)) if a != b), min(map(len, shapes)))
        raise StateError(
            "expected the file of a function of the same graph",
            saved={"nodes": len(other), f"node {at}": str(shapes[1][at : at + 1])},
            current={"nodes": len(mine), f"node {at}": str(shapes[0][at : at + 1])},
        )
    with torch.no_grad():
        for node, source in zip(mine, other, strict=True):
            if node.weights is not None and source.weights is not None:
                tensor_of(node.weights).copy_(tensor_of(source.weights))


def _told(node: Node, number: Mapping[Node, int]) -> dict[str, Any]:
    if node.op == "user":
        raise ValueError(f"expected operations to save, got the user function {node.label}, which is Python code")
    about: dict[str, Any] = {"op": node.op, "name": node.name}
    if node.is_leaf:
        about |= {
            "dtype": node.dtype,
            "sparse": node.sparse,
            "shape": _list(node.type.shape),
            "axes": _list(node.type.axes),
        }
        if node.weights is not None:
            about |= {"trains": node.weights.trains, "keeps": node.weights.keeps}
    else:
        about |= {"inputs": [number[child] for child in node.inputs], "attributes": dict(node.attributes)}
    return about


def _made(about: Mapping[str, Any], nodes: Sequence[Node], tensor: Any) -> Node:
    if "inputs" in about:
        attributes = {key: _tuple(value) for key, value in about["attributes"].items()}
        return apply(about["op"], _chosen(nodes, about["inputs"]), attributes, about["name"])
    if tensor is not None:
        dtype = _dtype(about["dtype"])
        if type(about["trains"]) is not bool:
            raise ValueError(f"expected true or false for trains, got {str(about['trains'])[:80]!r}")
        weights = Weights(tuple(tensor.shape), lambda shape: tensor, dtype, about["trains"], about["keeps"])
        return parameter_node(weights, about["name"])
    kind = Type(_tuple(about["shape"]), _tuple(about["axes"]))
    if about["op"] not in ("input", "placeholder"):
        raise ValueError(f"expected a tensor for the leaf {str(about['name'])[:80]!r}, got none")
    return Node(about["op"], given=kind, name=about["name"], sparse=about["sparse"], dtype=_dtype(about["dtype"]))


def _list(items: Any) -> Any:
    return None if items is None else list(items)


def _tuple(value: Any) -> Any:
    return tuple(_tuple(v) for v in value) if isinstance(value, list) else value
