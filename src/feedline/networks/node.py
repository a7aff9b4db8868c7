"""Nodes of a network: an operation, what it is applied to, and the type of what comes out.

A node never changes; a changed network is a new one that shares what stayed. Leaves are inputs, placeholders,
parameters and constants. The tensor of the latter two is in a `Weights`, which several networks share by holding the
same leaf; its unknown dimensions settle once, at the first use that tells them.

Shapes are those of one sample, row-major, without batch and sequences. Dynamic axes are names: `BATCH` first, then the
axis of sequences if there is one. Making a node costs a few microseconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

BATCH = "batch"
UNKNOWN = -1  # a dimension of a parameter that its first use tells
LEAVES = ("input", "placeholder", "parameter", "constant")

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Type:
    """What a node gives for each sample, and along which dynamic axes there are samples.

    Attributes:
        shape: of one sample; None: not known before placeholders are replaced.
        axes: dynamic axes, ``()``, ``(BATCH,)`` or ``(BATCH, name)``; None: not known.
    """

    shape: tuple[int, ...] | None = None
    axes: tuple[str, ...] | None = None

    @property
    def known(self) -> bool:
        """Whether shape and axes are known."""
        return self.shape is not None and self.axes is not None

    def __str__(self) -> str:
        axes = "?" if self.axes is None else ", ".join(self.axes)
        return f"[{axes}] {'?' if self.shape is None else self.shape}"


class Weights:
    """The tensor behind a parameter or a constant: filled at its first use, shared by all who hold it.

    Args:
        shape: of the tensor; `UNKNOWN` dimensions settle later. The first, if unknown, may stand for several.
        fill: ``fill(shape)`` returns its first value, as an array or tensor.
        dtype: name of the element type.
        trains: learners may update it.
        keeps: it is not trained, but changes in training (running statistics), and is saved with the parameters.

    Attributes:
        tensor: the `torch.nn.Parameter`; None before the first use.
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
        """Its shape, with `UNKNOWN` in it before it settles."""
        return self._shape

    @property
    def settled(self) -> bool:
        """Whether all dimensions are known."""
        return UNKNOWN not in self._shape

    def settle(self, shape: tuple[int, ...]) -> None:
        """Fix the unknown dimensions; the first, if it is unknown, may become several.

        Raises:
            ValueError: known dimensions are others.
        """
        own, new = self._shape, tuple(shape)
        more = len(new) - len(own)
        if more and own[:1] == (UNKNOWN,):
            own = (UNKNOWN,) * max(0, more + 1) + own[1:]
        if len(new) != len(own) or any(a not in (b, UNKNOWN) for a, b in zip(own, new, strict=True)):
            raise ValueError(f"expected a shape that fits {self._shape}, got {new}: use another parameter there")
        self._shape = new


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Node:
    """One application of an operation; compared by identity.

    Attributes:
        op: name of the operation; for leaves one of `LEAVES`.
        inputs: what it is applied to.
        attributes: its settings.
        given: type of what comes out; weights have their own.
        name: given by the user; not unique.
        weights: of a parameter or constant.
        sparse: an input that is fed sparse rows.
        dtype: element type of an input.
        uid: unique in this process.
    """

    op: str
    inputs: tuple[Node, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    given: Type = Type()
    name: str = ""
    weights: Weights | None = None
    sparse: bool = False
    dtype: str = "float32"
    uid: str = field(default_factory=lambda: f"n{next(_numbers)}")

    @property
    def type(self) -> Type:
        """Shape and dynamic axes of what comes out."""
        return self.given if self.weights is None else Type(self.weights.shape, ())

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample.

        Raises:
            ValueError: it depends on a placeholder.
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
        """How messages call it: operation and name."""
        return f"{self.op} `{self.name or self.uid}`"

    def __repr__(self) -> str:
        below = ", ".join(node.name or node.uid for node in self.inputs)
        return f"{self.op} `{self.name or self.uid}`({below}) -> {self.type}"


def input_node(
    shape: tuple[int, ...],
    axes: tuple[str, ...] = (BATCH,),
    name: str = "",
    sparse: bool = False,
    dtype: str = "float32",
) -> Node:
    """A leaf that is fed."""
    return Node("input", given=Type(tuple(shape), tuple(axes)), name=name, sparse=sparse, dtype=dtype)


def placeholder_node(shape: tuple[int, ...] | None = None, axes: tuple[str, ...] | None = None, name: str = "") -> Node:
    """A leaf that stands for what will be known later."""
    return Node("placeholder", given=Type(shape, axes), name=name)


def parameter_node(weights: Weights, name: str = "") -> Node:
    """A leaf with a tensor: a parameter if it trains, else a constant."""
    return Node("parameter" if weights.trains else "constant", weights=weights, name=name, dtype=weights.dtype)
