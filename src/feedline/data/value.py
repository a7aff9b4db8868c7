"""A value: the rows of one stream, and the offsets that split them into sequences.

Dense rows are one array ``(num_samples, *shape)``, sparse rows are CSR arrays, and byte strings share one buffer.
``offsets[i]:offsets[i + 1]`` are the rows of sequence ``i``. A value whose sequences all have one sample keeps no
offsets, so that plain samples cost nothing extra. Nothing is copied without need: `sequences` returns views, `padded`
and `dense` return copies.
"""

from __future__ import annotations

import abc
import importlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from feedline import _native
from feedline._native import recycled
from feedline.data.faults import locate
from feedline.data.schema import Schema, Stream
from feedline.errors import DataError, SchemaError, install_line

if TYPE_CHECKING:
    import scipy.sparse

BYTES, TEXT = np.dtype("S"), np.dtype("U")

# Exporters by framework, imported on first use: NumPy users never pay for a framework.
_EXPORTERS: dict[str, str | Callable[..., Any]] = {
    "torch": "feedline.interop.torch:export",
    "jax": "feedline.interop.jax:export",
}


def register_exporter(framework: str, exporter: str | Callable[..., Any]) -> None:
    """Make ``Value.<framework>()`` work through ``exporter(value, **options)`` or a ``"module:function"``."""
    _EXPORTERS[framework] = exporter


def _exporter(framework: str) -> Callable[..., Any]:
    exporter = _EXPORTERS.get(framework)
    if exporter is None:
        raise LookupError(f"no exporter for {framework!r}; registered are {', '.join(sorted(_EXPORTERS)) or 'none'}")
    if isinstance(exporter, str):
        module, _, name = exporter.partition(":")
        exporter = _EXPORTERS[framework] = getattr(importlib.import_module(module), name)
    return exporter


