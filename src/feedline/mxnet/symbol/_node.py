"""Nodes of symbols: variables and applications of operators, with their settings as text.

Unlike nodes of `feedline.networks` they have no shapes, which are inferred when a symbol is queried or bound. Binding
converts it to a graph of `feedline.networks` (`_lower`). An entry is an output of a node and its version: states count
their writers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from feedline.mxnet.base import MXNetError
from feedline.mxnet.symbol._operator import CALLED, Operator
from feedline.mxnet.symbol._parameters import read
from feedline.mxnet.util import is_np_shape
from feedline.networks import traverse

# Attributes of any node that are not settings. Files write them surrounded by underscores.
HIDDEN = ("ctx_group", "lr_mult", "wd_mult", "force_mirroring", "mirror_stage")
VERSION = 10901
_SHOWN = 10  # maximum number of input names in an error


# Errors that operators raise for inputs or settings that do not fit.
FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class within:  # noqa: N801 - read as a verb: with within(name)
    """Convert errors of an operator to MXNet's, which names the node. Reusable."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, FAILURES) and not isinstance(error, MXNetError):
            # A ValueError is the operator's own check, with a complete message.
            what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            raise MXNetError(f"Error in operator {self._name}: {what}") from error


class Entry(NamedTuple):
    """One output of a node."""

    node: Node
    output: int = 0
    version: int = 0


class Node:
    """A variable (without operator) or an application of an operator.

    Attributes:
        operator: None for a variable.
        name: not necessarily unique.
        attributes: attributes as text.
        inputs: entries of other nodes.
        p: settings, parsed from the attributes, None for a variable.
        version: number of operators that use a variable as a state.

    Raises:
        MXNetError: settings that the operator does not take.
    """

    __slots__ = ("attributes", "inputs", "name", "operator", "p", "version")

    def __init__(
        self, operator: Operator | None, name: str, attributes: Mapping[str, str], inputs: Sequence[Entry] = ()
    ) -> None:
        self.operator, self.name, self.version = operator, name, 0
        self.attributes = {f"__{k}__" if k in HIDDEN else k: v for k, v in attributes.items()}
        self.inputs = tuple(inputs)
        self.p: Any = None
        if operator is not None:
            settings = {k: v for k, v in self.attributes.items() if not (k.startswith("__") and k.endswith("__"))}
            self.p = read(operator.name, operator.parameters, settings)

    @property
    def visible(self) -> int:
        """Number of usable outputs."""
        return 1 if self.operator is None else self.operator.count(self.p)

    @property
    def hidden(self) -> int:
        """Number of further outputs, which only files contain."""
        return 0 if self.operator is None else self.operator.count_hidden(self.p)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the operator's inputs."""
        return () if self.operator is None else self.operator.input_names(self.p)

    def output_name(self, index: int) -> str:
        """Return the name of an output."""
        if self.operator is None:
            return self.name
        return f"{self.name}_{self.operator.output_name(self.p, index)}"

    def slots(self, names: Sequence[str]) -> list[Node]:
        """Return the nodes of the inputs of these names."""
        return [entry.node for name, entry in zip(self.input_names, self.inputs, strict=True) if name in names]


def topological(outputs: Iterable[Entry]) -> list[Node]:
    """Return all nodes, each after its inputs, in MXNet's order."""
    return traverse.topological((e.node for e in outputs), lambda node: [e.node for e in node.inputs])


def variables(outputs: Iterable[Entry]) -> tuple[list[Node], list[Node]]:
    """Return the variables that are arguments, and the variables that are states of operators."""
    nodes = topological(outputs)
    states = {s for node in nodes if node.operator is not None for s in node.slots(node.operator.states)}
    leaves = [node for node in nodes if node.operator is None]
    return [n for n in leaves if n not in states], [n for n in leaves if n in states]


def as_state(entry: Entry) -> Entry:
    """Return an entry of a variable that one more operator writes to."""
    entry.node.version += 1
    return Entry(entry.node, entry.output, entry.node.version)


def rebuilt(outputs: Sequence[Entry], replace: Mapping[Node, Entry]) -> tuple[Entry, ...]:
    """Copy a graph to new nodes, with the variables in ``replace`` replaced by its entries."""
    copies: dict[Node, Node] = {}

    def moved(entry: Entry) -> Entry:
        return replace.get(entry.node) or Entry(copies[entry.node], entry.output, entry.version)

    for node in topological(outputs):
        copy = Node(node.operator, node.name, node.attributes, [moved(e) for e in node.inputs])
        copy.version = node.version
        copies[node] = copy
    return tuple(moved(entry) for entry in outputs)


