"""Names and values of a graph's nodes while the graph is written in another language.

`GraphWriter` visits each node after the nodes that it reads, and calls the function of its operation. A subclass has
the statements of the language.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from feedline.errors import CompatError
from feedline.networks.loop import operands
from feedline.networks.node import Node
from feedline.networks.traverse import topological


class GraphWriter:
    """Names of the values of a graph, as they are written.

    Args:
        operators: for each operation a function of the writer and a node, which writes the node and returns its
            value's name.
        recipe: function that returns the same computation by other operations, or None if there is none. It is called
            for operations without an operator.
        outer: writer of the graph around this one, if it is the body of a recurrence. Names are unique in both, and the
            body can read values of the outer graph.
        stepping: name of the sequence axis whose steps come one at a time, so that tensors do not have it.

    Attributes:
        language: name of what is written, for messages.
        way_out: what to do about an operation that the language cannot express, for messages.
        loops: names of the outputs of each recurrence that has been written.
    """

    language: ClassVar[str]
    way_out: ClassVar[str] = "save without a format, which feedline loads again, or leave this part out"

    def __init__(
        self,
        operators: Mapping[str, Callable[[Any, Node], str]],
        recipe: Callable[[Node], Node | None] = lambda node: None,
        outer: GraphWriter | None = None,
        stepping: str = "",
    ) -> None:
        self.operators, self.recipe = operators, recipe
        self.loops: dict[Node, list[str]] = {}
        self._outer, self._stepping = outer, stepping
        self._names: dict[str, int] = {} if outer is None else outer._names  # with the last suffix of each
        self._values: dict[Node, str] = {}
        self._aliases: dict[Node, Node] = {}

    def free(self, base: str) -> str:
        """Return a name that no value has so far."""
        name = base
        while name in self._names:
            self._names[base] += 1
            name = f"{base}_{self._names[base]}"
        self._names[name] = 0
        return name

    def leading(self, node: Node) -> int:
        """Return the number of dynamic axes that a node's tensor has in this graph."""
        return len(node.axes) - (self._stepping in node.axes)

    def declare(self, node: Node, name: str) -> None:
        """Set the name of a node's value."""
        self._values[node] = name

    def alias(self, node: Node, target: Node) -> None:
        """Give a node the value of another node."""
        self._aliases[node] = target

    def value(self, node: Node) -> str:
        """Return the name of a node's value, and write the nodes that compute it.

        Raises:
            CompatError: an operation that the language cannot express.
        """
        for below in topological([node], lambda n: () if self._name_of(n) is not None else self._reads(n)):
            if self._name_of(below) is None:
                self._add(below)
        name = self._name_of(node)
        assert name is not None
        return name

    def _name_of(self, node: Node) -> str | None:
        name = self._values.get(node)
        return self._outer._name_of(node) if name is None and self._outer is not None else name

    def _reads(self, node: Node) -> Sequence[Node]:
        if node in self._aliases:
            return [self._aliases[node]]
        if node.op == "pick":
            return operands(node.inputs[0])
        if node.op == "alias":
            self.alias(node, node.inputs[0])
        elif not node.is_leaf and node.op not in self.operators:
            built = self.recipe(node)
            if built is None:
                raise self._refusal(node)
            self.alias(node, built)
        return [self._aliases[node]] if node in self._aliases else node.inputs

    def _add(self, node: Node) -> None:
        if node in self._aliases:
            self._values[node] = self.value(self._aliases[node])
        elif node.is_leaf:
            self._add_leaf(node)
        else:
            self._values[node] = self.operators[node.op](self, node)

    def _add_leaf(self, node: Node) -> None:
        raise NotImplementedError

    def _refusal(self, node: Node) -> CompatError:
        if node.op in ("user", "user_output"):
            return CompatError(f"{node.label}: expected operations, got Python code, which no file holds")
        if node.op == "late":
            return CompatError(f"{node.label}: expected known shapes to write its parts: replace placeholders first")
        return CompatError(
            f"{node.label}: expected an operation that {self.language} can express, got one that it cannot; "
            f"{self.way_out}"
        )
