"""Products of tensors; sparse left operands are look-ups."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from feedline.networks.node import Node
from feedline.networks.ops.align import adapter, dense
from feedline.networks.packed import PackedBatch, Run, SparseRows
from feedline.networks.registry import declare
from feedline.networks.shapes import product, times_transpose


def _product(node: Node, inner: int, turn: Callable[[torch.Tensor], torch.Tensor]) -> Run:
    """Multiply left by right, of which ``turn`` makes the first ``inner`` axes those to sum over."""
    left, right = node.inputs
    outer = left.shape[: len(left.shape) - inner]
    width = math.prod(left.shape[len(left.shape) - inner :])
    result = node.shape
    to_left, to_right = adapter(left, node.axes, None), adapter(right, node.axes, None)
    plain = inner == 1 and len(result) == 1 and not outer and left.axes and not right.axes and to_left is None

    def run(batch: PackedBatch, x: Any, w: Any) -> Any:
        w = turn(dense(w, node))
        if isinstance(x, SparseRows) and (right.axes or len(outer) != (0 if left.axes else 1)):
            x = dense(x, node)
        if isinstance(x, SparseRows):
            y = x.matmul(w.reshape(width, -1))
            y = y.reshape(len(x), *result) if left.axes else y.reshape(result)
            return y if to_left is None else to_left(batch, y)
        if plain:
            return x @ w
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


declare("times", product, _times)
declare("times_transpose", times_transpose, _times_transpose)
