"""Nested columns as JSON text: objects for structs, arrays for lists, null for nulls.

Texts are put together from spans of the column's buffers and of literals, a level at a time. A native kernel copies
the spans, and Arrow writes the numbers. Cost: each byte is copied once a level.
"""

from __future__ import annotations

import functools
import json
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.data.scattered import ScatteredBytes
from feedline.errors import SchemaError
from feedline.feed.byte_strings import TooLargeError, from_arrow, kind_of
from feedline.feed.formats.arrow.column_paths import is_list, storage
from feedline.feed.formats.arrow.field_items import FieldItems
from feedline.feed.formats.indexed.value_paths import Steps, join_steps
from feedline.feed.protocol import Ints

Flags = NDArray[np.bool_]


class JSONTexts(NamedTuple):
    """Texts, one behind the other.

    Attributes:
        bounds: where each begins, and where the last ends, int64 (n + 1,).
        data: their bytes.
    """

    bounds: Ints
    data: NDArray[np.uint8]


class _Literals:
    """Constant texts in one buffer, each with its span."""

    def __init__(self, *texts: str) -> None:
        self.data = np.frombuffer("".join(texts).encode(), np.uint8)
        ends = np.cumsum([0, *(len(text.encode()) for text in texts)])
        self.spans = np.stack([ends[:-1], ends[1:]], axis=1).astype(np.int64)


_ESCAPES = {byte: json.dumps(chr(byte))[1:-1] for byte in [*range(0x20), ord('"'), ord("\\")]}
_IS_ESCAPED = np.isin(np.arange(256), list(_ESCAPES))
_QUOTED = _Literals('"', *(_ESCAPES.get(byte, "") for byte in range(256)))
_LIST = _Literals("[", ",", "]", "[]")
_NULL = _Literals("null")
_BOOLS = _Literals("false", "true")


def is_nested(kind: Any) -> bool:
    """Return whether a type is of structs or lists, which have no bytes of their own."""
    import pyarrow as pa

    kind = storage(kind)
    return bool(pa.types.is_struct(kind) or is_list(kind) or pa.types.is_fixed_size_list(kind))


def check_writable(kind: Any, column: str, steps: Steps, file: str) -> None:
    """Check that a value can be written as JSON.

    Raises:
        SchemaError: a part of it has no form in JSON.
    """
    import pyarrow as pa

    kind = storage(kind)
    if pa.types.is_struct(kind):
        for i in range(kind.num_fields):
            check_writable(kind.field(i).type, column, [*steps, kind.field(i).name], file)
        return
    if is_nested(kind):
        check_writable(kind.value_type, column, [*steps, None], file)
        return
    item = kind.value_type if pa.types.is_dictionary(kind) else kind
    types = pa.types
    numeric = types.is_integer(item) or types.is_floating(item) or types.is_boolean(item)
    if not numeric and kind_of(item) != "str" and not types.is_null(item):
        raise SchemaError(
            f"expected numbers, bools and text for the JSON text of column {column!r} of {file}, got {item} at "
            f"{join_steps(steps)!r}; read the other values by their paths"
        )


def json_texts(items: FieldItems, kind: Any, memory_bytes: int) -> JSONTexts:
    """Return the JSON text of each item.

    Args:
        items: the items of a field.
        kind: Arrow type of the field.
        memory_bytes: bytes that the texts may take.

    Raises:
        TooLargeError: they take more.
        ValueError: buffers contradict each other.
        DataError: a mapped file was truncated, or its disk fails.
    """
    import pyarrow as pa

    kind = storage(kind)
    if pa.types.is_struct(kind):
        texts = _objects(items, kind, memory_bytes)
    elif is_nested(kind):
        texts = _arrays(items, kind, memory_bytes)
    elif pa.types.is_null(kind):
        texts = JSONTexts(np.zeros(len(items) + 1, np.int64), np.empty(0, np.uint8))
    elif kind_of(kind) == "str":
        texts = _strings(items, memory_bytes)
    else:
        texts = _numbers(items, memory_bytes)
    nulls = items.nulls()
    if nulls is None or not nulls.any():
        return texts
    spans, memory = _behind(texts, _NULL)
    spans[nulls] = _NULL.spans[0]
    return _packed(spans, memory, np.arange(len(items) + 1), memory_bytes)


def _behind(texts: JSONTexts, literals: _Literals) -> tuple[Ints, NDArray[np.uint8]]:
    """Return the spans of texts in a memory that begins with literals, and that memory."""
    starts = texts.bounds + len(literals.data)
    return np.stack([starts[:-1], starts[1:]], axis=1), np.concatenate([literals.data, texts.data])


def _packed(spans: Ints, memory: NDArray[np.uint8], ends: Ints, memory_bytes: int) -> JSONTexts:
    """Copy spans one behind the other. ``ends`` are the numbers of the spans at which texts begin and end."""
    total = int((spans[:, 1] - spans[:, 0]).sum())
    if total > memory_bytes:
        raise TooLargeError(total)
    packed = ScatteredBytes(np.ascontiguousarray(spans), memory, text=False).packed()
    return JSONTexts(packed.bounds[ends], packed.data)


