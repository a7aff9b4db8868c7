"""Import of MXNet's symbols and their JSON: of version 1.9.1, and older ones with ``attr`` or ``param`` for ``attrs``.

A variable is a parameter if its name has an ending that MXNet gives to weights, else an input. JSON contains no shapes,
but a symbol infers them from the shapes of its inputs. The JSON is validated.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from feedline.graph.costs import activations, multiply_adds
from feedline.graph.graph import Graph, Operation, OutputReference, Parameter, Shape, TensorType, output_operation
from feedline.graph.settings import ShapesAround, settings_of
from feedline.networks.importers.symbol_names import add_scopes

TRAINED = ("_weight", "_bias", "_beta", "_gamma", "_parameters")
NO_SHAPES = "JSON contains no shapes: pass mxnet.symbol.load_json(text), which infers the missing ones"
MAX_OUTPUTS = 1 << 16
STATISTICS = ("_moving_var", "_moving_mean", "_running_var", "_running_mean")
NORMALISES = ("BatchNorm", "BatchNorm_v1", "_contrib_SyncBatchNorm")
BUFFERS = (*STATISTICS, "_state", "_state_cell")


def from_symbol(symbol: Any, inputs: Mapping[str, Any] | None = None) -> Graph:
    """Return the graph of a symbol.

    Args:
        symbol: symbol with MXNet's interface: ``tojson``, ``get_internals``, ``list_outputs``, ``infer_shape``.
        inputs: shapes of its inputs by name, batch included. None means that shapes stay unknown.

    Raises:
        TypeError: the shapes are not a mapping by name.
        ValueError: the shapes are insufficient, contradict each other, or belong to no input.
    """
    if inputs is None:
        return from_symbol_json(symbol.tojson())
    _expect_names(inputs)
    internals = symbol.get_internals()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of insufficient shapes, which the error below reports
            _, shapes, _ = internals.infer_shape(**{name: tuple(shape) for name, shape in inputs.items()})
    except RuntimeError as error:  # MXNet's own
        raise ValueError(f"expected shapes that fit the symbol, got {dict(inputs)!r:.200}: {error}") from error
    if shapes is None:
        raise ValueError(f"expected shapes of all inputs, got shapes of {', '.join(inputs) or 'none'}")
    by_name: dict[str, list[Shape]] = {}
    for name, shape in zip(internals.list_outputs(), shapes, strict=True):
        by_name.setdefault(name, []).append(tuple(shape))
    return _read(symbol.tojson(), by_name)


def from_symbol_json(text: str, shapes: Mapping[str, Shape] | None = None) -> Graph:
    """Return the graph of a symbol's JSON.

    Args:
        text: result of ``symbol.tojson()``.
        shapes: shapes by the names of ``symbol.get_internals().list_outputs()``. Missing ones stay unknown, which the
            graph's notes mention.

    Raises:
        TypeError: the shapes are not a mapping by name.
        ValueError: the text is not JSON of a symbol. The error names the node.
    """
    if shapes is not None:
        _expect_names(shapes)
    return _read(text, {name: [tuple(shape)] for name, shape in (shapes or {}).items()}, complete=False)


def _expect_names(shapes: Any) -> None:
    if not isinstance(shapes, Mapping):
        raise TypeError(f"expected shapes of a symbol's inputs by name, such as {{'data': (8, 3)}}, got {shapes!r:.80}")


def _read(text: str, shapes: dict[str, list[Shape]], complete: bool = True) -> Graph:
    """Read a symbol's JSON. Several shapes of one name belong to the nodes of that name, in order.

    Without ``complete`` the shapes come from the user, who may have omitted some, or passed one that belongs to
    nothing.
    """
    try:
        document = json.loads(text)
        nodes, heads = document["nodes"], document["heads"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"expected the JSON of a symbol, with nodes and heads: {error!r}") from error
    if not isinstance(nodes, list) or not isinstance(heads, list):
        raise ValueError("expected the JSON of a symbol, whose nodes and heads are lists")
    importer = _SymbolImporter(nodes, heads, shapes)
    for i in range(len(nodes)):
        importer.add(i)
    for i in range(len(heads)):
        importer.output(i)
    if not complete:
        importer.expect_all_used()
    notes = (NO_SHAPES,) if shapes and importer.unknown else ()
    operations, scopes = add_scopes(importer.operations)
    return Graph(tuple(operations), importer.parameters, scopes, "an MXNet symbol", notes)


class _SymbolImporter:
    def __init__(self, nodes: list[Any], heads: list[Any], shapes: dict[str, list[Shape]]) -> None:
        self.nodes, self.shapes = nodes, shapes
        self.operations: list[Operation] = []
        self.parameters: dict[str, Parameter] = {}
        self._names: dict[int, str] = {}
        self._types: dict[int, tuple[TensorType, ...]] = {}
        self._heads = [self._head(i, head) for i, head in enumerate(heads)]
        parts = [self._read(i) for i in range(len(nodes))]
        self.unknown = False  # whether an unknown shape was needed
        self._used: set[str] = set()
        self._used_outputs: dict[int, int] = {}
        for n, out in [*self._heads, *(source for *_, inputs in parts for source in inputs)]:
            self._used_outputs[n] = max(self._used_outputs.get(n, 0), out + 1)

    def add(self, i: int) -> None:
        """Add node ``i``."""
        kind, name, attributes, inputs = self._read(i)
        if kind == "null" and name.endswith(TRAINED + BUFFERS):
            type_ = TensorType(self._shape(name), "float32")
            self._names[i] = unique = name if name not in self.parameters else f"{name}@{i}"
            self._types[i] = (type_,)
            self.parameters[unique] = Parameter(unique, type_, trains=True, buffer=name.endswith(BUFFERS))
            return
        below = [(n, out) for n, out in inputs if n not in self._names]
        weights = [n for n, _ in inputs if n in self._names]
        if kind in NORMALISES and attributes.get("fix_gamma", "True").lower() in ("true", "1"):
            self._freeze([self._names[n] for n, _ in inputs[1:2] if n in self._names])
        self._types[i] = types = self._outputs(i, kind, name)
        operands = [self._types[n][min(out, len(self._types[n]) - 1)].shape for n, out in inputs]
        shapes = [self._types[n][0].shape for n in weights]
        self.operations.append(
            Operation(
                key=f"n{i}",
                kind="input" if kind == "null" else kind,
                name=name,
                role="input" if kind == "null" else "operation",
                inputs=tuple(OutputReference(f"n{n}", out) for n, out in below),
                outputs=types,
                parameters=tuple(dict.fromkeys(self._names[n] for n in weights)),
                multiply_adds=multiply_adds(kind, operands, shapes, types[0].shape),
                activations=0 if kind == "null" else activations(kind, types),
                settings=settings_of(kind, attributes, ShapesAround(operands, shapes, types[0].shape)),
                detail=", ".join(f"{k}={v}" for k, v in attributes.items() if not k.startswith("__")),
            )
        )

    def _freeze(self, names: Sequence[str]) -> None:
        """Mark gammas that stay 1, the default of MXNet, as untrained."""
        self.parameters |= {name: replace(self.parameters[name], trains=False) for name in names}

    def _read(self, i: int) -> tuple[str, str, Mapping[str, str], list[tuple[int, int]]]:
        node = self.nodes[i]
        try:
            kind, name = str(node["op"]), str(node["name"])
            attributes = node.get("attrs", node.get("attr", node.get("param", {}))) or {}
            inputs = [_place(part) for part in node["inputs"]]
            items = {str(key): str(value) for key, value in attributes.items()}
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ValueError(f"expected op, name and inputs in node {i} of the symbol's JSON, got {node!r}") from error
        if any(not 0 <= n < i or not 0 <= out < MAX_OUTPUTS for n, out in inputs):
            raise ValueError(f"expected inputs of node {i}, {name!r}, to be nodes before it, got {inputs}")
        return kind, name, items, inputs

    def _outputs(self, i: int, kind: str, name: str) -> tuple[TensorType, ...]:
        """Return the types of all outputs in use. MXNet names a single one ``NAME_output``, and numbers several."""
        if kind == "null":
            return (TensorType(self._shape(name), "float32"),)
        count = self._used_outputs.get(i, 1)
        numbered = f"{name}_output" not in self.shapes and f"{name}_output0" in self.shapes
        while numbered and f"{name}_output{count}" in self.shapes:
            count += 1
        names = [f"{name}_output{n}" if numbered else f"{name}_output" for n in range(count)]
        return tuple(TensorType(self._shape(label), "float32") for label in names)

    def _shape(self, name: str) -> Shape | None:
        shapes = self.shapes.get(name)
        self._used.add(name)
        if not shapes:
            self.unknown = True
            return None
        return shapes.pop(0) if len(shapes) > 1 else shapes[0]

    def expect_all_used(self) -> None:
        """Raise ValueError if a shape belongs to no output."""
        lost = [name for name in self.shapes if name not in self._used]
        if lost:
            raise ValueError(f"expected shapes of outputs of the symbol's nodes, got one of {', '.join(lost)}")

    def _head(self, i: int, head: Any) -> tuple[int, int]:
        try:
            n, out = _place(head)
        except (TypeError, ValueError) as error:
            raise ValueError(f"expected [node, output] in head {i} of the symbol's JSON, got {head!r}") from error
        if not 0 <= n < len(self.nodes) or not 0 <= out < MAX_OUTPUTS:
            raise ValueError(f"expected a node of the symbol's JSON in head {i}, got {head!r}")
        return n, out

    def output(self, i: int) -> None:
        """Add head ``i``."""
        n, out = self._heads[i]
        is_operation = n not in self._names
        sources = (OutputReference(f"n{n}", out),) if is_operation else ()
        parameters = () if is_operation else (self._names[n],)
        label = f"{self.nodes[n]['name']}_output"
        self.operations.append(output_operation(i, label, sources, parameters))


def _place(part: Any) -> tuple[int, int]:
    """Return the numbers of a node and an output, the first two items of a list.

    Raises:
        TypeError: not a list of numbers.
        ValueError: fewer than two items.
    """
    if not isinstance(part, list) or not all(isinstance(n, int) for n in part):
        raise TypeError(part)
    node, output = part[:2]
    return node, output
