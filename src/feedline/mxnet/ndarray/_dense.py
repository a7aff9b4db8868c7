"""`NDArray`: a torch tensor with MXNet's manners. Calls are done when they return; there is nothing to wait for."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from feedline.errors import CompatError
from feedline.mxnet.context import Context

_INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)


def torch_dtype(dtype: Any) -> Any:
    """A torch dtype for what MXNet takes as one; None is float32.

    Raises:
        TypeError: torch has none like it.
    """
    if dtype is None:
        return torch.float32
    found = getattr(torch, np.dtype(dtype).name, None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"expected a dtype that torch has, got {dtype!r}")
    return found


class NDArray:
    """A dense array on a context.

    Attributes:
        tensor: the torch tensor beneath; slices share its memory.
        context: where it is said to lie.
    """

    stype = "default"
    __hash__ = object.__hash__
    __array_priority__ = 1000.0

    def __init__(self, tensor: Any, context: Context) -> None:
        self.tensor, self.context = tensor, context

    # ---- what it is -----------------------------------------------------------------------------------------

    @property
    def ctx(self) -> Context:
        """The context."""
        return self.context

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> Any:
        """NumPy's type of an element, a class."""
        return np.dtype(str(self.tensor.dtype).removeprefix("torch.")).type

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(self.tensor.numel())

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return int(self.tensor.dim())

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        if self.size > 1:
            raise ValueError("The truth value of an NDArray with several elements is ambiguous; compare asnumpy()")
        return bool(self.tensor.item()) if self.size else False

    def __float__(self) -> float:
        return float(self.asscalar())

    def __int__(self) -> int:
        return int(self.asscalar())

    def __repr__(self) -> str:
        return f"\n{self.asnumpy()}\n<NDArray {'x'.join(map(str, self.shape))} @{self.context}>"

    # ---- copies and views -----------------------------------------------------------------------------------

    def asnumpy(self) -> Any:
        """A copy as NumPy array."""
        return self.tensor.to("cpu", copy=True).numpy()

    def asscalar(self) -> Any:
        """The only element.

        Raises:
            ValueError: there are more or none.
        """
        if self.size != 1:
            raise ValueError(f"expected an array of one element, got shape {self.shape}")
        return self.asnumpy().reshape(-1)[0]

    def copy(self) -> NDArray:
        """A copy on the same context."""
        return NDArray(self.tensor.clone(), self.context)

    def copyto(self, other: Any) -> Any:
        """Write to another array of this shape, or to a fresh one on a context; returns it.

        Raises:
            TypeError: neither of the two.
            ValueError: an array of another shape.
        """
        if isinstance(other, Context):
            return NDArray(self.tensor.to(other.device, copy=True), other)
        if not isinstance(other, NDArray):
            raise TypeError(f"expected an NDArray or Context, got {type(other).__name__}")
        if other.shape != self.shape:
            raise ValueError(f"expected an array of shape {self.shape}, got {other.shape}")
        other.tensor.copy_(self.tensor)
        return other

    def as_in_context(self, context: Context) -> NDArray:
        """The array itself if it lies there, or a copy that does."""
        return self if context == self.context else self.copyto(context)

    def astype(self, dtype: Any, copy: bool = True) -> NDArray:
        """In another dtype."""
        wanted = torch_dtype(dtype)
        return self if not copy and wanted is self.tensor.dtype else NDArray(_cast(self.tensor, wanted), self.context)

    def reshape(self, *shape: Any) -> NDArray:
        """In another shape of the same size; -1 is worked out."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        if any(n < -1 or n == 0 for n in wanted):
            raise CompatError(f"expected lengths or -1, got {wanted}: MXNet's codes 0 and below -1 are not there")
        return NDArray(self.tensor.reshape(wanted), self.context)

    def tostype(self, stype: str) -> Any:
        """The array itself (``"default"``), or its rows that are not zero (``"row_sparse"``)."""
        if stype == "default":
            return self
        from feedline.mxnet.ndarray.sparse import row_sparse_array

        if stype != "row_sparse":
            raise CompatError(f"expected stype 'default' or 'row_sparse', got {stype!r}; use scipy.sparse for others")
        return row_sparse_array(self)

    def wait_to_read(self) -> None:
        """Nothing: what was written is there."""

    def sum(self) -> NDArray:
        """The sum of all elements, as array of one."""
        return NDArray(self.tensor.sum(dtype=self.tensor.dtype).reshape(1), self.context)

    # ---- elements -------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> NDArray:
        found = self.tensor[_index(key)]
        return NDArray(found.reshape(1) if found.dim() == 0 else found, self.context)

    def __setitem__(self, key: Any, value: Any) -> None:
        operand = _operand(value, self.tensor)
        if operand is NotImplemented:
            operand = torch.as_tensor(value, dtype=self.tensor.dtype)  # nested lists
        self.tensor[_index(key)] = operand

    # ---- arithmetic -----------------------------------------------------------------------------------------

    def _apply(self, function: Callable[[Any, Any], Any], other: Any, swapped: bool = False) -> Any:
        operand = _operand(other, self.tensor)
        if operand is NotImplemented:
            return NotImplemented
        result = function(operand, self.tensor) if swapped else function(self.tensor, operand)
        return NDArray(result.to(self.tensor.dtype), self.context)

    def _apply_in_place(self, function: Callable[[Any, Any], Any], other: Any) -> Any:
        operand = _operand(other, self.tensor)
        if operand is NotImplemented:
            return NotImplemented
        self.tensor.copy_(function(self.tensor, operand)) if function is _divide else function(self.tensor, operand)
        return self

    def __add__(self, other: Any) -> Any:
        return self._apply(operator.add, other)

    def __sub__(self, other: Any) -> Any:
        return self._apply(operator.sub, other)

    def __mul__(self, other: Any) -> Any:
        return self._apply(operator.mul, other)

    def __truediv__(self, other: Any) -> Any:
        return self._apply(_divide, other)

    def __pow__(self, other: Any) -> Any:
        return self._apply(operator.pow, other)

    def __radd__(self, other: Any) -> Any:
        return self._apply(operator.add, other)

    def __rsub__(self, other: Any) -> Any:
        return self._apply(operator.sub, other, swapped=True)

    def __rmul__(self, other: Any) -> Any:
        return self._apply(operator.mul, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._apply(_divide, other, swapped=True)

    def __neg__(self) -> NDArray:
        return NDArray(-self.tensor, self.context)

    def __abs__(self) -> NDArray:
        return NDArray(abs(self.tensor), self.context)

    def __iadd__(self, other: Any) -> Any:
        return self._apply_in_place(operator.iadd, other)

    def __isub__(self, other: Any) -> Any:
        return self._apply_in_place(operator.isub, other)

    def __imul__(self, other: Any) -> Any:
        return self._apply_in_place(operator.imul, other)

    def __itruediv__(self, other: Any) -> Any:
        return self._apply_in_place(_divide, other)

    # Comparisons give 1 and 0 in the array's own dtype.

    def __eq__(self, other: object) -> Any:
        return self._apply(operator.eq, other)

    def __ne__(self, other: object) -> Any:
        return self._apply(operator.ne, other)

    def __lt__(self, other: Any) -> Any:
        return self._apply(operator.lt, other)

    def __le__(self, other: Any) -> Any:
        return self._apply(operator.le, other)

    def __gt__(self, other: Any) -> Any:
        return self._apply(operator.gt, other)

    def __ge__(self, other: Any) -> Any:
        return self._apply(operator.ge, other)


def _operand(other: Any, beside: Any) -> Any:
    """The other side of an operation as tensor on the same device, or as number."""
    if isinstance(other, NDArray):
        return other.tensor.to(beside.device)
    if hasattr(other, "todense"):
        return other.todense().tensor.to(beside.device)
    if isinstance(other, np.ndarray):
        return torch.as_tensor(other, dtype=beside.dtype, device=beside.device)
    if isinstance(other, (int, float, np.number, np.bool_)):
        number = other.item() if isinstance(other, np.generic) else other
        if beside.dtype in _INTEGERS and isinstance(number, float) and not number.is_integer():
            raise CompatError(f"expected a whole number beside an integer array, got {number}; use astype('float32')")
        return int(number) if beside.dtype in _INTEGERS else number
    return NotImplemented


def _divide(a: Any, b: Any) -> Any:
    """True division, and towards zero for integers, as in C."""
    whole = all(not isinstance(x, torch.Tensor) or x.dtype in _INTEGERS for x in (a, b))
    return torch.div(torch.as_tensor(a), b, rounding_mode="trunc" if whole else None)


def _index(key: Any) -> Any:
    if isinstance(key, NDArray):
        return key.tensor.to(torch.int64)
    if isinstance(key, tuple):
        return tuple(_index(one) for one in key)
    return torch.as_tensor(key) if isinstance(key, np.ndarray) else key


def _cast(tensor: Any, dtype: Any) -> Any:
    return tensor.to(dtype, copy=True)