class Value(abc.ABC):
    """The rows of one stream for some sequences, made by `Value.from_dense`, `Value.from_csr` and friends.

    Attributes:
        shape: shape of one sample.
        dtype: element type.
        is_sparse: rows are CSR arrays ``indptr``, ``indices``, ``values``. Otherwise they are one array ``rows``, or
            byte strings.
        rows: dense values only, (num_samples, *shape).
        indptr, indices, values: sparse values only, int64 (num_samples + 1,), int32 and dtype (non-zeros,).
        bounds, data: values of byte strings only, int64 (num_samples + 1,) and uint8 (bytes,).
        num_sequences: number of sequences.
        num_samples: number of rows, over all sequences.
    """

    __slots__ = ("_offsets",)

    _offsets: NDArray[np.int64] | None
    rows: NDArray[Any]
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: NDArray[Any]
    bounds: NDArray[np.int64]
    data: NDArray[np.uint8]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_sparse: bool
    num_samples: int

    # ---- constructors -------------------------------------------------------------------------------

    @staticmethod
    def from_dense(rows: ArrayLike, offsets: ArrayLike | None = None) -> DenseValue:
        """Return a dense value over ``rows`` (num_samples, *shape), not copied.

        Args:
            rows: one row per sample.
            offsets: int64 (num_sequences + 1,) from 0 to num_samples, never decreasing. None: one row per sequence.
        """
        rows = unmasked(rows)
        if rows.ndim == 0:
            raise ValueError("expected rows with at least one dimension (num_samples, ...), got a scalar")
        return DenseValue(rows, _check_offsets(offsets, len(rows)))

    @staticmethod
    def from_csr(
        indptr: ArrayLike, indices: ArrayLike, values: ArrayLike, classes: int, offsets: ArrayLike | None = None
    ) -> SparseValue:
        """Return a sparse value over CSR arrays, one row per sample, ``classes`` columns. Arrays are not copied where
        dtypes fit.

        Raises:
            ValueError: arrays that contradict each other, or an index outside ``0 <= index < classes``.
        """
        ptr = _integers(indptr, "indptr")
        idx = _integers(indices, "indices", wide=False)
        val = np.ascontiguousarray(values)
        if not 0 <= classes <= 2**31:
            raise ValueError(f"expected 0 to {2**31} classes, got {classes}")
        _check_ascending(ptr, "indptr", len(idx))
        if val.shape != idx.shape:
            raise ValueError(f"expected one value for each index, got shapes {val.shape} and {idx.shape}")
        if len(idx) and (idx.min() < 0 or idx.max() >= classes):
            raise ValueError(f"expected indices in [0, {classes}), got {idx.min()} to {idx.max()}")
        idx = np.ascontiguousarray(idx, np.int32)
        return SparseValue(ptr, idx, val, int(classes), _check_offsets(offsets, len(ptr) - 1))

    @staticmethod
    def from_scipy(matrix: Any, offsets: ArrayLike | None = None) -> SparseValue:
        """Return a sparse value over a SciPy sparse matrix or array, one row per sample."""
        csr = matrix.tocsr()
        return Value.from_csr(csr.indptr, csr.indices, csr.data, csr.shape[1], offsets)

    @staticmethod
    def from_sequences(sequences: Sequence[ArrayLike], dtype: DTypeLike | None = None) -> Value:
        """Copy one array ``(length, *shape)`` (or SciPy sparse matrix) per sequence into a value.

        Raises:
            ValueError: no sequences, or sequences that disagree on the shape of a sample.
        """
        if len(sequences) == 0:
            raise ValueError("expected at least one sequence: the shape of a sample cannot be inferred without one")
        if hasattr(sequences[0], "tocsr"):
            rows = [m.tocsr() for m in sequences]  # type: ignore[union-attr]
            widths = {m.shape[1] for m in rows}
            if len(widths) > 1:
                raise ValueError(f"expected the same number of columns in all sequences, got {sorted(widths)}")
            ends = np.cumsum([0] + [m.shape[0] for m in rows], dtype=np.int64)
            stacked = _scipy_sparse().vstack(rows, "csr")
            numbers = stacked.data.astype(dtype or np.float32, copy=False)  # SciPy has no float16
            return Value.from_csr(stacked.indptr, stacked.indices, numbers, stacked.shape[1], ends)
        arrays = [np.asarray(unmasked(s), dtype) for s in sequences]
        for i, array in enumerate(arrays):
            if array.ndim == 0 or array.shape[1:] != arrays[0].shape[1:]:
                raise ValueError(
                    f"expected (length, *{arrays[0].shape[1:]}) for every sequence, got {array.shape} for sequence {i}"
                )
        ends = np.cumsum([0] + [len(a) for a in arrays], dtype=np.int64)
        return DenseValue(np.concatenate(arrays), _drop_trivial(ends))

    @staticmethod
    def from_bytes(samples: Sequence[Any], dtype: DTypeLike | None = None) -> BytesValue:
        """Copy byte strings or texts into a value: one per sequence, or a list of them per sequence.

        Args:
            samples: ``bytes`` or ``str``.
            dtype: ``"bytes"`` or ``"str"``, which they must be. None: their own type, and bytes if there are none.

        Raises:
            TypeError: samples that are neither ``bytes`` nor ``str``, or both.
            ValueError: a text that UTF-8 cannot represent.
        """
        return strings_from_list(samples, None if dtype is None else np.dtype(dtype) == TEXT)

    @staticmethod
    def from_buffer(
        data: Any, bounds: ArrayLike, dtype: DTypeLike = "bytes", offsets: ArrayLike | None = None
    ) -> BytesValue:
        """Return a value of byte strings over one buffer, not copied.

        Args:
            data: uint8 array, or anything with Python's buffer interface.
            bounds: int64 (num_samples + 1,) from 0 to the size of ``data``, never decreasing: sample i is
                ``data[bounds[i]:bounds[i + 1]]``.
            dtype: ``"bytes"``, or ``"str"`` for texts, which are checked to be UTF-8 when they are copied.
            offsets: int64 (num_sequences + 1,) from 0 to num_samples. None: one sample per sequence.

        Raises:
            ValueError: arrays that contradict each other.
        """
        flat = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        if flat.ndim != 1 or flat.dtype != np.uint8:
            raise ValueError(f"expected one-dimensional uint8 data, got {flat.dtype} of shape {flat.shape}")
        ends = _integers(bounds, "bounds")
        _check_ascending(ends, "bounds", len(flat))
        if np.dtype(dtype) not in (BYTES, TEXT):
            raise ValueError(f"expected 'bytes' or 'str' as dtype of byte strings, got {dtype!r}")
        text = np.dtype(dtype) == TEXT
        return BytesValue(ends, np.ascontiguousarray(flat), _check_offsets(offsets, len(ends) - 1), text=text)

    @staticmethod
    def one_hot(indices: Any, classes: int, dtype: DTypeLike = np.float32) -> SparseValue:
        """Return a sparse value of one-hot samples.

        Args:
            indices: a flat sequence of class indices (one sample per sequence), or one sequence of class indices
                per sequence.
            classes: number of columns.
            dtype: element type.

        Raises:
            ValueError: an index outside ``0 <= index < classes``.
        """
        ragged = len(indices) > 0 and np.ndim(indices[0]) == 1
        if ragged:
            parts = [_integers(s, "class indices") for s in indices]
            flat = np.concatenate(parts)
            offsets = np.cumsum([0] + [len(p) for p in parts], dtype=np.int64)
        else:
            flat, offsets = _integers(indices, "class indices"), None
        if flat.ndim != 1:
            raise ValueError(f"expected class indices in one or two levels, got shape {flat.shape}")
        if len(flat) and (flat.min() < 0 or flat.max() >= classes):
            raise ValueError(f"expected class indices in [0, {classes}), got {flat.min()} to {flat.max()}")
        n = len(flat)
        return SparseValue(
            np.arange(n + 1, dtype=np.int64),
            flat.astype(np.int32),
            np.ones(n, dtype),
            int(classes),
            None if offsets is None else _drop_trivial(offsets),
        )

    @staticmethod
    def empty(stream: Stream, ragged: bool = False, count: int = 0) -> Value:
        """Return a value of ``count`` sequences without content, as ``stream`` declares. If ``ragged``, it has offsets
        and no samples. Otherwise samples are zeros or empty strings, which take no memory."""
        rows, offsets = (0, np.zeros(count + 1, np.int64)) if ragged else (count, None)
        bounds = np.zeros(rows + 1, np.int64)
        if stream.sparse:
            return SparseValue(bounds, np.empty(0, np.int32), np.empty(0, stream.dtype), stream.size, offsets)
        if stream.is_bytes:
            return BytesValue(bounds, np.empty(0, np.uint8), offsets, text=stream.is_text)
        shape = (rows, *stream.shape)
        zeros = np.broadcast_to(np.zeros((), stream.dtype), shape) if count else np.empty(shape, stream.dtype)
        return DenseValue(zeros, offsets)

    # ---- sequences --------------------------------------------------------------------------------

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return self.num_samples if self._offsets is None else len(self._offsets) - 1

    @property
    def offsets(self) -> NDArray[np.int64]:
        """int64 (num_sequences + 1,): the rows of sequence i are ``offsets[i]:offsets[i + 1]``."""
        if self._offsets is None:
            return np.arange(self.num_samples + 1, dtype=np.int64)
        return self._offsets

    @property
    def lengths(self) -> NDArray[np.int64]:
        """int64 (num_sequences,): number of samples of each sequence."""
        if self._offsets is None:
            return np.ones(self.num_samples, np.int64)
        return np.diff(self._offsets)

    @property
    def one_sample_each(self) -> bool:
        """Whether every sequence has exactly one sample, known without computing the lengths."""
        return self._offsets is None

    @property
    def mask(self) -> NDArray[np.bool_]:
        """bool (num_sequences, longest): True where `padded` has a sample."""
        lengths = self.lengths
        longest = int(lengths.max()) if len(lengths) else 0
        mask: NDArray[np.bool_] = np.arange(longest) < lengths[:, None]
        return mask

    def __len__(self) -> int:
        return self.num_sequences

    @abc.abstractmethod
    def sequences(self) -> list[Any]:
        """Return one item per sequence: arrays ``(length, *shape)`` or sparse `Value` objects, which are not copied, or
        lists of ``bytes`` or ``str``."""

    def tolist(self) -> list[Any]:
        """Return one item of Python's types per sequence: a sample, or a list of samples if sequences have several."""
        dense = self.dense()
        return dense.rows.tolist() if self._offsets is None else [rows.tolist() for rows in dense.sequences()]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.sequences())

    @abc.abstractmethod
    def select(self, which: ArrayLike) -> Value:
        """Copy the sequences at the indices ``which``, in that order, into a new value.

        Raises:
            IndexError: an index outside ``0 <= index < num_sequences``.
        """

    @abc.abstractmethod
    def slice(self, start: int, stop: int) -> Value:
        """Return the sequences ``start:stop`` as a value over the same rows. Only offsets are copied.

        A value with offsets keeps them, even where all selected sequences have one sample, so that a slice has the
        layout of its value.
        """

    @abc.abstractmethod
    def dense(self) -> DenseValue:
        """Return the value with dense rows, or itself if it is dense. Duplicate sparse indices are summed, byte strings
        padded."""

    @abc.abstractmethod
    def class_indices(self) -> DenseValue:
        """Return the class of each one-hot sample of a sparse value, as a dense int64 value of shape ().

        Raises:
            TypeError: the value is dense.
            ValueError: a sample with none or several non-zeros.
        """

    def padded(self, fill: Any = 0, length: int | None = None) -> NDArray[Any]:
        """Return all sequences in one array, short ones padded. Sparse values become dense. Byte strings become uint8
        rows of the longest one's length, padded with zeros.

        Args:
            fill: value for places where a sequence has no sample.
            length: padded length. None: the length of the longest sequence.

        Returns:
            ``(num_sequences, length, *shape)``, or ``(num_sequences, *shape)`` without a copy when every
            sequence has one sample and ``length`` is None.

        Raises:
            ValueError: ``length`` is shorter than the longest sequence.
        """
        dense = self.dense()
        if length is None and self.one_sample_each:
            return dense.rows
        return dense.padded_with_mask(fill, length)[0]

    # ---- frameworks -------------------------------------------------------------------------------

    @abc.abstractmethod
    def to_scipy(self) -> scipy.sparse.csr_matrix:
        """Return a SciPy CSR matrix (num_samples, size), sharing memory where the value is sparse."""

    def torch(self, device: Any = None, layout: str | None = None, pin_memory: bool = False) -> Any:
        """Return a torch tensor, without a copy on the CPU where the layout allows.

        Args:
            device: device of the tensor. None: the CPU.
            layout: ``"padded"``: (num_sequences, longest, *shape) with zeros as padding, or (num_sequences, *shape)
                when every sequence has one sample. ``"packed"``: (num_samples, *shape), one sequence after another (see
                `offsets`). ``"nested"``: a jagged nested tensor. ``"csr"``: a sparse CSR tensor (num_samples, size).
                ``"list"``: for byte strings, uint8 tensors nested as `tolist` does. None: ``"csr"`` for sparse values,
                ``"list"`` for byte strings, else ``"padded"``.
            pin_memory: whether to copy it into page-locked memory first. Requires a CUDA device.

        Raises:
            ModuleNotFoundError: torch is not installed (``pip install 'feedline[torch]'``).
        """
        return _exporter("torch")(self, device=device, layout=layout, pin_memory=pin_memory)

    def jax(self, device: Any = None) -> Any:
        """Return a JAX array, laid out as `padded`. `Minibatch.jax` also makes global arrays of several processes.

        Args:
            device: JAX device, or sharding over devices of this process. None: the default device.

        Raises:
            ModuleNotFoundError: JAX is not installed (``pip install 'feedline[jax]'``).
        """
        return _exporter("jax")(self, device=device)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Return `padded` with zeros."""
        array = self.padded()
        if copy is False and (self.is_sparse or not self.one_sample_each or dtype not in (None, array.dtype)):
            raise ValueError("expected a value that can be exported without a copy, got a ragged or sparse one")
        return np.array(array, dtype, copy=bool(copy)) if copy or dtype not in (None, array.dtype) else array

    def __dlpack__(self, **options: Any) -> Any:
        return self.padded().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # kDLCPU

    # ---- description ---------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        nbytes = sum(array.nbytes for array in self._content())
        return nbytes + (0 if self._offsets is None else self._offsets.nbytes)

    @abc.abstractmethod
    def describe(self) -> str:
        """Describe the value in one line: dtype, counts, shape, kind."""

    def check(self, name: str, stream: Stream) -> None:
        """Check the value against a declaration.

        Raises:
            SchemaError: another kind, shape or dtype than ``stream`` declares.
        """
        if self.is_sparse != stream.sparse or self.shape != stream.shape or self.dtype != stream.dtype:
            actual = Stream(self.shape, self.dtype, self.is_sparse)
            raise SchemaError(f"expected {_samples(stream)} for stream `{name}`, got {_samples(actual)}")

    def _counts(self) -> str:
        n = self.num_sequences
        if self._offsets is None:
            return f"{n} sample{'s' if n != 1 else ''}"
        # A copy, as the offsets may be mapped: printing the value, as in a traceback, must not end the process.
        try:
            lengths = np.diff(_native.copied(np.ascontiguousarray(self._offsets)))
        except DataError:
            return f"{n} sequences ({self.num_samples} samples) of a truncated file"
        span = f"{lengths.min()} to {lengths.max()}" if n else "none"
        return f"{n} sequence{'s' if n != 1 else ''} of {span} ({self.num_samples} samples)"

    @abc.abstractmethod
    def _content(self) -> tuple[NDArray[Any], ...]:
        """Return the arrays that hold the samples."""

    def _arrays(self) -> tuple[Any, ...]:
        """Return the arrays of the value in the gather kernel's layout."""
        return (*self._content(), self._offsets)

    def _gather(self, kind: int | str | None, which: ArrayLike) -> Any:
        gatherer = _native.Gatherer([kind])
        gatherer.add(0, [self._arrays()])
        return gatherer.gather(None, _integers(which, "indices of sequences"))[0]

    def __repr__(self) -> str:
        return f"Value({self.describe()})"

    def __eq__(self, other: object) -> bool:
        """Compare kind, dtype, sequences and content: numbers (NaN equals NaN), entries in order, bytes."""
        if not isinstance(other, Value):
            return NotImplemented
        return (
            (self.is_sparse, self.shape, self.dtype) == (other.is_sparse, other.shape, other.dtype)
            and np.array_equal(self.offsets, other.offsets)
            and all(
                np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
                for a, b in zip(self._content(), other._content(), strict=True)
            )
        )

    __hash__ = None  # type: ignore[assignment]  # arrays inside


