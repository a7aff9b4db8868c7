"""Lines, parameters and names of a generated module while the nodes of a graph become expressions of torch.

Functions such as those in `torch_operators` return the expression of each operation. Each becomes a line with a name.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from feedline.errors import CompatError
from feedline.networks import Node
from feedline.networks.compile import tensor_of
from feedline.networks.graph_writer import GraphWriter
from feedline.networks.node import FREE
from feedline.networks.torch_source import copied_functions
from feedline.networks.traverse import element_type, reads, resolve_alias, topological

_TAKEN = ("self", "torch", "nn", "functional", "lengths", "step", "at", "load", "load_file", "Path", "Network")
# Names of values by operation, where that of the operation is long, or is a function of Python.
_NAMES = {
    "abs": "magnitude",
    "element_divide": "ratio",
    "element_select": "chosen",
    "element_times": "scaled",
    "max_pooling": "pooled",
    "average_pooling": "pooled",
    "pow": "raised",
    "round": "rounded",
    "sequence_first": "first",
    "sequence_last": "last",
    "slice": "part",
    "plus": "total",
    "times": "product",
}
_MODULE = nn.Module()  # its attributes cannot be names of members
_COPIED = tuple(name for name in vars(copied_functions) if not name.startswith("_"))


class ModuleParts:
    """What a module has besides the lines of ``forward``. The bodies of recurrences add to the same parts.

    Args:
        roots: outputs of the network.
        labels: names of layers and blocks by node. See `torch_layers.layer_names`.

    Attributes:
        labels: see above.
        order: all nodes but names and blocks, in order of computation.
        readers: nodes that read a node, and None for each output that it is.
        arguments: names of the arguments, by input.
        members: statements of ``__init__`` by the name of the member.
        tensors: weights by their names in the module's state.
        called: names of the functions of `copied_functions` that are called.
        lengths: names of the lengths of sequences, by axis.
        limits: by nodes that are indices, the number that all are below.
        layers: names of layers that nodes share, by the weights of the layer.
        names_of_layers: names of layers by weight, where the label of the weight is that of several layers.
        fused: by nodes that a layer of torch computes: what the layer reads, and the function that writes it.
    """

    def __init__(self, roots: Sequence[Node], labels: Mapping[Node, str]) -> None:
        self.labels = labels
        ends = [resolve_alias(root) for root in roots]
        self.order = topological(ends, reads)
        self.readers: dict[Node, list[Node | None]] = defaultdict(list)
        for node in self.order:
            for child in reads(node):
                self.readers[child].append(node)
        for end in ends:
            self.readers[end].append(None)
        self.arguments: dict[Node, str] = {}
        self.members: dict[str, str] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        self.called: set[str] = set()
        self.lengths: dict[str, str] = {}
        self.limits: dict[Node, int] = {}
        self.layers: dict[Any, str] = {}
        self.names_of_layers: dict[Node, str] = {}
        self.fused: dict[Node, tuple[Sequence[Node], Callable[[SourceWriter, Node], str]]] = {}


class SourceWriter(GraphWriter):
    """Lines of a module's ``forward``, and the parts of the module that they use.

    Args:
        operators, recipe, outer, stepping: see `GraphWriter`. A function of ``operators`` returns an expression.
        parts: parts of the module.

    Attributes:
        lines: lines of ``forward`` so far.
        parts: see above.
        written: nodes with a line outside recurrences, in order, and the names of their values.
    """

    language, way_out = "torch", "write this part in torch by hand, and export the parts around it"

    def __init__(
        self,
        operators: Mapping[str, Callable[[Any, Node], str]],
        parts: ModuleParts,
        recipe: Callable[[Node], Node | None] = lambda node: None,
        outer: SourceWriter | None = None,
        stepping: str = "",
    ) -> None:
        super().__init__(operators, recipe, outer, stepping)
        self.parts = parts
        self.lines: list[str] = []
        self.written: list[tuple[Node, str]] = []
        if outer is None:
            self._names.update(dict.fromkeys((*_TAKEN, *_COPIED, *keyword.kwlist, *dir(builtins)), 0))

    # ---- arguments --------------------------------------------------------------------------------

    def add_argument(self, node: Node) -> None:
        """Add an input of the network as an argument."""
        name = self.free(identifier(node.name or "x"))
        self.parts.arguments[node] = name
        if len(node.axes) > 1 and node.axes[1] not in self.parts.lengths:
            # Another axis of sequences has other lengths.
            self.parts.lengths[node.axes[1]] = self.free(f"lengths_of_{name}") if self.parts.lengths else "lengths"
        if node.sparse and not all(is_look_up(reader) for reader in self.parts.readers[node]):
            self.lines.append(f"{name} = {self.call('vectors', name, node.shape[-1])}")
        self.declare(node, name)

    # ---- members ----------------------------------------------------------------------------------

    def add_layer(self, base: str, construction: str, tensors: Mapping[str, torch.Tensor], trains: bool = True) -> str:
        """Add a layer of `torch.nn`, and return the expression that names it.

        Args:
            base: name, to which a number is added if another member has it.
            construction: expression that constructs it.
            tensors: values of its parameters and buffers by name.
            trains: whether learners may change them.
        """
        name = self.free_member(identifier(base))
        self.parts.members[name] = f"self.{name} = {construction}{'' if trains else '.requires_grad_(False)'}"
        self.parts.tensors.update((f"{name}.{key}", tensor.detach()) for key, tensor in tensors.items())
        return f"self.{name}"

    def free_member(self, base: str) -> str:
        """Return a name that no member has so far."""
        name, n = base, 1
        while name in self.parts.members or hasattr(_MODULE, name):
            n += 1
            name = f"{base}_{n}"
        return name

    def number(self, node: Node) -> str | None:
        """Return a constant that is one number as a literal, or None for all other nodes."""
        node = resolve_alias(node)
        weights = node.weights
        if weights is None or weights.trains or weights.keeps or weights.shape:
            return None
        value = tensor_of(weights).detach().cpu().numpy()
        if value.dtype.kind != "f" or not torch.isfinite(torch.tensor(float(value))):
            return None
        text = str(value) if value.dtype == "float32" else repr(float(value))
        return f"({text})" if text.startswith("-") else text

    def _add_leaf(self, node: Node) -> None:
        if self._outer is not None:
            self._values[node] = self._outer.value(node)
            return
        if node.weights is None:
            raise ValueError(f"expected all placeholders to be replaced, got {node.label}")
        if not node.weights.is_fixed:
            raise ValueError(f"{node.label}: expected a known shape, got {node.weights.shape}: apply its layer first")
        tensor = tensor_of(node.weights)
        block = self.parts.labels.get(node)
        name = self.free_member("_".join(filter(None, (block and identifier(block), identifier(node.name or node.op)))))
        shape = ", ".join(map(str, tensor.shape)) or "()"
        empty = f"torch.empty({shape}{dtype_argument(node.dtype)})"
        if node.weights.trains:
            self.parts.members[name] = f"self.{name} = nn.Parameter({empty})"
        else:
            self.parts.members[name] = f'self.register_buffer("{name}", {empty})'
        self.parts.tensors[name] = tensor.detach()
        self._values[node] = f"self.{name}"

    # ---- lines ------------------------------------------------------------------------------------

    def _reads(self, node: Node) -> Sequence[Node]:
        if node in self.parts.fused and node not in self._aliases:
            return self.parts.fused[node][0]
        # Weights get their members when an expression names them: a layer may have them as its own.
        return [child for child in super()._reads(node) if resolve_alias(child).weights is None]

    def _add(self, node: Node) -> None:
        if node in self._aliases or node.is_leaf:
            super()._add(node)
            return
        if node in self.parts.fused:
            expression = self.parts.fused[node][1](self, node)
        elif node.op in self.operators:
            expression = self.operators[node.op](self, node)
        else:
            raise self._refusal(node)
        if expression.isidentifier() and expression in self._names:
            self._values[node] = expression
        else:
            self._values[node] = self.assign(self.base_name(node), expression)
        if self._outer is None:
            self.written.append((node, self._values[node]))

    def base_name(self, node: Node) -> str:
        """Return the name of a node's layer, its own, or that of its operation, as an identifier."""
        name = self.parts.labels.get(node) or node.name or _NAMES.get(node.op, node.op)
        return identifier(name.rpartition(".")[2] if name == node.op else name)

    def assign(self, base: str, expression: str) -> str:
        """Write a line that names the value of an expression, and return the name."""
        name = self.free(identifier(base))
        self.lines.append(f"{name} = {expression}")
        return name

    def call(self, function: str, *arguments: Any) -> str:
        """Return a call of a function of `copied_functions`, whose source the file then has."""
        self.parts.called.add(function)
        return f"{function}({', '.join(map(str, arguments))})"

    # ---- axes -------------------------------------------------------------------------------------

    def operand(self, node: Node) -> str:
        """Return the name of a node's value, or a number."""
        return self.number(node) or self.value(node)

    def align(self, child: Node, node: Node, rank: int | None = None) -> str:
        """Return the value of an operand so that it broadcasts to samples of a node of ``rank`` axes.

        Steps follow the batch, so a value without steps gets an axis of length 1 for them.
        """
        value, leading = self.operand(child), self.leading(child)
        if not leading:
            return value
        new = max(0, self.leading(node) - leading)
        new += (len(node.shape) if rank is None else rank) - len(child.shape)
        return f"{value}[{', '.join([':'] * leading + ['None'] * new)}]" if new else value

    def reshape(self, value: str, node: Node, shape: Sequence[int], like: str = "") -> str:
        """Return a value with the dynamic axes of a node, and another shape of samples.

        Args:
            value: expression.
            node: node whose dynamic axes the value has, or has after the reshape.
            shape: shape of samples, `FREE` where it is inferred.
            like: value that has all dynamic axes, if those of ``value`` are merged.
        """
        lengths, leading = [str(-1 if n == FREE else n) for n in shape], self.leading(node)
        like = like or value
        if leading == 1:
            first = [f"len({like})" if "-1" in lengths else "-1"]
        else:
            first = [f"*{like}.shape[:2]"] if leading else []
        if not first and not lengths:
            return f"{value}.reshape(())"
        return f"{value}.reshape({', '.join([*first, *lengths])})"

    def expand(self, value: str, to: Node, shape: Sequence[int], like: str) -> str:
        """Return a value, aligned already, repeated along the dynamic axes of a node and to a shape of samples."""
        leading = self.leading(to)
        first = [f"len({like})"] if leading == 1 else [f"*{like}.shape[:2]"] if leading else []
        return f"{value}.expand({', '.join([*first, *(str(-1 if n == FREE else n) for n in shape)])})"

    def shape_of(self, node: Node) -> list[str]:
        """Return the names or lengths of all axes of a node's tensor, for people."""
        axes = ["batch", "time"][: len(node.axes)]
        return [*axes, *("any" if n == FREE else str(n) for n in node.shape)]

    def lengths_of(self, node: Node) -> str:
        """Return the name of the lengths of a node's sequences."""
        return self.parts.lengths[node.axes[1]]


