"""Streams and schemas: the data that a source delivers, declared before any byte is read.

A stream is one named input. A schema is the ordered set of streams of a source. Its digest is part of every saved
state, so that a state cannot be loaded into a source that delivers something else.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from feedline.errors import SchemaError

_FLOAT32 = np.dtype(np.float32)

PRESENT = "_present"
"""End of the name of a mask: see `Stream.mask`."""


def mask_of_stream(schema: Mapping[str, Stream], name: str) -> str | None:
    """Return the name of the mask of a stream, or None. A stream with such a name that has no bools is another one."""
    stream = schema.get(name + PRESENT)
    is_mask = stream is not None and stream.dtype == np.bool_ and stream.shape == () and not stream.sparse
    return name + PRESENT if is_mask else None


@dataclass(frozen=True, slots=True)
class Stream:
    """One named input.

    Args:
        shape: shape of one sample. An int declares a vector of that many values, ``()`` a scalar.
        dtype: element type, as NumPy names it, or ``"bytes"`` or ``"str"``. A sample is then a byte string or a text
            (UTF-8) of any length, and ``shape`` is ``()``.
        sparse: samples are sparse vectors. ``shape`` then has exactly one dimension.
        field: the name in the data, if it differs from the stream's.
        defines_size: this stream's length, not the longest one's, counts towards the minibatch budget.
            At most one stream of a schema may set it.
        missing: value of samples that the data lacks (nulls, absent keys), in declarations for formats that can have
            such. None: their sequences are unreadable, unless there is a mask. Sparse samples have no entries, so 0.
        mask: whether the corpus gets a stream ``<name>_present``, bool, False for samples that the data lacks. Without
            ``missing`` these are 0 or empty.
        unit: what 1 means, such as ``"timestamp[ms, UTC]"``, ``"duration[s]"`` or ``"decimal[1e-2]"``. Arrow and
            Parquet fill it in. None: the data do not say.

    Raises:
        ValueError: a negative dimension, a sparse stream that is not a vector, one of byte strings with a shape or a
            unit, or a value of missing samples that the dtype cannot hold.
        TypeError: a dtype of objects or of no size, or a unit that is no text.
    """

    shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] = _FLOAT32
    sparse: bool = False
    field: str | None = None
    defines_size: bool = False
    missing: Any = None
    mask: bool = False
    unit: str | None = None

    def __init__(
        self,
        shape: int | tuple[int, ...] = (),
        dtype: Any = "float32",
        sparse: bool = False,
        field: str | None = None,
        defines_size: bool = False,
        *,
        missing: Any = None,
        mask: bool = False,
        unit: str | None = None,
    ) -> None:
        dims = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        dims = tuple(int(d) for d in dims)
        if any(d < 0 for d in dims):
            raise ValueError(f"expected dimensions of at least 0, got shape {dims}")
        try:
            kind = np.dtype(dtype)
        except TypeError as error:
            raise TypeError(f"expected a dtype as NumPy names it, such as 'float32', got {dtype!r}") from error
        if kind.hasobject or (kind.itemsize == 0 and kind.kind not in "SU"):
            raise TypeError(f"expected a dtype of fixed size such as 'float32', or 'bytes' or 'str', got {kind}")
        if kind.itemsize == 0 and (dims or sparse):
            raise ValueError(
                f"expected no shape for a stream of {kind.name}, whose samples have any length, got "
                f"{'sparse ' if sparse else ''}{dims}"
            )
        if sparse and len(dims) != 1:
            raise ValueError(f"expected one dimension for a sparse stream, got shape {dims}")
        if unit is not None and not isinstance(unit, str):
            raise TypeError(f"expected a unit such as 'duration[s]', got {unit!r}")
        if unit is not None and (not encodable(unit) or not unit or kind.itemsize == 0):
            raise ValueError(f"expected a unit such as 'duration[s]', of numbers, got {unit!r} of {kind.name}")
        parts = {
            "shape": dims,
            "dtype": kind,
            "sparse": bool(sparse),
            "field": field,
            "defines_size": bool(defines_size),
            "missing": None if missing is None else _missing_value(missing, kind, sparse),
            "mask": bool(mask),
            "unit": unit,
        }
        for name, value in parts.items():
            object.__setattr__(self, name, value)

    @property
    def size(self) -> int:
        """Number of values in one dense sample."""
        return math.prod(self.shape)

    @property
    def is_bytes(self) -> bool:
        """Whether samples are byte strings or texts of any length."""
        return self.dtype.itemsize == 0

    @property
    def is_text(self) -> bool:
        """Whether samples are texts."""
        return self.is_bytes and self.dtype.kind == "U"

    @property
    def kind(self) -> str:
        """``"dense"``, ``"sparse"``, ``"bytes"`` or ``"str"``."""
        return str(self.dtype.name) if self.is_bytes else "sparse" if self.sparse else "dense"

    def __repr__(self) -> str:
        parts = [] if self.is_bytes else [f"shape={self.shape}"]
        parts += [f"dtype={self.dtype.name!r}"]
        parts += ["sparse=True"] if self.sparse else []
        parts += [f"field={self.field!r}"] if self.field is not None else []
        parts += ["defines_size=True"] if self.defines_size else []
        parts += [f"missing={self.missing!r}"] if self.missing is not None else []
        parts += ["mask=True"] if self.mask else []
        parts += [f"unit={self.unit!r}"] if self.unit is not None else []
        return f"Stream({', '.join(parts)})"

    @property
    def may_miss(self) -> bool:
        """Whether samples that the data lacks are not errors."""
        return self.missing is not None or self.mask

    def delivered(self) -> Stream:
        """Return the stream without what it declares about samples that the data lacks, as it is delivered."""
        return replace(self, missing=None, mask=False) if self.may_miss else self


def _missing_value(value: Any, dtype: np.dtype[Any], sparse: bool) -> Any:
    """Return the value of missing samples as a Python object of a dtype.

    Raises:
        ValueError: the dtype cannot hold it.
    """
    if dtype.itemsize == 0:
        if isinstance(value, bytes) if dtype.kind == "S" else isinstance(value, str) and encodable(value):
            return value
    elif isinstance(value, (bool, int, float, np.generic)):
        with np.errstate(all="ignore"):
            try:
                stored = np.array(value).astype(dtype)
                # A float is rounded to the dtype, but stays finite. Anything else has to stay what it is.
                rounds = dtype.kind == "f" and not (np.isinf(stored) and np.isfinite(value))
                if (rounds or stored.item() == value) and (not sparse or value == 0):
                    return stored.item()
            except (OverflowError, TypeError, ValueError):
                pass
    kind = "0, as sparse samples that are missing have no entries" if sparse else f"a value of {dtype.name}"
    raise ValueError(f"expected missing to be {kind}, got {value!r}")


@dataclass(frozen=True, slots=True, eq=False)
class Schema(Mapping[str, Stream]):
    """The ordered, immutable set of streams of a source: a mapping from stream name to `Stream`.

    Raises:
        SchemaError: no streams, a name that is not a non-empty string, or two streams that define the
            minibatch size.
    """

    streams: Mapping[str, Stream]
    _digest: list[str] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        streams = dict(self.streams)
        if not streams:
            raise SchemaError("expected at least one stream, got none; declare one, e.g. x=fl.Stream(shape=4)")
        for name, stream in streams.items():
            if not isinstance(name, str) or not name:
                raise SchemaError(f"expected a non-empty string as stream name, got {name!r}")
            if not encodable(name):
                raise SchemaError(f"expected a stream name that UTF-8 can encode, got {name!r}, with half a surrogate")
            if not isinstance(stream, Stream):
                raise SchemaError(
                    f"expected a feedline.Stream for stream `{name}`, got {type(stream).__name__}; "
                    f"write {name}=fl.Stream(shape=...)"
                )
            if stream.may_miss:
                raise SchemaError(
                    f"expected a stream whose samples are all in the data, got `{name}` with missing= or mask=, which "
                    "this format does not take"
                )
        definers = [name for name, stream in streams.items() if stream.defines_size]
        if len(definers) > 1:
            raise SchemaError(f"expected at most one stream with defines_size=True, got {', '.join(definers)}")
        object.__setattr__(self, "streams", streams)

    def __getitem__(self, name: str) -> Stream:
        try:
            return self.streams[name]
        except KeyError:
            raise KeyError(f"no stream `{name}`; this schema has {', '.join(self.streams)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.streams)

    def __len__(self) -> int:
        return len(self.streams)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return NotImplemented
        return list(self.streams.items()) == list(other.streams.items())

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def size_stream(self) -> str | None:
        """Name of the stream that defines the minibatch size, or None: the longest stream of each sequence does."""
        return next((name for name, stream in self.streams.items() if stream.defines_size), None)

    @property
    def size_at(self) -> int:
        """Index of that stream. -1: there is none."""
        return -1 if self.size_stream is None else list(self.streams).index(self.size_stream)

    @property
    def digest(self) -> str:
        """32 hex digits that identify names, order, shapes, dtypes, kinds and units of the streams.

        Fields are omitted: renaming a column of the data does not change the delivered values.
        """
        if not self._digest:
            rows = [
                [name, list(s.shape), s.dtype.str, s.sparse, s.defines_size, *([s.unit] if s.unit is not None else [])]
                for name, s in self.streams.items()
            ]
            self._digest.append(hashlib.blake2b(json.dumps(rows).encode(), digest_size=16).hexdigest())
        return self._digest[0]

    def __repr__(self) -> str:
        rows = [
            f"  {name}  {s.dtype.name}{'' if s.is_bytes else f' {s.shape}'}{' sparse' if s.sparse else ''}"
            f"{' defines size' if s.defines_size else ''}{f' {s.unit}' if s.unit is not None else ''}"
            for name, s in self.streams.items()
        ]
        return "\n".join([f"Schema({len(rows)} stream{'s' if len(rows) != 1 else ''})", *rows])


def encodable(name: str) -> bool:
    """Whether UTF-8, and so every file format, can encode a name. It cannot encode half surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