def _objects(items: FieldItems, kind: Any, memory_bytes: int) -> JSONTexts:
    names = [kind.field(i).name for i in range(kind.num_fields)]
    count, pieces = len(items), 2 * len(names) + 1
    keys = [f"{',' if i else '{'}{json.dumps(name, ensure_ascii=False)}:" for i, name in enumerate(names)]
    literals = _Literals(*keys, "}" if names else "{}")
    spans = np.empty((count, pieces, 2), np.int64)
    spans[:, ::2] = literals.spans
    parts, size = [literals.data], len(literals.data)
    for i in range(len(names)):
        texts = json_texts(items.field(i), kind.field(i).type, memory_bytes)
        starts = texts.bounds + size
        spans[:, 2 * i + 1, 0], spans[:, 2 * i + 1, 1] = starts[:-1], starts[1:]
        parts.append(texts.data)
        size += len(texts.data)
    return _packed(spans.reshape(-1, 2), np.concatenate(parts), np.arange(count + 1) * pieces, memory_bytes)


def _arrays(items: FieldItems, kind: Any, memory_bytes: int) -> JSONTexts:
    # Each item is two spans, what comes before it and its text. The end of a list is another.
    nulls = items.nulls()
    bounds, inner = items.lists()
    texts = json_texts(inner, kind.value_type, memory_bytes)
    of_items, memory = _behind(texts, _LIST)
    lengths = np.diff(bounds)
    lists = np.arange(len(items))
    at = 2 * np.arange(len(inner)) + np.repeat(lists, lengths)
    spans = np.empty((2 * len(inner) + len(items), 2), np.int64)
    spans[at], spans[at + 1] = _LIST.spans[1], of_items
    filled = lengths > 0
    spans[(2 * bounds[:-1] + lists)[filled]] = _LIST.spans[0]
    spans[2 * bounds[1:] + lists] = np.where(filled[:, None], _LIST.spans[2], _LIST.spans[3])
    ends = 2 * bounds + np.arange(len(items) + 1)
    if nulls is not None and nulls.any():  # what they hold is undefined, and is not written
        spans[np.repeat(nulls, np.diff(ends))] = 0
    return _packed(spans, memory, ends, memory_bytes)


def _strings(items: FieldItems, memory_bytes: int) -> JSONTexts:
    # Each text is a run between quotes. Each escape adds itself, and the run before it.
    bounds, data = items.strings()
    bounds = bounds.astype(np.int64, copy=False)
    data = items.to_memory(data)
    escaped = np.flatnonzero(_IS_ESCAPED[data])
    before = np.searchsorted(escaped, bounds)
    escaped = escaped[before[0] : before[-1]]
    before -= before[0]
    count, start = len(bounds) - 1, len(_QUOTED.data)
    texts = np.arange(count)
    spans = np.empty((3 * count + 2 * len(escaped), 2), np.int64)
    ends = 3 * np.arange(count + 1) + 2 * before
    spans[ends[:-1]] = spans[ends[1:] - 1] = _QUOTED.spans[0]
    at = ends[:-1] + 1
    spans[at, 0] = bounds[:-1] + start
    if len(escaped):
        owner = np.repeat(texts, np.diff(before))
        of_escapes = 3 * owner + 2 * np.arange(len(escaped)) + 1
        spans[of_escapes, 1] = escaped + start
        spans[of_escapes + 1] = _QUOTED.spans[1 + data[escaped]]
        spans[of_escapes + 2, 0] = escaped + 1 + start
    spans[ends[1:] - 2, 1] = bounds[1:] + start
    return _packed(spans, np.concatenate([_QUOTED.data, data]), ends, memory_bytes)


def _numbers(items: FieldItems, memory_bytes: int) -> JSONTexts:
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = items.to_memory(items.numbers(None))
    if numbers.dtype == np.bool_:
        return _packed(_BOOLS.spans[numbers.astype(np.intp)], _BOOLS.data, np.arange(len(numbers) + 1), memory_bytes)
    floating = numbers.dtype.kind == "f"
    texts = pa.array(numbers.astype(np.float64) if floating else numbers).cast(pa.large_string())
    if floating:
        wide = functools.partial(pa.scalar, type=pa.large_string())
        whole = pc.invert(pc.match_substring_regex(texts, "[.en]"))
        texts = pc.if_else(whole, pc.binary_join_element_wise(texts, wide(".0"), wide("")), texts)
        if not np.isfinite(numbers).all():
            texts = pc.replace_substring(pc.replace_substring(texts, "nan", "NaN"), "inf", "Infinity")
    value = from_arrow(texts)
    return JSONTexts(value.bounds, value.data)
