"""`NDArray`: a torch tensor with MXNet's interface. All calls are synchronous."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from feedline.errors import CompatError
from feedline.mxnet._names import absent_members
from feedline.mxnet.context import Context

_INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)


def torch_dtype(dtype: Any) -> Any:
    """Convert a dtype in any form that MXNet accepts to torch's. None means float32.

    Raises:
        TypeError: torch has none like it.
    """
    if dtype is None:
        return torch.float32
    converted = getattr(torch, np.dtype(dtype).name, None)
    if not isinstance(converted, torch.dtype):
        raise TypeError(f"expected a dtype that torch has, got {dtype!r}")
    return converted


def _divide(a: Any, b: Any) -> Any:
    """Divide. Integers are rounded towards zero, as in C."""
    integral = all(not isinstance(x, torch.Tensor) or x.dtype in _INTEGERS for x in (a, b))
    return torch.div(torch.as_tensor(a), b, rounding_mode="trunc" if integral else None)


def _binary(function: Callable[[Any, Any], Any], in_place: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: NDArray, other: Any) -> Any:
        operand = _operand(other, self.tensor)
        if operand is NotImplemented:
            return NotImplemented
        result = function(self.tensor, operand)
        return self if in_place else NDArray(result.to(self.tensor.dtype), self.context)

    return method


@absent_members("mxnet.ndarray")
class NDArray:
    """A dense array on a context.

    Attributes:
        tensor: underlying torch tensor. Slices share its memory.
        context: context of the array.
    """

    stype = "default"
    __hash__ = object.__hash__
    __array_priority__ = 1000.0

    def __init__(self, tensor: Any, context: Context) -> None:
        self.tensor, self.context = tensor, context

    # ---- properties -----------------------------------------------------------------------------------------

    ctx = property(attrgetter("context"), doc="The context.")

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> Any:
        """Element type, a NumPy scalar class."""
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
        """Return a copy as a NumPy array."""
        return self.tensor.to("cpu", copy=True).numpy()

    def asscalar(self) -> Any:
        """Return the only element.

        Raises:
            ValueError: the array has not exactly one element.
        """
        if self.size != 1:
            raise ValueError(f"expected an array of one element, got shape {self.shape}")
        return self.asnumpy().reshape(-1)[0]

    def copy(self) -> NDArray:
        """Return a copy on the same context."""
        return NDArray(self.tensor.clone(), self.context)

    def copyto(self, other: Any) -> Any:
        """Copy to another array of this shape, or to a new one on a context, and return the copy.

        Raises:
            TypeError: neither an array nor a context.
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
        """Return the array if it is on that context, or a copy on it."""
        return self if context == self.context else self.copyto(context)

    def astype(self, dtype: Any, copy: bool = True) -> NDArray:
        """Return the array in another dtype."""
        target = torch_dtype(dtype)
        same = not copy and target is self.tensor.dtype
        return self if same else NDArray(self.tensor.to(target, copy=True), self.context)

    def reshape(self, *shape: Any) -> NDArray:
        """Return the array in another shape of the same size. -1 is inferred."""
        lengths = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        if any(n < -1 or n == 0 for n in lengths):
            raise CompatError(f"expected lengths or -1, got {lengths}: MXNet's codes 0 and below -1 are not supported")
        return NDArray(self.tensor.reshape(lengths), self.context)

    def tostype(self, stype: str) -> Any:
        """Return the array (``"default"``), or its nonzero rows (``"row_sparse"``)."""
        if stype == "default":
            return self
        from feedline.mxnet.ndarray.sparse import row_sparse_array

        if stype != "row_sparse":
            raise CompatError(f"expected stype 'default' or 'row_sparse', got {stype!r}; use scipy.sparse for others")
        return row_sparse_array(self)

    def wait_to_read(self) -> None:
        """Do nothing, as writes are synchronous."""

    @property
    def T(self) -> NDArray:  # noqa: N802 - MXNet's name
        """The array with its axes in reverse order."""
        return NDArray(self.tensor.permute(*range(self.ndim - 1, -1, -1)), self.context)

    # ---- elements -------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> NDArray:
        result = self.tensor[_index(key)]
        return NDArray(result.reshape(1) if result.dim() == 0 else result, self.context)

    def __setitem__(self, key: Any, value: Any) -> None:
        operand = _operand(value, self.tensor)
        if operand is NotImplemented:
            operand = torch.as_tensor(value, dtype=self.tensor.dtype)  # nested lists
        self.tensor[_index(key)] = operand

    # ---- arithmetic -----------------------------------------------------------------------------------------

    def __neg__(self) -> NDArray:
        return NDArray(-self.tensor, self.context)

    def __abs__(self) -> NDArray:
        return NDArray(abs(self.tensor), self.context)

    __add__ = __radd__ = _binary(operator.add)
    __mul__ = __rmul__ = _binary(operator.mul)
    __sub__, __rsub__ = _binary(operator.sub), _binary(lambda x, y: y - x)
    __truediv__, __rtruediv__ = _binary(_divide), _binary(lambda x, y: _divide(y, x))
    __pow__ = _binary(operator.pow)
    __iadd__, __isub__ = _binary(operator.iadd, in_place=True), _binary(operator.isub, in_place=True)
    __imul__ = _binary(operator.imul, in_place=True)
    __itruediv__ = _binary(lambda x, y: x.copy_(_divide(x, y)), in_place=True)
    # Comparisons return 1 and 0 in the array's dtype.
    __eq__, __ne__ = _binary(operator.eq), _binary(operator.ne)
    __lt__, __le__ = _binary(operator.lt), _binary(operator.le)
    __gt__, __ge__ = _binary(operator.gt), _binary(operator.ge)


