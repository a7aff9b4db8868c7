"""Registry of operations: how each infers the type of its result, and how torch runs it.

An operation is an `Op`. Its shape rule receives a `Site`, a node about to be created, and returns a shape. Dynamic axes
are joined unless the operation overrides that. Its lowering is called once for each node when a network is compiled,
and returns the function that runs for every minibatch. Rules do not use torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NoReturn

from feedline.networks.node import FREE, UNKNOWN, Node, Type

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Site:
    """A node about to be created: its operation, inputs and attributes.

    Attributes:
        guessing: 1 or 2 if shapes of a recurrence's state are None, so that the rule has to guess from the other
            shapes and must not fix parameters' shapes. 2: the second attempt, after the first one found nothing.
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
        """Return the shape of input ``i``.

        Raises:
            UnknownShapeError: it is unknown, which ends a guess.
        """
        shape = self.types[i].shape
        if shape is None:
            raise UnknownShapeError
        return shape

    def fix_shape(self, i: int, shape: Shape) -> None:
        """Fix the unknown dimensions of parameter ``i``."""
        weights = self.inputs[i].weights
        if weights is not None and UNKNOWN in weights.shape and not self.guessing:
            weights.fix_shape(shape)

    def refuse(self, expected: str) -> NoReturn:
        """Raise ValueError that names the node and its inputs with their shapes."""
        got = " and ".join(f"{t.shape} of {n.label}" for n, t in zip(self.inputs, self.types, strict=True))
        name = f" `{self.name}`" if self.name else ""
        raise ValueError(f"{self.op}{name}: expected {expected}, got {got or 'nothing'}")


class UnknownShapeError(Exception):
    """A shape is unknown so far."""


ShapeRule = Callable[[Site], Shape]
AxesRule = Callable[[Site], tuple[str, ...] | None]
Lowering = Callable[[Node], Callable[..., Any]]
Fuse = Callable[[Node, Sequence[Node]], "tuple[Node, Node, Callable[..., Any]] | None"]


def join_axes(site: Site) -> tuple[str, ...] | None:
    """Return all dynamic axes of the inputs: none, the batch, or the batch and one sequence axis."""
    axes = [t.axes for t in site.types if t.axes is not None]
    longest = max(axes, key=len, default=())
    for mine in axes:
        if mine != longest[: len(mine)]:
            site.refuse(f"inputs along the same sequences, not {longest[1:]} and {mine[1:]}; use sequence.broadcast_as")
    return longest


def no_axes(site: Site) -> tuple[str, ...]:
    """Return no dynamic axes: one result for the whole minibatch."""
    return ()


def first_axes(site: Site) -> tuple[str, ...] | None:
    """Return the dynamic axes of the first input."""
    return site.types[0].axes


@dataclass(frozen=True, slots=True)
class Op:
    """An operation.

    Attributes:
        shape: rule for the shape of the result.
        lower: function ``lower(node)`` that returns ``run(batch, *tensors)``, see `feedline.networks.packed_minibatch`.
        axes: rule for the dynamic axes of the result.
        stepwise: whether samples are independent, so that a recurrence can run it one step at a time.
        whole: whether it needs whole sequences, and cannot be run on truncated ones.
        labels: whether the second input of such a node is labels, which it prefers as classes rather than as one-hot
            rows.
        fuse: function of a node and its operands. It returns None, or the operand that the node can compute itself if
            nothing else reads it, the other operand, and the function to run on the first one's inputs and the second.
        fresh: whether its result is a new tensor that its gradients do not need, so that another may overwrite it.
        in_place: function of a tensor that computes the operation in the tensor's memory, and returns the tensor.
    """

    name: str
    shape: ShapeRule
    lower: Lowering
    axes: AxesRule = join_axes
    stepwise: bool = True
    whole: bool = False
    labels: Callable[[Node], bool] = lambda node: False
    fuse: Fuse = lambda node, below: None
    fresh: bool = False
    in_place: Callable[[Any], Any] | None = None


OPS: dict[str, Op] = {}
# Imports of modules that declare operations and import torch, called when a name is unknown.
DECLARING: list[Callable[[], object]] = []


def declare(name: str, shape: ShapeRule, lower: Lowering, **settings: Any) -> None:
    """Add an operation."""
    assert name not in OPS, name
    OPS[name] = Op(name, shape, lower, **settings)


def op(name: str) -> Op:
    """Return the operation of this name.

    Raises:
        ValueError: there is no such operation.
    """
    if name not in OPS:
        for load in DECLARING:
            load()
    try:
        return OPS[name]
    except KeyError:
        raise ValueError(f"expected an operation that torch can run here, got {name!r}") from None


