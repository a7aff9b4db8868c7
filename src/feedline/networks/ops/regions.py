"""Pooling of regions of pictures, as detectors of objects use it."""

from __future__ import annotations

from typing import Any

import torch

from feedline.networks.node import Node
from feedline.networks.ops.align import adapter, align_inputs
from feedline.networks.packed_minibatch import PackedBatch, Run
from feedline.networks.registry import Shape, Site, declare


def _pooled_shape(site: Site) -> Shape:
    x, regions = site.shape(0), site.shape(1)
    if len(x) != 3 or not regions or regions[-1] != 4:
        site.refuse("an operand (channels, height, width) and regions (count, 4)")
    return (*regions[:-1], x[0], *site.attributes["size"])


def _edges(begin: torch.Tensor, end: torch.Tensor, count: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first cell of each of ``count`` windows of a region, and the cell after the last: (regions, count).

    A window that begins before the first cell has no cells, as in CNTK.
    """
    part = (end - begin + 1).clamp_min(1)[:, None] / count
    at = torch.arange(count, device=begin.device, dtype=begin.dtype)
    first = (at * part).floor() + begin[:, None]
    last = ((at + 1) * part).ceil() + begin[:, None]
    first = torch.where(first < 0, size, first)
    return first.clamp(max=size).long(), last.clamp(0, size).long()


def _roi_pooling(node: Node) -> Run:
    """Maximum of each window of a region, 0 for windows without cells.

    A region (x1, y1, x2, y2), both ends counted, is scaled, rounded and cut into windows that may share a cell.
    """
    (height, width), scale = node.attributes["size"], node.attributes["scale"]
    adapt = [adapter(child, node.axes, None) for child in node.inputs]

    def run(batch: PackedBatch, *tensors: Any) -> Any:
        x, regions = align_inputs(adapt, node, batch, tensors)
        if not node.axes:
            x, regions = x[None], regions[None]
        else:
            rows = batch.rows(node.axes)
            x, regions = x.expand(rows, *x.shape[-3:]), regions.expand(rows, *node.inputs[1].shape)
        count = regions[0].numel() // 4
        corners = (regions.detach().reshape(-1, 4).to(torch.float64) * scale + 0.5).floor()
        owner = torch.arange(len(x), device=x.device).repeat_interleave(count)
        top, bottom = _edges(corners[:, 1], corners[:, 3], height, x.shape[2])
        left, right = _edges(corners[:, 0], corners[:, 2], width, x.shape[3])
        down, across = (torch.arange(n, device=x.device) for n in x.shape[2:])
        y = []
        for i in range(height):
            inside = (down >= top[:, i, None]) & (down < bottom[:, i, None])
            for j in range(width):
                cells = inside[:, :, None] & ((across >= left[:, j, None]) & (across < right[:, j, None]))[:, None]
                maximum = x[owner].masked_fill(~cells[:, None], -torch.inf).flatten(2).max(-1).values
                y.append(torch.where(cells.flatten(1).any(1)[:, None], maximum, 0.0))
        pooled = torch.stack(y, -1).reshape(len(x), *node.shape)
        return pooled if node.axes else pooled[0]

    return run


declare("roi_pooling", _pooled_shape, _roi_pooling)
