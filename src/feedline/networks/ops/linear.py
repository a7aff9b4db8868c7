"""Products of tensors; sparse left operands are look-ups."""

from __future__ import annotations

import math
from typing import Any

import torch

from feedline.networks.node import Node
from feedline.networks.ops.align import adapter, dense
from feedline.networks.packed import PackedBatch, Run, SparseRows
from feedline.networks.registry import declare
from feedline.networks.shapes import product, times_transpose


def _times(node: Node) -> Run:
    left, right = node.inputs
    out = node.attributes.get("output_rank", 1)
    inner = len(right.shape) - out
    outer = left.shape[: len(left.shape) - inner]
    width = math.prod(right.shape[:inner])
    result = node.shape
    to_left, to_right = adapter(left, node.axes, None), adapter(right, node.axes, None)
    matrix = inner == 1 and out == 1
    plain = matrix and not outer and left.axes and not right.axes

    def run(batch: PackedBatch, x: Any, w: Any) -> Any:
        if isinstance(x, SparseRows):
            if right.axes or outer:
                dense(x, node)
            y = x.matmul(dense(w, node).reshape(width, -1)).reshape(len(x), *result)
            return y if to_left is None else to_left(batch, y)
        w = dense(w, node)
        if plain and to_left is None:
            return x @ w
        rows = x.shape[:1] if left.axes else ()
        if not right.axes:
            y = x.reshape(-1, width) @ w.reshape(width, -1)
            y = y.reshape(*rows, *result)
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


declare("times", product, _times)


def _times_transpose(node: Node) -> Run:
    left, right = node.inputs
    to_left, to_right = adapter(left, node.axes, None), adapter(right, node.axes, None)
    result = node.shape
    plain = not left.axes and len(left.shape) == 2 and len(right.shape) == 1

    def run(batch: PackedBatch, x: Any, w: Any) -> Any:
        if isinstance(w, SparseRows) and plain:
            return w.matmul(dense(x, node).t())[:, :, None]
        w = dense(w, node)
        if isinstance(x, SparseRows):
            if right.axes:
                dense(x, node)
            y = x.matmul(w.reshape(-1, w.shape[-1]).t()).reshape(len(x), *result)
            return y if to_left is None else to_left(batch, y)
        if not right.axes:
            y = x @ (w.t() if w.ndim == 2 else w[:, None])
            return y if to_left is None else to_left(batch, y)
        w = w if to_right is None else to_right(batch, w)
        x = x if to_left is None else to_left(batch, x)
        w = w.reshape(w.shape[0], -1, w.shape[-1])
        x = x.reshape(x.shape[0], -1, x.shape[-1]) if left.axes else x.reshape(1, -1, x.shape[-1])
        return torch.matmul(x, w.transpose(1, 2)).reshape(w.shape[0], *result)

    return run


declare("times_transpose", times_transpose, _times_transpose)
