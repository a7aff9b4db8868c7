"""`cntk.core`: values, the data of one variable for one minibatch, over `feedline.Value`.

A `Value` is either packed (rows and offsets, as feedline delivers them) or rectangular (a script's array or CSR matrix,
whose axes are unknown until it is passed for a variable). Padding, masks and dense copies are computed on demand. Data
stays in host memory. ``device`` records where it will be used.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.cntk._names import absent_members, names_of
from feedline.cntk._sequences import pack_for
from feedline.cntk.device import DeviceDescriptor, intended_device
from feedline.data import Value as Packed
from feedline.errors import shown
from feedline.networks import Node

__all__, __getattr__ = names_of(__name__)

_START, _VALID = 2, 1  # numbers of a mask, in which padding is 0
_TYPES = tuple(np.dtype(t) for t in ("float32", "float64", "float16", "int8", "int16"))


@absent_members("cntk.core")
class NDArrayView:
    """An array or a CSR matrix with its device, created by `from_dense`, `from_csr` and `from_data`.

    Args:
        shape: shape of a new array of zeros.
        data_type: element type of the array.
        device: device on which it will be used.
    """

    def __init__(self, shape: Sequence[int], data_type: Any, device: DeviceDescriptor | None = None) -> None:
        self._take(np.zeros(tuple(shape), data_type), device, False)

    def _take(self, data: Any, device: DeviceDescriptor | None, read_only: bool, shape: Sequence[int] = ()) -> None:
        self._data, self.device, self.is_read_only = data, device or intended_device(), read_only
        self._shape = tuple(shape or data.shape)

    @staticmethod
    def from_dense(
        np_array: NDArray[Any], device: DeviceDescriptor | None = None, read_only: bool = False, borrow: bool = False
    ) -> NDArrayView:
        """Create a view of a copy of an array, or with ``borrow`` of the array itself.

        Raises:
            TypeError: not an array.
        """
        if not isinstance(np_array, np.ndarray):
            raise TypeError(f"expected a NumPy array, got {type(np_array).__name__}")
        return _view(np_array if borrow else np_array.copy(), device, read_only)

    @staticmethod
    def from_csr(
        csr_array: Any,
        device: DeviceDescriptor | None = None,
        read_only: bool = False,
        borrow: bool = False,
        shape: Sequence[int] | None = None,
    ) -> NDArrayView:
        """Create a view of a copy of a SciPy CSR matrix, or with ``borrow`` of the matrix itself.

        Args:
            csr_array: matrix.
            device: device on which it will be used.
            read_only: whether the view is read-only.
            borrow: whether to share the matrix.
            shape: shape of the data, whose last axis is the columns and whose other axes are the rows of the matrix.
                None means the shape of the matrix.

        Raises:
            TypeError: not a CSR matrix.
            ValueError: a shape of other numbers of rows or columns.
        """
        if getattr(csr_array, "format", None) != "csr":
            raise TypeError(f"expected a SciPy CSR matrix, got {type(csr_array).__name__}; use .tocsr()")
        dims = tuple(csr_array.shape if shape is None else shape)
        if dims[-1:] != csr_array.shape[1:] or math.prod(dims[:-1]) != csr_array.shape[0]:
            raise ValueError(f"expected a shape for the rows and columns of a matrix {csr_array.shape}, got {dims}")
        return _view(csr_array if borrow else csr_array.copy(), device, read_only, dims)

    @staticmethod
    def from_data(
        data: Any, device: DeviceDescriptor | None = None, read_only: bool = False, borrow: bool = False
    ) -> NDArrayView:
        """Create a view of an array, a number or a CSR matrix. A view is returned unchanged.

        Raises:
            TypeError: another type.
        """
        if isinstance(data, NDArrayView):
            return data
        if hasattr(data, "tocsr"):
            return NDArrayView.from_csr(data, device, read_only, borrow)
        return NDArrayView.from_dense(np.asarray(data) if np.isscalar(data) else data, device, read_only, borrow)

    def as_string(self) -> str:
        """Return the same text as `repr`."""
        return repr(self)

    def to_ndarray(self) -> Any:
        """Same as `asarray`."""
        return self.asarray()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the data."""
        return self._shape

    dtype = property(attrgetter("_data.dtype"), doc="Element type.")

    @property
    def is_sparse(self) -> bool:
        """Whether it is a CSR matrix."""
        return not isinstance(self._data, np.ndarray)

    def asarray(self) -> Any:
        """Return a copy, as an array or a CSR matrix."""
        return self._data.copy()

    def slice_view(self, start_offset: Sequence[int], extent: Sequence[int], read_only: bool = True) -> NDArrayView:
        """Return a view of a part of the array.

        Args:
            start_offset: first index along each axis.
            extent: lengths along the last axes. The axes before them are dropped.
            read_only: whether the result is read-only.
        """
        lead = len(start_offset) - len(extent)
        where: list[int | slice] = list(start_offset[:lead])
        where += [slice(a, a + n) for a, n in zip(start_offset[lead:], extent, strict=True)]
        return _view(self._data[tuple(where)], self.device, read_only)

    def deep_clone(self, read_only: bool = False) -> NDArrayView:
        """Return a view of a copy, on the same device."""
        return _view(self._data.copy(), self.device, read_only, self.shape)

    def alias(self, read_only: bool = False) -> NDArrayView:
        """Return another view of the same data."""
        return _view(self._data, self.device, read_only, self.shape)

    def as_shape(self, shape: Any) -> NDArrayView:
        """Return a view of the same data with another shape.

        Raises:
            ValueError: a shape with another number of elements, or sparse data.
        """
        dims = tuple(np.atleast_1d(shape).tolist())
        if self.is_sparse or math.prod(dims) != math.prod(self.shape):
            raise ValueError(f"expected a shape for the elements of dense data {self.shape}, got {dims} for {self!r}")
        return _view(self._data.reshape(dims), self.device, self.is_read_only)

    def set_value(self, value: Any) -> None:
        """Set all elements to a number, or to the elements of an array or view of this shape.

        Raises:
            ValueError: another shape, or a view that is read-only or sparse.
        """
        if self.is_read_only or self.is_sparse:
            raise ValueError(f"expected a dense view that can be written, got {self!r}; make one by deep_clone()")
        new = np.asarray(value.asarray() if isinstance(value, NDArrayView) else value)
        if new.shape not in ((), self.shape):
            raise ValueError(f"expected a value of shape {self.shape}, got {new.shape}")
        self._data[...] = new

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        dense = self._data.toarray().reshape(self.shape) if self.is_sparse else self._data
        return np.array(dense, dtype, copy=copy)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"NDArrayView({_dims(self.shape)}, {self.device.label})"


