"""Element types and axes of a graph's values while its nodes become ONNX's.

`Writer` lists nodes and initializers, and hides the order of a value's axes. Functions such as those in
`onnx_operators` write each operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.networks import BATCH, Node
from feedline.networks.graph_writer import GraphWriter
from feedline.networks.node import is_fixed
from feedline.networks.onnx import onnx_library as library
from feedline.networks.traverse import element_type


def dimensions(node: Node) -> list[int | str]:
    """Return the lengths of a tensor's axes. An axis of any length has a name instead."""
    leading: list[int | str] = [name if name == BATCH else f"steps of {name}" for name in reversed(node.axes)]
    name = node.name or node.uid
    return [*leading, *(n if is_fixed((n,)) else f"{name} axis {i}" for i, n in enumerate(node.shape))]


class Writer(GraphWriter):
    """Nodes and initializers of an ONNX graph, as they come. See `GraphWriter`.

    Attributes:
        nodes, inputs, initializers: parts of the graph so far.
    """

    language = "ONNX"

    def __init__(
        self,
        operators: Mapping[str, Callable[[Writer, Node], str]],
        recipe: Callable[[Node], Node | None] = lambda node: None,
        outer: Writer | None = None,
        stepping: str = "",
    ) -> None:
        super().__init__(operators, recipe, outer, stepping)
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.initializers: list[Any] = []
        self._dtypes: dict[str, str] = {} if outer is None else outer._dtypes

    # ---- names and values -------------------------------------------------------------------------

    def dtype_of(self, name: str) -> str:
        """Return the element type of a value."""
        return self._dtypes[name]

    def declare(self, node: Node, name: str) -> None:
        """Set the name of a node's value, and its element type unless it is known."""
        super().declare(node, name)
        self._dtypes.setdefault(name, element_type(node))

    def typed(self, name: str, dtype: str) -> str:
        """Return a name whose value has this element type."""
        self._dtypes[name] = dtype
        return name

    def _add_leaf(self, node: Node) -> None:
        from feedline.networks.compile import tensor_of

        if self._outer is not None and node.weights is not None:
            self._values[node] = self._outer.value(node)
        elif node.weights is not None:
            if not node.weights.is_fixed:
                raise ValueError(
                    f"{node.label}: expected a known shape, got {node.weights.shape}: apply its layer first"
                )
            name = self.constant(tensor_of(node.weights).detach().cpu().numpy(), node.name or node.op)
            self._values[node] = name
        elif node.op == "input":
            name = self.free(node.name or "input")
            self.inputs.append(library.describe(name, node.dtype, dimensions(node)))
            self.declare(node, name)
        else:
            raise ValueError(f"expected all placeholders to be replaced, got {node.label}")

    # ---- ONNX's nodes -----------------------------------------------------------------------------

    def constant(self, value: NDArray[Any] | Sequence[int], name: str = "constant") -> str:
        """Return the name of an initializer. Lists become int64."""
        array = np.asarray(value) if isinstance(value, np.ndarray) else np.asarray(value, np.int64)
        initializer = self.free(name)
        self._dtypes[initializer] = array.dtype.name
        self.initializers.append(library.tensor(array, initializer))
        return initializer

    def number(self, value: float, like: str) -> str:
        """Return the name of a number of the type of another value."""
        return self.constant(np.array(value, self.dtype_of(like)), "number")

    def __call__(self, op: str, *inputs: str, dtype: str = "", **attributes: Any) -> str:
        """Write a node of one output and return its name; ``dtype``: its element type, by default its input's."""
        name = self.free(op)
        self.nodes.append(library.node(op, inputs, [name], **attributes))
        self._dtypes[name] = dtype or self.dtype_of(inputs[0])
        return name

    def several(self, op: str, inputs: Sequence[str], dtypes: Sequence[str], **attributes: Any) -> list[str]:
        """Write a node of several outputs and return their names. An empty type means the type of its input."""
        names = [self.free(op) for _ in dtypes]
        self.nodes.append(library.node(op, inputs, names, **attributes))
        for name, dtype in zip(names, dtypes, strict=True):
            self._dtypes[name] = dtype or self.dtype_of(inputs[0])
        return names

    def cast(self, name: str, dtype: str) -> str:
        """Convert to an element type, if it has another."""
        if self.dtype_of(name) == dtype:
            return name
        return self("Cast", name, dtype=dtype, to=library.TYPES[dtype])

    def promote(self, *names: str) -> list[str]:
        """Convert values to a type that holds all of them."""
        dtype = np.result_type(*(np.dtype(self.dtype_of(name)) for name in names)).name
        return [self.cast(name, dtype) for name in names]

    # ---- axes -------------------------------------------------------------------------------------

    def align(self, node: Node, rank: int) -> str:
        """Return a node's value with samples of ``rank`` axes, new ones in front, so that it broadcasts.

        The batch precedes these axes, and steps precede the batch, so a value without steps repeats along them.
        """
        value, leading = self.value(node), self.leading(node)
        missing = rank - len(node.shape)
        if leading and missing > 0:
            value = self("Unsqueeze", value, self.constant(list(range(leading, leading + missing))))
        return value

    def lengths(self, node: Node) -> str:
        """Return the lengths of a node's dynamic axes, int64 (axes,), from its value."""
        return self("Shape", self.value(node), dtype="int64", start=0, end=self.leading(node))

    def reshape(self, name: str, node: Node, shape: Sequence[int], like: Node | None = None) -> str:
        """Reshape to the dynamic axes of a node, and another shape of samples.

        Args:
            name: value.
            node: node whose dynamic axes the result has.
            shape: shape of samples, -1 where it is inferred.
            like: node with a value from which to read the lengths, if the value's axes have been merged. None means
                that the value has them.
        """
        leading = self.leading(node)
        if like is None or leading == 0:
            return self("Reshape", name, self.constant([0] * leading + list(shape)))
        if leading == 1:
            return self("Reshape", name, self.constant([-1, *shape]))
        return self("Reshape", name, self("Concat", self.lengths(like), self.constant(list(shape)), axis=0))

    def merge(self, name: str, node: Node, shape: Sequence[int]) -> str:
        """Reshape to one axis for all dynamic axes, of length 1 without any, and a shape of samples."""
        if self.leading(node) == 1 and tuple(shape) == node.shape:
            return name
        return self("Reshape", name, self.constant([-1, *shape]))

    def expand(self, node: Node, to: Node, like: Node) -> str:
        """Repeat a node's value along the dynamic axes of another, and to its shape.

        Args:
            node: node whose value to repeat.
            to: node with the axes and shape of the result.
            like: node with a value that has all dynamic axes.
        """
        value = self.align(node, len(to.shape))
        if self.leading(to) == 0:
            return self("Expand", value, self.constant(list(to.shape))) if node.shape != to.shape else value
        lengths = self("Concat", self.lengths(like), self.constant(list(to.shape)), axis=0)
        return self("Expand", value, lengths)
