"""Files of functions: feedline's, with the graph as JSON and its tensors in one safetensors file, and other formats.

Nothing is pickled, so reading a file never executes code from it. Nodes come after their inputs. Attributes are
numbers, strings and lists. `_model_files` and `_onnx` read and write CNTK's files and ONNX. They are imported when they
are needed, as each requires a package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feedline.cntk._nodes import needs_gradient, with_gradient
from feedline.cntk._operand import registered_operation
from feedline.errors import CompatError, StateError
from feedline.networks import Node, Type, Weights, apply
from feedline.networks.node import parameter_node
from feedline.networks.traverse import topological

_FORMAT, _VERSION = "feedline.graph", 1
_DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")


_LEGACY = "BCN\0".encode("utf-16-le")  # the first bytes of models of CNTK's first version


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
    """Return the roots and arguments of a graph. Without arguments, the graph determines their order.

    Raises:
        StateError: the file is missing, damaged, or of another kind.
        CompatError: an operation that feedline does not have.
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
        weights: parameters and constants of the graph, in CNTK's order.
    """
    if is_cntks(path):
        from feedline.cntk._model_files.reading import read_weights

        _copy_listed(path, weights, read_weights(Path(path)))
    else:
        _copy_values(roots, _load(path)[0])


def is_cntks(path: str | Path) -> bool:
    """Return whether a file is one of CNTK's dictionaries, by its first bytes.

    Raises:
        CompatError: it is a model of CNTK's first version.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(9)
    except OSError:
        return False  # reading it raises the error
    if head.startswith(_LEGACY):
        raise CompatError(
            f"expected a model of CNTK 2 in {path}, got one of CNTK 1, BrainScript's: in CNTK 2.7, "
            "Function.load(path).save(other) writes one that feedline loads"
        )
    is_feedlines = head[4:8] == bytes(4) and head[8:] == b"{"  # a short header of JSON follows its length
    return not is_feedlines and (head[:4] == b"ktnc" or head[:1] in (b"\x08", b"\x12"))


def _save(path: str | Path, roots: Sequence[Node], arguments: Sequence[Node]) -> None:
    from feedline.interop.tensor_file import replace_tensors
    from feedline.networks.compile import tensor_of

    order = topological(roots)
    number = {node: i for i, node in enumerate(order)}
    tensors = {str(number[n]): tensor_of(n.weights) for n in order if n.weights is not None}
    state = {
        "format": _FORMAT,
        "version": _VERSION,
        "nodes": [_describe(node, number, tensors) for node in order],
        "roots": [number[root] for root in roots],
        "arguments": [number[node] for node in arguments],
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)  # as CNTK does
    replace_tensors(Path(path), tensors, state)


def _load(path: str | Path) -> tuple[list[Node], list[Node]]:
    from feedline.interop.tensor_file import load_tensors

    tensors, state = load_tensors(Path(path))
    saved = (state.get("format"), state.get("version"))
    if saved != (_FORMAT, _VERSION):
        raise StateError(
            f"expected a function in {path}",
            saved=dict(zip(("format", "version"), saved, strict=True)),
            current={"format": _FORMAT, "version": _VERSION},
        )
    nodes: list[Node] = []
    try:
        for i, entry in enumerate(state["nodes"]):
            nodes.append(_node(entry, nodes, i, tensors))
        if not state["roots"]:
            raise ValueError("no root")
        return _select(nodes, state["roots"]), _select(nodes, state["arguments"])
    except (StateError, CompatError):
        raise
    except Exception as error:  # creating a node validates much, and raises errors of many types
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise StateError(
            f"expected a function in {path}, got one whose node {len(nodes)} cannot be created: {reason}",
            hint="the file is damaged; save the function again",
        ) from error


def _select(nodes: Sequence[Node], places: Any) -> list[Node]:
    if not isinstance(places, list) or not all(type(i) is int and 0 <= i < len(nodes) for i in places):
        raise ValueError(f"expected indices of the {len(nodes)} nodes, got {str(places)[:80]}")
    return [nodes[i] for i in places]


def _dtype(name: Any) -> str:
    if name not in _DTYPES:
        raise ValueError(f"expected a dtype of {', '.join(_DTYPES)}, got {str(name)[:80]!r}")
    return str(name)


