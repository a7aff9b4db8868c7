"""`mxnet.io`: `NDArrayIter` and `ImageRecordIter`, each over a `feedline.MinibatchSource`.

Batches come in feedline's order, a pure function of ``seed`` and the number of the epoch, so that iterators can resume
at any batch and shuffle the same way everywhere. Arrays are not copied as a whole. Each batch is a new copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from feedline.data import Stream
from feedline.errors import StateError, shown
from feedline.feed.composed.take import Take
from feedline.feed.formats.arrays import ArrayDeserializer
from feedline.feed.formats.recordio import RecordIODeserializer
from feedline.feed.source import MinibatchSource
from feedline.mxnet import _augmenter
from feedline.mxnet._names import names_of
from feedline.mxnet.context import current_context
from feedline.mxnet.ndarray import NDArray, array

__all__, __getattr__ = names_of(__name__)


class DataDesc(tuple[str, tuple[int, ...]]):
    """Name and shape of an input: a pair with additional attributes.

    Attributes:
        name: name of the argument.
        shape: shape, batch axis first.
        dtype: NumPy type.
        layout: one letter per axis.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    layout: str | None

    def __new__(cls, name: str, shape: Sequence[int], dtype: Any = np.float32, layout: str | None = "NCHW") -> DataDesc:
        """Create the pair."""
        self = super().__new__(cls, (name, tuple(shape)))
        self.name, self.shape, self.dtype, self.layout = name, tuple(shape), dtype, layout
        return self

    def __repr__(self) -> str:
        return f"DataDesc[{self.name},{self.shape},{self.dtype},{self.layout}]"

    @staticmethod
    def get_batch_axis(layout: str | None) -> int:
        """Return the index of the batch axis in a layout, or 0 without a layout."""
        return 0 if layout is None else layout.find("N")


class DataBatch:
    """One batch.

    Attributes:
        data: list of NDArrays.
        label: list of NDArrays.
        pad: number of padding rows at the end, which do not count.
        index: indices of the rows, or None.
        bucket_key: key of the bucket, as passed.
        provide_data: list of `DataDesc`.
        provide_label: list of `DataDesc`.
    """

    def __init__(
        self,
        data: Sequence[NDArray],
        label: Sequence[NDArray] | None = None,
        pad: int | None = None,
        index: Any = None,
        bucket_key: Any = None,
        provide_data: Any = None,
        provide_label: Any = None,
    ) -> None:
        for what, arrays in (("Data", data), ("Label", label)):
            if arrays is not None and not isinstance(arrays, (list, tuple)):
                raise TypeError(f"{what} must be list of NDArrays, got {type(arrays).__name__}")
        self.data, self.label, self.pad, self.index = data, label, pad, index
        self.bucket_key, self.provide_data, self.provide_label = bucket_key, provide_data, provide_label

    def __str__(self) -> str:
        shapes = [[array.shape for array in arrays] if arrays else None for arrays in (self.data, self.label)]
        return f"{type(self).__name__}: data shapes: {shapes[0]} label shapes: {shapes[1]}"


class DataIter:
    """Base class of iterators over batches: `next` until StopIteration, then `reset`.

    Subclasses define ``iter_next`` and the getters.

    Attributes:
        batch_size: number of rows of a batch.
    """

    def __init__(self, batch_size: int = 0) -> None:
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[DataBatch]:
        return self

    def __next__(self) -> DataBatch:
        return self.next()

    def reset(self) -> None:
        """Start the next epoch."""

    def next(self) -> DataBatch:
        """Return the next batch.

        Raises:
            StopIteration: the epoch has ended.
        """
        if not self.iter_next():
            raise StopIteration
        return DataBatch(data=self.getdata(), label=self.getlabel(), pad=self.getpad(), index=self.getindex())

    def iter_next(self) -> bool:
        """Advance to the next batch, and return whether there is one in this epoch."""
        raise NotImplementedError(f"{type(self).__name__}.iter_next")

    def getdata(self) -> list[NDArray]:
        """Return the data of this batch."""
        raise NotImplementedError(f"{type(self).__name__}.getdata")

    def getlabel(self) -> list[NDArray]:
        """Return the labels of this batch."""
        raise NotImplementedError(f"{type(self).__name__}.getlabel")

    def getpad(self) -> int | None:
        """Return the number of padding rows at the end of this batch."""
        raise NotImplementedError(f"{type(self).__name__}.getpad")

    def getindex(self) -> Any:
        """Return the indices of the rows, or None if unknown."""
        return None