class DenseValue(Value):
    """A value whose rows are one array ``(num_samples, *shape)``."""

    __slots__ = ("rows",)

    is_sparse = False

    def __init__(self, rows: NDArray[Any], offsets: NDArray[np.int64] | None = None) -> None:
        # Trusted: `Value.from_dense` or a kernel has checked the arrays. This runs once per stream and minibatch,
        # so it does nothing else.
        self.rows = rows
        self._offsets = offsets

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape of one sample."""
        return self.rows.shape[1:]

    @property
    def dtype(self) -> np.dtype[Any]:  # type: ignore[override]
        """Element type."""
        return self.rows.dtype

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Number of rows."""
        return len(self.rows)

    def sequences(self) -> list[NDArray[Any]]:
        """Return views ``(length, *shape)``, one per sequence."""
        if self._offsets is None:
            return list(self.rows[:, None])
        bounds = self._offsets.tolist()
        return [self.rows[a:b] for a, b in itertools.pairwise(bounds)]

    def slice(self, start: int, stop: int) -> DenseValue:
        """Return the sequences ``start:stop`` as a value over the same rows."""
        if self._offsets is None:
            return DenseValue(self.rows[start:stop])
        first, last, offsets = _part(self._offsets, start, stop)
        return DenseValue(self.rows[first:last], offsets)

    def select(self, which: ArrayLike) -> DenseValue:
        """Copy the chosen sequences, in the order of ``which``, into a new value."""
        return DenseValue(*self._gather(None, which))

    def joined_with(self, values: Sequence[DenseValue], offsets: NDArray[np.int64] | None) -> DenseValue:
        """Return one value of these sequences and the sequences of ``values``, with ``offsets`` for all of them, or
        None for one sample each."""
        return DenseValue(recycled.concatenate([self.rows, *(value.rows for value in values)]), offsets)

    def _content(self) -> tuple[NDArray[Any], ...]:
        return (self.rows,)

    def _arrays(self) -> tuple[Any, ...]:
        rows = self.rows if self._offsets is None else np.ascontiguousarray(self.rows)
        return (rows, self._offsets)

    def dense(self) -> DenseValue:
        """Return the value itself."""
        return self

    def class_indices(self) -> DenseValue:
        """Raise a TypeError: only sparse values are one-hot."""
        raise TypeError("expected a sparse one-hot value, got a dense one; use .rows.argmax(axis=-1)")

    def padded_with_mask(self, fill: Any = 0, length: int | None = None) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return `padded` and the mask of real samples, computed in one pass.

        Returns:
            ``(num_sequences, length, *shape)`` and bool ``(num_sequences, length)``.
        """
        rows = np.ascontiguousarray(self.rows)
        padded, mask = _native.pad(rows, self.offsets, np.asarray(fill, rows.dtype), -1 if length is None else length)
        return padded, mask

    def to_scipy(self) -> scipy.sparse.csr_matrix:
        """Return the rows as a SciPy CSR matrix without the zeros."""
        return _scipy_sparse().csr_matrix(self.rows.reshape(self.num_samples, math.prod(self.shape)))

    def describe(self) -> str:
        """Describe the value in one line: dtype, counts, shape, kind."""
        return f"{self.dtype.name} {self.shape} dense, {self._counts()}"


class SparseValue(Value):
    """A value whose rows are CSR arrays: row i has ``indices[indptr[i]:indptr[i + 1]]`` and its ``values``.

    Indices within a row keep the order of the data and may repeat. Repeated indices are summed.
    """

    __slots__ = ("classes", "indices", "indptr", "values")

    is_sparse = True

    def __init__(
        self,
        indptr: NDArray[np.int64],
        indices: NDArray[np.int32],
        values: NDArray[Any],
        classes: int,
        offsets: NDArray[np.int64] | None = None,
    ) -> None:
        self.indptr = indptr
        self.indices = indices
        self.values = values
        self.classes = classes
        self._offsets = offsets

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape of one sample: (classes,)."""
        return (self.classes,)

    @property
    def dtype(self) -> np.dtype[Any]:  # type: ignore[override]
        """Element type."""
        return self.values.dtype

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Number of rows."""
        return len(self.indptr) - 1

    @property
    def rows(self) -> NDArray[Any]:  # type: ignore[override]
        """Not for a sparse value: raises a TypeError that names the alternatives."""
        raise TypeError("a sparse value has no dense rows: use .indptr/.indices/.values, .to_scipy() or .dense().rows")

    def sequences(self) -> list[SparseValue]:
        """Return one sparse value per sequence, as views where NumPy allows."""
        bounds = self.offsets.tolist()
        return [self._slice(a, b) for a, b in itertools.pairwise(bounds)]

    def _slice(self, a: int, b: int) -> SparseValue:
        lo, hi = self.indptr[a], self.indptr[b]
        offsets = None if b - a == 1 else np.array([0, b - a], np.int64)
        return SparseValue(self.indptr[a : b + 1] - lo, self.indices[lo:hi], self.values[lo:hi], self.classes, offsets)

    def slice(self, start: int, stop: int) -> SparseValue:
        """Return the sequences ``start:stop`` as a value over the same entries."""
        offsets = None
        if self._offsets is not None:
            start, stop, offsets = _part(self._offsets, start, stop)
        lo, hi, indptr = _part(self.indptr, start, stop)
        return SparseValue(indptr, self.indices[lo:hi], self.values[lo:hi], self.classes, offsets)

    def select(self, which: ArrayLike) -> SparseValue:
        """Copy the chosen sequences, in the order of ``which``, into a new value."""
        indptr, indices, values, offsets = self._gather(self.classes, which)
        return SparseValue(indptr, indices, values, self.classes, offsets)

    def _content(self) -> tuple[NDArray[Any], ...]:
        return self.indptr, self.indices, self.values

    def checked_indices(self, stream: str | None = None) -> NDArray[np.int32]:
        """Return `indices` after checking that each is a class. Errors name ``stream``. Exporters use this, never
        `indices`.

        Indices of minibatches, and of values made from arrays, have been checked before. The indices in a view of a
        file may be anything, and SciPy and torch would read and write foreign memory with them. The check costs 0.3 µs,
        and a tenth of a nanosecond per index.

        Raises:
            DataError: an index is out of range, or its file was truncated.
        """
        indices = np.ascontiguousarray(self.indices)
        at = _native.first_bad_index(indices, self.classes)
        if at < 0:
            return self.indices
        path, byte = locate(indices.ctypes.data + at * indices.itemsize) or (None, None)
        row = int(np.searchsorted(self.indptr, at, side="right")) - 1
        raise DataError(
            f"expected indices in [0, {self.classes}), got {indices[at]} in the sequence at index "
            f"{int(np.searchsorted(self.offsets, row, side='right')) - 1}",
            path=path,
            byte=byte,
            stream=stream,
            hint="the data is damaged; write it again",
        )

    def dense(self) -> DenseValue:
        """Return the value with dense rows (num_samples, classes). Repeated indices are summed."""
        indices = self.checked_indices()
        rows = np.zeros((self.num_samples, self.classes), self.dtype)
        at = np.repeat(np.arange(self.num_samples), np.diff(self.indptr))
        np.add.at(rows, (at, indices), self.values)
        return DenseValue(rows, self._offsets)

    def class_indices(self) -> DenseValue:
        """Return the class of each one-hot sample, as a dense int64 value of shape ().

        Raises:
            ValueError: a sample with none or several non-zeros.
        """
        if len(self.indices) != self.num_samples or (np.diff(self.indptr) != 1).any():
            raise ValueError("expected exactly one non-zero in every sample; use .to_scipy() for other sparse rows")
        return DenseValue(self.checked_indices().astype(np.int64), self._offsets)

    def to_scipy(self) -> scipy.sparse.csr_matrix:
        """Return the rows as a SciPy CSR matrix that shares this value's memory."""
        csr = self.values, self.checked_indices(), self.indptr
        return _scipy_sparse().csr_matrix(csr, shape=(self.num_samples, self.classes))

    def describe(self) -> str:
        """Describe the value in one line: dtype, counts, shape, kind."""
        return f"{self.dtype.name} {self.shape} sparse, {self._counts()}, {len(self.values)} non-zeros"


