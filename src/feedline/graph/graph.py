"""Graphs, which describe networks of any library, for pictures and tables.

A `Graph` is a list of operations, each after its sources, with the modules (scopes) in which they ran and their
parameters. It is immutable and holds no tensors, so it can be kept, compared and folded while the network is trained.
It is validated on creation, in time linear in operations and edges.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

Path = tuple[str, ...]
Shape = tuple[int | str, ...]

_KEY = re.compile(r"[\w.@-]+")
_READERS = ("a dry run", "a run", "torch.export", "torch.fx")  # importers that do not name a file or library
ROLES = ("input", "operation", "output")


def size(shape: Shape) -> int:
    """Return the number of elements of a tensor. An axis with a name instead of a length counts as 1."""
    return math.prod(n for n in shape if isinstance(n, int))


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a tensor.

    Attributes:
        shape: lengths of the axes, or names where the length is variable (``"batch"``). None if unknown.
        dtype: name of the element type. Empty if unknown.
    """

    shape: Shape | None = None
    dtype: str = ""

    @property
    def bytes(self) -> int | None:
        """Size in bytes, with length 1 for named axes. None if shape or type are unknown."""
        width = _WIDTHS.get(self.dtype)
        return None if self.shape is None or width is None else size(self.shape) * width

    def __str__(self) -> str:
        shape = "?" if self.shape is None else "×".join(map(str, self.shape)) or "scalar"
        return shape if self.dtype in ("", "float32") else f"{shape} {self.dtype}"


