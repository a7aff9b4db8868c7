"""MXNet's symbols and their JSON as a graph: version 1.9.1's, and older ones with ``attr`` or ``param`` for ``attrs``.

A variable is a parameter if its name ends as MXNet ends those of weights, else an input. JSON holds no shapes; a symbol
infers them from those of its inputs. The JSON is checked before it is believed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from feedline.graph.costs import activations, multiply_adds
from feedline.graph.graph import Graph, Operation, Parameter, Shape, Source, TensorType

TRAINED = ("_weight", "_bias", "_beta", "_gamma", "_parameters")
KEPT = ("_moving_var", "_moving_mean", "_running_var", "_running_mean", "_state", "_state_cell")


def from_symbol(symbol: Any, inputs: Mapping[str, Any] | None = None) -> Graph:
    """The graph of a symbol.

    Args:
        symbol: of MXNet's interface: ``tojson``, ``get_internals``, ``list_outputs``, ``infer_shape``.
        inputs: shapes of its inputs by name, batch included; None: shapes stay unknown.

    Raises:
        ValueError: the shapes do not suffice.
    """
    if inputs is None:
        return from_symbol_json(symbol.tojson())
    internals = symbol.get_internals()
    _, shapes, _ = internals.infer_shape(**{name: tuple(shape) for name, shape in inputs.items()})
    if shapes is None:
        raise ValueError(f"expected shapes of all inputs, got those of {', '.join(inputs) or 'none'}")
    known: dict[str, list[Shape]] = {}
    for name, shape in zip(internals.list_outputs(), shapes, strict=True):
        known.setdefault(name, []).append(tuple(shape))
    return _read(symbol.tojson(), known)


def from_symbol_json(text: str, shapes: Mapping[str, Shape] | None = None) -> Graph:
    """The graph of a symbol's JSON.

    Args:
        text: of ``symbol.tojson()``.
        shapes: by the names that ``symbol.get_internals().list_outputs()`` gives; those missing stay unknown.

    Raises:
        ValueError: the text is no JSON of a symbol; it names the node.
    """
    return _read(text, {name: [tuple(shape)] for name, shape in (shapes or {}).items()})


def _read(text: str, shapes: dict[str, list[Shape]]) -> Graph:
    """As `from_symbol_json`; several shapes of one name are those of its nodes in order."""
    try:
        document = json.loads(text)
        nodes, heads = document["nodes"], document["heads"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"expected the JSON of a symbol, with nodes and heads: {error!r}") from error
    if not isinstance(nodes, list) or not isinstance(heads, list):
        raise ValueError("expected the JSON of a symbol, whose nodes and heads are lists")
    importer = _Importer(nodes, heads, shapes)
    for i in range(len(nodes)):
        importer.add(i)
    for i in range(len(heads)):
        importer.output(i)
    return Graph(tuple(importer.operations), importer.parameters, importer="MXNet symbol")


class _Importer:
    def __init__(self, nodes: list[Any], heads: list[Any], shapes: dict[str, list[Shape]]) -> None:
        self.nodes, self.shapes = nodes, shapes
        self.operations: list[Operation] = []
        self.parameters: dict[str, Parameter] = {}
        self._names: dict[int, str] = {}
        self._types: dict[int, tuple[TensorType, ...]] = {}
        self._heads = [self._head(i, head) for i, head in enumerate(heads)]
        parts = [self._read(i) for i in range(len(nodes))]
        self._taken: dict[int, int] = {}
        for n, out in [*self._heads, *(source for *_, given in parts for source in given)]:
            self._taken[n] = max(self._taken.get(n, 0), out + 1)

    def add(self, i: int) -> None:
        """Node ``i``."""
        kind, name, attributes, given = self._read(i)
        if kind == "null" and name.endswith(TRAINED + KEPT):
            type_ = TensorType(self._shape(name), "float32")
            self._names[i] = unique = name if name not in self.parameters else f"{name}@{i}"
            self._types[i] = (type_,)
            self.parameters[unique] = Parameter(unique, type_, trains=True, buffer=name.endswith(KEPT))
            return
        below = [(n, out) for n, out in given if n not in self._names]
        weights = [n for n, _ in given if n in self._names]
        self._types[i] = types = self._outputs(i, kind, name)
        operands = [self._types[n][min(out, len(self._types[n]) - 1)].shape for n, out in given]
        self.operations.append(
            Operation(
                key=f"n{i}",
                kind="input" if kind == "null" else kind,
                name=name,
                role="input" if kind == "null" else "operation",
                inputs=tuple(Source(f"n{n}", out) for n, out in below),
                outputs=types,
                parameters=tuple(dict.fromkeys(self._names[n] for n in weights)),
                multiply_adds=multiply_adds(kind, operands, [self._types[n][0].shape for n in weights], types[0].shape),
                activations=0 if kind == "null" else activations(kind, types),
                detail=", ".join(f"{k}={v}" for k, v in attributes.items() if not k.startswith("__")),
            )
        )

    def _read(self, i: int) -> tuple[str, str, Mapping[str, str], list[tuple[int, int]]]:
        node = self.nodes[i]
        try:
            kind, name = str(node["op"]), str(node["name"])
            attributes = node.get("attrs", node.get("attr", node.get("param", {}))) or {}
            given = [(int(part[0]), int(part[1])) for part in node["inputs"]]
            items = {str(key): str(value) for key, value in attributes.items()}
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ValueError(f"expected op, name and inputs in node {i} of the symbol's JSON, got {node!r}") from error
        if any(not 0 <= n < i or out < 0 for n, out in given):
            raise ValueError(f"expected inputs of node {i}, {name!r}, to be nodes before it, got {given}")
        return kind, name, items, given

    def _outputs(self, i: int, kind: str, name: str) -> tuple[TensorType, ...]:
        """Types of all outputs that somebody takes; MXNet calls the only one ``NAME_output``, several by number."""
        if kind == "null":
            return (TensorType(self._shape(name), "float32"),)
        count = self._taken.get(i, 1)
        numbered = f"{name}_output" not in self.shapes and f"{name}_output0" in self.shapes
        while numbered and f"{name}_output{count}" in self.shapes:
            count += 1
        names = [f"{name}_output{n}" if numbered else f"{name}_output" for n in range(count)]
        return tuple(TensorType(self._shape(label), "float32") for label in names)

    def _shape(self, name: str) -> Shape | None:
        known = self.shapes.get(name)
        if not known:
            return None
        return known.pop(0) if len(known) > 1 else known[0]

    def _head(self, i: int, head: Any) -> tuple[int, int]:
        try:
            n, out = int(head[0]), int(head[1])
        except (TypeError, ValueError, IndexError) as error:
            raise ValueError(f"expected [node, output] in head {i} of the symbol's JSON, got {head!r}") from error
        if not 0 <= n < len(self.nodes) or out < 0:
            raise ValueError(f"expected a node of the symbol's JSON in head {i}, got {head!r}")
        return n, out

    def output(self, i: int) -> None:
        """Head ``i``."""
        n, out = self._heads[i]
        known = n not in self._names
        sources = (Source(f"n{n}", out),) if known else ()
        parameters = () if known else (self._names[n],)
        label = f"{self.nodes[n]['name']}_output"
        self.operations.append(Operation(f"output.{i}", "output", label, "output", (), sources, parameters=parameters))