class BytesValue(Value):
    """A value whose sample i is ``data[bounds[i]:bounds[i + 1]]``; see `Value.from_buffer`.

    Attributes:
        bounds: int64 (num_samples + 1,), from 0.
        data: uint8 (bytes of all samples,).
    """

    __slots__ = ("bounds", "data", "text")

    is_sparse = False
    shape = ()

    def __init__(
        self, bounds: NDArray[np.int64], data: NDArray[np.uint8], offsets: NDArray[np.int64] | None, *, text: bool
    ) -> None:
        # Trusted, as in `DenseValue`.
        self.bounds = bounds
        self.data = data
        self._offsets = offsets
        self.text = text

    @property
    def dtype(self) -> np.dtype[Any]:  # type: ignore[override]
        """``np.dtype("S")`` for bytes, ``np.dtype("U")`` for texts."""
        return TEXT if self.text else BYTES

    @property
    def kind(self) -> str:
        """``"bytes"`` or ``"str"``."""
        return "str" if self.text else "bytes"

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Number of byte strings."""
        return len(self.bounds) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """int64 (num_samples,): bytes of each sample."""
        return np.diff(self.bounds)

    @property
    def rows(self) -> NDArray[Any]:  # type: ignore[override]
        """Not for byte strings: raises a TypeError that names the alternatives."""
        raise TypeError("byte strings have no rows: use .tolist(), .data and .bounds, or .padded()")

    def _content(self) -> tuple[NDArray[Any], ...]:
        return self.bounds, self.data

    def samples(self) -> list[bytes] | list[str]:
        """Return all samples, of all sequences, as Python objects.

        Raises:
            UnicodeDecodeError: a text of a chunk is not UTF-8. Texts of minibatches always are.
        """
        flat = np.ascontiguousarray(self.data).data
        ends = itertools.pairwise(self.bounds.tolist())
        if self.text:
            return [str(flat[a:b], "utf-8") for a, b in ends]
        return [bytes(flat[a:b]) for a, b in ends]

    def tolist(self) -> list[Any]:
        """Return one ``bytes`` or ``str`` per sequence, or a list of them per sequence if sequences have several."""
        samples = self.samples()
        return samples if self._offsets is None else self._split(samples)

    def sequences(self) -> list[list[Any]]:
        """Return a list of ``bytes`` or ``str`` per sequence, copied out of the buffer."""
        samples = self.samples()
        return [[sample] for sample in samples] if self._offsets is None else self._split(samples)

    def _split(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[a:b] for a, b in itertools.pairwise(self.offsets.tolist())]

    def slice(self, start: int, stop: int) -> BytesValue:
        """Return the sequences ``start:stop`` as a value over the same buffer."""
        offsets = None
        if self._offsets is not None:
            start, stop, offsets = _part(self._offsets, start, stop)
        low, high, bounds = _part(self.bounds, start, stop)
        return BytesValue(bounds, self.data[low:high], offsets, text=self.text)

    def select(self, which: ArrayLike) -> BytesValue:
        """Copy the chosen sequences, in the order of ``which``, into a new value."""
        return BytesValue(*self._gather(self.kind, which), text=self.text)

    def dense(self) -> DenseValue:
        """Return uint8 rows (num_samples, longest), short ones padded with zeros. `sizes` has their lengths."""
        return DenseValue(self.padded_samples()[0], self._offsets)

    def padded_samples(self, fill: int = 0, length: int | None = None) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Return uint8 (num_samples, length) and the mask of real bytes. ``length`` None: the length of the longest
        one.

        Raises:
            ValueError: ``length`` is shorter than the longest sample.
        """
        data, bounds = np.ascontiguousarray(self.data), np.ascontiguousarray(self.bounds)
        return _native.pad(data, bounds, np.asarray(fill, np.uint8), -1 if length is None else length)

    def class_indices(self) -> NoReturn:
        """Raise a TypeError: only sparse values are one-hot."""
        raise TypeError(f"expected a sparse one-hot value, got {self.kind}; parse it first, e.g. in an fl.Map")

    def to_scipy(self) -> scipy.sparse.csr_matrix:
        """Raise a TypeError: byte strings are not a matrix."""
        raise TypeError(f"expected numbers for a SciPy matrix, got {self.kind}; use .tolist() or .data and .bounds")

    def describe(self) -> str:
        """Describe the value in one line: kind, counts, bytes."""
        return f"{self.kind}, {self._counts()}, {len(self.data)} bytes"