class NDArrayIter(DataIter):
    """Batches of arrays.

    Args:
        data: array ``(N, ...)``, a list of them, or a dict by name. All but NDArrays are converted to float32.
        label: like ``data``. None means no labels.
        batch_size: number of rows of a batch.
        shuffle: whether every epoch has another order.
        last_batch_handle: treatment of an incomplete last batch: ``"pad"`` fills it with the first rows of the epoch,
            ``"discard"`` drops it, ``"roll_over"`` keeps its rows for the next epoch.
        data_name: name of the data, if it is one array.
        label_name: name of the label, if it is one array.
        seed: seed of the order.

    Raises:
        ValueError: no data, a number instead of rows, arrays of different lengths, fewer rows than a batch, or an
            unknown ``last_batch_handle``.
    """

    def __init__(
        self,
        data: Any,
        label: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        last_batch_handle: str = "pad",
        data_name: str = "data",
        label_name: str = "softmax_label",
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size)
        if last_batch_handle not in ("pad", "discard", "roll_over"):
            raise ValueError(f"expected last_batch_handle pad, discard or roll_over, got {last_batch_handle!r}")
        self.data, self.label = (
            _name_arrays(data, data_name),
            _name_arrays(label, label_name),
        )
        if not self.data:
            raise ValueError("expected data, got none")
        for name, rows in (*self.data, *self.label):
            if rows.ndim == 0:
                raise ValueError(f"expected an array of rows for {name}, got a single number")
        lengths = {name: len(rows) for name, rows in (*self.data, *self.label)}
        self.num_data = len(self.data[0][1])
        if len(set(lengths.values())) > 1:
            raise ValueError(f"expected arrays of equal lengths, got {lengths}")
        if not 1 <= batch_size <= self.num_data:
            raise ValueError(f"expected a batch_size from 1 to {self.num_data}, the number of rows, got {batch_size}")
        self.shuffle, self.last_batch_handle = shuffle, last_batch_handle
        # Data and label may have the same name, so streams are numbered.
        self._streams = {str(i): rows for i, (_, rows) in enumerate((*self.data, *self.label))}
        self._source = MinibatchSource(ArrayDeserializer(self._streams), seed=seed, shuffle=shuffle, partition=(0, 1))
        self._epoch = self._at = 0
        self._begun = False
        self._batch: tuple[list[NDArray], int] | None = None

    @property
    def provide_data(self) -> list[DataDesc]:
        """Names and shapes of a batch's data."""
        return [self._describe(name, rows) for name, rows in self.data]

    @property
    def provide_label(self) -> list[DataDesc]:
        """Names and shapes of a batch's labels."""
        return [self._describe(name, rows) for name, rows in self.label]

    def _describe(self, name: str, rows: Any) -> DataDesc:
        return DataDesc(name, (self.batch_size, *rows.shape[1:]), rows.dtype.type)

    @property
    def _at_end(self) -> bool:
        end = (self._epoch + 1) * self.num_data
        return self._at >= end if self.last_batch_handle == "pad" else self._at + self.batch_size > end

    def reset(self) -> None:
        """Start the next epoch, with ``"roll_over"`` at the remaining rows. No effect before the first batch."""
        self._begin(keep=self.last_batch_handle == "roll_over" and self._at_end)

    def hard_reset(self) -> None:
        """Start the next epoch at its first row. No effect before the first batch."""
        self._begin(keep=False)

    def _begin(self, keep: bool) -> None:
        if self._begun:
            self._epoch += 1
            self._at = self._at if keep else self._epoch * self.num_data
            self._begun, self._batch = False, None

    def iter_next(self) -> bool:
        """See `DataIter.iter_next`."""
        if self._at_end:
            return False
        remaining = (self._epoch + 1) * self.num_data - self._at
        size = min(self.batch_size, remaining)
        pad = self.batch_size - size
        parts = [self._read(self._at, size)]
        if pad:
            parts.append(self._read(self._epoch * self.num_data, pad))
        self._at += size
        context = current_context()
        arrays = [np.concatenate(rows) if pad else rows[0] for rows in zip(*parts, strict=True)]
        self._begun = True
        self._batch = [NDArray(torch.from_numpy(rows).to(context.device), context) for rows in arrays], pad
        return True

    def _read(self, at: int, size: int) -> list[Any]:
        self._seek(at)
        minibatch = self._source.next_minibatch(size)
        return [np.require(minibatch[name].rows, requirements=["C", "W"]) for name in self._streams]

    def _seek(self, at: int) -> None:
        if self._source.position.samples != at:
            self._source.seek(samples=at)

    def _current(self) -> tuple[list[NDArray], int]:
        if self._batch is None:
            raise ValueError("expected a batch, got none yet in this epoch: call iter_next() or next() first")
        return self._batch

    def getdata(self) -> list[NDArray]:
        """See `DataIter.getdata`."""
        return self._current()[0][: len(self.data)]

    def getlabel(self) -> list[NDArray]:
        """See `DataIter.getlabel`."""
        return self._current()[0][len(self.data) :]

    def getpad(self) -> int:
        """See `DataIter.getpad`."""
        return self._current()[1]

    def state_dict(self) -> dict[str, Any]:
        """Return the position in JSON types."""
        self._seek(self._at)
        return {"epoch": self._epoch, "begun": self._begun, "source": self._source.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a position.

        Raises:
            StateError: the state is malformed, or belongs to other data, another seed or another order.
        """
        self._epoch, self._begun = _restore(self._source, state, "NDArrayIter")
        self._at, self._batch = self._source.position.samples, None


class ImageRecordIter(DataIter):
    """Batches of the pictures and labels of a RecordIO file, float32, without MXNet.

    Args:
        path_imgrec: the ``.rec`` file.
        data_shape: (3, height, width) for RGB, or (1, height, width) for grey.
        batch_size: number of pictures of a batch.
        label_width: number of labels of a record. One label makes batches of shape (batch_size,).
        shuffle: whether every epoch has another order. False: that of the file.
        seed: seed of the order and of random changes.
        num_parts, part_index: the file is cut into so many parts of equal numbers of records, of which one is read.
        round_batch: whether the next epoch begins after the pictures that fill the last batch of an epoch. False: it
            begins at its first picture.
        data_name: name of the data.
        label_name: name of the label.
        options: MXNet's parameters of changes of pictures: ``resize``, ``pad``, ``fill_value``, ``rand_crop``,
            ``random_resized_crop`` with ``min_random_area``, ``max_random_area``, ``min_aspect_ratio`` and
            ``max_aspect_ratio``, ``rand_mirror``, ``mirror``, ``brightness``, ``contrast``, ``saturation``, ``mean_r``,
            ``std_r`` and so on, and ``scale``. ``preprocess_threads`` threads decode. Those that concern only how MXNet
            reads, such as ``prefetch_buffer``, have no effect.

    Raises:
        CompatError: a parameter is unknown or not provided.
        DataError: the file is missing or no RecordIO file.
        ValueError: fewer records than a batch, or another argument out of range.
    """

    def __init__(
        self,
        path_imgrec: str,
        data_shape: Sequence[int],
        batch_size: int,
        label_width: int = 1,
        shuffle: bool = False,
        seed: int = 0,
        num_parts: int = 1,
        part_index: int = 0,
        round_batch: bool = True,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **options: Any,
    ) -> None:
        super().__init__(batch_size)
        counts = {
            "batch_size": batch_size,
            "label_width": label_width,
            "num_parts": num_parts,
            "part_index": part_index,
        }
        _augmenter.check_numbers({**counts, "shuffle": shuffle, "round_batch": round_batch})
        if label_width < 1:
            raise ValueError(f"expected 1 or more for label_width, got {label_width}")
        decode = _augmenter.decoder(data_shape, options)
        label_shape = () if label_width == 1 else (label_width,)
        streams = {"label": Stream(label_shape), "image": Stream(dtype="bytes")}
        part = _part(RecordIODeserializer(path_imgrec, streams), num_parts, part_index)
        self.num_data = sum(info.sequences for info in part.chunks())
        if not 1 <= batch_size <= self.num_data:
            raise ValueError(
                f"expected a batch_size from 1 to {self.num_data}, the number of records, got {batch_size}"
            )
        self.round_batch = bool(round_batch)
        self.provide_data = [DataDesc(data_name, (batch_size, *data_shape))]
        self.provide_label = [DataDesc(label_name, (batch_size, *label_shape))]
        self._source = MinibatchSource(part, seed=seed, shuffle=bool(shuffle), partition=(0, 1), transforms=[decode])
        self._epoch = self._at = 0
        self._begun = False
        self._batch: tuple[list[NDArray], int] | None = None

    def reset(self) -> None:
        """Start the next epoch. No effect before the first batch."""
        if self._begun:
            self._epoch += 1
            self._at = max(self._at, self._epoch * self.num_data) if self.round_batch else self._epoch * self.num_data
            self._begun, self._batch = False, None

    def iter_next(self) -> bool:
        """See `DataIter.iter_next`."""
        first, end = self._epoch * self.num_data, (self._epoch + 1) * self.num_data
        if self._at >= end:
            return False
        pad = max(0, self._at + self.batch_size - end)
        if self.round_batch or not pad:
            parts = [self._read(self._at, self.batch_size)]
            self._at += self.batch_size
        else:
            parts = [self._read(self._at, self.batch_size - pad), self._read(first, pad)]
            self._at = end
        self._begun = True
        self._batch = [array(np.concatenate(rows)) for rows in zip(*parts, strict=True)], pad
        return True

    def _read(self, at: int, size: int) -> list[Any]:
        if self._source.position.samples != at:
            self._source.seek(samples=at)
        minibatch = self._source.next_minibatch(size)
        return [minibatch[name].rows for name in ("image", "label")]

    def _current(self) -> tuple[list[NDArray], int]:
        if self._batch is None:
            raise ValueError("expected a batch, got none yet in this epoch: call iter_next() or next() first")
        return self._batch

    def getdata(self) -> list[NDArray]:
        """See `DataIter.getdata`."""
        return self._current()[0][:1]

    def getlabel(self) -> list[NDArray]:
        """See `DataIter.getlabel`."""
        return self._current()[0][1:]

    def getpad(self) -> int:
        """See `DataIter.getpad`."""
        return self._current()[1]

    def state_dict(self) -> dict[str, Any]:
        """Return the position in JSON types."""
        if self._source.position.samples != self._at:
            self._source.seek(samples=self._at)
        return {"epoch": self._epoch, "begun": self._begun, "source": self._source.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a position.

        Raises:
            StateError: the state is malformed, or belongs to other data, another seed or another order.
        """
        self._epoch, self._begun = _restore(self._source, state, "ImageRecordIter")
        self._at, self._batch = self._source.position.samples, None


def _part(corpus: RecordIODeserializer, num_parts: int, part_index: int) -> RecordIODeserializer | Take:
    """Return a part of the records, as MXNet cuts them by its index: all but the last have as many."""
    if not 0 <= part_index < num_parts:
        raise ValueError(f"expected 0 <= part_index < num_parts, got {part_index} and {num_parts}")
    if num_parts == 1:
        return corpus
    count = sum(info.sequences for info in corpus.chunks())
    each = -(-count // num_parts)
    bounds = min(part_index * each, count), min((part_index + 1) * each, count)
    if bounds[0] == bounds[1]:
        raise ValueError(f"expected at least one record in part {part_index} of {num_parts}, got none of {count}")
    return Take(corpus, *bounds)


def _restore(source: MinibatchSource, state: Any, name: str) -> tuple[int, bool]:
    """Restore a source. Return the number of the epoch, and whether it has begun.

    Raises:
        StateError: the state is malformed, or does not fit.
    """
    if not isinstance(state, Mapping) or not {"epoch", "begun", "source"} <= set(state):
        raise StateError(f"expected a state of {name}.state_dict(), got {shown(state, 80)}")
    epoch, begun = state["epoch"], state["begun"]
    if type(epoch) is not int or not 0 <= epoch < 2**63 or type(begun) is not bool:
        raise StateError(f"expected an epoch, and whether it has begun, got {shown(epoch, 40)} and {shown(begun, 40)}")
    saved, current = state["source"], source.state_dict()
    if isinstance(saved, Mapping) and saved.get("corpus", current["corpus"]) != current["corpus"]:
        # Over data that has grown since, a source would end its sweep where no epoch of ours does.
        raise StateError(
            f"this state of {name}.state_dict() was taken from other data, or from fewer rows",
            saved={"corpus": saved["corpus"]},
            current={"corpus": current["corpus"]},
            hint="load it over the rows that it was taken from",
        )
    source.load_state_dict(saved)
    return epoch, begun


def _name_arrays(arrays: Any, name: str) -> list[tuple[str, Any]]:
    """Return the name and NumPy array of each array."""
    if arrays is None or (isinstance(arrays, (list, tuple)) and not arrays):
        return []
    if isinstance(arrays, Mapping):
        pairs = list(arrays.items())
    elif isinstance(arrays, (list, tuple)) and arrays and isinstance(arrays[0], (NDArray, np.ndarray)):
        pairs = [(name if len(arrays) == 1 else f"_{i}_{name}", rows) for i, rows in enumerate(arrays)]
    else:
        pairs = [(name, arrays)]
    return [(key, rows.asnumpy() if isinstance(rows, NDArray) else np.asarray(rows, np.float32)) for key, rows in pairs]
