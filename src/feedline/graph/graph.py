"""What is drawn and summed of a network, whichever library it comes from.

A `Graph` is a list of operations, each after those that it takes from, with the modules (scopes) in which they ran and
the parameters that they hold. It never changes and holds no tensors: an import may be kept, compared and folded while
the network goes on learning. Checked when it is made, in time linear in operations and edges.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

Path = tuple[str, ...]
Shape = tuple[int | str, ...]

_KEY = re.compile(r"[\w.@-]+")
ROLES = ("input", "operation", "output")


def size(shape: Shape) -> int:
    """Numbers in a tensor; an axis that has a name instead of a length counts as one step."""
    return math.prod(n for n in shape if isinstance(n, int))


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of what runs along an edge.

    Attributes:
        shape: lengths of the axes, or names where the length is open (``"batch"``); None: not known.
        dtype: name of the element type; empty: not known.
    """

    shape: Shape | None = None
    dtype: str = ""

    @property
    def bytes(self) -> int | None:
        """Memory of its values, in bytes; one step of axes with names. None if the shape or type is not known."""
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
        name: unique in its graph; of several names of one tensor the first.
        type: its shape and element type.
        trains: learners update it.
        buffer: running statistics, constants: kept, but no parameter, and counted nowhere.
    """

    name: str
    type: TensorType
    trains: bool = True
    buffer: bool = False

    @property
    def count(self) -> int | None:
        """Numbers in it, 0 for a buffer; None: not known."""
        if self.buffer:
            return 0
        return None if self.type.shape is None else size(self.type.shape)


@dataclass(frozen=True, slots=True)
class OutputReference:
    """What an operation takes: an output of another one.

    Attributes:
        key: of the other operation.
        index: which of its outputs.
        feedback: what it gave at an earlier step, so that it may stand behind.
    """

    key: str
    index: int = 0
    feedback: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """One application of a function or module.

    Attributes:
        key: unique in its graph; letters, digits and ``_ . @ -``.
        kind: what is done, in the words of the library it comes from.
        name: how people call it; need not be unique.
        role: ``"input"``, ``"operation"`` or ``"output"``.
        scope: path of modules around it, outermost first.
        inputs: what it takes, weights apart.
        outputs: types of what it gives.
        parameters: names of the parameters that it uses itself, in order.
        multiply_adds: multiplications with an addition that one run costs; None: not known.
        activations: bytes that it allocates for its outputs, 0 for views; None: not known.
        detail: its settings, for people.
        whole: it stands for all that happens in its scope, whose inside is not shown.
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
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Scope:
    """A module around operations: one call of it.

    Attributes:
        kind: name of its class.
        builtin: it comes from the library, as a layer: pictures need not show its inside.
        detail: its settings, for people.
        repeats: how many equal modules in sequence it stands for, in a folded graph.
        last: name of the last of them.
        tied: they have the same parameters, not only equal ones.
    """

    kind: str
    builtin: bool = False
    detail: str = ""
    repeats: int = 1
    last: str = ""
    tied: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """From an output of an operation to an input of another, and what runs along it."""

    tail: str
    index: int
    head: str
    position: int
    type: TensorType
    feedback: bool = False


@dataclass(frozen=True)
class Graph:
    """A network as operations and edges.

    Args:
        operations: each behind those it takes from, feedback apart.
        parameters: by name; those that no operation uses, too.
        scopes: the modules, by path; every prefix of an operation's scope is there.
        importer: what it was read with, such as ``"torch.export"``.
        notes: what people should know about it: why no better importer would do, what is not shown.

    Raises:
        ValueError: operations, outputs, parameters or scopes that are not there, or keys that are there twice.
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
            raise ValueError(f"{where}: expected a key of letters, digits and _ . @ - that no other has")
        if operation.role not in ROLES:
            raise ValueError(f"{where}: expected a role of {', '.join(ROLES)}, got {operation.role!r}")
        for source in operation.inputs:
            found = (all_ if source.feedback else before).get(source.key)
            if found is None or not 0 <= source.index < len(found.outputs):
                raise ValueError(f"{where}: expected an output of an operation before it, got {source}")
        for name in operation.parameters:
            if name not in self.parameters:
                raise ValueError(f"{where}: expected one of the graph's parameters, got {name!r}")
        for depth in range(1, len(operation.scope) + 1):
            if operation.scope[:depth] not in self.scopes:
                raise ValueError(f"{where}: expected one of the graph's scopes, got {operation.scope[:depth]}")

    def __getitem__(self, key: str) -> Operation:
        """The operation of this key. Raises KeyError if there is none."""
        index: Mapping[str, Operation] = self._index  # type: ignore[attr-defined]
        return index[key]

    def edges(self) -> Iterator[Edge]:
        """All edges, by the order of their heads."""
        for head in self.operations:
            for position, source in enumerate(head.inputs):
                type_ = self[source.key].outputs[source.index]
                yield Edge(source.key, source.index, head.key, position, type_, source.feedback)

    def num_parameters(self, trains: bool | None = None) -> int | None:
        """Numbers in all parameters, each counted once.

        Args:
            trains: only those that learners update (True), or that they do not (False).

        Returns:
            the sum; None if a shape is not known.
        """
        counts = [p.count for p in self.parameters.values() if trains is None or p.trains is trains]
        return total(counts)


def called(part: str) -> str:
    """A part of a path for people: ``layer@1`` is the second call of ``layer``."""
    name, _, number = part.partition("@")
    return f"{name} call {int(number) + 1}" if number else name


def total(counts: list[int | None]) -> int | None:
    """A sum that is unknown if a part is."""
    known = [n for n in counts if n is not None]
    return sum(known) if len(known) == len(counts) else None
