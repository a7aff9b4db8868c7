"""Attention of the steps of one axis to all steps of another, with weights from a network of one layer.

The attended sequences are padded once a minibatch, so that a recurrence can attend at each of its steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from feedline.networks.node import Node
from feedline.networks.ops.align import dense, unprepared
from feedline.networks.ops.sequence import to_batch
from feedline.networks.packed import PackedBatch
from feedline.networks.registry import Shape, Site, declare
from feedline.networks.shapes import same, scalar


def _padded(node: Node, batch: PackedBatch, x: Any) -> Any:
    sequences = batch.sequences[node.inputs[0].axes[1]]
    gaps = np.arange(sequences.count) * sequences.longest - sequences.offsets[:-1]
    place = torch.from_numpy(np.repeat(gaps, sequences.lengths) + np.arange(sequences.total)).to(sequences.device)
    rows = dense(x, node)
    whole = rows.new_zeros(sequences.count * sequences.longest, *node.shape).index_copy(0, place, rows)
    return whole.reshape(sequences.count, sequences.longest, *node.shape)


def _valid(node: Node, batch: PackedBatch, x: Any) -> Any:
    sequences = batch.sequences[node.inputs[0].axes[1]]
    lengths = torch.from_numpy(sequences.lengths).to(sequences.device)
    return torch.arange(sequences.longest, device=sequences.device) < lengths[:, None]


# Rows of these two have one more axis than their types say, the padded steps; only `attend` takes them.
declare("sequence_padded", same, unprepared(_padded), axes=to_batch, stepwise=False, whole=True)
declare("sequence_valid", scalar, unprepared(_valid), axes=to_batch, stepwise=False, whole=True)


def _attended(site: Site) -> Shape:
    """Inputs: keys (a,) and values (h,), padded, valid, query (a,), weights (a, 1)."""
    keys, values, weights = site.shape(0), site.shape(1), site.shape(4)
    query = site.shapes[3]
    if len(values) != 1 or weights != (*keys, 1) or query not in (None, keys):
        site.refuse("keys, values, their validity, a query as wide as the keys, and weights (that width, 1)")
    return values


def _query_axes(site: Site) -> tuple[str, ...] | None:
    axes = site.types[3].axes
    if axes == ():
        site.refuse("a query for each sequence or for each of its steps")
    return axes


def _attend(node: Node, batch: PackedBatch, keys: Any, values: Any, valid: Any, query: Any, weights: Any) -> Any:
    if len(node.axes) > 1:
        keys, values, valid = (batch.spread(rows, node.axes[1]) for rows in (keys, values, valid))
    logits = (torch.tanh(keys + query[:, None]) @ weights).squeeze(2)
    shares = logits.masked_fill(~valid, -torch.inf).softmax(1)
    return torch.bmm(shares[:, None], values).squeeze(1)


declare("attend", _attended, unprepared(_attend), axes=_query_axes)
