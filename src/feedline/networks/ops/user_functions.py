"""Operations with effects beyond their result: user-defined functions, over packed rows, and assignments.

Assignments are executed after the whole network is computed, in the order in which they were created: readers of an
assigned parameter get its old value, and the assignment's result is the new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from feedline.networks.node import UNKNOWN, Node, Type
from feedline.networks.ops.align import dense, one_of_several
from feedline.networks.packed_minibatch import PackedBatch, Run
from feedline.networks.registry import Shape, Site, declare, no_axes
from feedline.networks.shapes import broadcast_shapes, scalar


class _UserFunction(torch.autograd.Function):
    """Adapter of a user-defined function to torch's autograd.

    ``needs`` are the operands whose gradients the function computes. If there is any, ``leaf`` needs a gradient, so
    that torch calls it even where it needs none of these gradients itself, as CNTK does.
    """

    @staticmethod
    def forward(
        context: Any, call: Any, sequences: Any, needs: Sequence[bool], leaf: Any, *tensors: torch.Tensor
    ) -> Any:
        context.call, context.sequences, context.needs = call, sequences, needs
        context.state, results = call.forward(tensors, sequences, needs)
        context.mark_non_differentiable(*(results[i] for i in call.constant_outputs))
        return tuple(results)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        computed = context.call.backward(context.state, gradients, context.needs, context.sequences)
        return None, None, None, None, *computed


def _user(node: Node) -> Run:
    """Attribute ``user``: a function with ``output_types`` and ``call``, see `feedline.cntk.ops._user_function`."""
    user = node.attributes["user"]
    call = user.call(node.inputs, user.output_types(node.inputs))
    axes = [child.axes for child in node.inputs]

    def run(batch: PackedBatch, *tensors: Any) -> Any:
        sequences = [batch.sequences[a[1]] if len(a) > 1 else None for a in axes]
        rows, grad = [dense(x, node) for x in tensors], torch.is_grad_enabled()
        needs = [grad and (x.requires_grad or needs) for x, needs in zip(rows, call.needs_gradient, strict=True)]
        leaf = torch.zeros((), requires_grad=True) if any(needs) else None
        return _UserFunction.apply(call, sequences, needs, leaf, *rows)

    return run


def _output_type(site: Site) -> Type:
    call = site.inputs[0]
    kind: Type = call.attributes["user"].output_types(call.inputs)[site.attributes["index"]]
    return kind


def _output_shape(site: Site) -> Shape:
    return _output_type(site).shape or ()


def _output_axes(site: Site) -> tuple[str, ...] | None:
    return _output_type(site).axes


declare("user", scalar, _user, axes=no_axes, stepwise=False)
declare("user_output", _output_shape, one_of_several, axes=_output_axes, stepwise=False)


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
