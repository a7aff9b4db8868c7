"""Nodes of a network: an operation, its inputs, and the type of its result.

Nodes are immutable. A changed network is a new one that shares the unchanged nodes. Leaves are inputs, placeholders,
parameters and constants. The tensor of the latter two is in a `Weights`, which networks with the same leaf share. Its
unknown dimensions are fixed once, at the first use that determines them.

A shape describes one sample, row-major, without batch and sequence axes. Dynamic axes are names: `BATCH` first, then
the sequence axis if there is one. Creating a node takes a few microseconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

BATCH = "batch"
UNKNOWN = -1  # a dimension of a parameter that its first use determines, or of an input that its data determines
FREE = -3  # a dimension that differs between minibatches
LEAVES = ("input", "placeholder", "parameter", "constant")

_numbers = itertools.count()


def fresh_uid() -> str:
    """Return an identifier that no node of this process has."""
    return f"n{next(_numbers)}"


@dataclass(frozen=True, slots=True)
class Type:
    """Type of a node's result.

    Attributes:
        shape: shape of one sample. None until placeholders are replaced.
        axes: dynamic axes, ``()``, ``(BATCH,)`` or ``(BATCH, name)``. None if unknown.
    """

    shape: tuple[int, ...] | None = None
    axes: tuple[str, ...] | None = None

    @property
    def is_known(self) -> bool:
        """Whether shape and axes are known."""
        return self.shape is not None and self.axes is not None

    def __str__(self) -> str:
        axes = "?" if self.axes is None else ", ".join(self.axes)
        return f"[{axes}] {'?' if self.shape is None else self.shape}"


class Weights:
    """Shared tensor of a parameter or a constant, initialized at its first use.

    Args:
        shape: shape of the tensor. `UNKNOWN` dimensions are fixed later. The first, if unknown, may become several.
        fill: function ``fill(shape)`` that returns the initial value, as an array or tensor.
        dtype: name of the element type.
        trains: whether learners may update it.
        keeps: whether it changes in training without learners (running statistics), and is saved with the parameters.

    Attributes:
        tensor: `torch.nn.Parameter`, None before the first use.
    """

    __slots__ = ("_shape", "dtype", "fill", "keeps", "tensor", "trains")

    def __init__(
        self,
        shape: tuple[int, ...],
        fill: Callable[[tuple[int, ...]], Any],
        dtype: str = "float32",
        trains: bool = True,
        keeps: bool = False,
    ) -> None:
        self._shape, self.fill, self.dtype, self.trains, self.keeps = shape, fill, dtype, trains, keeps
        self.tensor: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, with `UNKNOWN` for dimensions that are not fixed yet."""
        return self._shape

    @property
    def is_fixed(self) -> bool:
        """Whether all dimensions are known."""
        return UNKNOWN not in self._shape

    def fix_shape(self, shape: tuple[int, ...]) -> None:
        """Fix the unknown dimensions. The first, if unknown, may become several.

        Raises:
            ValueError: known dimensions differ.
        """
        old, new = self._shape, tuple(shape)
        extra = len(new) - len(old)
        if extra and old[:1] == (UNKNOWN,):
            old = (UNKNOWN,) * max(0, extra + 1) + old[1:]
        if len(new) != len(old) or any(a not in (b, UNKNOWN) for a, b in zip(old, new, strict=True)):
            raise ValueError(f"expected a shape that fits {self._shape}, got {new}: use another parameter there")
        self._shape = new


def shape_of_width(shape: tuple[int, ...], width: int) -> tuple[int, ...]:
    """Return the shape of samples of ``width`` numbers, which may determine one open dimension."""
    known = math.prod(n for n in shape if is_fixed((n,)))
    return tuple(n if is_fixed((n,)) else width // known for n in shape) if known else shape


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Node:
    """One application of an operation, compared by identity.

    Attributes:
        op: name of the operation, one of `LEAVES` for leaves.
        inputs: nodes that it is applied to.
        attributes: settings of the operation.
        given: type of the result. Parameters and constants have the type of their weights instead.
        name: the user's name, not unique.
        weights: weights of a parameter or constant.
        sparse: whether an input is fed sparse rows.
        dtype: element type of an input.
        uid: identifier, unique in this process.
    """

    op: str
    inputs: tuple[Node, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    given: Type = Type()
    name: str = ""
    weights: Weights | None = None
    sparse: bool = False
    dtype: str = "float32"
    uid: str = field(default_factory=fresh_uid)

    @property
    def type(self) -> Type:
        """Shape and dynamic axes of the result."""
        return self.given if self.weights is None else Type(self.weights.shape, ())

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample.

        Raises:
            ValueError: the shape depends on a placeholder.
        """
        shape = self.type.shape
        if shape is None:
            raise ValueError(f"{self.label} has no shape yet: replace the placeholders below it")
        return shape

    @property
    def axes(self) -> tuple[str, ...]:
        """Dynamic axes.

        Raises:
            ValueError: they depend on a placeholder.
        """
        axes = self.type.axes
        if axes is None:
            raise ValueError(f"{self.label} has no dynamic axes yet: replace the placeholders below it")
        return axes

    @property
    def is_leaf(self) -> bool:
        """Whether it is an input, placeholder, parameter or constant."""
        return self.op in LEAVES

    @property
    def label(self) -> str:
        """Operation and name, for messages."""
        return f"{self.op} `{self.name or self.uid}`"

    def __repr__(self) -> str:
        below = ", ".join(node.name or node.uid for node in self.inputs)
        return f"{self.op} `{self.name or self.uid}`({below}) -> {self.type}"


def fits(shape: tuple[int, ...], declared: tuple[int, ...]) -> bool:
    """Whether data of a shape may be fed to an input, whose `FREE` and `UNKNOWN` dimensions may have any length."""
    return len(shape) == len(declared) and all(d in (n, FREE, UNKNOWN) for n, d in zip(shape, declared, strict=True))


def is_fixed(shape: tuple[int, ...]) -> bool:
    """Whether no dimension is left for data or a first use to determine."""
    return FREE not in shape and UNKNOWN not in shape


def input_node(
    shape: tuple[int, ...],
    axes: tuple[str, ...] = (BATCH,),
    name: str = "",
    sparse: bool = False,
    dtype: str = "float32",
) -> Node:
    """Return an input leaf."""
    return Node("input", given=Type(tuple(shape), tuple(axes)), name=name, sparse=sparse, dtype=dtype)


def placeholder_node(shape: tuple[int, ...] | None = None, axes: tuple[str, ...] | None = None, name: str = "") -> Node:
    """Return a leaf to be replaced by another node."""
    return Node("placeholder", given=Type(shape, axes), name=name)


def parameter_node(weights: Weights, name: str = "") -> Node:
    """Return a leaf with a tensor: a parameter if it trains, else a constant."""
    return Node("parameter" if weights.trains else "constant", weights=weights, name=name, dtype=weights.dtype)