# ---- files --------------------------------------------------------------------------------------------------


def to_json(outputs: Sequence[Entry]) -> str:
    """Return a graph as MXNet 1.9's JSON text."""
    order = topological(outputs)
    number = {node: i for i, node in enumerate(order)}
    nodes, rows = [], [0]
    for node in order:
        entry: dict[str, Any] = {"op": "null" if node.operator is None else node.operator.name, "name": node.name}
        if node.attributes:
            entry["attrs"] = dict(sorted(node.attributes.items()))
        entry["inputs"] = [[number[e.node], e.output, e.version] for e in node.inputs]
        nodes.append(entry)
        rows.append(rows[-1] + node.visible + node.hidden)
    return json.dumps(
        {
            "nodes": nodes,
            "arg_nodes": [i for i, node in enumerate(order) if node.operator is None],
            "node_row_ptr": rows,
            "heads": [[number[e.node], e.output, e.version] for e in outputs],
            "attrs": {"mxnet_version": ["int", VERSION], **({"is_np_shape": ["int", 1]} if is_np_shape() else {})},
        },
        indent=2,
    )


def from_json(text: str) -> tuple[Entry, ...]:
    """Return the graph in a JSON text, including texts before 1.0, which call attributes ``attr`` or ``param``.

    Raises:
        MXNetError: another text, an unsupported operator, or an index out of range.
    """
    try:
        document = json.loads(text)
        described, heads = document["nodes"], document["heads"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MXNetError(f"expected the JSON text of a symbol, with nodes and heads, got {text[:40]!r}") from error
    if not isinstance(described, list) or not isinstance(heads, list) or not heads:
        raise MXNetError("expected lists of nodes and heads, with at least one head, in the JSON text of a symbol")
    nodes: list[Node] = []
    for i, item in enumerate(described):
        try:
            op, name = _text(item["op"]), _text(item["name"])
            attributes: dict[str, str] = {}
            for key in ("param", "attr", "attrs"):
                attributes.update(item.get(key, {}))
            inputs = [_entry(nodes, place) for place in _as_list(item["inputs"])]
            attributes = {key: _text(value) for key, value in attributes.items()}
        except (AttributeError, KeyError, TypeError, IndexError, ValueError) as error:
            raise MXNetError(
                f"expected node {i} to have op, name and earlier nodes as inputs, got {item!r:.200}"
            ) from error
        nodes.append(_node(i, op, name, attributes, inputs))
    try:
        return tuple(_entry(nodes, place) for place in heads)
    except (IndexError, ValueError, TypeError) as error:
        raise MXNetError(f"expected heads among the {len(nodes)} nodes, got {heads!r:.200}") from error


def _node(i: int, op: str, name: str, attributes: Mapping[str, str], inputs: Sequence[Entry]) -> Node:
    """Create node ``i`` of a text, whose parts have the right types."""
    if op == "null":
        return Node(None, name, attributes)
    if op not in CALLED:
        raise MXNetError(f"Operator {op} is not registered: node {i}, `{name}`; docs/compat/mxnet.md lists all")
    operator = CALLED[op]
    node = Node(operator, name, attributes, inputs)
    if operator.variadic and node.p.num_args > len(inputs):
        # Checked before creating as many names as the text claims.
        raise MXNetError(f"expected {node.p.num_args} inputs for node {i}, `{name}`, got {len(inputs)}")
    expected = node.input_names
    if len(expected) != len(inputs):
        raise MXNetError(
            f"expected inputs {', '.join(expected[:_SHOWN])}{', ...' * (len(expected) > _SHOWN)} for node {i}, "
            f"`{name}`, got {len(inputs)}"
        )
    for state in node.slots(operator.states):
        if state.operator is not None:
            raise MXNetError(f"expected variables for states {', '.join(operator.states)} of node {i}, `{name}`")
        state.version = max(state.version, 1, *(e.version for e in inputs if e.node is state))
    return node


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _as_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(value)
    return value


def _entry(nodes: Sequence[Node], place: Any) -> Entry:
    if len(_as_list(place)) not in (2, 3) or not all(type(n) is int for n in place):
        raise TypeError(place)
    number, index, version = (*place, 0)[:3]
    if not 0 <= number < len(nodes) or not 0 <= index < nodes[number].visible + nodes[number].hidden:
        raise IndexError(number)
    if not 0 <= version < 1 << 31:
        raise ValueError(version)
    return Entry(nodes[number], index, version)
