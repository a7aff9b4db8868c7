"""Brings the inputs of an operation to rows that torch can broadcast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from feedline.networks.node import Node
from feedline.networks.packed import PackedBatch, Run, SparseRows

Adapt = Callable[[PackedBatch, Any], Any]


def dense(tensor: Any, node: Node) -> torch.Tensor:
    """The tensor itself.

    Raises:
        TypeError: it is sparse rows, which this operation would have to make dense.
    """
    if isinstance(tensor, SparseRows):
        raise TypeError(
            f"{node.label}: expected dense data, got sparse rows; multiply them with a parameter first (times, "
            "Embedding), or feed dense data"
        )
    assert isinstance(tensor, torch.Tensor)
    return tensor


def one_of_several(node: Node) -> Run:
    """Lowering of what takes one of several results, by its attribute ``index``."""
    index = node.attributes["index"]
    return lambda batch, several: several[index]


def adapters(node: Node, ranks: bool = True) -> list[Adapt | None]:
    """For each input what brings it to the rows of the result; None: nothing to do.

    Args:
        node: whose inputs.
        ranks: also give rows of fewer static axes leading ones, so that they broadcast as shapes do.
    """
    rank = max((len(child.shape) for child in node.inputs), default=0)
    return [adapter(child, node.axes, rank if ranks else None) for child in node.inputs]


def adapter(child: Node, axes: tuple[str, ...], rank: int | None) -> Adapt | None:
    """What brings ``child`` to rows along ``axes`` with ``rank`` static axes."""
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
                        dense(tensor, node)
                return function(*tensors)

            return plain

        def run(batch: PackedBatch, *tensors: Any) -> Any:
            return function(
                *(
                    dense(x, node) if a is None else a(batch, dense(x, node))
                    for a, x in zip(adapt, tensors, strict=True)
                )
            )

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