# Operators that are methods, too.
METHODS = (
    *("abs", "argmax", "argmin", "argsort", "broadcast_like", "broadcast_to", "clip", "cos", "dot"),
    *("exp", "expand_dims", "expm1", "flatten", "flip", "floor", "log", "log10", "log1p"),
    *("log2", "log_softmax", "max", "mean", "min", "norm", "one_hot", "pad", "pick"),
    *("prod", "relu", "repeat", "reshape_like", "round", "rsqrt", "sigmoid", "sign", "sin"),
    *("slice", "slice_axis", "softmax", "sort", "split", "sqrt", "square", "squeeze", "sum"),
    *("swapaxes", "take", "tan", "tanh", "tile", "topk", "transpose", "zeros_like", "ones_like"),
)


def _method(name: str) -> Callable[..., Any]:
    def method(self: NDArray, *args: Any, **kwargs: Any) -> Any:
        return importlib.import_module("feedline.mxnet._imperative").FUNCTIONS[name](self, *args, **kwargs)

    method.__name__, method.__qualname__ = name, f"NDArray.{name}"
    method.__doc__ = f"See `mxnet.ndarray.{name}`."
    return method


for _name in METHODS:
    setattr(NDArray, _name, _method(_name))


def _operand(value: Any, like: Any) -> Any:
    """Return the other operand as a tensor on the same device, or as a number."""
    if isinstance(value, NDArray):
        return value.tensor.to(like.device)
    if hasattr(value, "todense"):
        return value.todense().tensor.to(like.device)
    if isinstance(value, np.ndarray):
        return torch.as_tensor(value, dtype=like.dtype, device=like.device)
    if isinstance(value, (int, float, np.number, np.bool_)):
        number = value.item() if isinstance(value, np.generic) else value
        if like.dtype in _INTEGERS and isinstance(number, float) and not number.is_integer():
            raise CompatError(f"expected an integer with an integer array, got {number}; use astype('float32')")
        return int(number) if like.dtype in _INTEGERS else number
    return NotImplemented


def _index(key: Any) -> Any:
    if isinstance(key, NDArray):
        return key.tensor.to(torch.int64)
    if isinstance(key, tuple):
        return tuple(_index(part) for part in key)
    return torch.as_tensor(key) if isinstance(key, np.ndarray) else key
