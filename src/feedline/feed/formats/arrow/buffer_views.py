"""Values over the buffers of a mapped record batch.

Arrow lays arrays out depth-first: a field has a node (items, nulls) and buffers (validity, then offsets or data).
Values are views of the data. Data in a form that a gather cannot use is copied: offsets of 4 bytes, bits of bools, and
validity where there are nulls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.feed.formats.arrow.column_paths import is_list, storage
from feedline.feed.formats.arrow.columns import Column, Flags, holds_less, lengths_of
from feedline.feed.formats.arrow.file import ArrowFile, Batch, max_items
from feedline.feed.formats.arrow.quantities import decimal_numbers, stored_dtype, too_large
from feedline.feed.protocol import Ints

_INT32, _INT64, _UINT8 = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.uint8)


class Place(NamedTuple):
    """The place of the arrays of a field in every batch.

    Attributes:
        kind: Arrow type.
        node, buffer: numbers of the node, and of the first buffer.
        children: places of the child fields.
        end: number of the buffer after those of the field and its children.
    """

    kind: Any
    node: int
    buffer: int
    children: tuple[Place, ...]
    end: int


class BatchLayout(NamedTuple):
    """The places of all fields of a schema by name, and the numbers of nodes and buffers of a batch."""

    places: dict[str, Place]
    nodes: int
    buffers: int


def layout_of(schema: Any) -> BatchLayout | None:
    """Return the layout of the batches of a schema, or None if one of its types has a layout without views."""
    counted = [0, 0]
    places = {}
    for field in schema:
        place = _place(storage(field.type), counted)
        if place is None:
            return None
        places[field.name] = place
    return BatchLayout(places, *counted)


def _place(kind: Any, counted: list[int]) -> Place | None:
    import pyarrow as pa

    types = pa.types
    kind = storage(kind)
    node, buffer = counted
    inner: list[Any] = []
    if types.is_struct(kind):
        buffers, inner = 1, [kind.field(i).type for i in range(kind.num_fields)]
    elif types.is_map(kind):
        buffers, inner = 2, [pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])]
    elif types.is_list(kind) or types.is_large_list(kind):
        buffers, inner = 2, [kind.value_type]
    elif types.is_fixed_size_list(kind):
        buffers, inner = 1, [kind.value_type]
    elif any(test(kind) for test in (types.is_string, types.is_binary, types.is_large_string, types.is_large_binary)):
        buffers = 3
    elif types.is_null(kind):
        buffers = 0
    elif types.is_primitive(kind) or types.is_fixed_size_binary(kind) or types.is_decimal(kind):
        buffers = 2
    else:
        return None  # dictionaries, views, unions, run-end encoded
    counted[0] += 1
    counted[1] += buffers
    children = [_place(item, counted) for item in inner]
    laid_out = tuple(child for child in children if child is not None)
    return Place(kind, node, buffer, laid_out, counted[1]) if len(laid_out) == len(children) else None


def batch_nulls(head: Any, batch: Batch, layout: BatchLayout) -> Ints:
    """Return the number of nulls of each node of a batch, by the bytes of its head.

    Raises:
        ValueError: the head is damaged, or the batch has another layout.
    """
    _, _, nodes, _ = _native.arrow_batch(head, batch.body)
    if len(nodes) != 2 * layout.nodes:
        raise ValueError(f"expected {layout.nodes} fields, got {len(nodes) // 2}")
    nulls: Ints = nodes[1::2]
    return nulls


class MappedBatch:
    """The buffers of a record batch in a mapped file.

    Args:
        file: the file.
        batch: place of the batch in the file.
        layout: layout of the batch.

    Raises:
        ValueError: the head is damaged, or the batch has another layout.
        DataError: the file was truncated, or its disk fails.
    """

    def __init__(self, file: ArrowFile, batch: Batch, layout: BatchLayout) -> None:
        self._file, self.rows = file.map(), batch.rows
        rows, compressed, nodes, buffers = _native.arrow_batch(file.head(batch), batch.body)
        if rows != batch.rows or compressed:
            raise ValueError(f"expected an uncompressed batch of {batch.rows} rows, got {rows}")
        if len(nodes) != 2 * layout.nodes or len(buffers) != 2 * layout.buffers:
            raise ValueError(
                f"expected {layout.nodes} fields in {layout.buffers} buffers, got {len(nodes) // 2} in "
                f"{len(buffers) // 2}"
            )
        self._lengths: list[int] = nodes[::2].tolist()
        if self._lengths and max(self._lengths) > max_items(batch.body):
            raise ValueError(f"expected columns that fit into {batch.body} bytes, got {max(self._lengths)} items")
        self._nulls: list[int] = nodes[1::2].tolist()
        self._begins: list[int] = (buffers[::2] + (batch.start + batch.head)).tolist()
        self._sizes: list[int] = buffers[1::2].tolist()

    def view(self, number: int, dtype: np.dtype[Any], start: int, stop: int) -> NDArray[Any]:
        """Return the elements ``start:stop`` of a buffer.

        Raises:
            ValueError: the buffer is too small for that, or misaligned.
        """
        if stop <= start:
            return np.empty(0, dtype)
        begin, item = self._begins[number], dtype.itemsize
        if start < 0 or stop * item > self._sizes[number]:
            raise ValueError(f"expected {stop} elements of {dtype.name} in a buffer of {self._sizes[number]} bytes")
        if begin % item:
            raise ValueError(f"expected {dtype.name} at a multiple of {item} bytes, got byte {begin}")
        return self._file.bytes[begin + start * item : begin + stop * item].view(dtype)

    def bits(self, number: int, start: int, stop: int) -> NDArray[np.uint8]:
        """Return the bits ``start:stop`` of a buffer as bytes of 0 and 1."""
        packed = _native.copied(self.view(number, _UINT8, start // 8, -(-stop // 8)))
        return np.unpackbits(packed, bitorder="little")[start % 8 : start % 8 + stop - start]

    def nulls(self, place: Place, start: int, stop: int) -> Flags | None:
        """Return the mask of the null items among ``start:stop``, or None if no item is null."""
        if self._nulls[place.node] == 0 or stop <= start:
            return None
        nulls: Flags = self.bits(place.buffer, start, stop) == 0
        return nulls

    def bounds(self, place: Place, start: int, stop: int) -> tuple[int, Ints]:
        """Return the first bound of the lists or strings ``start:stop``, and their bounds relative to it.

        Raises:
            ValueError: bounds descend, or exceed the items.
        """
        if stop <= start:
            return 0, np.zeros(1, np.int64)
        dtype = _INT64 if _is_large(place.kind) else _INT32
        ends = self.view(place.buffer + 1, dtype, start, stop + 1)
        self._file.advise("willneed", ends.ctypes.data - self._file.address, ends.nbytes)
        bounds = _native.copied(ends).astype(np.int64, copy=False)
        first = int(bounds[0])
        bounds -= first
        if first < 0:
            raise ValueError(f"expected offsets from 0, got {first}")
        end = first + _native.bounds_end(bounds, "offsets")
        if place.children and end > self._lengths[place.children[0].node]:
            raise ValueError(f"expected lists of {self._lengths[place.children[0].node]} items in all, got {end}")
        return first, bounds

    def span(self, number: int) -> tuple[int, int]:
        """Return the first byte of a buffer in the file, and its end."""
        return self._begins[number], self._begins[number] + self._sizes[number]

    def has_nulls(self, place: Place) -> bool:
        """Return whether any item of a field is null."""
        return self._nulls[place.node] != 0

    def bounds_view(self, place: Place) -> NDArray[Any]:
        """Return the pairs of bounds of all lists, (rows, 2), as a view."""
        dtype = _INT64 if _is_large(place.kind) else _INT32
        ends = self.view(place.buffer + 1, dtype, 0, self.rows + 1)
        pairs: NDArray[Any] = np.lib.stride_tricks.sliding_window_view(ends, 2)
        return pairs


@dataclass(slots=True)
class MappedItems:
    """The `FieldItems` ``start:stop`` of a field of a mapped batch."""

    batch: MappedBatch
    place: Place
    start: int
    stop: int
    mapped: ClassVar[bool] = True

    @property
    def has_fields(self) -> bool:
        """See `FieldItems`."""
        return bool(self.place.children)

    def __len__(self) -> int:
        return self.stop - self.start

    def nulls(self) -> Flags | None:
        """See `FieldItems.nulls`."""
        return self.batch.nulls(self.place, self.start, self.stop)

    def lists(self) -> tuple[Ints, MappedItems]:
        """See `FieldItems.lists`."""
        if (fixed := self.fixed_size_lists()) is not None:
            return np.arange(len(self) + 1, dtype=np.int64) * fixed[0], fixed[1]
        first, bounds = self.batch.bounds(self.place, self.start, self.stop)
        return bounds, MappedItems(self.batch, self.place.children[0], first, first + int(bounds[-1]))

    def fixed_size_lists(self) -> tuple[int, MappedItems] | None:
        """See `FieldItems.fixed_size_lists`."""
        size = getattr(self.place.kind, "list_size", None)
        if size is None:
            return None
        return size, MappedItems(self.batch, self.place.children[0], self.start * size, self.stop * size)

    def field(self, which: int | str) -> MappedItems:
        """See `FieldItems.field`."""
        number = self.place.kind.get_field_index(which) if isinstance(which, str) else which
        return MappedItems(self.batch, self.place.children[number], self.start, self.stop)

    def strings(self) -> tuple[Ints, NDArray[np.uint8]]:
        """See `FieldItems.strings`."""
        import pyarrow as pa

        place = self.place
        if pa.types.is_fixed_size_binary(place.kind):
            width = place.kind.byte_width
            data = self.batch.view(place.buffer + 1, _UINT8, self.start * width, self.stop * width)
            return np.arange(len(self) + 1, dtype=np.int64) * width, data
        first, bounds = self.batch.bounds(place, self.start, self.stop)
        return bounds, self.batch.view(place.buffer + 2, _UINT8, first, first + int(bounds[-1]))

    def numbers(self, dtype: np.dtype[Any] | None) -> NDArray[Any]:
        """See `FieldItems.numbers`."""
        kind, buffer = self._dtype, self.place.buffer + 1
        if kind == np.bool_:
            return self.batch.bits(buffer, self.start, self.stop).view(np.bool_)
        if kind.kind == "V":
            return decimal_numbers(self._decimals(), self.place.kind.scale, dtype)
        numbers = self.batch.view(buffer, kind, self.start, self.stop)
        if dtype is None or dtype == kind:
            return numbers
        # A store has bools as bytes.
        return numbers.view(np.bool_) if dtype == np.bool_ else _native.copied(numbers).astype(dtype)

    def changeable(self, numbers: NDArray[Any]) -> bool:
        """See `FieldItems.changeable`."""
        return False

    def too_large(self, dtype: np.dtype[Any]) -> Flags | None:
        """See `FieldItems.too_large`."""
        return too_large(self._decimals()) if holds_less(dtype, self.place.kind) else None

    @property
    def _dtype(self) -> np.dtype[Any]:
        return stored_dtype(self.place.kind)

    def _decimals(self) -> NDArray[Any]:
        """Return a copy of the integers of decimals, with zeros in the place of nulls."""
        size = self._dtype.itemsize
        stored = self.batch.view(self.place.buffer + 1, _UINT8, self.start * size, self.stop * size)
        integers = _native.copied(stored).view(self._dtype)
        nulls = self.nulls()
        if nulls is not None:
            integers[nulls] = bytes(size)
        return integers

    def to_memory(self, array: NDArray[Any]) -> NDArray[Any]:
        """See `FieldItems.to_memory`."""
        return _native.copied(array)


def _is_large(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_large_list(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


# ---- the buffers that views need, where parts of the file may be missing --------------------------------


def needed_buffers(batch: MappedBatch, place: Place, column: Column) -> list[int]:
    """Return the buffers of a column whose content `MappedItems` reads. Of the other buffers it only makes views.

    Copies of lists of unequal lengths read further buffers, see `has_equal_lists`.
    """
    buffers: list[int] = []
    for outer, step in _walk(place, column.path.steps):
        if batch.has_nulls(outer):
            buffers.append(outer.buffer)
        if step is None and _has_bounds(outer.kind):
            buffers.append(outer.buffer + 1)
    outermost, place = place, place_at(place, column.path.steps)
    if column.filling is not None and _has_nulls_within(batch, outermost):  # samples are copied, and filled
        return [*buffers, *range(place.buffer, place.end)]
    places = [place]
    while places:
        inner = places.pop()
        if batch.has_nulls(inner):
            buffers.append(inner.buffer)
        if _has_bounds(inner.kind) or _is_converted(inner, column):
            buffers.append(inner.buffer + 1)
        # The path of a picture is not read.
        pictured = column.stream.is_bytes and len(inner.children) > 1
        places += [inner.children[inner.kind.get_field_index("bytes")]] if pictured else inner.children
    if column.stream.sparse:
        listed = column.ragged and not column.path.in_list
        (entry,) = (place.children[0] if listed else place).children
        index = entry.children[0]
        if index.kind != "int32" or any(map(batch.has_nulls, (entry, *entry.children))):
            buffers.append(index.buffer + 1)
        if stored_dtype(entry.children[1].kind) != column.stream.dtype:
            buffers.append(entry.children[1].buffer + 1)
    return buffers


def _has_nulls_within(batch: MappedBatch, place: Place) -> bool:
    return batch.has_nulls(place) or any(_has_nulls_within(batch, child) for child in place.children)


def has_equal_lists(batch: MappedBatch, place: Place, column: Column) -> bool:
    """Return whether all lists of a column have the declared lengths, so that `MappedItems` returns a view.

    Raises:
        ValueError: buffers contradict each other.
        DataError: the file was truncated, or its disk fails.
    """
    if column.path.steps:
        return False  # copied if a struct around them is null
    start, stop = 0, batch.rows
    for dim in [None, *column.dims] if column.ragged else column.dims:
        first, bounds = batch.bounds(place, start, stop)
        if dim is not None and (batch.has_nulls(place) or (np.diff(bounds) != dim).any()):
            return False
        place, start, stop = place.children[0], first, first + int(bounds[-1])
    while place.children:
        if batch.has_nulls(place):
            return False
        place = place.children[0]
    return not batch.has_nulls(place)


def length_pairs(batch: MappedBatch, place: Place, column: Column) -> NDArray[Any]:
    """Return the bounds of the sequences of a ragged column, (rows, 2): a view, or a copy if some are null, or within
    structs.

    Raises:
        ValueError: buffers contradict each other.
        DataError: the file was truncated, or its disk fails.
    """
    if not column.path.steps and (column.filling is None or not batch.has_nulls(place)):
        return batch.bounds_view(place)
    lengths = lengths_of(MappedItems(batch, place, 0, batch.rows), column)
    wide = bool(column.path.steps) or _is_large(place.kind)
    return np.stack([np.zeros_like(lengths), lengths], axis=1).astype(_INT64 if wide else _INT32)


def place_at(place: Place, steps: Sequence[str | None]) -> Place:
    """Return the place to which ``steps`` lead from another one."""
    for outer, step in _walk(place, steps):
        place = outer.children[0 if step is None else outer.kind.get_field_index(step)]
    return place


def _walk(place: Place, steps: Sequence[str | None]) -> Iterator[tuple[Place, str | None]]:
    """Yield the places on a path, each with the step that leads on from it."""
    for step in steps:
        yield place, step
        place = place.children[0 if step is None else place.kind.get_field_index(step)]


def leaf_of(place: Place) -> int:
    """Return the buffer with the numbers of a column of lists."""
    while place.children:
        place = place.children[0]
    return place.buffer + 1


def _is_converted(place: Place, column: Column) -> bool:
    """Return whether numbers are copied, as they are stored in another dtype, or as bits."""
    import pyarrow as pa

    if place.children or column.stream.is_bytes or column.stream.sparse or pa.types.is_null(place.kind):
        return False
    stored = stored_dtype(place.kind)
    return stored == np.bool_ or (stored != column.stream.dtype and column.stream.dtype != np.bool_)


def _has_bounds(kind: Any) -> bool:
    import pyarrow as pa

    strings = pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_map(kind)
    return bool(strings or is_list(kind) or _is_large(kind))
