"""Convert a script's data for an input of a network, and a network's rows for a script."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from feedline.cntk._bound_values import unbound
from feedline.cntk._sequences import rows_for
from feedline.cntk.core import Value
from feedline.data import Value as PackedRows
from feedline.networks import Node
from feedline.networks.node import fits


def packed_of(data: Any, node: Node) -> Any:
    """Return a `feedline.Value` for an input, or rows without a batch if it has no dynamic axes.

    Args:
        data: a `Value` of either kind.
        node: input node.

    Raises:
        ValueError: another shape.
    """
    if not node.axes:
        return _fixed(data if isinstance(data, Value) else Value.of(data), node)
    packed = data.packed if isinstance(data, Value) else data
    if packed is None:
        return rows_for(data._rectangular(), data.shape, node)
    if packed.is_sparse or fits(packed.shape, node.shape):
        return packed
    if math.prod(packed.shape) == math.prod(node.shape):  # readers deliver flat samples
        return PackedRows.from_dense(
            packed.rows.reshape(-1, *node.shape), None if packed.one_sample_each else packed.offsets
        )
    if not packed.one_sample_each:
        raise ValueError(f"{node.label}: expected samples of shape {node.shape}, got {packed.shape}")
    return rows_for(packed.rows, packed.rows.shape, node)  # its second axis may be the steps


def _fixed(value: Value, node: Node) -> Any:
    """Return the rows of an input without dynamic axes."""
    import torch

    from feedline.networks.packed_minibatch import PackedRows as Rows

    array = np.array(value, node.dtype)
    lead = array.ndim - len(node.shape)
    if lead not in (0, 1, 2) or array.shape[:lead] != (1,) * lead or not fits(array.shape[lead:], node.shape):
        raise ValueError(f"{node.label}: expected an array of shape {node.shape}, got {array.shape}")
    return Rows(torch.from_numpy(array.reshape(array.shape[lead:])))


def arrays_of(packed: Any) -> Any:
    """Copy rows to CNTK's form: an array (N, *shape), or a list with one array (length, *shape) per sequence."""
    from feedline.networks.packed_minibatch import SparseRows

    data = packed.data
    if isinstance(data, SparseRows) and data.dense_dtype is not None:
        data = data.dense()
    if isinstance(data, SparseRows):
        values = np.ones(len(data.indices), np.float32) if data.values is None else data.values.cpu().numpy()
        value = PackedRows.from_csr(
            data.offsets.cpu().numpy(),
            data.indices.cpu().numpy(),
            values,
            data.width,
            None if packed.sequences is None else packed.sequences.offsets,
        )
        sequences = [s.to_scipy().copy() for s in value.sequences()]
        return sequences if packed.sequences is not None else value.to_scipy().copy()
    array = data.detach().to("cpu", copy=True).numpy()
    if packed.sequences is None:
        return array
    return np.split(array, packed.sequences.offsets[1:-1])


def value_of(array: Any) -> Value:
    """Convert a result of `arrays_of` to a `Value`."""
    return Value.over(array)


def rows_of(array: Any, like: Any) -> Any:
    """Convert a result of `arrays_of`, or a number for all rows, to a tensor of rows like ``like``."""
    import torch

    array = unbound(array)
    if isinstance(array, Value):
        array = array.as_sequences() if array.packed is not None else array._rectangular()
    if isinstance(array, (list, tuple)):
        array = np.concatenate([np.asarray(a).reshape(-1, *like.shape[1:]) for a in array])
    tensor = torch.from_numpy(np.array(array)).to(like.device, like.dtype)
    if tensor.numel() == math.prod(like.shape):
        return tensor.reshape(like.shape)
    return tensor.expand(like.shape)
