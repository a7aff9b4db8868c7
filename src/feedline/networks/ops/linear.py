"""Products of tensors. Sparse left operands are look-ups."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from feedline.networks.node import Node
from feedline.networks.ops.align import adapter, dense
from feedline.networks.packed_minibatch import PackedBatch, Run, SparseRows
from feedline.networks.registry import declare
from feedline.networks.shapes import product, times_transpose


def _product(node: Node, inner: int, turn: Callable[[torch.Tensor], torch.Tensor]) -> Run:
    """Multiply left by ``turn(right)``, and sum over the first ``inner`` axes of the latter."""
    left, right = node.inputs
    outer = left.shape[: len(left.shape) - inner]
    width = math.prod(left.shape[len(left.shape) - inner :])
    result = node.shape
    to_left, to_right = adapter(left, node.axes, None), adapter(right, node.axes, None)
    plain = inner == 1 and len(result) == 1 and not outer and left.axes and not right.axes and to_left is None

    def run(batch: PackedBatch, x: Any, w: Any) -> Any:
        w = turn(dense(w, node))
        if plain and type(x) is not SparseRows:
            return _rows_times(x, w)
        if isinstance(x, SparseRows) and (right.axes or len(outer) != (0 if left.axes else 1)):
            x = dense(x, node)
        if isinstance(x, SparseRows):
            y = x.matmul(w.reshape(width, -1))
            y = y.reshape(len(x), *result) if left.axes else y.reshape(result)
            return y if to_left is None else to_left(batch, y)
        rows = x.shape[:1] if left.axes else ()
        if not right.axes:
            y = x.reshape(-1, width) @ w.reshape(width, -1)
            y = y.reshape((*rows, *result))
            return y if to_left is None else to_left(batch, y)
        # A matrix for each row.
        w = w if to_right is None else to_right(batch, w)
        w = w.reshape(w.shape[0], width, -1)
        if left.axes:
            x = x if to_left is None else to_left(batch, x)
            y = torch.bmm(x.reshape(x.shape[0], -1, width), w)
        else:
            y = torch.matmul(x.reshape(-1, width), w)
        return y.reshape(w.shape[0], *result)

    return run


# With at most _NARROW columns, and at least _WORTH numbers in the matrix of rows, BLAS takes up to twice the time of a
# copy of the columns as rows and a product with the copy.
_NARROW, _WORTH = 10, 1 << 13


def _rows_times(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Multiply rows by a matrix, and add a bias."""
    if 1 < w.shape[1] <= _NARROW and w.is_cpu and x.numel() >= _WORTH:
        return functional.linear(x, w.t().contiguous(), bias)
    return x @ w if bias is None else torch.addmm(bias, x, w)


def fuse_bias(node: Node, below: Sequence[Node]) -> tuple[Node, Node, Run] | None:
    """Run the sum of a product of rows and a matrix, and of a vector of parameters, as one operation."""
    for part, bias in (below, below[::-1]):
        if part.op != "times" or bias.weights is None or len(node.shape) != 1:
            continue
        left, right = part.inputs
        if not (len(left.shape) == 1 and len(right.shape) == 2 and left.axes and not right.axes):
            continue
        if bias.shape == part.shape == node.shape:
            return part, bias, _affine(part)
    return None


def _affine(part: Node) -> Run:
    multiply = _times(part)

    def run(batch: PackedBatch, x: Any, w: Any, bias: torch.Tensor) -> Any:
        if type(x) is SparseRows or type(w) is SparseRows or w.dtype is not bias.dtype:
            return multiply(batch, x, w) + bias
        return _rows_times(x, w, bias)

    return run


def _times(node: Node) -> Run:
    return _product(node, len(node.inputs[1].shape) - node.attributes.get("output_rank", 1), lambda w: w)


def _times_transpose(node: Node) -> Run:
    left, right = node.inputs
    vector = len(right.shape) == 1
    multiply = _product(node, 1, (lambda w: w[..., None]) if vector else (lambda w: w.mT))
    looks_up = vector and not left.axes and len(left.shape) == 2
    to_left, to_right = adapter(left, node.axes, None), adapter(right, node.axes, None)

    def run(batch: PackedBatch, x: Any, w: Any) -> Any:
        if isinstance(w, SparseRows) and looks_up:
            return w.matmul(dense(x, node).t())[:, :, None]
        if isinstance(w, SparseRows) and vector and left.axes and not isinstance(x, SparseRows):
            x, w = x if to_left is None else to_left(batch, x), w if to_right is None else to_right(batch, w)
            picked = w.repeated(math.prod(left.shape[:-1])).weighted(x.reshape(-1, left.shape[-1]))
            return picked.reshape(len(x), *node.shape)
        return multiply(batch, x, w)

    return run


declare("times", product, _times, fresh=True)
declare("times_transpose", times_transpose, _times_transpose)