_WIDTHS = {
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    "complex128": 16,
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor that a network keeps between runs.

    Attributes:
        name: name, unique in its graph. A tensor with several names has the first one.
        type: shape and element type.
        trains: whether learners update it.
        buffer: whether it is a buffer (running statistics, constants) instead of a parameter, and not counted.
    """

    name: str
    type: TensorType
    trains: bool = True
    buffer: bool = False

    @property
    def count(self) -> int | None:
        """Number of elements, 0 for a buffer. None if unknown."""
        if self.buffer:
            return 0
        return None if self.type.shape is None else size(self.type.shape)


@dataclass(frozen=True, slots=True)
class OutputReference:
    """Reference to an output of an operation.

    Attributes:
        key: key of the operation.
        index: index of its output.
        feedback: whether it is the output of an earlier step, so that the operation may come later in the graph.
    """

    key: str
    index: int = 0
    feedback: bool = False


class Setting(NamedTuple):
    """A setting of an operation.

    Attributes:
        name: name in the vocabulary of `feedline.graph.settings`, such as ``"kernel"``.
        value: value for tables, such as ``"3×3"``.
        words: words for pictures. Empty for a usual value.
    """

    name: str
    value: str
    words: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One application of a function or module.

    Attributes:
        key: identifier, unique in its graph, of letters, digits and ``_ . @ -``.
        kind: name of the function or module in its library.
        name: display name, which need not be unique.
        role: ``"input"``, ``"operation"`` or ``"output"``.
        scope: path of the modules around it, outermost first.
        inputs: references to its sources, without parameters.
        outputs: types of its outputs.
        parameters: names of the parameters that it uses itself, in order.
        multiply_adds: number of multiply-adds of one run. None if unknown.
        activations: bytes allocated for its outputs, 0 for views. None if unknown.
        detail: settings in the words of the library, for display.
        settings: settings in our words, for display.
        whole: whether it represents its whole scope, whose inside is not shown.
        members: kind and settings of each operation inside, if it is ``whole``, for comparisons.
        inside: lines that display its content, if it is ``whole``: one for each branch.
    """

    key: str
    kind: str
    name: str = ""
    role: str = "operation"
    scope: Path = ()
    inputs: tuple[OutputReference, ...] = ()
    outputs: tuple[TensorType, ...] = ()
    parameters: tuple[str, ...] = ()
    multiply_adds: int | None = 0
    activations: int | None = 0
    detail: str = ""
    settings: tuple[Setting, ...] = ()
    whole: bool = False
    members: tuple[tuple[str, tuple[Setting, ...]], ...] = ()
    inside: tuple[str, ...] = ()

    @property
    def frames(self) -> Path:
        """Path of the innermost frame around it in a picture."""
        return self.scope[:-1] if self.whole else self.scope


@dataclass(frozen=True, slots=True)
class Scope:
    """One call of a module, around operations.

    Attributes:
        kind: name of the module's class.
        builtin: whether it is a layer of the library, whose inside pictures need not show.
        detail: settings in the words of the library, for display.
        settings: settings in our words, for display.
        repeats: number of equal modules in sequence that it represents, in a folded graph.
        last: name of the last of these modules.
        tied: whether these modules share their parameters.
        first_only: properties that only the first of them has, such as a subscope, or a stride.
        alike: whether they differ in widths, so that numbers of parameters apply to the first of them.
    """

    kind: str
    builtin: bool = False
    detail: str = ""
    settings: tuple[Setting, ...] = ()
    repeats: int = 1
    last: str = ""
    tied: bool = False
    first_only: tuple[str, ...] = ()
    alike: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """Connection of an output of one operation to another, with its type."""

    tail: str
    index: int
    head: str
    type: TensorType
    feedback: bool = False


@dataclass(frozen=True)
class Graph:
    """A network as operations and edges.

    Args:
        operations: operations, each after its sources except for feedback.
        parameters: parameters by name, including unused ones.
        scopes: modules by path, including every prefix of an operation's scope.
        importer: name of the importer, such as ``"torch.export"``.
        notes: remarks for display: why a better importer failed, or which parts are not shown.

    Raises:
        ValueError: unknown operations, outputs, parameters or scopes, or a repeated key.
    """

    operations: tuple[Operation, ...]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    scopes: Mapping[Path, Scope] = field(default_factory=dict)
    importer: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("parameters", "scopes"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        index: dict[str, Operation] = {}
        later = {o.key: o for o in self.operations}
        for operation in self.operations:
            self._check(operation, index, later)
            index[operation.key] = operation
        object.__setattr__(self, "_index", MappingProxyType(index))

    def _check(self, operation: Operation, before: Mapping[str, Operation], all_: Mapping[str, Operation]) -> None:
        where = f"operation {operation.key!r} of kind {operation.kind!r}"
        if not _KEY.fullmatch(operation.key) or operation.key in before:
            raise ValueError(f"{where}: expected a unique key of letters, digits and _ . @ -")
        if operation.role not in ROLES:
            raise ValueError(f"{where}: expected a role of {', '.join(ROLES)}, got {operation.role!r}")
        for source in operation.inputs:
            origin = (all_ if source.feedback else before).get(source.key)
            if origin is None or not 0 <= source.index < len(origin.outputs):
                raise ValueError(f"{where}: expected an output of an operation before it, got {source}")
        for name in operation.parameters:
            if name not in self.parameters:
                raise ValueError(f"{where}: expected one of the graph's parameters, got {name!r}")
        for depth in range(1, len(operation.scope) + 1):
            if operation.scope[:depth] not in self.scopes:
                raise ValueError(f"{where}: expected one of the graph's scopes, got {operation.scope[:depth]}")

    @property
    def origin(self) -> str:
        """Importer or source of the network, in words. Empty if unknown."""
        return f"read {'by' if self.importer in _READERS else 'from'} {self.importer}" if self.importer else ""

    def __getitem__(self, key: str) -> Operation:
        """Return the operation with this key. Raises KeyError if there is none."""
        index: Mapping[str, Operation] = self._index  # type: ignore[attr-defined]
        return index[key]

    def edges(self) -> Iterator[Edge]:
        """Iterate over all edges, in order of their target operations."""
        for head in self.operations:
            for source in head.inputs:
                type_ = self[source.key].outputs[source.index]
                yield Edge(source.key, source.index, head.key, type_, source.feedback)

    def num_parameters(self, trains: bool | None = None) -> int | None:
        """Return the number of elements of all parameters, each counted once.

        Args:
            trains: count only trainable (True) or only frozen (False) parameters. None means all.

        Returns:
            The number. None if a shape is unknown.
        """
        return total([p.count for p in self.parameters.values() if trains is None or p.trains is trains])


def name_by_parameters(graph: Graph) -> Graph:
    """Return a graph in which operations without a name get the names of the parameters of their module that they use.

    So the operation that adds a class token is labelled with the name of the token.
    """
    named = []
    for operation in graph.operations:
        if not operation.name and operation.role == "operation" and operation.parameters:
            names = [name.rpartition(".")[2] for name in operation.parameters if graph.parameters[name].count != 0]
            if not any(name.startswith(("weight", "bias", "in_proj")) for name in names):  # names of layers' parameters
                operation = replace(operation, name=", ".join(names))
        named.append(operation)
    return replace(graph, operations=tuple(named))


def output_operation(i: int, name: str, sources: tuple[OutputReference, ...], parameters: tuple[str, ...]) -> Operation:
    """Return the operation of output ``i`` of a network, whose sources are operations or parameters."""
    return Operation(f"output.{i}", "output", name, "output", inputs=sources, parameters=parameters)


def unique(preferred: str, taken: Iterable[str]) -> str:
    """Return the preferred name, with a number from 2 if it is taken."""
    names, name, n = set(taken), preferred, 1
    while name in names:
        n += 1
        name = f"{preferred}_{n}"
    return name


def number(n: int | None) -> str:
    """Format a number with separators of thousands, and None as ``?``."""
    return "?" if n is None else f"{n:,}"


def display_name(part: str) -> str:
    """Return a part of a path for display: ``layer@1`` is the second call of ``layer``."""
    name, _, number = part.partition("@")
    return f"{name} call {int(number) + 1}" if number else name


def total(counts: list[int | None]) -> int | None:
    """Return the sum, or None if an item is None."""
    values = [n for n in counts if n is not None]
    return sum(values) if len(values) == len(counts) else None
