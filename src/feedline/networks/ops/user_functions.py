"""Operations with effects beyond their result: user-defined functions, over packed rows, and assignments.

Assignments are executed after the whole network is computed, in the order in which they were created: readers of an
assigned parameter get its old value, and the assignment's result is the new one.
"""

from __future__ import annotations

from typing import Any

import torch

from feedline.networks.node import UNKNOWN, Node
from feedline.networks.ops.align import dense, one_of_several
from feedline.networks.packed_minibatch import PackedBatch, Run
from feedline.networks.registry import Shape, Site, declare, no_axes
from feedline.networks.shapes import broadcast_shapes, declared_shape, scalar


class _UserFunction(torch.autograd.Function):
    """Adapter of a user-defined function to torch's autograd."""

    @staticmethod
    def forward(context: Any, user: Any, sequences: Any, *tensors: torch.Tensor) -> Any:
        context.user, context.sequences = user, sequences
        context.state, results = user.forward_rows(tensors, sequences, context.needs_input_grad[2:])
        return tuple(results)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        needed = context.needs_input_grad[2:]
        return None, None, *context.user.backward_rows(context.state, gradients, needed, context.sequences)


def _user(node: Node) -> Run:
    """Attribute ``user``: an object with ``forward_rows`` and ``backward_rows``."""
    user = node.attributes["user"]
    axes = [child.axes for child in node.inputs]

    def run(batch: PackedBatch, *tensors: Any) -> Any:
        sequences = [batch.sequences[a[1]] if len(a) > 1 else None for a in axes]
        return _UserFunction.apply(user, sequences, *(dense(x, node) for x in tensors))

    return run


def _output_axes(site: Site) -> tuple[str, ...]:
    return tuple(site.attributes["axes"])


declare("user", scalar, _user, axes=no_axes, stepwise=False)
declare("user_output", declared_shape, one_of_several, axes=_output_axes, stepwise=False)


def _assigned_shape(site: Site) -> Shape:
    if site.inputs[0].weights is None or site.types[1].axes:
        site.refuse("a parameter, and a value without dynamic axes")
    shape = site.shape(0)
    site.fix_shape(0, broadcast_shapes(site, [site.shape(1)]))
    if broadcast_shapes(site, [site.inputs[0].shape, site.shape(1)]) != site.inputs[0].shape:
        site.refuse("a value that broadcasts to the parameter")
    return site.inputs[0].shape if UNKNOWN in shape else shape


def _assign(node: Node) -> Run:
    number = int(node.uid.removeprefix("n"))

    def run(batch: PackedBatch, target: Any, value: Any) -> Any:
        # A copy, as the value may be a target of another assignment.
        new = dense(value, node).detach().expand_as(target).clone()
        batch.assignments.append((number, target, new))
        return new

    return run


declare("assign", _assigned_shape, _assign, stepwise=False)
