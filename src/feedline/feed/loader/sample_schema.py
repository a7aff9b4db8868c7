"""The samples of a dataset as records: their streams, and the values of many samples.

A sample is split as a batch is collated: keys of mappings, fields of named tuples and places of tuples name the
streams, ``"box.size"`` for a nested part. The parts are numbers, arrays, tensors, lists of numbers, SciPy sparse
matrices, byte strings and texts. Arrays whose first dimension differs between samples are sequences, all others one
sample each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.data import Schema, Stream, Value
from feedline.data.value import unmasked
from feedline.errors import SchemaError, shown
from feedline.feed.workers import empty

SINGLE = "x"
"""Name of the stream of samples that are one array or number."""

_NUMBERS = (bool, int, float, np.generic)


class Misfit(NamedTuple):
    """Reports that a sample does not fit. Workers return it, as only the parent knows which item it is.

    Attributes:
        number: number of the sample in its batch.
        name: name of the stream. None if the sample as a whole does not fit.
        what: message about the problem.
    """

    number: int
    name: str | None
    what: str


class Field(NamedTuple):
    """One part of a sample, and the stream that it becomes.

    Attributes:
        key: name of the part.
        stream: stream that it becomes.
        ragged: whether each sample is a sequence, (length, *shape). None if it was declared, and may be either.
        like: origin of ``stream``, for errors.
    """

    key: str
    stream: Stream
    ragged: bool | None
    like: str


class Unreadable(NamedTuple):
    """Replaces a sample that raised."""

    what: str


def _parts(sample: Any, place: str) -> dict[str, Any]:
    """Return the parts of a sample, called ``place`` in errors, by name."""
    if not _nests(sample):
        return {SINGLE: sample}
    parts: dict[str, Any] = {}
    for name, part in _walk(sample, ""):
        if name in parts:
            raise SchemaError(f"expected distinct names for all parts of a sample, got `{name}` twice, in {place}")
        parts[name] = part
    return parts


def _walk(node: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    children: Iterable[tuple[Any, Any]]
    if isinstance(node, Mapping):
        children = node.items()
    elif hasattr(node, "_fields"):
        children = zip(node._fields, node, strict=True)
    else:
        children = enumerate(node)
    for key, child in children:
        name = f"{prefix}{key}"
        if _nests(child):
            yield from _walk(child, f"{name}.")
        else:
            yield name, child


def _nests(value: Any) -> bool:
    """Return whether a value has parts. Lists of numbers, of any depth, are arrays."""
    if isinstance(value, (Mapping, tuple)):
        return True
    return isinstance(value, list) and len(value) > 0 and not _is_numeric(value)


def _is_numeric(value: Any) -> bool:
    while isinstance(value, list):
        if not value:
            return True
        value = value[0]
    return isinstance(value, _NUMBERS)


class Fields:
    """The fields of all samples of a dataset.

    Args:
        fields: fields by the name of their stream.
        selected: whether other parts of a sample are dropped, rather than an error.
        first: name of the first sample in errors.

    Attributes:
        schema: their streams.
    """

    def __init__(self, fields: Mapping[str, Field], *, selected: bool, first: str) -> None:
        self._fields, self._selected, self._first = dict(fields), selected, first
        self.schema = Schema({name: field.stream for name, field in self._fields.items()})
        self._keys = {field.key for field in self._fields.values()}

    @classmethod
    def of(cls, samples: Mapping[str, Any], streams: Mapping[str, Stream | None] | Sequence[str] | None) -> Fields:
        """Infer the fields from some samples.

        Args:
            samples: the samples, at least one, by their names in errors.
            streams: by name, a declaration, or None to infer it. Or only names, either for the parts of a tuple in
                order, or some of the keys of a mapping. None: all parts under their own names.

        Raises:
            SchemaError: samples cannot be stored, or differ.
        """
        if isinstance(streams, str):
            raise TypeError(f"expected streams as a list of names or a mapping, got {streams!r}; write [{streams!r}]")
        records = {place: _parts(sample, place) for place, sample in samples.items()}
        first = next(iter(records))
        keys = _keys(records[first], streams)
        selected = streams is not None
        declared = streams if isinstance(streams, Mapping) else {}
        for place, parts in records.items():
            _check_keys(parts, set(keys.values()), selected, place, first)
        fields = {}
        for name, key in keys.items():
            stream = declared.get(name)
            if stream is None:
                siblings = [each for each in keys if each != name]
                fields[name] = _infer(name, key, {place: parts[key] for place, parts in records.items()}, siblings)
            elif isinstance(stream, Stream):
                fields[name] = Field(key, stream, None, "declared")
            else:
                raise TypeError(f"expected an fl.Stream or None for stream `{name}`, got {stream!r}")
        return cls(fields, selected=selected, first=first)

    def values(self, samples: Sequence[Any]) -> dict[str, Value] | Misfit:
        """Return samples as one value per stream, with zeros for `Unreadable` ones."""
        columns: dict[str, list[Any]] = {name: [] for name in self._fields}
        for number, sample in enumerate(samples):
            if isinstance(sample, Unreadable):
                for name, field in self._fields.items():
                    columns[name].append(_blank(field))
                continue
            try:
                parts = _parts(sample, "this one")
                _check_keys(parts, self._keys, self._selected, "this one", self._first)
            except SchemaError as error:
                return Misfit(number, None, str(error))
            for name, field in self._fields.items():
                try:
                    columns[name].append(_fit(parts[field.key], field))
                except (TypeError, ValueError) as error:
                    return Misfit(number, name, str(error))
        return {name: _value(field, columns[name]) for name, field in self._fields.items()}

    def error(self, misfit: Misfit, place: str) -> SchemaError:
        """Return the error for a sample that does not fit, called ``place``."""
        if misfit.name is None:
            return SchemaError(f"{misfit.what}\n  at {place}")
        return SchemaError(f"{misfit.what}\n  at {place}, stream `{misfit.name}`\n  {self._hint(misfit.name)}")

    def _hint(self, name: str) -> str:
        field = self._fields[name]
        if field.ragged is None:
            return "declare a stream that fits all samples, or make the samples fit"
        if field.stream.is_bytes:
            return f"make it {field.stream.kind} in the dataset, in all samples"
        shape = field.stream.shape[1:] if not field.ragged and field.stream.shape else field.stream.shape
        stated = ", ".join(
            f"{each!r}: fl.Stream({shape}, {field.stream.dtype.name!r})" if each == name else f"{each!r}: None"
            for each in self._fields
        )
        return f"if samples differ in length or dtype, declare the stream for all of them: streams={{{stated}}}"


def _keys(first: Mapping[str, Any], streams: Mapping[str, Stream | None] | Sequence[str] | None) -> dict[str, str]:
    """Return the name of each stream, and the part that it is made of."""
    if streams is None:
        return {name: name for name in first}
    names = list(streams)
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ValueError(f"expected distinct names of streams, got {names!r}")
    declared = streams if isinstance(streams, Mapping) else {}
    fields = {name: s.field for name, s in declared.items() if isinstance(s, Stream) and s.field is not None}
    if not set(names) & set(first) and not fields and all(part.isdigit() or part == SINGLE for part in first):
        if len(names) != len(first):
            raise SchemaError(
                f"expected as many names of streams as samples have parts, got {', '.join(names)} for "
                f"{len(first)} parts"
            )
        return dict(zip(names, first, strict=True))
    keys = {name: fields.get(name, name) for name in names}
    if missing := [key for key in keys.values() if key not in first]:
        raise SchemaError(f"expected {', '.join(f'`{key}`' for key in missing)} in samples, which have {_list(first)}")
    return keys


def _check_keys(parts: Mapping[str, Any], keys: set[str], selected: bool, place: str, first: str) -> None:
    if missing := [key for key in keys if key not in parts]:
        raise SchemaError(f"expected `{min(missing)}` in every sample, as in {first}, but {place} has {_list(parts)}")
    if not selected and len(parts) > len(keys):
        extra = [key for key in parts if key not in keys]
        raise SchemaError(
            f"expected the parts {_list(sorted(keys))} in every sample, as in {first}, but {place} also has "
            f"{_list(extra)}; name those to store: streams={sorted(keys)!r}"
        )


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _infer(name: str, key: str, parts: Mapping[str, Any], siblings: list[str]) -> Field:
    """Infer a field from the same part of some samples. ``siblings`` are the names of the other streams."""
    kinds = {place: _string_kind(part) or type(part).__name__ for place, part in parts.items()}
    if like := next((place for place, part in parts.items() if _string_kind(part)), None):
        if odd := next((place for place, kind in kinds.items() if kind != kinds[like]), None):
            raise SchemaError(_differs(name, "type", {like: kinds[like], odd: kinds[odd]}))
        return Field(key, Stream(dtype=kinds[like]), False, like)
    arrays: dict[str, Any] = {}
    for place, part in parts.items():
        try:
            arrays[place] = _array(part)
        except (TypeError, ValueError) as error:
            without = f"\n  or store only the other parts: streams={siblings!r}" if siblings else ""
            raise SchemaError(f"{error}\n  at {place}, stream `{name}`{without}") from error
    # An empty list shows nothing about its numbers.
    telling = [(place, array) for place, array in arrays.items() if array is not _EMPTY]
    if not telling:
        raise SchemaError(
            f"expected a number in some list of `{name}`, got only empty ones in the samples that were examined; "
            f"declare it: streams={{{name!r}: fl.Stream((), 'int64'), ...}}, None for the other names"
        )
    like, first = telling[0]
    if hasattr(first, "tocsr"):
        return Field(key, Stream(first.shape[1], first.dtype.newbyteorder("="), sparse=True), None, like)
    dtype = first.dtype
    for place, array in telling:
        if array.dtype != dtype:
            if not (_is_python(parts[like]) and _is_python(parts[place])):
                raise SchemaError(_differs(name, "dtype", {like: dtype.name, place: array.dtype.name}))
            dtype = np.promote_types(dtype, array.dtype)
        if array.ndim != first.ndim or array.shape[1:] != first.shape[1:]:
            raise SchemaError(_differs(name, "shape", {like: first.shape, place: array.shape}))
    ragged = first.ndim > 0 and any(a is _EMPTY or a.shape != first.shape for a in arrays.values())
    shape = first.shape[1:] if ragged else first.shape
    return Field(key, Stream(shape, dtype.newbyteorder("=")), ragged, like)


def _string_kind(value: Any) -> str | None:
    """Return ``"str"`` or ``"bytes"`` for a text or a byte string, else None."""
    return "str" if isinstance(value, str) else "bytes" if isinstance(value, (bytes, bytearray)) else None


def _is_python(value: Any) -> bool:
    return isinstance(value, (list, bool, int, float)) and not isinstance(value, np.generic)


def _differs(name: str, what: str, values: Mapping[str, Any]) -> str:
    text = f"expected the same {what} in all samples"
    if what == "shape":
        text += ", but for the length of the first dimension"
    return (
        f"{text}, got {' and '.join(f'{value} in {place}' for place, value in values.items())}\n  stream `{name}`\n"
        "  make them equal in the dataset, e.g. by a transform that crops, pads or converts"
    )


_EMPTY: Any = np.empty(0)


def _array(value: Any) -> Any:
    """Return a part of a sample as an array, or as a SciPy sparse matrix of one row per sample.

    Raises:
        TypeError, ValueError: it is neither.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        array = unmasked(value)
    elif isinstance(value, _NUMBERS):
        array = _check_integers(np.asarray(value), value)
    elif isinstance(value, list):
        if not value:
            return _EMPTY
        try:
            array = _check_integers(np.asarray(value), value)
        except ValueError as error:
            raise ValueError(f"expected lists of equal length in a list, got {shown(value, 80)}: {error}") from error
    elif hasattr(value, "tocsr"):
        return value.tocsr()
    elif hasattr(value, "detach") and hasattr(value, "numpy"):
        try:
            array = value.detach().cpu().numpy()
        except (TypeError, RuntimeError) as error:
            raise TypeError(f"expected a tensor that NumPy can hold, got one of {value.dtype}: {error}") from error
    elif hasattr(value, "__array__") and not isinstance(value, (str, bytes)):
        array = np.asarray(value)
    else:
        raise TypeError(_refusal(value))
    if array.dtype.kind not in "?biuf":
        raise TypeError(_refusal(value) if array.dtype.kind in "OSU" else f"expected real numbers, got {array.dtype}")
    return array