def infer(site: Site) -> Type:
    """Infer the type of the node's result. Unless guessing, it is unknown if the type of an input is.

    Raises:
        ValueError: shapes or axes that do not fit. It names the node and the inputs.
    """
    declared = op(site.op)
    if not site.types:
        site = replace(site, types=tuple(n.type for n in site.inputs))
    if not site.guessing and not all(t.is_known for t in site.types):
        return Type(None, _known_axes(declared, site))
    if any(_is_open(node, t) for node, t in zip(site.inputs, site.types, strict=True)):
        return _open_type(declared, site)
    axes = declared.axes(site)
    try:
        return Type(tuple(declared.shape(site)), axes)
    except UnknownShapeError:
        return Type(None, axes)


def _known_axes(declared: Op, site: Site) -> tuple[str, ...] | None:
    """Return the dynamic axes of the result, as far as they do not depend on unknown shapes."""
    if any(t.axes is None for t in site.types):
        return None
    try:
        return declared.axes(site)
    except (UnknownShapeError, ValueError):
        return None  # a mistake is found once the shapes are known


def _is_open(node: Node, result: Type) -> bool:
    """Whether data determines dimensions of a result. Those of parameters are fixed by their first use instead."""
    return result.shape is not None and (FREE in result.shape or (UNKNOWN in result.shape and node.weights is None))


class TriedLength(int):
    """Length in place of a dimension that data determines. It fits any other length."""


# A size that differs between these lengths depends on the dimensions that have them. All have many divisors.
_TRIED, _OTHER = TriedLength(5040), TriedLength(10080)


@dataclass(frozen=True, slots=True)
class _Trial(Site):
    """A site where dimensions that data determines have a length: shapes that the rule would fix are noted.

    Attributes:
        fixed: shapes of parameters by index.
    """

    fixed: dict[int, Shape] = field(default_factory=dict)

    def fix_shape(self, i: int, shape: Shape) -> None:
        self.fixed[i] = tuple(shape)


def _open_type(declared: Op, site: Site) -> Type:
    """Infer a type where data determines dimensions of inputs. Dimensions that follow from these are open, too.

    Shapes that do not fit are found when data fixes the dimensions. So are shapes of parameters that depend on them.
    """
    axes = declared.axes(site)
    lengths: tuple[dict[int, int], ...] = ({}, {FREE: _OTHER}, {UNKNOWN: _OTHER})
    try:
        trials = [_try_lengths(declared, site, changes) for changes in lengths]
    except (UnknownShapeError, ValueError):
        return Type(None, axes)
    (shape, fixed), (by_free, fixed_by_free), (by_unknown, fixed_by_unknown) = trials
    for i, parameter in fixed.items():
        if fixed_by_free.get(i) == fixed_by_unknown.get(i) == parameter:
            site.fix_shape(i, parameter)
    if not len(shape) == len(by_free) == len(by_unknown):
        return Type(None, axes)
    sizes = zip(shape, by_free, by_unknown, strict=True)
    return Type(tuple(int(n) if n == a == b else FREE if n == b else UNKNOWN for n, a, b in sizes), axes)


def _try_lengths(declared: Op, site: Site, changes: Mapping[int, int]) -> tuple[Shape, dict[int, Shape]]:
    """Return the result's shape for trial lengths, and the shapes of parameters that the rule would fix."""
    types = []
    for node, operand in zip(site.inputs, site.types, strict=True):
        if _is_open(node, operand) and operand.shape is not None:
            shape = tuple(changes.get(n, _TRIED) if n in (FREE, UNKNOWN) else n for n in operand.shape)
            operand = Type(shape, operand.axes)
        types.append(operand)
    trial = _Trial(site.op, site.inputs, site.attributes, site.name, site.guessing, tuple(types))
    return tuple(declared.shape(trial)), trial.fixed


def apply(name: str, inputs: Iterable[Node], attributes: Mapping[str, Any] | None = None, label: str = "") -> Node:
    """Create a node that applies an operation.

    Args:
        name: name of the operation.
        inputs: nodes to apply it to.
        attributes: settings of the operation.
        label: name of the node.

    Raises:
        ValueError: no such operation, or shapes or axes that do not fit.
    """
    below, settings = tuple(inputs), MappingProxyType(dict(attributes or {}))
    return Node(name, below, settings, infer(Site(name, below, settings, label)), label)
