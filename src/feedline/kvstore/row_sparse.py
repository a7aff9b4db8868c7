"""Row-sparse values: gradients of few rows, and pulls of few rows.

Row-sparse values are ``torch.sparse_coo`` tensors with one sparse dimension, the first. Repeated rows are summed. Row
numbers out of range are an error. Stored arrays are always dense, so a pull of rows is a gather and costs nothing for
other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from feedline.collective.refusal import RefusedError
from feedline.kvstore.base import Key
from feedline.kvstore.call_arguments import as_tensor


def check_rows(key: Key, value: Any, shape: Any) -> None:
    """Raise RefusedError unless a sparse value consists of rows of an array of ``shape``."""
    if value.layout is not torch.sparse_coo or value.sparse_dim() != 1:
        raise RefusedError(
            f"expected rows for key {key!r}: a torch.sparse_coo tensor that is sparse in its first dimension alone, "
            f"got {value.layout}" + ("" if value.layout is not torch.sparse_coo else f", {value.sparse_dim()} sparse")
        )
    check_ids(key, value._indices()[0], shape[0])


def check_ids(key: Key, ids: Any, rows: int) -> None:
    """Raise RefusedError for an id that is not from 0 to below ``rows``."""
    if ids.numel() == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(ids))
    if low < 0 or high >= rows:
        raise RefusedError(f"expected rows 0 to {rows - 1} of key {key!r}, got {low if low < 0 else high}")


def sum_rows(values: Sequence[Any], device: Any) -> Any:
    """Return the sum of sparse values: coalesced, with each row distinct, ascending."""
    if len(values) == 1:
        return values[0].to(device).coalesce()
    indices = torch.cat([value._indices().to(device) for value in values], 1)
    rows = torch.cat([value._values().to(device) for value in values])
    return torch.sparse_coo_tensor(indices, rows, values[0].shape, check_invariants=False).coalesce()


def assign(stored: Any, value: Any) -> None:
    """Fill a dense tensor with the rows of a coalesced value, and zeros elsewhere."""
    stored.zero_()
    stored.index_copy_(0, value.indices()[0], value.values())


def as_ids(key: Key, row_ids: Any, rows: int) -> Any:
    """Return row numbers as a checked tensor of integers."""
    ids = as_tensor(row_ids, "row_ids") if isinstance(row_ids, np.ndarray) else row_ids
    if not isinstance(ids, torch.Tensor) or ids.dtype not in (torch.int64, torch.int32):
        got = ids.dtype if isinstance(ids, torch.Tensor) else type(row_ids).__name__
        raise TypeError(f"expected row_ids as a tensor or array of int64 or int32, got {got}")
    check_ids(key, ids, rows)
    return ids


def check_memory(key: Key, out: Any) -> None:
    """Raise RefusedError for a dense out whose elements share memory."""
    if not out.is_contiguous() and any(s == 0 and n > 1 for s, n in zip(out.stride(), out.shape, strict=True)):
        raise RefusedError(f"expected an out whose elements share no memory for key {key!r}, got an expanded tensor")


def check_out(key: Key, out: Any, ids: Any, stored: Any) -> None:
    """Raise RefusedError unless `pull` can fill ``out``."""
    if out.layout is torch.strided:
        expected, got = (*ids.shape, *stored.shape[1:]), tuple(out.shape)
        if got != expected:
            raise RefusedError(f"expected an out of shape {expected} for {ids.numel()} rows of key {key!r}, got {got}")
        check_memory(key, out)
    elif out.layout is not torch.sparse_coo or out.shape != stored.shape:
        raise RefusedError(
            f"expected a torch.sparse_coo out of shape {tuple(stored.shape)} for key {key!r}, got {out.layout} of "
            f"shape {tuple(out.shape)}"
        )


def pair_outs(key: Key, stored: Any, outs: Sequence[Any], row_ids: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return each out of a pull with its checked row numbers, given an array for each out, or one array for all.

    Raises:
        RefusedError: the stored array is a scalar, or outs and row numbers do not fit it or each other.
    """
    if not stored.dim():
        raise RefusedError(f"expected a key with rows, got {key!r}, which is a scalar")
    all_ids = [as_ids(key, numbers, stored.shape[0]) for numbers in row_ids]
    all_ids = all_ids * len(outs) if len(all_ids) == 1 else all_ids
    if len(all_ids) != len(outs):
        raise RefusedError(f"expected row_ids for {len(outs)} outs of key {key!r}, or one for all, got {len(all_ids)}")
    for out, ids in zip(outs, all_ids, strict=True):
        check_out(key, out, ids, stored)
    return list(zip(outs, all_ids, strict=True))


def pull(stored: Any, ids: Any, out: Any) -> None:
    """Fill an out that `check_out` has accepted. Rows are cast to its dtype."""
    ids = ids.to(stored.device)
    if out.layout is not torch.strided:
        distinct = torch.unique(ids.reshape(-1))
        fill_sparse(out, distinct, stored.index_select(0, distinct))
    elif out.device == stored.device and out.dtype is stored.dtype and out.is_contiguous():
        torch.index_select(stored, 0, ids.reshape(-1), out=out.view(-1, *stored.shape[1:]))
    else:
        out.copy_(stored.index_select(0, ids.reshape(-1)).view(out.shape))


def fill_sparse(out: Any, ids: Any, rows: Any) -> None:
    """Replace the content of a sparse out by rows, cast to its dtype, with ascending row numbers."""
    out.copy_(torch.sparse_coo_tensor(ids[None], rows, out.shape, is_coalesced=True, check_invariants=False))