def is_look_up(reader: Node | None) -> bool:
    """Return whether a reader of sparse data multiplies it by a matrix of weights."""
    if reader is None or reader.op != "times":
        return False
    weights = resolve_alias(reader.inputs[1]).weights
    return weights is not None and len(weights.shape) == 2 and reader.attributes.get("output_rank", 1) == 1


def identifier(text: str) -> str:
    """Return a name of Python that resembles a text."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")
    name = f"_{name}" if name[:1].isdigit() else name or "x"
    return f"{name}_" if keyword.iskeyword(name) or name in ("self", "torch", "nn", "functional") else name


def dtype_argument(dtype: str) -> str:
    """Return the argument that sets an element type, empty for float32."""
    return "" if dtype == "float32" else f", dtype=torch.{dtype}"


def converted(node: Node, value: str) -> str:
    """Return an expression converted to the element type of a node."""
    dtype = element_type(node)
    return f"{value}.float()" if dtype == "float32" else f"{value}.to(torch.{dtype})"


def check_fixed(node: Node, shape: Sequence[int]) -> None:
    """Check that no length of a shape is free.

    Raises:
        CompatError: one is.
    """
    if FREE in shape:
        lengths = ", ".join("free" if n == FREE else str(n) for n in shape)
        raise CompatError(
            f"{node.label}: expected fixed lengths to write its padding, got ({lengths}); declare the input with its "
            "shape"
        )


def check_padding(node: Node, sizes: Sequence[int], strides: Sequence[int], pad: Sequence[bool]) -> None:
    """Check that no length is free on which the padding of a window depends: those of padded axes with a stride.

    Raises:
        CompatError: one is.
    """
    check_fixed(node, [n for n, stride, padded in zip(sizes, strides, pad, strict=True) if padded and stride > 1])