def unmasked(data: ArrayLike) -> NDArray[Any]:
    """Convert like `np.asarray`, but refuse masked entries, whose values it would expose.

    Raises:
        ValueError: some entries are masked.
    """
    if isinstance(data, np.ndarray) and type(data) is not np.ndarray and np.ma.is_masked(data):
        raise ValueError("expected numbers, got an array with masked entries; replace them with .filled(...)")
    return np.asarray(data)


def counted_lengths(schema: Schema, values: Mapping[str, Value]) -> NDArray[np.int64] | None:
    """Count the samples of each sequence as the minibatch budget does: its length in the defining stream, else the
    longest.

    Returns:
        int64 (num_sequences,), or None if every sequence counts one.
    """
    size = schema.size_stream
    counted = list(values.values()) if size is None else [values[size]]
    if all(value.one_sample_each for value in counted):
        return None
    longest: NDArray[np.int64] = np.maximum.reduce([value.lengths for value in counted])
    return longest


def bytes_before(value: Value, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes of all rows before each of some sequences, given by their indices up to ``num_sequences``."""
    rows = sequences if value.one_sample_each else value.offsets[sequences]
    if isinstance(value, BytesValue):
        return value.bounds[rows]
    if isinstance(value, SparseValue):
        return value.indptr[rows] * (4 + value.dtype.itemsize)
    return rows * (value.dtype.itemsize * math.prod(value.shape))


def _pack(samples: Sequence[Any], offsets: NDArray[np.int64] | None) -> BytesValue:
    """Return a value over a copy of Python's byte strings or texts.

    Raises:
        TypeError: samples of another or of several types.
        ValueError: a text with a lone surrogate, which UTF-8 cannot represent.
    """
    text = len(samples) > 0 and isinstance(samples[0], str)
    kinds: Any = str if text else (bytes, bytearray, memoryview)
    if wrong := [sample for sample in samples if not isinstance(sample, kinds)]:
        raise TypeError(f"expected only {'str' if text else 'bytes'} samples, got {type(wrong[0]).__name__}")
    try:
        encoded = [sample.encode() for sample in samples] if text else [memoryview(s).cast("B") for s in samples]
    except UnicodeEncodeError as error:
        raise ValueError(f"expected text that UTF-8 can represent, got {error.object!r:.60}: {error.reason}") from error
    bounds = np.zeros(len(samples) + 1, np.int64)
    np.cumsum([len(sample) for sample in encoded], out=bounds[1:])
    data = np.frombuffer(b"".join(encoded), np.uint8)
    return BytesValue(bounds, data, None if offsets is None else _drop_trivial(offsets), text=text)


def strings_from_list(items: Sequence[Any], text: bool | None = None) -> BytesValue:
    """Return a value over a copy of byte strings or texts: one per sequence, or a list of them per sequence.

    Args:
        items: the samples.
        text: whether they must be texts. None if they may be either.

    Raises:
        TypeError, ValueError: as `Value.from_bytes`.
    """
    plain = [isinstance(item, (str, bytes, bytearray, memoryview)) for item in items]
    if all(plain):
        flat, offsets = items, None
    else:
        for item, alone in zip(items, plain, strict=True):
            # Either all of them are lists, or none is.
            if alone != plain[0] or not (alone or isinstance(item, (list, tuple, np.ndarray))):
                raise TypeError(f"expected bytes or str, or a list of them, per sequence, got {item!r:.60}")
        flat = [sample for item in items for sample in (item.tolist() if isinstance(item, np.ndarray) else item)]
        offsets = np.cumsum([0] + [len(item) for item in items], dtype=np.int64)
    value = _pack(flat, offsets)
    if text is None or value.text == text:
        return value
    if len(flat):
        raise TypeError(f"expected {'str' if text else 'bytes'} samples, got {type(flat[0]).__name__}")
    return BytesValue(value.bounds, value.data, value._offsets, text=text)


def as_arrays(value: Value) -> tuple[Any, ...]:
    """Return the arrays of a value in the gather kernel's layout."""
    return value._arrays()


def _samples(stream: Stream) -> str:
    if stream.is_bytes:
        return f"samples of {stream.kind}"
    return f"{stream.kind} {stream.dtype.name} samples of shape {stream.shape}"


def _integers(numbers: ArrayLike, what: str, wide: bool = True) -> NDArray[Any]:
    """Convert ``numbers`` to a contiguous array of integers, never by rounding or from a mask, and int64 if
    ``wide``."""
    array = np.asarray(numbers)
    if array.size and array.dtype.kind not in "iu":
        hint = "; np.flatnonzero turns a mask into indices" if array.dtype.kind == "b" else ""
        raise TypeError(f"expected integers as {what}, got {array.dtype}{hint}")
    return np.ascontiguousarray(array, np.int64 if wide or array.size == 0 else array.dtype)


def _part(bounds: NDArray[np.int64], start: int, stop: int) -> tuple[int, int, NDArray[np.int64]]:
    """Return where the items ``start:stop`` begin and end, and their bounds from 0.

    Raises:
        DataError: the bounds are mapped from a file that was truncated.
    """
    part = _native.copied(np.ascontiguousarray(bounds[start : stop + 1]))
    first, last = int(part[0]), int(part[-1])
    part -= first
    return first, last, part


def _check_offsets(offsets: ArrayLike | None, rows: int) -> NDArray[np.int64] | None:
    if offsets is None:
        return None
    bounds = _integers(offsets, "offsets")
    _check_ascending(bounds, "offsets", rows)
    return _drop_trivial(bounds)


def _drop_trivial(offsets: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return None if every sequence has one sample, as such values keep no offsets."""
    n = len(offsets) - 1
    return None if n and offsets[-1] == n and (np.diff(offsets) == 1).all() else offsets


def _check_ascending(bounds: NDArray[Any], what: str, end: int) -> None:
    if bounds.ndim != 1 or len(bounds) == 0 or bounds[0] != 0 or bounds[-1] != end or (np.diff(bounds) < 0).any():
        got = f"{bounds[:1].tolist()}...{bounds[-1:].tolist()} with {len(bounds)} entries"
        raise ValueError(f"expected {what} from 0 to {end}, ascending, got {got}")


def _scipy_sparse() -> Any:
    try:
        return importlib.import_module("scipy.sparse")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"SciPy is not installed; run: {install_line('scipy')}") from error
