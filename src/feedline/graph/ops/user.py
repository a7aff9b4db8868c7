"""Operations that a user wrote: a forward and a backward function over packed rows."""

from __future__ import annotations

from typing import Any

import torch

from feedline.graph.node import Node
from feedline.graph.ops.align import dense
from feedline.graph.packed import Batch, Run
from feedline.graph.registry import Shape, Site, declare


class _Call(torch.autograd.Function):
    """The user's pair as torch's autograd wants it."""

    @staticmethod
    def forward(context: Any, user: Any, sequences: Any, *tensors: torch.Tensor) -> Any:
        context.user, context.sequences = user, sequences
        context.state, results = user.forward_rows(tensors, sequences, context.needs_input_grad[2:])
        return tuple(results)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        wanted = context.needs_input_grad[2:]
        return None, None, *context.user.backward_rows(context.state, gradients, wanted, context.sequences)


def _user(node: Node) -> Run:
    """Attribute ``user``: an object with ``forward_rows`` and ``backward_rows``."""
    user = node.attributes["user"]
    axes = [child.axes for child in node.inputs]

    def run(batch: Batch, *tensors: Any) -> Any:
        sequences = [batch.sequences[a[1]] if len(a) > 1 else None for a in axes]
        return _Call.apply(user, sequences, *(dense(x, node) for x in tensors))

    return run


def _nothing(site: Site) -> Shape:
    return ()


def _no_axes(site: Site) -> tuple[str, ...]:
    return ()


def _output(site: Site) -> Shape:
    shape: Shape = site.attributes["shape"]
    return shape


def _output_axes(site: Site) -> tuple[str, ...]:
    axes: tuple[str, ...] = site.attributes["axes"]
    return axes


def _take(node: Node) -> Run:
    index = node.attributes["index"]
    return lambda batch, several: several[index]


declare("user", _nothing, _user, axes=_no_axes, stepwise=False)
declare("user_output", _output, _take, axes=_output_axes, stepwise=False)