def _check_integers(array: NDArray[Any], value: Any) -> NDArray[Any]:
    """Return the array of Python's numbers, unless NumPy took integers for something larger or less exact."""
    if array.dtype == np.uint64 or (array.dtype.kind == "O" and _is_numeric(value)):
        raise TypeError(f"expected integers from -2**63 to 2**63 - 1, got {shown(value, 60)}; np.uint64 holds more")
    return array


def _refusal(value: Any) -> str:
    """Return the message why a value cannot be stored, with a remedy in the dataset."""
    expected = f"expected a number, an array or a tensor, got {type(value).__name__} {shown(value, 40)}"
    if _string_kind(value):
        return f"{expected}: make it the same kind in all samples"
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind in "SU":
        return f"{expected}: a sample may have several texts as a tuple, each a stream, but not as an array"
    if value is None:
        return f"{expected}: replace it by a number"
    return f"{expected}: convert it in the dataset, e.g. an image by np.asarray(image)"


def _fit(part: Any, field: Field) -> Any:
    """Return a part as (*shape) or (length, *shape) of its field's stream.

    Raises:
        TypeError, ValueError: it does not fit.
    """
    stream = field.stream
    if stream.is_bytes:
        if _string_kind(part) != stream.kind:
            raise TypeError(f"expected {stream.kind}, as {_as_in(field)}, got {type(part).__name__} {shown(part, 40)}")
        return part.encode() if stream.is_text else bytes(part)
    array = _array(part)
    if array is _EMPTY:
        array = np.empty((0, *stream.shape), stream.dtype)
    if hasattr(array, "tocsr") is not stream.sparse:
        raise TypeError(f"expected {'a sparse matrix' if stream.sparse else 'an array'}, got {type(part).__name__}")
    if stream.sparse:
        if array.shape[1] != stream.shape[0]:
            raise ValueError(f"expected {stream.shape[0]} columns, as {_as_in(field)}, got {array.shape[1]}")
        return array.astype(stream.dtype, copy=False)
    if array.dtype != stream.dtype:
        array = _convert(array, field, part)
    single, sequence = array.shape == stream.shape, array.ndim > 0 and array.shape[1:] == stream.shape
    if field.ragged is not True and single:
        return array if field.ragged is False else array[None]
    if field.ragged is not False and sequence:
        return array
    expected = f"(any length{''.join(f', {n}' for n in stream.shape)})" if field.ragged else f"{stream.shape}"
    raise ValueError(f"expected an array of shape {expected}, as {_as_in(field)}, got {array.shape}")