def _copy_listed(path: str | Path, weights: Sequence[Node], saved: Sequence[tuple[str, str, Any]]) -> None:
    """Copy values to parameters and constants in the same order, without unnamed constants.

    Raises:
        StateError: the lists differ in kinds, names or shapes.
    """
    import torch

    from feedline.networks.compile import tensor_of

    actual = [(kind, name, tuple(value.shape)) for kind, name, value in saved if kind == "parameter" or name]
    leaves = [n for n in weights if n.op == "parameter" or n.name]
    expected = [(n.op, n.name, n.weights.shape if n.weights is not None else ()) for n in leaves]
    if sorted(actual) != sorted(expected) or [f for f in actual if f[0] == "parameter"] != [
        e for e in expected if e[0] == "parameter"
    ]:
        at = next((i for i, (a, b) in enumerate(zip(actual, expected, strict=False)) if a != b), len(expected))
        raise StateError(
            f"expected the parameters and constants of this function in {path}",
            saved={"count": len(actual), f"number {at}": actual[at : at + 1]},
            current={"count": len(expected), f"number {at}": expected[at : at + 1]},
            hint="load the model, and copy the values by name",
        )
    values = [value for kind, name, value in saved if kind == "parameter" or name]
    order = sorted(range(len(actual)), key=lambda i: actual[i][0] != "parameter")
    target_order = sorted(range(len(leaves)), key=lambda i: expected[i][0] != "parameter")
    with torch.no_grad():
        for i, j in zip(order, target_order, strict=True):
            weight = leaves[j].weights
            assert weight is not None
            tensor_of(weight).copy_(torch.from_numpy(values[i]))


def _copy_values(roots: Sequence[Node], saved: Sequence[Node]) -> None:
    """Copy the values of another graph's weights, node by node in order.

    Raises:
        StateError: the graphs differ.
    """
    import torch

    from feedline.networks.compile import tensor_of

    nodes, saved_nodes = topological(roots), topological(saved)
    shapes = [[(n.op, n.weights and n.weights.shape) for n in order] for order in (nodes, saved_nodes)]
    if shapes[0] != shapes[1]:
        at = next((i for i, (a, b) in enumerate(zip(*shapes, strict=False)) if a != b), min(map(len, shapes)))
        raise StateError(
            "expected the file of a function of the same graph",
            saved={"nodes": len(saved_nodes), f"node {at}": str(shapes[1][at : at + 1])},
            current={"nodes": len(nodes), f"node {at}": str(shapes[0][at : at + 1])},
        )
    with torch.no_grad():
        for node, source in zip(nodes, saved_nodes, strict=True):
            if node.weights is not None and source.weights is not None:
                tensor_of(node.weights).copy_(tensor_of(source.weights))


def _describe(node: Node, number: Mapping[Node, int], tensors: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = {"op": node.op, "name": node.name}
    if node.is_leaf:
        entry |= {
            "dtype": node.dtype,
            "sparse": node.sparse,
            "shape": _list(node.type.shape),
            "axes": _list(node.type.axes),
            "needs_gradient": needs_gradient(node),
        }
        if node.weights is not None:
            entry |= {"trains": node.weights.trains, "keeps": node.weights.keeps}
    else:
        attributes = dict(node.attributes)
        if node.op == "user":
            from feedline.cntk._states import flatten_state

            described = registered_operation("describe_user")(attributes["user"])
            attributes = {"user": flatten_state(described, f"{number[node]}", tensors)}
        entry |= {"inputs": [number[child] for child in node.inputs], "attributes": attributes}
    return entry


def _node(entry: Mapping[str, Any], nodes: Sequence[Node], number: int, tensors: Mapping[str, Any]) -> Node:
    tensor = tensors.get(str(number))
    if "inputs" in entry:
        if entry["op"] == "user":
            from feedline.cntk._states import unflatten_state

            described = unflatten_state(entry["attributes"]["user"], tensors)
            user = registered_operation("create_user")(described, _select(nodes, entry["inputs"]))
            return user._roots[0].inputs[0]  # type: ignore[no-any-return]
        if entry["op"] == "user_output":
            (call,) = _select(nodes, entry["inputs"])
            return call.attributes["user"]._roots[entry["attributes"]["index"]]  # type: ignore[no-any-return]
        attributes = {key: _tuple(value) for key, value in entry["attributes"].items()}
        return apply(entry["op"], _select(nodes, entry["inputs"]), attributes, entry["name"])
    if tensor is not None:
        dtype = _dtype(entry["dtype"])
        if type(entry["trains"]) is not bool:
            raise ValueError(f"expected true or false for trains, got {str(entry['trains'])[:80]!r}")
        weights = Weights(tuple(tensor.shape), lambda shape: tensor, dtype, entry["trains"], entry["keeps"])
        return parameter_node(weights, entry["name"])
    axes = entry["axes"]
    if axes is not None and not (isinstance(axes, list) and all(isinstance(name, str) for name in axes)):
        raise ValueError(f"expected names of axes, got {str(axes)[:80]!r}")
    kind = Type(_tuple(entry["shape"]), _tuple(axes))
    if entry["op"] not in ("input", "placeholder"):
        raise ValueError(f"expected a tensor for the leaf {str(entry['name'])[:80]!r}, got none")
    node = Node(entry["op"], given=kind, name=entry["name"], sparse=entry["sparse"], dtype=_dtype(entry["dtype"]))
    return with_gradient(node) if entry.get("needs_gradient") is True else node


def _list(items: Any) -> Any:
    return None if items is None else list(items)


def _tuple(value: Any) -> Any:
    return tuple(_tuple(v) for v in value) if isinstance(value, list) else value
