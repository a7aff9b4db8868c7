"""Convert a script's data for a network, and a network's rows for a script."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from feedline.cntk.core import Value
from feedline.data import Value as PackedRows
from feedline.networks import Node
from feedline.networks.node import fits


def packed_of(data: Any, node: Node) -> Any:
    """Convert data for an input to a `feedline.Value`, or to rows without a batch if it has no dynamic axes.

    Args:
        data: `MinibatchData`, a `Value` of either kind, an array ``(N, *shape)`` or ``(N, length, *shape)``, a CSR
            matrix ``(N, size)``, or a list with one array ``(length, *shape)`` or CSR matrix per sequence. For an input
            with a sequence axis ``(N, *shape)`` and ``(N, size)`` are a single sequence, as in CNTK.
        node: input node.

    Raises:
        ValueError: another shape.
    """
    if isinstance(data, PackedRows) and not data.is_sparse and data.shape == node.shape:
        return data
    data = getattr(data, "data", data) if hasattr(data, "num_sequences") and not isinstance(data, PackedRows) else data
    if isinstance(data, Value):
        data = data.packed if data.packed is not None else data._rectangular()
    if isinstance(data, PackedRows):
        if not data.is_sparse and data.shape != node.shape and math.prod(data.shape) == math.prod(node.shape):
            # Readers deliver flat samples.
            return PackedRows.from_dense(
                data.rows.reshape(-1, *node.shape), None if data.one_sample_each else data.offsets
            )
        rows = None if data.is_sparse or fits(data.shape, node.shape) or not data.one_sample_each else data.rows
        # Rectangular data whose second axis is the sequence axis.
        return data if rows is None else _array(rows, node)
    if not node.axes:
        return _fixed(data, node)
    sequences = len(node.axes) > 1
    if hasattr(data, "tocsr"):
        rows = data.tocsr()
        return PackedRows.from_sequences([rows]) if sequences else PackedRows.from_scipy(rows)
    if isinstance(data, (list, tuple)):
        return _pack_list(list(data), node)
    array = np.asarray(data, None if isinstance(data, np.ndarray) else node.dtype)
    return _array(array[None] if sequences and array.ndim == len(node.shape) + 1 else array, node)


def _fixed(data: Any, node: Node) -> Any:
    import torch

    from feedline.networks.packed_minibatch import PackedRows as Rows

    return Rows(torch.from_numpy(np.array(data, node.dtype)))


def _array(array: Any, node: Node) -> PackedRows:
    shape = node.shape
    lead = array.ndim - len(shape)
    if lead == 0 and fits(array.shape, shape):
        return PackedRows.from_dense(array[None])
    if lead not in (1, 2) or not fits(array.shape[lead:], shape):
        raise ValueError(
            f"{node.label}: expected an array (N, *{shape}) or (N, length, *{shape}), got {array.shape}; pass "
            "sequences of different lengths as a list"
        )
    if lead == 1:
        return PackedRows.from_dense(array)
    count, length = array.shape[:2]
    rows = array.reshape(count * length, *array.shape[2:])
    return PackedRows.from_dense(rows, None if length == 1 else np.arange(count + 1) * length)


def _pack_list(items: list[Any], node: Node) -> PackedRows:
    if not items:
        raise ValueError(f"{node.label}: expected at least one sequence, got none")
    if hasattr(items[0], "tocsr"):
        return PackedRows.from_sequences(items)
    try:
        arrays = [np.asarray(item, None if isinstance(item, np.ndarray) else node.dtype) for item in items]
    except ValueError:
        raise ValueError(f"{node.label}: expected a list of arrays, got a list of ragged lists") from None
    rank = len(node.shape)
    if node.shape == (1,) and len(node.axes) > 1 and all(a.ndim == 1 for a in arrays):
        return PackedRows.from_sequences([a[:, None] for a in arrays])
    if all(a.ndim == rank for a in arrays):
        return _array(np.stack(arrays), node)
    if all(a.ndim == rank + 1 for a in arrays):
        return PackedRows.from_sequences(arrays)
    if len({a.shape for a in arrays}) == 1:
        return _array(np.stack(arrays), node)
    raise ValueError(f"{node.label}: expected sequences (length, *{node.shape}), got {[a.shape for a in arrays[:5]]}")


def feeds_of(arguments: Any, inputs: Sequence[Node], order: Sequence[Node]) -> dict[Node, Any]:
    """Return data for each input.

    Args:
        arguments: mapping by variable, name or stream, list or tuple of data in the order of the arguments, or the data
            of the only argument.
        inputs: inputs of the network.
        order: arguments of the function, in order.

    Raises:
        ValueError: an input without data, or data for a key that is not an argument.
    """
    arguments, _ = begun(arguments)
    if not isinstance(arguments, Mapping):
        if arguments is None:
            arguments = ()
        if len(order) == 1 and not (isinstance(arguments, tuple) and len(arguments) == 1):
            arguments = () if isinstance(arguments, tuple) and not arguments else (arguments,)
        if len(arguments) != len(order):
            raise ValueError(
                f"expected data for {len(order)} arguments, {', '.join(n.label for n in order)}, got {len(arguments)}"
            )
        return {node: packed_of(data, node) for node, data in zip(order, arguments, strict=True) if node in inputs}
    names = {node.name: node for node in reversed(order) if node.name}
    feeds: dict[Node, Any] = {}
    for key, data in arguments.items():
        node = names.get(key) if isinstance(key, str) else getattr(key, "node", None)
        if node is None or node not in order:
            raise ValueError(f"expected data for {', '.join(n.label for n in order) or 'nothing'}, got it for {key!r}")
        feeds[node] = packed_of(data, node)
    return feeds


def begun(arguments: Any) -> tuple[Any, Any]:
    """Split a pair of data and flags, bool (num_sequences,): whether each sequence begins. Flags may be None."""
    if isinstance(arguments, tuple) and len(arguments) == 2 and isinstance(arguments[1], (list, tuple)):
        data, flags = arguments
        if flags and all(isinstance(flag, (bool, np.bool_)) for flag in flags):
            return data, np.array(flags, np.bool_)
    return arguments, None


def pieces_of(data: Iterable[Any], begins: Any = None) -> tuple[Any, Any]:
    """Return (lanes, begins) of truncated sequences, see `feedline.Minibatch`, or (None, None) for whole sequences.

    Args:
        data: data of each input.
        begins: flags from `begun`, with one lane per sequence. None means that both are taken from the data.
    """
    if begins is not None:
        return np.arange(len(begins)), begins
    values = (getattr(item, "data", item) if hasattr(item, "num_sequences") else item for item in data)
    cut = next((v for v in values if isinstance(v, Value) and v.lanes is not None), None)
    return (None, None) if cut is None else (cut.lanes, cut._starts)


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

    if isinstance(array, Value):
        array = array.as_sequences() if array.packed is not None else array._rectangular()
    if isinstance(array, (list, tuple)):
        array = np.concatenate([np.asarray(a).reshape(-1, *like.shape[1:]) for a in array])
    tensor = torch.from_numpy(np.array(array)).to(like.device, like.dtype)
    if tensor.numel() == math.prod(like.shape):
        return tensor.reshape(like.shape)
    return tensor.expand(like.shape)
