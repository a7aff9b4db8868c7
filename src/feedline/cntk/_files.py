"""Files of functions: feedline's own, the graph as JSON and its tensors in one safetensors file; and others' formats.

Nothing is pickled, so reading a file never executes code from it. Nodes come after their inputs; attributes are
numbers, strings and lists. CNTK's own files and ONNX are read and written by `_model_files` and `_onnx`, which are
imported when they are needed, as each requires a package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feedline.errors import CompatError, StateError
from feedline.networks import Node, Type, Weights, apply
from feedline.networks.node import parameter_node
from feedline.networks.traverse import topological

_FORMAT, _VERSION = "feedline.graph", 1
_DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")


_LEGACY = "BCN\0".encode("utf-16-le")  # how models of CNTK's first version begin


def save(path: str | Path, roots: Sequence[Node], arguments: Sequence[Node], format: str | None = None) -> None:
    """Write a graph. See `Function.save`."""
    if format == "CNTKv2":
        from feedline.cntk._model_files.writing import write_model

        write_model(Path(path), roots)
    elif format == "ONNX":
        from feedline.cntk._onnx.exporting import write_onnx

        write_onnx(Path(path), roots, arguments)
    else:
        _save(path, roots, arguments)


def load(path: str | Path, format: str | None = None) -> tuple[list[Node], list[Node]]:
    """Read the roots and arguments of a graph; arguments are in no order of their own if there are none.

    Raises:
        StateError: the file is missing, damaged, or of another kind.
        CompatError: something that feedline does not have.
    """
    if format == "ONNX":
        from feedline.cntk._onnx.importing import read_onnx

        return read_onnx(Path(path))
    if is_cntks(path):
        from feedline.cntk._model_files.reading import read_model

        return read_model(Path(path)), []
    return _load(path)


def restore(path: str | Path, roots: Sequence[Node], weights: Sequence[Node]) -> None:
    """Copy the values in a file to the weights of a graph. See `Function.restore`.

    Args:
        path: path of the file.
        roots: roots of the graph.
        weights: its parameters and constants, in CNTK's order.
    """
    if is_cntks(path):
        from feedline.cntk._model_files.reading import read_weights

        _take_listed(path, weights, read_weights(Path(path)))
    else:
        _take_values(roots, _load(path)[0])


def is_cntks(path: str | Path) -> bool:
    """Whether a file is one of CNTK's dictionaries, by its first bytes.

    Raises:
        CompatError: it is a model of CNTK's first version.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(9)
    except OSError:
        return False  # whoever reads it says why
    if head.startswith(_LEGACY):
        raise CompatError(
            f"expected a model of CNTK 2 in {path}, got one of its first version, BrainScript's: in CNTK 2.7, "
            "Function.load(path).save(other) writes one that feedline loads"
        )
    own = head[4:8] == bytes(4) and head[8:] == b"{"  # a short header of JSON follows its length
    return not own and (head[:4] == b"ktnc" or head[:1] in (b"\x08", b"\x12"))


def _save(path: str | Path, roots: Sequence[Node], arguments: Sequence[Node]) -> None:
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


def _load(path: str | Path) -> tuple[list[Node], list[Node]]:
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


def _take_listed(path: str | Path, weights: Sequence[Node], saved: Sequence[tuple[str, str, Any]]) -> None:
    """Copy values to parameters and constants that are listed in the same order; numbers without names are left out.

    Raises:
        StateError: the lists differ in kinds, names or shapes.
    """
    import torch

    from feedline.networks.compile import tensor_of

    found = [(kind, name, tuple(value.shape)) for kind, name, value in saved if kind == "parameter" or name]
    mine = [n for n in weights if n.op == "parameter" or n.name]
    expected = [(n.op, n.name, n.weights.shape if n.weights is not None else ()) for n in mine]
    if sorted(found) != sorted(expected) or [f for f in found if f[0] == "parameter"] != [
        e for e in expected if e[0] == "parameter"
    ]:
        at = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), len(expected))
        raise StateError(
            f"expected the parameters and constants of this function in {path}",
            saved={"count": len(found), f"number {at}": found[at : at + 1]},
            current={"count": len(expected), f"number {at}": expected[at : at + 1]},
            hint="load the model, and copy the values by name",
        )
    values = [value for kind, name, value in saved if kind == "parameter" or name]
    order = sorted(range(len(found)), key=lambda i: found[i][0] != "parameter")
    own = sorted(range(len(mine)), key=lambda i: expected[i][0] != "parameter")
    with torch.no_grad():
        for i, j in zip(order, own, strict=True):
            weight = mine[j].weights
            assert weight is not None
            tensor_of(weight).copy_(torch.from_numpy(values[i]))


def _take_values(roots: Sequence[Node], saved: Sequence[Node]) -> None:
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