def _view(data: Any, device: DeviceDescriptor | None, read_only: bool, shape: Sequence[int] = ()) -> NDArrayView:
    view = NDArrayView.__new__(NDArrayView)
    view._take(data, device, read_only, shape)
    return view


@absent_members("cntk.core")
class Value:
    """The data of one variable for one minibatch.

    Arrays are copied in and out, as in CNTK, so that a script's changes to its arrays do not affect a value.

    Args:
        batch: an array ``(N, ...)`` or SciPy CSR matrix ``(N, size)``, a list with one array ``(length, *shape)`` or
            CSR matrix ``(length, size)`` per sequence, nested lists of numbers, an `NDArrayView`, or a
            `feedline.Value`. The latter two are not copied.
        seq_starts: whether each sequence begins here, rather than continuing from the last minibatch. None means that
            all begin.
        device: device on which it will be used.

    Raises:
        ValueError: no batch, sequences with different sample shapes, or different numbers of ``seq_starts`` and
            sequences.
        TypeError: an element type that CNTK does not have.

    Attributes:
        packed: rows and offsets, or None for a rectangular value. Sparse samples of several axes are flat in it.
        lanes: int64 (num_sequences,) under truncation, see `feedline.Minibatch`, else None.
    """

    ONE_HOT_SKIP = 0xFFFFFFFF

    def __init__(
        self, batch: Any = None, seq_starts: Sequence[bool] | None = None, device: DeviceDescriptor | None = None
    ) -> None:
        if batch is None:
            raise ValueError("expected a batch, got none")
        self._take(*_convert(batch), batch, seq_starts, device)

    @classmethod
    def over(
        cls, batch: Any, seq_starts: Sequence[bool] | None = None, device: DeviceDescriptor | None = None
    ) -> Value:
        """Create a value without copies, which is valid until ``batch`` is written to."""
        value = cls.__new__(cls)
        value._take(*_convert(batch, borrow=True), batch, seq_starts, device)
        return value

    def _take(self, packed: Packed | None, array: Any, batch: Any, seq_starts: Any, device: Any) -> None:
        self.packed, self._array = packed, array
        self._dims = batch.shape if isinstance(batch, NDArrayView) else None
        self._device = device
        self.lanes: NDArray[np.int64] | None = None
        self._read_only = isinstance(batch, NDArrayView) and batch.is_read_only
        self._starts = None if seq_starts is None else np.asarray(seq_starts, np.bool_)
        if self._starts is not None and self._starts.shape != (len(self),):
            raise ValueError(f"expected a bool for each of {len(self)} sequences, got {len(self._starts)}")

    @classmethod
    def of(
        cls,
        packed: Packed,
        device: DeviceDescriptor | None = None,
        begins: NDArray[np.bool_] | None = None,
        lanes: NDArray[np.int64] | None = None,
        sample_shape: tuple[int, ...] | None = None,
    ) -> Value:
        """Create a value over rows and offsets from a feed, without checks or copies.

        ``sample_shape`` is the shape of sparse samples of several axes, which are flat in a feed.
        """
        value = cls.__new__(cls)
        value.packed, value._array, value._device, value._dims = packed, None, device, sample_shape
        value._starts, value.lanes, value._read_only = begins, lanes, False
        return value

    @staticmethod
    def create(
        var: Any,
        data: Any,
        seq_starts: Sequence[bool] | None = None,
        device: DeviceDescriptor | None = None,
        read_only: bool = False,
    ) -> Value:
        """Copy data for a variable, converted to its ``dtype``. This is how `Function.eval` and trainers read data.

        Args:
            var: variable.
            data: an array or a SciPy CSR matrix, which is the minibatch as it is, or a list with one sequence per item:
                an array ``(length, *shape)``, a matrix ``(length, size)``, nested lists, or a single sample.
            seq_starts: whether each sequence begins here, rather than continuing from the last minibatch. None means
                that all begin. With it, each row of an array is a sequence of one sample.
            device: device on which it will be used.
            read_only: whether the value is read-only.

        Raises:
            TypeError: ``var`` is not a variable.
            ValueError: data of another type, or sequences of other samples.
        """
        if isinstance(data, (Value, Packed)):
            return data if isinstance(data, Value) else Value.of(data, device)
        if not isinstance(getattr(var, "node", None), Node):
            raise TypeError(f"expected a variable, got {type(var).__name__}")
        value = Value.borrow(var.node, data, seq_starts, device)
        value._read_only = read_only
        return value.deep_clone(read_only) if value.packed is None else value

    @classmethod
    def borrow(
        cls, node: Node, data: Any, seq_starts: Sequence[bool] | None = None, device: DeviceDescriptor | None = None
    ) -> Value:
        """Convert data for the variable of a node as `create`, without copies where the type fits."""
        if isinstance(data, NDArrayView):
            return cls.over(data, seq_starts, device)
        value = cls.__new__(cls)
        value._take(*pack_for(data, node, seq_starts), data, seq_starts, device)
        return value

    @staticmethod
    def one_hot(batch: Any, num_classes: Any, dtype: Any = None, device: DeviceDescriptor | None = None) -> Value:
        """Create one-hot samples.

        Args:
            batch: class numbers: an array or a list of them, one per sample of a batch, or one list or array of them
                per sequence. ``Value.ONE_HOT_SKIP`` means a row of zeros.
            num_classes: number of classes, or the shape of a sample, whose last axis is the classes. A sample of
                several axes takes one class number for each of its rows.
            dtype: float32 (None) or float64.
            device: device on which it will be used.

        Raises:
            ValueError: not class numbers in one or two levels, one out of range, sequences of another number of rows,
                or another dtype.
        """
        shape = (int(num_classes),) if isinstance(num_classes, numbers.Integral) else tuple(num_classes)
        kind = np.dtype(np.float32 if dtype is None else dtype)
        if kind not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise ValueError(f"expected float32 or float64, got {kind.name}")
        try:
            levels = [np.asarray(item) for item in batch]
        except (TypeError, ValueError):
            levels = []
        flat = bool(levels) and all(level.ndim == 0 for level in levels)
        if not levels or not (flat or all(level.ndim == 1 for level in levels)):
            raise ValueError(f"expected class numbers in a list, or in a list of lists, got {shown(batch, 80)}")
        rows = math.prod(shape[:-1])
        for number, level in enumerate(levels):
            if level.size and level.dtype.kind not in "iu":
                raise ValueError(f"expected ints as class numbers, got {level.dtype.name}")
            if level.size % rows:
                raise ValueError(
                    f"expected {rows} class numbers for each sample of shape {shape}, got {level.size} in item {number}"
                )
        classes = np.concatenate([level.reshape(-1) for level in levels]).astype(np.int64)
        present = classes != Value.ONE_HOT_SKIP
        if present.any() and (classes[present].min() < 0 or classes[present].max() >= shape[-1]):
            outside = classes[present & ((classes < 0) | (classes >= shape[-1]))][0]
            raise ValueError(f"expected class numbers from 0 to {shape[-1] - 1}, got {outside}")
        # Rows of a sample follow one another in a flat row.
        indptr = np.concatenate([[0], np.cumsum(present)])[::rows]
        columns = (classes + np.arange(len(classes)) % rows * shape[-1])[present]
        offsets = None if flat else np.cumsum([0, *(level.size // rows for level in levels)], dtype=np.int64)
        packed = Packed.from_csr(indptr, columns, np.ones(len(columns), kind), math.prod(shape), offsets)
        if flat:  # without an axis of steps
            return Value.over(packed.to_scipy(), device=device)
        return Value.of(packed, device, sample_shape=shape)

    # ---- properties -------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape: (sequences, samples of the longest, *sample) of packed data, or the shape of the array."""
        if self.packed is None:
            return tuple(self._dims or self._rectangular().shape)
        return (self.packed.num_sequences, _longest(self.packed), *(self._dims or self.packed.shape))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return np.dtype(self._rectangular().dtype) if self.packed is None else self.packed.dtype

    @property
    def is_sparse(self) -> bool:
        """Whether data is stored as indices and values."""
        return hasattr(self._rectangular(), "tocsr") if self.packed is None else self.packed.is_sparse

    is_read_only = property(attrgetter("_read_only"), doc="Whether it was created read-only.")

    @property
    def device(self) -> DeviceDescriptor:
        """Device on which it will be used."""
        return self._device or intended_device()

    @property
    def mask(self) -> NDArray[np.uint8]:
        """Mask, uint8 (sequences, longest): 2 where a sequence begins, 1 for its other samples, 0 for padding.

        Raises:
            AttributeError: no mask, as every sequence has one sample and begins here.
        """
        if self.packed is None or (_longest(self.packed) <= 1 and self._starts is None):
            raise AttributeError("no mask: every sequence has one sample")
        mask = self.packed.mask.astype(np.uint8) * np.uint8(_VALID)
        starts = slice(None) if self._starts is None else self._starts
        if mask.shape[1]:
            first = mask[:, 0]
            first[starts] *= np.uint8(_START)
        return mask

    @property
    def data(self) -> NDArrayView:
        """View of the data, or of a padded copy of packed data."""
        if self.packed is None:
            return _view(self._rectangular(), self._device, self._read_only, self.shape)
        return _view(self.asarray(), self._device, self._read_only)

    # ---- as arrays --------------------------------------------------------------------------------

    def asarray(self) -> Any:
        """Return a copy as an array: ``(sequences, longest, *sample)``, padded with zeros, or a rectangular array.

        Raises:
            ValueError: sparse sequences of different lengths, whose dense padding may be huge. Use `as_sequences`.
        """
        if self.packed is None:
            return self._rectangular().copy()
        lengths = self.packed.lengths
        if self.packed.is_sparse and len(lengths) and lengths.min() != lengths.max():
            raise ValueError("expected sparse sequences of one length, got several: use as_sequences(variable)")
        return self.packed.padded(length=_longest(self.packed)).reshape(self.shape)

    def as_sequences(self, variable: Any = None) -> list[Any]:
        """Return an unpadded copy of each sequence: an array ``(length, *sample)``, or a SciPy CSR matrix if sparse.

        The columns of a matrix are the last axis of the samples.

        Args:
            variable: variable of the data. As in CNTK, sparse data requires it, but it is not used.

        Raises:
            ValueError: sparse data without a variable.
        """
        if self.is_sparse and variable is None:
            raise ValueError("expected the variable of sparse data, got none; pass it to as_sequences")
        if self.packed is None:
            return list(self._rectangular().copy())
        if self.packed.is_sparse:
            columns = self.shape[-1]
            return [sequence.to_scipy().reshape(-1, columns).tocsr().copy() for sequence in self.packed.sequences()]
        return [sequence.copy() for sequence in self.packed.sequences()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array = self.asarray()
        return np.array(array.toarray().reshape(self.shape) if hasattr(array, "toarray") else array, dtype, copy=copy)

    def deep_clone(self, read_only: bool = False) -> Value:
        """Return a deep copy."""
        clone = Value.__new__(Value)
        packed = None if self.packed is None else self.packed.select(np.arange(self.packed.num_sequences))
        clone.packed, clone._array = packed, None if self.packed is not None else self._rectangular().copy()
        clone._starts = None if self._starts is None else self._starts.copy()
        clone._device, clone.lanes, clone._read_only, clone._dims = self._device, self.lanes, read_only, self._dims
        return clone

    def erase(self) -> None:
        """Release the data. The value cannot be used afterwards. Not needed, as values are reference-counted."""
        self.packed = self._array = None

    def _rectangular(self) -> Any:
        if self._array is None:
            raise ValueError("this value was erased")
        return self._array

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Value({_dims(self.shape)}, {self.device.label})"


def _convert(batch: Any, borrow: bool = False) -> tuple[Packed | None, Any]:
    """Return packed and rectangular data, one of them None. With ``borrow``, arrays are not copied."""
    if type(batch) is np.ndarray and batch.dtype in _TYPES:
        return None, batch if borrow else np.array(batch)
    if isinstance(batch, Value):
        return batch.packed, batch._array
    if isinstance(batch, Packed):
        return batch, None
    if isinstance(batch, NDArrayView):
        return None, batch._data
    if hasattr(batch, "tocsr"):
        return None, _typed(batch.tocsr(copy=not borrow))
    if isinstance(batch, (list, tuple)) and batch and (isinstance(batch[0], np.ndarray) or hasattr(batch[0], "tocsr")):
        packed = Packed.from_sequences([_typed(x.tocsr() if hasattr(x, "tocsr") else np.asarray(x)) for x in batch])
        return packed, None
    array = np.asarray(batch) if borrow else np.array(batch)
    if array.dtype == object:
        raise ValueError("expected nested lists of equal lengths at each level, got ragged ones; use a list of arrays")
    if not isinstance(batch, np.ndarray) and array.dtype not in _TYPES:
        array = array.astype(np.float32)
    return None, _typed(array)


def _typed(array: Any) -> Any:
    if np.dtype(array.dtype) not in _TYPES:
        raise TypeError(
            f"expected one of {', '.join(t.name for t in _TYPES)}, got {array.dtype}; use .astype(np.float32)"
        )
    return array


def _longest(packed: Packed) -> int:
    if packed.one_sample_each:
        return 1
    lengths = packed.lengths
    return int(lengths.max()) if len(lengths) else 0


def _dims(shape: tuple[int, ...]) -> str:
    return f"[{' x '.join(map(str, shape))}]"


def asarray(value: Any, dtype: Any = None) -> NDArray[Any]:
    """Return a value, minibatch data or anything array-like as an array.

    Raises:
        ValueError: a value that cannot be converted.
    """
    array = value.asarray() if hasattr(value, "asarray") else np.asarray(value)
    if array.dtype.hasobject:
        raise ValueError(f"expected an array, or something that converts to one, got {type(value).__name__}")
    converted: NDArray[Any] = array if dtype is None else array.astype(dtype)
    return converted


def asvalue(variable: Any, data_array: Any) -> Value:
    """Convert data for ``variable``. See `Value.create`."""
    return Value.create(variable, data_array)
