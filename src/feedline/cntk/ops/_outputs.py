"""`Outputs`: output nodes of a graph, and the properties that follow from the graph."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np

from feedline.cntk._attributes import attributes_of, set_attribute
from feedline.cntk._nodes import shape_of
from feedline.cntk._op_names import function_uid, op_name, renaming
from feedline.cntk._operand import Operand, registered_operation
from feedline.cntk._order import leaves_in_order, operands
from feedline.cntk._replacing import count as replacements
from feedline.cntk._replacing import current, replacement_of
from feedline.cntk._tracing import has_name
from feedline.cntk.axis import Axis
from feedline.cntk.variables import Variable, variable_of
from feedline.networks import Node, apply, leaves
from feedline.networks.loop_outputs import outside
from feedline.networks.traverse import rename_node


class Outputs(Operand):
    """Outputs of a graph: their types, their leaves, and the operation or block that computes them."""

    _root_nodes: list[Node]
    _networks: dict[tuple[Node, ...], Any]  # outputs that the network was compiled for
    _order: list[Node]
    _replacements: int
    _combination: str | None = None  # name of a combination of several outputs, None for other functions
    _alone = False  # whether it is only the operation that computes its output, without the graph below

    @property
    def _roots(self) -> list[Node]:
        """Current nodes of the outputs."""
        if self._replacements != replacements():
            self._roots = current(self._root_nodes)
        return self._root_nodes

    @_roots.setter
    def _roots(self, roots: list[Node]) -> None:
        self._root_nodes, self._replacements, self._networks = roots, replacements(), {}

    @property
    def node(self) -> Node:
        """Return the node of the only output.

        Raises:
            ValueError: several outputs.
        """
        if len(self._roots) != 1:
            raise ValueError(f"expected a function with one output, got {len(self._roots)}: choose one of .outputs")
        return self._roots[0]

    @property
    def output(self) -> Variable:
        """The only output. ValueError: several outputs."""
        return variable_of(self.node)

    @property
    def outputs(self) -> tuple[Variable, ...]:
        """All outputs."""
        return tuple(variable_of(root) for root in self._roots)

    @property
    def arguments(self) -> tuple[Variable, ...]:
        """Inputs and placeholders, which a call binds."""
        arguments = leaves(outside(self._roots), "input", "placeholder")
        order = [node if node in arguments else replacement_of(node) for node in self._order]
        first = [node for node in dict.fromkeys(order) if node in arguments]
        return tuple(variable_of(node) for node in [*first, *(n for n in arguments if n not in first)])

    signature = property(attrgetter("arguments"), doc="Same as `arguments`.")

    @property
    def placeholders(self) -> tuple[Variable, ...]:
        """Arguments that are placeholders."""
        return tuple(v for v in self.arguments if v.is_placeholder)

    @property
    def parameters(self) -> tuple[Any, ...]:
        """All parameters of the graph, beginning with the last layer. See `cntk._order`."""
        return tuple(variable_of(node) for node in leaves_in_order(self._roots, "parameter"))

    @property
    def constants(self) -> tuple[Any, ...]:
        """All constants of the graph, in the order of `parameters`."""
        return tuple(variable_of(node) for node in leaves_in_order(self._roots, "constant"))

    @property
    def inputs(self) -> tuple[Any, ...]:
        """All leaves of the graph, or the operands of a `root_function`."""
        if self._alone:
            return tuple(variable_of(child) for child in operands(self._roots[0]))
        kinds = ("input", "placeholder", "parameter", "constant")
        return tuple(variable_of(node) for node in leaves(self._roots, *kinds))

    shape = property(lambda self: shape_of(self.node), doc="Shape of the only output, (-2,) while it is unknown.")
    dtype = property(attrgetter("output.dtype"), doc="Element type of the only output.")
    dynamic_axes = property(attrgetter("output.dynamic_axes"), doc="Dynamic axes of the only output.")
    is_sparse = property(attrgetter("output.is_sparse"), doc="Whether the only output is sparse.")

    @property
    def name(self) -> str:
        """Name of the combination, or of the first output, which can be set once. ValueError: it has a name already."""
        return self._roots[0].name if self._combination is None else self._combination

    @name.setter
    def name(self, name: str) -> None:
        root = self._roots[0]
        if self._combination is None:
            has_own = bool(root.name) and not root.is_leaf and has_name(root, root.name)
        else:
            has_own = bool(self._combination)
        if has_own and not renaming.allowed:
            raise ValueError(
                f"expected a function without a name, got {self.name!r}; name it when it is constructed, or call "
                "cntk.cntk_py.allow_renaming_functions() first"
            )
        if self._combination is not None:
            self._combination = name
            return
        self._roots[0] = apply("alias", [root], {}, name) if root.is_leaf else rename_node(root, name)

    @property
    def uid(self) -> str:
        """Identifier, unique in this process."""
        if self._combination is not None:
            return f"Combine{'_'.join(root.uid.removeprefix('n') for root in self._roots)}"
        return "+".join(function_uid(root) for root in self._roots)

    @property
    def op_name(self) -> str:
        """Operation, in CNTK's spelling, or kind of block, that computes the first output, or ``"Combine"``."""
        return op_name(self._roots[0]) if self._combination is None else "Combine"

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the operation that computes the first output, under CNTK's keys.

        Shapes are tuples, axes tuples as ``("ordered", "static", 0)`` for the last axis.

        Raises:
            ValueError: they depend on the shape of a placeholder.
        """
        return attributes_of(self._roots[0])

    def set_attribute(self, name: str, value: Any) -> None:
        """Change an attribute of the operation that computes the first output, for all functions that contain it.

        Trainers and networks that have it use the new value from then on.

        Args:
            name: ``"dropoutRate"``, or ``"rngSeed"`` for dropout and random numbers, which a new seed starts anew.
            value: new value.

        Raises:
            ValueError: the operation has no such attribute. A rate outside 0 to 1 raises it in training.
        """
        set_attribute(self._roots[0], name, value)

    @property
    def is_block(self) -> bool:
        """Whether a block computes the first output."""
        return "block" in self._roots[0].attributes

    @property
    def is_composite(self) -> bool:
        """Whether the graph has more than one operation."""
        if self._alone:
            return False
        return any(not child.is_leaf for root in self._roots for child in root.inputs) or len(self._roots) > 1

    @property
    def is_primitive(self) -> bool:
        """Whether the graph is a single operation, or it is a `root_function`."""
        return not self.is_composite and (self._alone or not self.is_block)

    @property
    def root_function(self) -> Any:
        """The operation or block that computes the only output, whose `inputs` are its operands.

        For several outputs, or for a leaf, it is the function itself.
        """
        if self._alone or len(self._roots) != 1 or self._roots[0].is_leaf:
            return self
        return registered_operation("operand_of")(self._roots[0])

    @property
    def owner(self) -> Any:
        """The function itself, so that functions can replace variables."""
        return self

    @property
    def block_arguments_mapping(self) -> list[tuple[Variable, Variable]]:
        """Pairs of inner and outer arguments of the block, which are the same variables.

        Raises:
            ValueError: the function is not a block.
        """
        return [(variable_of(n), variable_of(n)) for n in self._block().inputs[1:]]

    def _block(self) -> Node:
        if not self.is_block:
            raise ValueError(f"expected a block, got the operation {self.op_name!r}")
        return self._roots[0]

    def as_string(self) -> str:
        """Return the same text as `repr`."""
        return repr(self)

    type = property(attrgetter("output.type"), doc="Type of the only output.")

    def __str__(self) -> str:
        inputs = [v for v in (self.inputs if self._alone else self.arguments) if v.node.weights is None]
        operands = ", ".join(f"{v.name}: {_type_text(v)}" if v.name else _type_text(v) for v in inputs)
        outputs = ", ".join(_type_text(v) for v in self.outputs)
        result = f"Tuple[{outputs}]" if len(self._roots) > 1 else outputs
        kind = "Composite" if self.is_composite and not self._is_root_applied() else self.op_name
        return f"{self.name}: {kind}({operands}) -> {result}" if self.name else f"{kind}({operands}) -> {result}"

    def _is_root_applied(self) -> bool:
        """Whether the operation or block of the only output reads the function's leaves alone."""
        return len(self._roots) == 1 and all(child.is_leaf for child in operands(self._roots[0]))

    def __repr__(self) -> str:
        inputs = ", ".join(repr(v) for v in self.arguments)
        outputs = ", ".join(repr(v) for v in self.outputs)
        kind = "Composite" if self.is_composite else ""
        return f"{kind}({self.op_name}): {inputs} -> {outputs}" if kind else f"{self.op_name}({inputs}) -> {outputs}"


def _type_text(variable: Variable) -> str:
    """Return the type of a variable as `cntk.layers.typing` writes it: ``Sequence[Tensor[3]]``."""
    kind, dtype = variable.node.type, np.dtype(variable.dtype).name
    if kind.shape is None:
        text = "tensor"
    elif kind.shape == ():
        text = f"np.{dtype}" if dtype in ("float64", "float32", "float16") else "float"
    else:
        sizes = ",".join(str(n) for n in kind.shape)
        text = f"Tensor[np.{dtype},{sizes}]" if dtype in ("float64", "float16") else f"Tensor[{sizes}]"
        text = f"Sparse{text}" if variable.is_sparse else text if kind.axes != () else f"Parameter{text}"
    for axis in variable.dynamic_axes:
        if not axis.is_batch_axis:
            usual = axis in (Axis.default_dynamic_axis(), *Axis.unknown_dynamic_axes())
            text = f"Sequence[{text}]" if usual else f"SequenceOver[{axis.name}][{text}]"
    return text
