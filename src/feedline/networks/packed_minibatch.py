"""Packed minibatches on a device: rows, and the offsets of sequences.

Data with a sequence axis is rows ``(num_samples, *shape)``, all sequences back to back. Data with only the batch axis
is ``(num_sequences, *shape)``. Other data is ``shape``. Sparse rows stay indices. There is no padding, so a loss has as
many numbers as there are samples. Index arrays that recurrences and sequence operations derive from the lengths are
computed once a minibatch, on demand, by NumPy: they are small and need not wait for a device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from feedline import _native
from feedline.data.value import SparseValue, Value
from feedline.networks.random_numbers import SeededNumbers

# Element types of dense labels that may become classes.
_ONE_HOT = (np.dtype(np.float32), np.dtype(np.float64))


class Sequences:
    """Offsets of the sequences of one axis in a minibatch.

    Attributes:
        offsets: int64 (num_sequences + 1,).
        lengths: int64 (num_sequences,).
        count: number of sequences.
        total: number of samples.
    """

    def __init__(self, offsets: NDArray[np.int64], device: torch.device) -> None:
        self.offsets, self.device = offsets, device
        self.lengths = np.diff(offsets)
        self.count, self.total = len(self.lengths), int(offsets[-1])
        self._padded: dict[bool, list[Padded]] = {}
        self._steps: dict[bool, Steps] = {}

    def same(self, other: Sequences) -> bool:
        """Return whether all lengths equal the lengths of ``other``."""
        return self is other or np.array_equal(self.offsets, other.offsets)

    def _to_device(self, array: NDArray[Any]) -> torch.Tensor:
        return _move(torch.from_numpy(array), self.device, None)

    @cached_property
    def _owner(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(self.count), self.lengths)

    @cached_property
    def _place(self) -> NDArray[np.int64]:
        """Index of each row within its sequence."""
        return np.arange(self.total) - np.repeat(self.offsets[:-1], self.lengths)

    @cached_property
    def owner(self) -> torch.Tensor:
        """Sequence of each row, int64 (num_samples,)."""
        return self._to_device(self._owner)

    @cached_property
    def first(self) -> torch.Tensor:
        """Row of each sequence's first sample, int64 (num_sequences,)."""
        self._none_empty("first")
        return self._to_device(self.offsets[:-1])

    @cached_property
    def last(self) -> torch.Tensor:
        """Row of each sequence's last sample, int64 (num_sequences,)."""
        self._none_empty("last")
        return self._to_device(self.offsets[1:] - 1)

    def _none_empty(self, what: str) -> None:
        if (self.lengths == 0).any():
            raise ValueError(f"expected sequences with a {what} sample, got an empty one")

    def shift(self, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the row ``steps`` before each row (after, if negative), and whether there is none (row 0)."""
        place = self._place - steps
        outside = (place < 0) | (place >= np.repeat(self.lengths, self.lengths))
        row = np.where(outside, 0, np.arange(self.total) - steps)
        return self._to_device(row), self._to_device(outside)

    def ends(self, steps: int) -> NDArray[np.int64]:
        """Return the rows of the last ``steps`` samples of each sequence, int64 (num_sequences, steps).

        A negative number means the first samples, last of them first. A sequence of one sample repeats it.

        Raises:
            ValueError: a sequence of fewer samples, and not of one.
        """
        count = abs(steps)
        if ((self.lengths < count) & (self.lengths != 1)).any():
            raise ValueError(
                f"expected sequences of 1 or at least {count} samples for a delay by {count} steps, got lengths "
                f"{self.lengths.tolist()[:10]}"
            )
        place = np.arange(count)
        taken = (
            self.lengths[:, None] - count + place if steps > 0 else np.broadcast_to(place[::-1], (self.count, count))
        )
        return self.offsets[:-1, None] + np.where(self.lengths[:, None] == 1, 0, taken)

    @cached_property
    def longest(self) -> int:
        """Length of the longest sequence."""
        return int(self.lengths.max(initial=0))

    def padded(self, backwards: bool) -> list[Padded]:
        """Return padded groups of sequences: one, or several of similar lengths if padding would double the size."""
        if backwards not in self._padded:
            self._padded[backwards] = [Padded(self, which, backwards) for which in self._groups]
        return self._padded[backwards]

    @cached_property
    def _groups(self) -> list[NDArray[np.int64] | None]:
        if self.longest * self.count <= 2 * self.total:
            return [None]
        order = np.argsort(-self.lengths, kind="stable")
        ends = self.lengths[order]
        groups: list[NDArray[np.int64] | None] = []
        begin = 0
        while begin < len(order) and ends[begin]:
            # No sequence is shorter than half of the longest in its group.
            stop = int(np.searchsorted(-ends, -((ends[begin] + 1) // 2), side="right"))
            groups.append(order[begin:stop])
            begin = stop
        return groups

    def steps(self, backwards: bool) -> Steps:
        """Return the order of rows by steps, longest sequences first."""
        if backwards not in self._steps:
            self._steps[backwards] = Steps(self, backwards)
        return self._steps[backwards]


class Padded:
    """Sequences in the layout of kernels: steps first, (longest, count, ...), padded at the end of each.

    Attributes:
        which: indices of the sequences, int64 (count,). None means all.
        rows: their rows, int64 (num_samples,). None means all.
        places: index of each row among ``longest * count``, int64 (num_samples,).
    """

    def __init__(self, sequences: Sequences, which: NDArray[np.int64] | None, backwards: bool) -> None:
        if which is None:
            lengths, place, owner = sequences.lengths, sequences._place, sequences._owner
        else:
            lengths = sequences.lengths[which]
            place = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            owner = np.repeat(np.arange(len(lengths)), lengths)
        step = np.repeat(lengths, lengths) - 1 - place if backwards else place
        to_device = sequences._to_device
        self.count, self.longest = len(lengths), int(lengths.max(initial=0))
        self.places = to_device(step * self.count + owner)
        self.which = self.rows = None
        if which is not None:
            self.which = to_device(which)
            self.rows = to_device(np.repeat(sequences.offsets[which], lengths) + place)

    def padded(self, x: torch.Tensor) -> torch.Tensor:
        """Pad rows (all samples, width) to (longest, count, width)."""
        selected = x if self.rows is None else x.index_select(0, self.rows)
        steps = x.new_zeros(self.longest * self.count, x.shape[1]).index_copy(0, self.places, selected)
        return steps.reshape(self.longest, self.count, x.shape[1])

    def packed(self, steps: torch.Tensor) -> torch.Tensor:
        """Return padded data (longest, count, width) as rows."""
        return steps.reshape(-1, steps.shape[-1]).index_select(0, self.places)


class Steps:
    """Order by steps: all first samples, then all second ones, and so on, without sequences that have ended.

    Attributes:
        order: sequences, longest first, int64 (num_sequences,).
        active: number of sequences at each step.
        rows: row at each place in this order, int64 (num_samples,).
        back: place of each row in this order, int64 (num_samples,).
    """

    def __init__(self, sequences: Sequences, backwards: bool) -> None:
        order = np.argsort(-sequences.lengths, kind="stable")
        lengths = sequences.lengths[order]
        counts = np.searchsorted(-lengths, -np.arange(sequences.longest), side="left")
        self.active: list[int] = counts.tolist()
        step = np.repeat(np.arange(sequences.longest), counts)
        which = order[np.arange(sequences.total) - np.repeat(np.cumsum(counts) - counts, counts)]
        rows = sequences.offsets[which + 1] - 1 - step if backwards else sequences.offsets[which] + step
        back = np.empty_like(rows)
        back[rows] = np.arange(len(rows))
        to_device = sequences._to_device
        self.order, self.rows, self.back = to_device(order), to_device(rows), to_device(back)


class SparseRows:
    """Rows of a sparse stream on a device: indices and values, dense only on demand.

    Attributes:
        indices: column of each entry, int64 (entries,).
        values: value of each entry, (entries,). None means that all are 1.
        width: number of columns.
        one_hot: whether every row has exactly one entry, a 1.
        dense_dtype: element type in which operations without a sparse form make them dense, as the data of an input
            that is declared dense. None means that such operations refuse them.
    """

    def __init__(
        self,
        offsets: torch.Tensor | None,
        indices: torch.Tensor,
        values: torch.Tensor | None,
        width: int,
        one_hot: bool,
    ) -> None:
        self._offsets, self.indices, self.values, self.width, self.one_hot = offsets, indices, values, width, one_hot
        self.dense_dtype: torch.dtype | None = None

    @property
    def offsets(self) -> torch.Tensor:
        """Offsets of each row's entries, int64 (num_rows + 1,)."""
        if self._offsets is None:
            self._offsets = torch.arange(len(self.indices) + 1, device=self.indices.device)
        return self._offsets

    @staticmethod
    def of_one_hot(rows: NDArray[Any], device: torch.device, dtype: torch.dtype) -> SparseRows | None:
        """Convert dense rows (num_rows, width) to sparse ones on a device, or return None unless all are one-hot."""
        if rows.ndim != 2 or rows.dtype not in _ONE_HOT or not rows.flags.c_contiguous:
            return None
        classes = _native.one_hot_classes(rows)
        if classes is None:
            return None
        sparse = SparseRows(None, _tensor(classes, device, None), None, rows.shape[1], True)
        sparse.dense_dtype = dtype
        return sparse

    def __len__(self) -> int:
        return len(self.indices) if self._offsets is None else len(self._offsets) - 1

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the values."""
        return torch.get_default_dtype() if self.values is None else self.values.dtype

    def dense(self) -> torch.Tensor:
        """Return a tensor (num_rows, width) of ``dense_dtype``, in which entries of one place are added."""
        rows = torch.zeros(len(self), self.width, dtype=self.dense_dtype, device=self.offsets.device)
        values = torch.ones((), dtype=rows.dtype, device=rows.device) if self.values is None else self.values
        return rows.index_put_((self.owner(), self.indices), values.to(rows.dtype), accumulate=True)

    def _like_self(self, rows: SparseRows) -> SparseRows:
        rows.dense_dtype = self.dense_dtype
        return rows

    def owner(self) -> torch.Tensor:
        """Row of each entry, int64 (entries,)."""
        rows = torch.arange(len(self), device=self.offsets.device)
        return rows.repeat_interleave(self.offsets.diff(), output_size=len(self.indices))

    def index_select(self, dim: int, index: torch.Tensor, empty: torch.Tensor | None = None) -> SparseRows:
        """Select rows, like a tensor's `index_select`. The rows in ``empty`` (bool) get no entries."""
        assert dim == 0
        if self.one_hot and empty is None:
            taken = self.indices.index_select(0, index)
            return self._like_self(SparseRows(None, taken, None, self.width, True))
        counts = self.offsets.diff().index_select(0, index)
        if empty is not None:
            counts = counts * ~empty
        ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        total = int(ends[-1])
        begin = self.offsets.index_select(0, index) - ends[:-1]
        entries = torch.arange(total, device=index.device) + begin.repeat_interleave(counts, output_size=total)
        values = None if self.values is None else self.values.index_select(0, entries)
        return self._like_self(SparseRows(ends, self.indices.index_select(0, entries), values, self.width, False))

    def matmul(self, dense: torch.Tensor) -> torch.Tensor:
        """Multiply by ``dense`` (width, columns): a look-up and a sum for each row."""
        if self.one_hot:
            return torch.nn.functional.embedding(self.indices, dense)
        weights = None if self.values is None else self.values.to(dense.dtype)
        if len(self.indices) == 0:
            return dense.new_zeros(len(self), dense.shape[1]) + dense.sum() * 0
        return torch.nn.functional.embedding_bag(
            self.indices, dense, self.offsets, mode="sum", per_sample_weights=weights, include_last_offset=True
        )

    def repeated(self, times: int) -> SparseRows:
        """Repeat each row ``times`` times in succession."""
        if times == 1:
            return self
        return self.index_select(0, torch.arange(len(self), device=self.offsets.device).repeat_interleave(times))

    def weighted(self, dense: torch.Tensor) -> torch.Tensor:
        """Return the sum of ``dense[row, index] * value`` for each row, (num_rows,)."""
        if self.one_hot:
            return dense.gather(1, self.indices[:, None]).squeeze(1)
        owner = self.owner()
        picked = dense[owner, self.indices]
        if self.values is not None:
            picked = picked * self.values.to(dense.dtype)
        return dense.new_zeros(len(self)).index_add(0, owner, picked)


Rows: TypeAlias = torch.Tensor | SparseRows


class PackedRows:
    """Data of one input or output for one minibatch.

    Attributes:
        data: rows, see the module.
        sequences: sequences of the rows. None means one row per sequence, or no dynamic axis.
    """

    __slots__ = ("data", "sequences")

    def __init__(self, data: Rows, sequences: Sequences | None = None) -> None:
        self.data, self.sequences = data, sequences

    @staticmethod
    def of(
        value: Value,
        device: torch.device,
        dtype: torch.dtype,
        ragged: bool,
        dense: bool = False,
        *,
        labels: bool = False,
    ) -> PackedRows:
        """Convert a feed's value. It shares memory if the device is the CPU and the dtype is the same.

        Args:
            value: dense or sparse value.
            device: target device.
            dtype: target dtype of floating point data.
            ragged: whether it has a sequence axis. Otherwise every sequence must have one sample.
            dense: whether operations may make sparse rows dense.
            labels: whether dense rows that are all one-hot become sparse.

        Raises:
            ValueError: sequences of several samples without a sequence axis.
        """
        if not ragged and not value.one_sample_each and not (value.lengths == 1).all():
            raise ValueError(
                f"expected one sample per sequence, got {value.num_samples} in {value.num_sequences} sequences; "
                "declare the input with a sequence axis"
            )
        data: Rows | None = None
        if isinstance(value, SparseValue):
            data = _sparse(value, device, dtype)
            if dense:
                data.dense_dtype = dtype
        elif labels:
            data = SparseRows.of_one_hot(value.rows, device, dtype)
        if data is None:
            data = _tensor(value.rows, device, dtype)
        return PackedRows(data, Sequences(value.offsets, device) if ragged else None)


def _tensor(array: NDArray[Any], device: torch.device, dtype: torch.dtype | None) -> torch.Tensor:
    if not array.flags.writeable or not array.dtype.isnative or min(array.strides, default=0) < 0:
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    return _move(torch.from_numpy(array), device, dtype)


def _move(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None) -> torch.Tensor:
    # Cheaper than a torch call that has nothing to do.
    if device.type == "cpu" and dtype in (None, tensor.dtype):
        return tensor
    return tensor.to(device, dtype, non_blocking=True)


def _sparse(value: SparseValue, device: torch.device, dtype: torch.dtype) -> SparseRows:
    ones = bool((value.values == 1).all())
    one_hot = ones and len(value.indices) == value.num_samples and bool((np.diff(value.indptr) == 1).all())
    return SparseRows(
        _tensor(value.indptr, device, None),
        _tensor(value.checked_indices(), device, torch.int64),
        None if ones else _tensor(value.values, device, dtype),
        value.classes,
        one_hot,
    )


class PackedBatch:
    """Properties of a minibatch that operations use besides their inputs.

    Attributes:
        count: number of sequences.
        sequences: sequences by name of the axis.
        training: whether in training mode, in which dropout is active and statistics are of this minibatch.
        cut: `feedline.networks.truncation.TruncatedBatch` if sequences are truncated, else None.
        assignments: values to write to parameters and constants after everything is computed, in this order: number,
            tensor, new value.
        generator: function ``generator(node)`` that returns the numbers of a random operation with a seed.
    """

    __slots__ = ("assignments", "count", "cut", "generator", "sequences", "training")

    def __init__(
        self,
        count: int,
        sequences: dict[str, Sequences],
        training: bool,
        generator: Callable[[Any], SeededNumbers],
    ) -> None:
        self.count, self.sequences, self.training, self.generator = count, sequences, training, generator
        self.cut: Any = None
        self.assignments: list[tuple[int, torch.Tensor, torch.Tensor]] = []

    def spread(self, rows: Any, axis: str) -> Any:
        """Repeat the row of each sequence for each of its samples along the axis."""
        return rows.index_select(0, self.sequences[axis].owner)

    def rows(self, axes: tuple[str, ...]) -> int:
        """Return the number of rows of data along these axes."""
        return self.sequences[axes[1]].total if len(axes) > 1 else self.count


class PackedStep(PackedBatch):
    """One step of a recurrence: a row for each sequence that has not ended, longest first.

    Attributes:
        active: number of these sequences.
    """

    __slots__ = ("active",)

    def __init__(self, batch: PackedBatch, active: int) -> None:
        super().__init__(batch.count, batch.sequences, batch.training, batch.generator)
        self.active = active

    def spread(self, rows: Any, axis: str) -> Any:
        """Return the rows of the sequences that have not ended."""
        return rows[: self.active]

    def rows(self, axes: tuple[str, ...]) -> int:
        """Return the number of sequences that have not ended."""
        return self.active if len(axes) > 1 else self.count


Run = Callable[..., Any]
