"""Operations that rearrange a sample: reshape, transpose, splice, slice, one-hot, gather along its first axis."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from feedline.networks.node import BATCH, FREE, Node
from feedline.networks.ops.align import adapter, align_inputs, dense, lower_directly, rowwise
from feedline.networks.packed_minibatch import PackedBatch, Run, SparseRows
from feedline.networks.registry import Shape, Site, TriedLength, declare, first_axes
from feedline.networks.shapes import (
    from_end,
    reshaped_shape,
    same,
    sliced_shape,
    slices,
    spliced_shape,
    transposed_shape,
)


def _reshape(node: Node) -> Run:
    rows, shape = bool(node.inputs[0].axes), tuple(-1 if n == FREE else n for n in node.shape)
    if shape.count(-1) > 1:
        raise ValueError(f"{node.label}: expected at most one free dimension, got {node.shape}")

    def run(batch: PackedBatch, x: Any) -> Any:
        x = dense(x, node)
        return x.reshape(x.shape[0], *shape) if rows else x.reshape(shape)

    return run


def _transpose(node: Node) -> Run:
    rank, perm = len(node.shape), node.attributes["perm"]
    order = [0, *(i + 1 for i in perm)] if node.inputs[0].axes else list(perm)
    assert len(perm) == rank
    return lambda batch, x: dense(x, node).permute(order)


def _splice(node: Node) -> Run:
    rank = len(node.shape)
    axis = from_end(node.attributes["axis"], rank)
    around = [n for i, n in enumerate(node.shape) if i - rank != axis]
    adapt = [adapter(child, node.axes, rank) for child in node.inputs]

    def run(batch: PackedBatch, *tensors: Any) -> Any:
        rows = [batch.rows(node.axes)] if node.axes else []
        parts = []
        for x in align_inputs(adapt, node, batch, tensors):
            part = x[(None,) * (rank - x.ndim)] if x.ndim < rank else x
            shape = list(around)
            shape.insert(rank + axis, part.shape[axis])
            parts.append(part.expand(*rows, *shape))
        return torch.cat(parts, axis)

    return run


def _slice(node: Node) -> Run:
    rank = len(node.shape)
    where: list[slice] = [slice(None)] * rank
    turned: list[int] = []
    steps: list[slice] = [slice(None)] * rank
    for axis, part, stride in slices(node.attributes, rank):
        where[axis] = slice(part.start, part.stop, stride) if stride > 0 else part
        if stride < 0:
            turned.append(axis)
            steps[axis] = slice(None, None, -stride)
    index, after = (..., *where), (..., *steps)
    if not turned:
        return lambda batch, x: dense(x, node)[index]
    return lambda batch, x: dense(x, node)[index].flip(turned)[after]


def _one_hot_shape(site: Site) -> Shape:
    shape, axis = site.shape(0), site.attributes["axis"]
    at = from_end(axis, len(shape) + 1, site) + len(shape) + 1
    return (*shape[:at], site.attributes["classes"], *shape[at:])


def _one_hot(node: Node) -> Run:
    classes, rank = node.attributes["classes"], len(node.shape)
    axis, sparse = from_end(node.attributes["axis"], rank), node.attributes.get("sparse", False)

    def run(batch: PackedBatch, x: Any) -> Any:
        x = dense(x, node)
        index = x.to(torch.int64)
        # Other numbers than those of classes, such as the -1 of padding, are rows of zeros.
        if sparse and rank == 1 and x.ndim == 1 and bool(((x >= 0) & (x < classes)).all()):
            return SparseRows(torch.arange(len(x) + 1, device=x.device), index, None, classes, True)
        index = torch.where((x >= 0) & (x < classes), index, classes)
        return functional.one_hot(index, classes + 1)[..., :classes].to(x.dtype).movedim(-1, axis)

    return run


def _gathered_shape(site: Site) -> Shape:
    index, reference = site.shape(0), site.shape(1)
    axis = site.attributes.get("axis")
    if axis is None:
        return (*index, *reference[1:])
    at = from_end(axis, len(reference), site) + len(reference)
    return (*reference[:at], *index, *reference[at + 1 :])


def _gather(node: Node) -> Run:
    index_node, reference_node = node.inputs
    axis = node.attributes.get("axis")
    rank = len(reference_node.shape)
    dim = from_end(0 if axis is None else axis, rank) + rank
    to_index, to_reference = adapter(index_node, node.axes, None), adapter(reference_node, node.axes, None)

    def run(batch: PackedBatch, index: Any, reference: Any) -> Any:
        where, reference = dense(index, node).to(torch.int64), dense(reference, node)
        if not index_node.axes:
            rows = reference.ndim - rank
            y = reference.index_select(rows + dim, where.reshape(-1))
            return y.reshape(*reference.shape[: rows + dim], *where.shape, *reference.shape[rows + dim + 1 :])
        if not reference_node.axes:
            y = reference.movedim(dim, 0)[where]
            y = y.movedim(list(range(1, where.ndim)), list(range(dim + 1, dim + where.ndim)))
            return y if to_index is None else to_index(batch, y)
        where = where if to_index is None else to_index(batch, where)
        reference = reference if to_reference is None else to_reference(batch, reference)
        each = torch.arange(len(reference), device=reference.device).reshape(-1, *(1,) * (where.ndim - 1))
        y = reference.movedim(dim + 1, 1)[each, where]
        return y.movedim(list(range(1, where.ndim)), list(range(dim + 1, dim + where.ndim)))

    return run


def _padded_shape(site: Site) -> Shape:
    shape, pattern = site.shape(0), site.attributes["pattern"]
    if len(pattern) != len(shape):
        site.refuse(f"an input of {len(pattern)} axes, as the pattern has")
    return tuple(a + n + b for n, (a, b) in zip(shape, pattern, strict=True))


def _mirror(x: torch.Tensor, pattern: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Pad by mirror images, which repeat the cells at the border."""
    for axis, (before, after) in enumerate(pattern, -len(pattern)):
        size = x.shape[axis]
        place = torch.arange(-before, size + after, device=x.device) % (2 * size)
        x = x.index_select(axis, torch.where(place < size, place, 2 * size - 1 - place))
    return x


