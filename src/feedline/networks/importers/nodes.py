"""feedline's own nodes as a graph: networks under CNTK's names.

Shapes are those of one sample behind the names of its dynamic axes. Blocks become scopes; names and blocks that stand
for what they are applied to are no operations. A recurrence is drawn open: its state takes what it became one step
before, along an edge that goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from feedline.graph.costs import activations, multiply_adds
from feedline.graph.graph import Graph, Operation, OutputReference, Parameter, Path, Scope, Shape, TensorType
from feedline.networks.node import UNKNOWN, Node
from feedline.networks.traverse import loop_parts, topological

# Weights come first among their arguments.
_KERNEL_FIRST = ("convolution", "convolution_transpose")


def from_nodes(roots: Sequence[Node]) -> Graph:
    """The graph of networks that end in ``roots``."""
    importer = _NodeImporter(topological(roots))
    for node in importer.order:
        importer.add(node)
    for i, root in enumerate(roots):
        importer.output(i, root)
    return Graph(tuple(importer.operations), importer.parameters, importer.scopes, "feedline.networks")


class _NodeImporter:
    def __init__(self, order: list[Node]) -> None:
        self.order = order
        # By place, so that equal networks give equal graphs; names of nodes are unique in a process only.
        self._keys = {node: f"n{i}" for i, node in enumerate(order)}
        self.operations: list[Operation] = []
        self.parameters: dict[str, Parameter] = {}
        self.scopes: dict[Path, Scope] = {}
        self._names: dict[int, str] = {}
        self._stands: dict[Node, Node] = {}
        self._called: dict[Node, str] = {}
        self._becomes: dict[Node, Node] = {}
        self._dtypes: dict[Node, str] = {}
        for node in order:
            self._dissolve(node)
        self._paths = self._blocks()

    def _dissolve(self, node: Node) -> None:
        """Nodes that stand for another one, and what the states of a recurrence become."""
        if node.op == "alias":
            self._stands[node] = node.inputs[0]
        elif node.op == "pick":
            self._stands[node] = node.inputs[0].inputs[node.attributes["index"]]
        elif node.op == "loop":
            bodies, states = loop_parts(node)
            self._becomes.update(zip(states, bodies[len(bodies) - len(states) :], strict=True))
        if node in self._stands and node.name:
            self._called.setdefault(self.behind(node), node.name)

    def behind(self, node: Node) -> Node:
        """What a node stands for."""
        while node in self._stands:
            node = self._stands[node]
        return node

    def _blocks(self) -> dict[Node, Path]:
        """The scope of each node: outer blocks come behind inner ones in the order, so it is walked from its end."""
        paths: dict[Node, Path] = {}
        for block in reversed(self.order):
            if block.op != "alias" or "block" not in block.attributes:
                continue
            kind, instance = str(block.attributes["block"]), str(block.attributes["instance"])
            border = set(block.inputs[1:])
            inside = topological(block.inputs[:1], lambda node, border=border: _within(node, border))  # type: ignore[misc]
            outer = paths.get(block, ())
            path = (*outer, _unique(instance or kind, [p[-1] for p in self.scopes if p[:-1] == outer]))
            self.scopes[path] = Scope(kind, detail=instance)
            for node in inside:
                if node not in border and paths.get(node, ()) == outer:
                    paths[node] = path
        return paths

    def add(self, node: Node) -> None:
        """One node."""
        if node.weights is not None:
            self._keep(node)
            return
        if node in self._stands or node.op == "loop":
            return
        given = [self.behind(child) for child in node.inputs]
        below = [n for n in given if n.weights is None]
        if node in self._becomes:
            sources = [OutputReference(self._keys[self.behind(self._becomes[node])], feedback=True)]
        else:
            sources = [OutputReference(self._keys[n]) for n in below]
        self._dtypes[node] = node.dtype if node.is_leaf or not given else self._dtypes.get(given[0], given[0].dtype)
        kind = "state" if node in self._becomes else node.op
        ordered = given[::-1] if kind in _KERNEL_FIRST else given
        weights = [n for n in given if n.weights is not None]
        type_ = TensorType(shape_of(node), self._dtypes[node])
        operation = Operation(
            key=self._keys[node],
            kind=kind,
            name=node.name or self._called.get(node, ""),
            role="input" if kind in ("input", "placeholder") else "operation",
            scope=self._paths.get(node, ()),
            inputs=tuple(sources),
            outputs=(type_,),
            parameters=tuple(dict.fromkeys(self._names[id(n.weights)] for n in weights)),
            multiply_adds=multiply_adds(kind, [*map(shape_of, ordered)], [*map(shape_of, weights)], type_.shape),
            activations=0 if kind in ("input", "placeholder") else activations(kind, [type_]),
        )
        self.operations.append(operation)

    def _keep(self, node: Node) -> None:
        weights = node.weights
        assert weights is not None
        if id(weights) not in self._names:
            name = _unique(node.name or node.op, self.parameters)
            self._names[id(weights)] = name
            type_ = TensorType(shape_of(node), weights.dtype)
            self.parameters[name] = Parameter(name, type_, weights.trains, buffer=node.op == "constant")

    def output(self, i: int, root: Node) -> None:
        """One of the outputs."""
        node = self.behind(root)
        sources: tuple[OutputReference, ...] = (OutputReference(self._keys[node]),) if node.weights is None else ()
        names = () if node.weights is None else (self._names[id(node.weights)],)
        self.operations.append(
            Operation(f"output.{i}", "output", root.name, "output", inputs=sources, parameters=names)
        )


def _within(node: Node, border: set[Node]) -> Iterable[Node]:
    return () if node in border else node.inputs


def shape_of(node: Node) -> Shape | None:
    """Names of dynamic axes and the shape of a sample; None where it is not known."""
    shape, axes = node.type.shape, node.type.axes
    return None if shape is None or UNKNOWN in shape else (*(axes or ()), *shape)


def _unique(wanted: str, taken: Iterable[str]) -> str:
    names, name, n = set(taken), wanted, 1
    while name in names:
        n += 1
        name = f"{wanted}_{n}"
    return name