def _convert(array: NDArray[Any], field: Field, part: Any) -> NDArray[Any]:
    dtype = field.stream.dtype
    convertible = field.ragged is None or _is_python(part)
    if convertible and array.dtype.kind in "iu" and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if array.size and not limits.min <= int(array.min()) <= int(array.max()) <= limits.max:
            raise ValueError(f"expected numbers from {limits.min} to {limits.max} for {dtype}, got {shown(part, 60)}")
    elif array.dtype.newbyteorder("=") != dtype and not (convertible and np.can_cast(array.dtype, dtype, "same_kind")):
        raise TypeError(f"expected numbers of {dtype.name}, as {_as_in(field)}, got {array.dtype.name}")
    return array.astype(dtype)


def _as_in(field: Field) -> str:
    return field.like if field.like == "declared" else f"in {field.like}"


def _blank(field: Field) -> Any:
    stream = field.stream
    if stream.is_bytes:
        return b""
    if stream.sparse:
        from scipy.sparse import csr_matrix

        return csr_matrix((1, stream.shape[0]), dtype=stream.dtype)
    return np.zeros(stream.shape if field.ragged is False else (1, *stream.shape), stream.dtype)


def _value(field: Field, arrays: list[Any]) -> Value:
    stream = field.stream
    if stream.is_bytes:
        bounds = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
        return Value.from_buffer(b"".join(arrays), bounds, stream.dtype)
    if stream.sparse:
        return Value.from_sequences(arrays, stream.dtype)
    if field.ragged is False:
        rows = empty((len(arrays), *stream.shape), stream.dtype)
        np.stack(arrays, out=rows)
        return Value.from_dense(rows)
    ends = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
    rows = empty((int(ends[-1]), *stream.shape), stream.dtype)
    np.concatenate(arrays, out=rows)
    return Value.from_dense(rows, ends)