def _batch_axis(node: Node, batch: PackedBatch, x: Any) -> Any:
    """Take the first axis of a sample as the batch."""
    x = dense(x, node)
    if batch.count not in (0, len(x)):
        raise ValueError(f"{node.label}: expected {batch.count} samples, as the inputs have, got {len(x)}")
    batch.count = len(x)
    return x


def _shape_without_first(site: Site) -> Shape:
    if site.types[0].axes != () or not site.shape(0):
        site.refuse("an operand with axes of its own, and without a batch axis")
    return site.shape(0)[1:]


def _with_batch(site: Site) -> Shape:
    if site.types[0].axes != (BATCH,):
        site.refuse("an operand with only a batch axis")
    return (FREE, *site.shape(0))


declare("to_batch", _shape_without_first, lower_directly(_batch_axis), axes=lambda site: (BATCH,), stepwise=False)
declare("unpack_batch", _with_batch, lambda node: lambda batch, x: dense(x, node), axes=lambda site: (), stepwise=False)


def _pad(node: Node) -> Any:
    flat = [n for pair in reversed(node.attributes["pattern"]) for n in pair]
    mode, value = node.attributes["mode"], node.attributes.get("value", 0.0)
    # torch's reflection padding requires two leading axes.
    if mode == "symmetric":
        return partial(_mirror, pattern=node.attributes["pattern"])
    if mode == "constant":
        return lambda x: functional.pad(x, flat, "constant", value)
    lead = len(node.shape)
    return lambda x: functional.pad(x.reshape(1, -1, *x.shape[x.ndim - lead :]), flat, "reflect").reshape(
        *x.shape[: x.ndim - lead], *node.shape
    )


def _eye_rows(node: Node, batch: PackedBatch, x: Any) -> Any:
    """Return row i of the identity for sample i, and zeros for samples beyond its rows."""
    device = x.offsets.device if isinstance(x, SparseRows) else x.device
    size = node.shape[0]
    if not node.attributes.get("sparse", False):
        return torch.eye(len(x), size, dtype=x.dtype, device=device)
    ends = torch.arange(len(x) + 1, device=device).clamp(max=size)
    rows = SparseRows(ends, torch.arange(min(len(x), size), device=device), None, size, len(x) <= size)
    rows.dense_dtype = x.dtype
    return rows


def _cropped_shape(site: Site) -> Shape:
    shape, like, get = site.shape(0), site.shape(1), site.attributes
    if len(shape) < 2 or len(like) < 2:
        site.refuse("operands of at least two axes")
    size = like[-2:]
    for have, offset, n in zip(shape[-2:], (get["offset_y"], get["offset_x"]), size, strict=True):
        if offset < 0 or (offset + n > have and not isinstance(n, TriedLength) and not isinstance(have, TriedLength)):
            site.refuse(f"{size} cells from ({get['offset_y']}, {get['offset_x']}) on within the last two axes")
    return (*shape[:-2], *size)


def _crop(node: Node) -> Run:
    """Crop the last two axes of the first operand. Only the shape of the second matters."""
    (height, width), get = node.shape[-2:], node.attributes
    rows, columns = (slice(begin, begin + n) for begin, n in ((get["offset_y"], height), (get["offset_x"], width)))
    return lambda batch, x, like: dense(x, node)[..., rows, columns]


declare("crop", _cropped_shape, _crop, axes=first_axes)
declare("eye_rows", same, lower_directly(_eye_rows), stepwise=False)
declare("reshape", reshaped_shape, _reshape)
declare("transpose", transposed_shape, _transpose)
declare("splice", spliced_shape, _splice)
declare("slice", sliced_shape, _slice)
declare("one_hot", _one_hot_shape, _one_hot)
declare("gather", _gathered_shape, _gather)
declare("pad", _padded_shape, rowwise(_pad))
