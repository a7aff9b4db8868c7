"""Operations by name: how each infers the type of its result, and how torch runs it.

An operation is one `Op`. Its rule sees a `Site`, the node about to be made, and returns a shape; dynamic axes are
joined unless the operation says otherwise. Its lowering is called once for each node when a network is compiled, and
returns the function that runs for every minibatch. Rules know no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NoReturn

from feedline.networks.node import UNKNOWN, Node, Type

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Site:
    """A node about to be made: its operation, inputs and attributes.

    Attributes:
        guessing: 1 or 2 if shapes of a recurrence's own state are None, and the rule makes the best of the others;
            parameters must not settle. 2: the second time, when the first has told nothing.
    """

    op: str
    inputs: tuple[Node, ...]
    attributes: Mapping[str, Any]
    name: str = ""
    guessing: int = 0
    types: tuple[Type, ...] = field(default=())

    @property
    def shapes(self) -> list[Shape | None]:
        """Shapes of the inputs."""
        return [t.shape for t in self.types]

    def shape(self, i: int) -> Shape:
        """Shape of input ``i``; one that is not known, while guessing, ends the guess."""
        shape = self.types[i].shape
        if shape is None:
            raise UnknownShapeError
        return shape

    def settle(self, i: int, shape: Shape) -> None:
        """Fix the unknown dimensions of parameter ``i``."""
        weights = self.inputs[i].weights
        if weights is not None and UNKNOWN in weights.shape and not self.guessing:
            weights.settle(shape)

    def refuse(self, expected: str) -> NoReturn:
        """Raise ValueError that names the node and its inputs with their shapes."""
        got = " and ".join(f"{t.shape} of {n.label}" for n, t in zip(self.inputs, self.types, strict=True))
        name = f" `{self.name}`" if self.name else ""
        raise ValueError(f"{self.op}{name}: expected {expected}, got {got or 'nothing'}")


class UnknownShapeError(Exception):
    """A shape is not known yet."""


ShapeRule = Callable[[Site], Shape]
AxesRule = Callable[[Site], tuple[str, ...] | None]
Lowering = Callable[[Node], Callable[..., Any]]


def join_axes(site: Site) -> tuple[str, ...] | None:
    """All dynamic axes of the inputs: none, the batch, or the batch and one axis of sequences."""
    axes = [t.axes for t in site.types if t.axes is not None]
    longest = max(axes, key=len, default=())
    for mine in axes:
        if mine != longest[: len(mine)]:
            site.refuse(f"inputs along the same sequences, not {longest[1:]} and {mine[1:]}; use sequence.broadcast_as")
    return longest


def no_axes(site: Site) -> tuple[str, ...]:
    """No dynamic axes: one result for the whole minibatch."""
    return ()


def first_axes(site: Site) -> tuple[str, ...] | None:
    """The dynamic axes of the first input."""
    return site.types[0].axes


@dataclass(frozen=True, slots=True)
class Op:
    """An operation.

    Attributes:
        shape: rule for the shape of the result.
        lower: ``lower(node)`` returns ``run(batch, *tensors)``, see `feedline.networks.packed`.
        axes: rule for its dynamic axes.
        stepwise: it treats every sample alone, so that a recurrence may run it one step at a time.
        whole: it needs sequences from their beginning to their end, and cannot be run on pieces of them.
    """

    name: str
    shape: ShapeRule
    lower: Lowering
    axes: AxesRule = join_axes
    stepwise: bool = True
    whole: bool = False


OPS: dict[str, Op] = {}
# Imports of modules that declare operations, called before a name is given up: they import torch.
DECLARING: list[Callable[[], object]] = []


def declare(name: str, shape: ShapeRule, lower: Lowering, **settings: Any) -> None:
    """Add an operation."""
    assert name not in OPS, name
    OPS[name] = Op(name, shape, lower, **settings)


def op(name: str) -> Op:
    """The operation of this name.

    Raises:
        ValueError: there is none.
    """
    if name not in OPS:
        for load in DECLARING:
            load()
    try:
        return OPS[name]
    except KeyError:
        raise ValueError(f"expected an operation that torch can run here, got {name!r}") from None


def infer(site: Site) -> Type:
    """Type of what the node gives; unknown if an input's is, unless guessing.

    Raises:
        ValueError: shapes or axes that do not fit; it names the node and both.
    """
    declared = op(site.op)
    if not site.types:
        site = replace(site, types=tuple(n.type for n in site.inputs))
    if not site.guessing and not all(t.known for t in site.types):
        return Type()
    axes = declared.axes(site)
    try:
        return Type(tuple(declared.shape(site)), axes)
    except UnknownShapeError:
        return Type(None, axes)


def apply(name: str, inputs: Iterable[Node], attributes: Mapping[str, Any] | None = None, label: str = "") -> Node:
    """A node that applies an operation.

    Args:
        name: of the operation.
        inputs: nodes.
        attributes: its settings.
        label: name of the node.

    Raises:
        ValueError: no such operation, or shapes or axes that do not fit.
    """
    below, settings = tuple(inputs), MappingProxyType(dict(attributes or {}))
    return Node(name, below, settings, infer(Site(name, below, settings, label)), label)
