"""Alignment of an operation's inputs to rows that torch can broadcast."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from feedline.networks.node import Node
from feedline.networks.packed_minibatch import PackedBatch, Run, SparseRows

Adapt = Callable[[PackedBatch, Any], Any]


def dense(tensor: Any, node: Node) -> torch.Tensor:
    """Return a tensor, or the sparse rows of an input that is declared dense as a tensor.

    Raises:
        TypeError: the data is sparse rows of an input declared sparse, which this operation would have to make dense.
    """
    if isinstance(tensor, SparseRows):
        if tensor.dense_dtype is not None:
            return tensor.dense()
        raise TypeError(
            f"{node.label}: expected dense data, got sparse rows; multiply them by a parameter first (times, "
            "Embedding), or declare the input dense (is_sparse=False)"
        )
    assert isinstance(tensor, torch.Tensor)
    return tensor


def one_of_several(node: Node) -> Run:
    """Lowering that selects one of several results, by the attribute ``index``."""
    index = node.attributes["index"]
    return lambda batch, several: several[index]


def lower_directly(function: Callable[..., Any]) -> Callable[[Node], Run]:
    """Lowering of ``function(node, batch, *tensors)``, which computes nothing in advance."""
    return lambda node: partial(function, node)


def adapters(node: Node) -> list[Adapt | None]:
    """Return a function for each input that aligns it to the rows of the result, or None if it is aligned already.

    Rows with fewer static axes get leading axes of length 1, so that they broadcast.
    """
    rank = max((len(child.shape) for child in node.inputs), default=0)
    return [adapter(child, node.axes, rank) for child in node.inputs]


def align_inputs(
    adapt: Sequence[Adapt | None], node: Node, batch: PackedBatch, tensors: Iterable[Any]
) -> list[torch.Tensor]:
    """Return the inputs as `adapters` align them. Sparse rows raise TypeError."""
    rows = (dense(x, node) for x in tensors)
    return [x if a is None else a(batch, x) for a, x in zip(adapt, rows, strict=True)]


def adapter(child: Node, axes: tuple[str, ...], rank: int | None) -> Adapt | None:
    """Return a function that aligns ``child`` to rows along ``axes`` with ``rank`` static axes."""
    spread = axes[1] if len(axes) > 1 and len(child.axes) == 1 else None
    missing = rank - len(child.shape) if rank is not None and child.axes else 0
    if missing:
        where = (slice(None), *(None,) * missing)
        if spread is None:
            return lambda batch, x: x[where]
        return lambda batch, x: batch.spread(x, spread)[where]
    if spread is not None:
        return lambda batch, x: batch.spread(x, spread)
    return None


def broadcasting(function: Callable[..., Any]) -> Callable[[Node], Run]:
    """Lowering of a function of tensors that broadcast."""

    def lower(node: Node) -> Run:
        adapt = adapters(node)
        if all(a is None for a in adapt):

            def plain(batch: PackedBatch, *tensors: Any) -> Any:
                for tensor in tensors:
                    if type(tensor) is SparseRows:
                        return function(*(dense(x, node) for x in tensors))
                return function(*tensors)

            return plain

        def run(batch: PackedBatch, *tensors: Any) -> Any:
            return function(*align_inputs(adapt, node, batch, tensors))

        return run

    return lower


def rowwise(make: Callable[[Node], Callable[..., Any]]) -> Callable[[Node], Run]:
    """Lowering of a function of one tensor that ``make(node)`` returns."""

    def lower(node: Node) -> Run:
        function = make(node)

        def run(batch: PackedBatch, x: Any) -> Any:
            return function(dense(x, node))

        return run

    return lower
