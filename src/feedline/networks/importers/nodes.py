"""Import of feedline's nodes as a graph: networks of the CNTK façade.

A shape is the names of the dynamic axes, then the shape of one sample. Blocks become scopes. Aliases, the names and
blocks that refer to other nodes, are omitted. Operations that a loop over plain functions repeats have frames, too. A
recurrence is drawn open: its state reads its value of the previous step along a feedback edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from feedline.graph.costs import activations, multiply_adds
from feedline.graph.graph import (
    Graph,
    Operation,
    OutputReference,
    Parameter,
    Path,
    Scope,
    Shape,
    TensorType,
    output_operation,
    unique,
)
from feedline.graph.repeats import add_frames
from feedline.graph.settings import ShapesAround, settings_of
from feedline.networks.importers.layers import layer_settings
from feedline.networks.node import UNKNOWN, Node
from feedline.networks.traverse import loop_parts, topological

# Operations whose weights are their first argument.
_KERNEL_FIRST = ("convolution", "convolution_transpose")

# CNTK's layers, which pictures show as one box. Containers (Sequential, For) and recurrences are frames.
LAYERS = frozenset(
    (
        *("Dense", "Embedding", "Convolution", "Convolution1D", "Convolution2D", "Convolution3D"),
        *("ConvolutionTranspose", "ConvolutionTranspose1D", "ConvolutionTranspose2D", "ConvolutionTranspose3D"),
        *("SequentialConvolution", "MaxPooling", "AveragePooling", "GlobalMaxPooling", "GlobalAveragePooling"),
        *("MaxUnpooling", "BatchNormalization", "LayerNormalization", "Dropout", "Activation", "Stabilizer", "Label"),
    )
)


def from_nodes(roots: Sequence[Node]) -> Graph:
    """Return the graph of networks that end in ``roots``."""
    importer = _NodeImporter(topological(roots))
    for node in importer.order:
        importer.add(node)
    importer.set_layer_settings()
    for i, root in enumerate(roots):
        importer.output(i, root)
    return add_frames(Graph(tuple(importer.operations), importer.parameters, importer.scopes, "feedline.networks"))


# CNTK's name of the axis along which sequences run, and a short one.
_LONG_AXIS = ("defaultDynamicAxis", "steps")


class _NodeImporter:
    def __init__(self, order: list[Node]) -> None:
        self.order = order
        # By index, so that equal networks give equal graphs. A uid is unique only within a process.
        self._keys = {node: f"n{i}" for i, node in enumerate(order)}
        self.operations: list[Operation] = []
        self.parameters: dict[str, Parameter] = {}
        self.scopes: dict[Path, Scope] = {}
        self._names: dict[int, str] = {}
        self._targets: dict[Node, Node] = {}
        self._labels: dict[Node, str] = {}
        self._next_states: dict[Node, Node] = {}
        self._dtypes: dict[Node, str] = {}
        for node in order:
            self._dissolve(node)
        self._paths = self._blocks()

    def _dissolve(self, node: Node) -> None:
        """Record the targets of aliases and picks, and the next states of recurrences."""
        if node.op == "alias":
            self._targets[node] = node.inputs[0]
        elif node.op == "pick":
            self._targets[node] = node.inputs[0].inputs[node.attributes["index"]]
        elif node.op == "loop":
            bodies, states = loop_parts(node)
            self._next_states.update(zip(states, bodies[len(bodies) - len(states) :], strict=True))
        if node in self._targets and node.name:
            self._labels.setdefault(self.resolve_alias(node), node.name)

    def resolve_alias(self, node: Node) -> Node:
        """Return the node to which an alias or a pick refers, or the node itself."""
        while node in self._targets:
            node = self._targets[node]
        return node

    def _blocks(self) -> dict[Node, Path]:
        """Return the scope of each node. Outer blocks come after inner ones in the order, so it is walked backwards."""
        around: dict[Node, Node | None] = {}  # the innermost block around a node
        blocks: dict[Node | None, list[Node]] = {}
        for block in reversed(self.order):
            if block.op != "alias" or "block" not in block.attributes:
                continue
            border, outer = set(block.inputs[1:]), around.get(block)
            inside = topological(block.inputs[:1], lambda node, border=border: _within(node, border))  # type: ignore[misc]
            blocks.setdefault(outer, []).append(block)
            around.update((node, block) for node in inside if node not in border and around.get(node) is outer)
        paths: dict[Node | None, Path] = {None: ()}
        self._name_scopes(None, blocks, paths)
        return {node: paths[block] for node, block in around.items()}

    def _name_scopes(
        self, outer: Node | None, blocks: Mapping[Node | None, Sequence[Node]], paths: dict[Node | None, Path]
    ) -> None:
        """Set the paths of the blocks within ``outer``. Equal names are numbered in the order of computation."""
        names: list[str] = []
        for block in reversed(blocks.get(outer, ())):
            kind, instance = str(block.attributes["block"]), str(block.attributes["instance"])
            names.append(unique(instance or kind, names))
            paths[block] = path = (*paths[outer], names[-1])
            self.scopes[path] = Scope(kind, builtin=kind in LAYERS, detail=instance)
            self._name_scopes(block, blocks, paths)

    def add(self, node: Node) -> None:
        """Add a node."""
        if node.weights is not None:
            self._add_parameter(node)
            return
        if node in self._targets or node.op == "loop":
            return
        inputs = [self.resolve_alias(child) for child in node.inputs]
        below = [n for n in inputs if n.weights is None]
        if node in self._next_states:
            sources = [OutputReference(self._keys[self.resolve_alias(self._next_states[node])], feedback=True)]
        else:
            sources = [OutputReference(self._keys[n]) for n in below]
        self._dtypes[node] = node.dtype if node.is_leaf or not inputs else self._dtypes.get(inputs[0], inputs[0].dtype)
        kind = "state" if node in self._next_states else node.op
        ordered = inputs[::-1] if kind in _KERNEL_FIRST else inputs
        weights = [n for n in inputs if n.weights is not None]
        type_ = TensorType(shape_of(node), self._dtypes[node])
        around = ShapesAround([*map(shape_of, ordered)], [*map(shape_of, weights)], type_.shape)
        operation = Operation(
            key=self._keys[node],
            kind=kind,
            name=node.name or self._labels.get(node, ""),
            role="input" if kind in ("input", "placeholder") else "operation",
            scope=self._paths.get(node, ()),
            inputs=tuple(sources),
            outputs=(type_,),
            parameters=tuple(dict.fromkeys(self._names[id(n.weights)] for n in weights)),
            multiply_adds=multiply_adds(kind, *around),
            settings=settings_of(kind, node.attributes, around),
            activations=0 if kind in ("input", "placeholder") else activations(kind, [type_]),
        )
        self.operations.append(operation)

    def set_layer_settings(self) -> None:
        """Set the settings of layers to the settings of their operations."""
        inside: dict[Path, list[Operation]] = {}
        for operation in self.operations:
            if self.scopes.get(operation.scope, Scope("")).builtin:
                inside.setdefault(operation.scope, []).append(operation)
        for path, operations in inside.items():
            self.scopes[path] = replace(self.scopes[path], settings=layer_settings(operations))

    def _add_parameter(self, node: Node) -> None:
        weights = node.weights
        assert weights is not None
        if id(weights) not in self._names:
            name = unique(node.name or node.op, self.parameters)
            self._names[id(weights)] = name
            type_ = TensorType(shape_of(node), weights.dtype)
            self.parameters[name] = Parameter(name, type_, weights.trains, buffer=node.op == "constant")

    def output(self, i: int, root: Node) -> None:
        """Add an output."""
        node = self.resolve_alias(root)
        sources: tuple[OutputReference, ...] = (OutputReference(self._keys[node]),) if node.weights is None else ()
        names = () if node.weights is None else (self._names[id(node.weights)],)
        self.operations.append(output_operation(i, root.name, sources, names))


def _within(node: Node, border: set[Node]) -> Iterable[Node]:
    return () if node in border else node.inputs


def shape_of(node: Node) -> Shape | None:
    """Return the names of dynamic axes and the shape of a sample, or None if unknown."""
    shape, axes = node.type.shape, node.type.axes
    names = [name.replace(*_LONG_AXIS) for name in axes or ()]
    return None if shape is None or UNKNOWN in shape else (*names, *shape)
