"""`mxnet.ndarray.sparse`: row-sparse arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from feedline.mxnet._names import names_of
from feedline.mxnet.base import MXNetError
from feedline.mxnet.context import Context, cpu, current_context, gpu
from feedline.mxnet.ndarray._dense import NDArray, torch_dtype

__all__, __getattr__ = names_of(__name__)


class RowSparseNDArray:
    """Row-sparse array: some rows, in ascending order without duplicates. All other rows are zero.

    Attributes:
        shape: shape of the whole array.
        context: context of the array.
    """

    stype = "row_sparse"

    def __init__(self, ids: Any, rows: Any, shape: tuple[int, ...], context: Context) -> None:
        # None means all rows, which share memory with their source.
        self._ids, self._rows, self.shape, self.context = ids, rows, tuple(shape), context

    ctx = property(attrgetter("context"), doc="The context.")
    dtype = property(attrgetter("data.dtype"), doc="Element type, a NumPy scalar class.")

    @property
    def size(self) -> int:
        """Number of elements of the whole array."""
        return int(np.prod(self.shape))

    @property
    def indices(self) -> NDArray:
        """Indices of the rows, int64, ascending."""
        return NDArray(torch.arange(self.shape[0]) if self._ids is None else self._ids, self.context)

    @property
    def data(self) -> NDArray:
        """The rows."""
        return NDArray(self._rows, self.context)

    def set(self, ids: Any, rows: Any) -> None:
        """Replace the rows."""
        self._ids, self._rows = ids, rows

    def coo(self) -> Any:
        """Return a ``torch.sparse_coo`` tensor."""
        ids = self.indices.tensor.to(self._rows.device)
        return torch.sparse_coo_tensor(ids[None], self._rows, self.shape, is_coalesced=True, check_invariants=False)

    def todense(self) -> NDArray:
        """Return a dense copy."""
        return NDArray(self.coo().to_dense(), self.context)

    def tostype(self, stype: str) -> Any:
        """Return the array (``"row_sparse"``) or a dense copy (``"default"``)."""
        return self if stype == "row_sparse" else self.todense().tostype(stype)

    def asnumpy(self) -> Any:
        """Return a dense copy as a NumPy array."""
        return self.todense().asnumpy()

    def astype(self, dtype: Any, copy: bool = True) -> RowSparseNDArray:
        """Return the array in another dtype."""
        data = self.data.astype(dtype, copy)
        return RowSparseNDArray(self._ids, data.tensor, self.shape, self.context)

    def wait_to_read(self) -> None:
        """Do nothing, as writes are synchronous."""

    def copy(self) -> RowSparseNDArray:
        """Return a copy on the same context."""
        copied: RowSparseNDArray = self.copyto(self.context)
        return copied

    def copyto(self, other: Any) -> Any:
        """Copy to another array of this shape, or to a new one on a context, and return the copy."""
        if isinstance(other, Context):
            ids = self.indices.tensor.to(other.device, copy=True)
            return RowSparseNDArray(ids, self._rows.to(other.device, copy=True), self.shape, other)
        if isinstance(other, RowSparseNDArray):
            if other.shape != self.shape:
                raise ValueError(f"expected an array of shape {self.shape}, got {other.shape}")
            other.set(self.indices.tensor.clone(), self._rows.to(other._rows, copy=True))
            return other
        return self.todense().copyto(other)

    def as_in_context(self, context: Context) -> RowSparseNDArray:
        """Return the array if it is on that context, or a copy on it."""
        return self if context == self.context else self.copyto(context)

    def __repr__(self) -> str:
        return f"\n<RowSparseNDArray {'x'.join(map(str, self.shape))} @{self.context}>"

    # ---- arithmetic: results stay sparse where zeros stay zero ----------------------------------------------

    def _scale(self, function: Callable[[Any, Any], Any], operand: Any) -> Any:
        if isinstance(operand, (int, float, np.number)):
            scaled = function(self.data, operand)
            return RowSparseNDArray(self.indices.tensor, scaled.tensor, self.shape, self.context)
        return function(self.todense(), operand)

    def __mul__(self, other: Any) -> Any:
        return self._scale(operator.mul, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self._scale(operator.truediv, other)

    def __neg__(self) -> Any:
        return self * -1

    def __add__(self, other: Any) -> Any:
        if isinstance(other, RowSparseNDArray):
            return _from_coo((self.coo() + other.coo()).coalesce(), self.context)
        return self.todense() + other

    def __sub__(self, other: Any) -> Any:
        return self + -other

    __radd__ = __add__

    def __iadd__(self, other: Any) -> Any:
        return self._add(other, 1)

    def __isub__(self, other: Any) -> Any:
        return self._add(other, -1)

    def _add(self, operand: Any, sign: int) -> RowSparseNDArray:
        if not isinstance(operand, RowSparseNDArray) or operand.shape != self.shape:
            if self._ids is not None or isinstance(operand, RowSparseNDArray):
                raise MXNetError(f"expected a row_sparse array of shape {self.shape}, got {operand!r}")
            self._rows.add_((operand.tensor if isinstance(operand, NDArray) else operand), alpha=sign)
        elif self._ids is None:
            self._rows.index_add_(0, operand.indices.tensor, operand._rows, alpha=sign)
        else:
            total = self + operand * sign
            self.set(total.indices.tensor, total.data.tensor)
        return self

    def __imul__(self, other: Any) -> Any:
        self._rows.mul_(other)
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        if key != slice(None):
            raise MXNetError("expected [:] for a row_sparse array, got another index")
        if self._ids is None:
            self.data[:] = value
        else:
            value.copyto(self)


def row_sparse_array(arg1: Any, shape: Any = None, ctx: Context | None = None, dtype: Any = None) -> RowSparseNDArray:
    """Create a row-sparse array from ``(data, indices)``, or from the nonzero rows of a dense array.

    Args:
        arg1: ``(data, indices)``, or an array.
        shape: shape of the whole array. None means up to the last row.
        ctx: context. None means the default.
        dtype: element type. None means float32, or the element type of the array.

    Raises:
        MXNetError: indices that are not ascending, or rows that do not fit ``shape``.
    """
    ctx = current_context() if ctx is None else ctx
    if not isinstance(arg1, tuple):
        dense = arg1.tensor if isinstance(arg1, NDArray) else torch.as_tensor(np.asarray(arg1))
        element_type = dense.dtype if dtype is None and isinstance(arg1, NDArray) else torch_dtype(dtype)
        return from_dense(dense.to(ctx.device, element_type), ctx)
    data, indices = (part.tensor if isinstance(part, NDArray) else torch.as_tensor(np.asarray(part)) for part in arg1)
    rows = data.to(ctx.device, torch_dtype(dtype), copy=True)
    ids = indices.to(ctx.device, torch.int64, copy=True).reshape(-1)
    if shape is None:
        shape = (int(ids.max()) + 1 if ids.numel() else 0, *rows.shape[1:])
    if rows.numel() == 0:
        rows = rows.reshape(0, *shape[1:])
    if len(ids) != len(rows) or tuple(rows.shape[1:]) != tuple(shape[1:]):
        raise MXNetError(f"expected {len(ids)} rows of shape {tuple(shape[1:])}, got {tuple(rows.shape)}")
    if ids.numel() and (bool((ids[1:] <= ids[:-1]).any()) or int(ids[0]) < 0 or int(ids[-1]) >= shape[0]):
        raise MXNetError(f"expected ascending indices from 0 to {shape[0] - 1}, got {ids.tolist()[:10]}")
    return RowSparseNDArray(ids, rows, shape, ctx)


def from_dense(dense: Any, context: Context) -> RowSparseNDArray:
    """Return the nonzero rows of a tensor."""
    ids = dense.reshape(dense.shape[0], -1).ne(0).any(1).nonzero()[:, 0]
    return RowSparseNDArray(ids, dense.index_select(0, ids), tuple(dense.shape), context)


def from_tensor(tensor: Any) -> NDArray | RowSparseNDArray:
    """Return a tensor as an array on its device, a ``torch.sparse_coo`` tensor as a row-sparse one."""
    context = gpu(tensor.device.index) if tensor.is_cuda else cpu()
    return NDArray(tensor, context) if tensor.layout is torch.strided else _from_coo(tensor, context)


def zeros(stype: str, shape: Any, ctx: Context | None = None, dtype: Any = None) -> Any:
    """Return an array of zeros. ``stype`` is ``"row_sparse"`` or ``"default"``."""
    ctx = current_context() if ctx is None else ctx
    if stype == "row_sparse":
        ids = torch.empty(0, dtype=torch.int64, device=ctx.device)
        rows = torch.empty((0, *shape[1:]), dtype=torch_dtype(dtype), device=ctx.device)
        return RowSparseNDArray(ids, rows, tuple(shape), ctx)
    return NDArray(torch.zeros(shape, dtype=torch_dtype(dtype), device=ctx.device), ctx).tostype(stype)


def _from_coo(coo: Any, context: Context) -> RowSparseNDArray:
    return RowSparseNDArray(coo.indices()[0], coo.values(), tuple(coo.shape), context)
