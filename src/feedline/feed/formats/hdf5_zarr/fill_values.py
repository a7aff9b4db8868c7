"""Fill values of HDF5 and Zarr as missing samples.

An array stores a value in the places of samples that nobody wrote. NetCDF and xarray name it in an attribute, other
programs declare it when they create the array. Only a declaration with ``missing=`` or ``mask=`` treats it specially.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np

from feedline.data import Chunk, Value
from feedline.data.schema import PRESENT
from feedline.data.value import BytesValue, DenseValue
from feedline.errors import SchemaError
from feedline.feed.formats.missing import Filling, Flags, equal_to, fill, mask_of, with_masks
from feedline.feed.protocol import Deserializer, Fetchable, LengthsOfStreams, Mapped, RandomAccess, Sliceable
from feedline.feed.wrapper import Forwarding

ATTRIBUTES = ("_FillValue", "missing_value")


class FillValues(Forwarding):
    """A corpus in which samples with a fill value are missing.

    Args:
        corpus: corpus to read.
        fillings: by stream, what becomes of missing samples.
        fill_values: by stream, the value of missing samples: a number, or bytes.
    """

    _lacks = (RandomAccess, Sliceable, Mapped, Fetchable, LengthsOfStreams)

    def __init__(self, corpus: Deserializer, fillings: Mapping[str, Filling], fill_values: Mapping[str, Any]) -> None:
        super().__init__(corpus)
        self._fillings, self._fill_values = fillings, fill_values
        self.schema = with_masks(corpus.schema.streams, fillings)

    select = Deserializer.select  # by chunk

    def read(self, chunk: int) -> Chunk:
        """Return the chunk with its missing samples filled. Raises the errors of the corpus."""
        read = self._corpus.read(chunk)
        values = dict(read.values)
        for name, filling in self._fillings.items():
            flags = _equal_to(values[name], self._fill_values[name])
            if filling.mask:
                values[name + PRESENT] = mask_of(values[name], flags)
            values[name] = fill(values[name], flags, filling)
        return Chunk(self.schema, values, read.errors, seals=read.seals)


def fill_value_of(name: str, attributes: Mapping[str, Any], declared: Any, dtype: np.dtype[Any], where: str) -> Any:
    """Return the fill value of an array: its attribute, or the value that the array was created with.

    Args:
        name: name of the stream, for errors.
        attributes: attributes of the array.
        declared: value that the array was created with. None: a default.
        dtype: dtype of the array, ``"S"`` or ``"U"`` for strings.
        where: name of the file, for errors.

    Raises:
        SchemaError: it has none.
    """
    for stored in (*(attributes.get(key) for key in ATTRIBUTES), declared):
        value = _parsed(stored, dtype)
        if value is not None:
            return value
    raise SchemaError(
        f"expected an array with a fill value for stream `{name}` with missing= or mask=, as the attribute "
        f"`{ATTRIBUTES[0]}` or from its creation, got none in {where}"
    )


def _parsed(stored: Any, dtype: np.dtype[Any]) -> Any:
    """Return a fill value as bytes, or as a scalar of a dtype. None: there is none."""
    if isinstance(stored, (list, tuple, np.ndarray)):
        items = np.asarray(stored).ravel().tolist()
        stored = items[0] if len(items) == 1 else None
    if stored is None:
        return None
    if dtype.itemsize == 0:
        return stored if isinstance(stored, bytes) else str(stored).encode()
    if isinstance(stored, str):  # xarray writes the bytes of a number in Base64, Zarr "NaN" and "Infinity"
        try:
            packed = base64.b64decode(stored, validate=True)
        except (binascii.Error, ValueError):
            packed = b""
        number = np.frombuffer(packed, "<f8")[0] if len(packed) == 8 else stored
        stored = dtype.type(number) if dtype.kind in "fc" else number
    try:
        return np.asarray(stored).astype(dtype)[()]
    except (TypeError, ValueError, OverflowError):
        return None


def _equal_to(value: Value, fill_value: Any) -> Flags:
    """Return which samples have a fill value, or of dense samples which values."""
    if isinstance(value, BytesValue):
        return equal_to(value, fill_value)
    assert isinstance(value, DenseValue)
    rows: Any = value.rows
    equal: Flags = np.isnan(rows) if fill_value != fill_value else rows == fill_value
    return equal
