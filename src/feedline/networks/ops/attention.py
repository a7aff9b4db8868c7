"""Attention of the steps of one axis to all steps of another, with weights from a network of one layer.

The attended sequences are padded once a minibatch, so that a recurrence can attend at each of its steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from feedline.networks.node import FREE, Node
from feedline.networks.ops.align import dense, lower_directly
from feedline.networks.ops.sequence import to_batch
from feedline.networks.packed_minibatch import PackedBatch
from feedline.networks.registry import Shape, Site, declare, first_axes
from feedline.networks.shapes import same, scalar


def _pad(node: Node, batch: PackedBatch, x: Any) -> Any:
    return _steps_of(node, batch, x, 0.0)


def _steps_of(node: Node, batch: PackedBatch, x: Any, padding: float) -> Any:
    """Return sequences side by side, (sequences, longest, *shape), padded at their ends."""
    sequences = batch.sequences[node.inputs[0].axes[1]]
    gaps = np.arange(sequences.count) * sequences.longest - sequences.offsets[:-1]
    place = torch.from_numpy(np.repeat(gaps, sequences.lengths) + np.arange(sequences.total)).to(sequences.device)
    rows = dense(x, node)
    shape = rows.shape[1:]
    padded = rows.new_full((sequences.count * sequences.longest, *shape), padding).index_copy(0, place, rows)
    return padded.reshape(sequences.count, sequences.longest, *shape)


def _valid(node: Node, batch: PackedBatch, x: Any) -> Any:
    sequences = batch.sequences[node.inputs[0].axes[1]]
    lengths = torch.from_numpy(sequences.lengths).to(sequences.device)[:, None]
    place, span = torch.arange(sequences.longest, device=sequences.device), node.attributes.get("span")
    if span is None:
        return place < lengths
    # The last steps, or with ``backwards`` the first ones.
    return (
        place < lengths.clamp(max=span)
        if node.attributes["backwards"]
        else (place >= lengths - span) & (place < lengths)
    )


def _unpack(node: Node, batch: PackedBatch, x: Any) -> Any:
    return _steps_of(node, batch, x, node.attributes["padding"])


def _marks(node: Node, batch: PackedBatch, x: Any) -> Any:
    return _valid(node, batch, x).to(x.dtype)


def _with_steps(site: Site) -> Shape:
    return (FREE, *site.shape(0))


def _steps_only(site: Site) -> Shape:
    return (FREE,)


declare("sequence_unpacked", _with_steps, lower_directly(_unpack), axes=to_batch, stepwise=False, whole=True)
declare("sequence_mask", _steps_only, lower_directly(_marks), axes=to_batch, stepwise=False, whole=True)

# Rows of these two have an axis more than their types, the padded steps. Only attention takes them.
declare("sequence_padded", same, lower_directly(_pad), axes=to_batch, stepwise=False, whole=True)
declare("sequence_valid", scalar, lower_directly(_valid), axes=to_batch, stepwise=False, whole=True)


def _weights_shape(site: Site) -> Shape:
    """Inputs: keys (a,), padded, valid, query (a,), weights (a, 1). One weight for each padded step."""
    keys, query, weights = site.shape(0), site.shapes[2], site.shape(3)
    if weights != (*keys, 1) or query not in (None, keys):
        site.refuse("keys, their validity, a query as wide as the keys, and weights (that width, 1)")
    return (FREE, 1)


def _with_query(site: Site) -> tuple[str, ...] | None:
    axes = site.types[2].axes
    if axes == ():
        site.refuse("a query for each sequence or for each of its steps")
    return axes


def _shares(node: Node, batch: PackedBatch, keys: Any, valid: Any, query: Any, weights: Any) -> Any:
    if len(node.axes) > 1:
        keys, valid = (batch.spread(rows, node.axes[1]) for rows in (keys, valid))
    logits = torch.tanh(keys + query[:, None]) @ weights
    return logits.masked_fill(~valid[..., None], -torch.inf).softmax(1)


def _mean_shape(site: Site) -> Shape:
    """Inputs: weights of the padded steps, values (h,), padded."""
    return site.shape(1)


def _mean(node: Node, batch: PackedBatch, shares: Any, values: Any) -> Any:
    if len(node.axes) > 1:
        values = batch.spread(values, node.axes[1])
    return torch.bmm(shares.mT, values).squeeze(1)


declare("attention_weights", _weights_shape, lower_directly(_shares), axes=_with_query)
declare("attention_mean", _mean_shape, lower_directly(_mean), axes=first_axes)


def _attended_shape(site: Site) -> Shape:
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


# Weights and mean in one operation, for files that were saved earlier.
declare("attend", _attended_shape, lower_directly(_attend), axes=_query_axes)
