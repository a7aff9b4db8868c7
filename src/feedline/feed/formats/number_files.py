"""Numbers from files with one sample each, by their suffix: ``.npy``, JSON and text. Nothing is unpickled."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Container
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data import Stream
from feedline.data.value import BytesValue, DenseValue
from feedline.errors import DataError, SchemaError, shown

_TEXTS = ("txt", "text", "transcript")
_CLASSES = ("cls", "cls2", "class", "count", "index", "inx", "id")
_NPY = b"\x93NUMPY"
_MAX_HEADER = 10_000  # bytes, as NumPy's own limit
_HEADER_FIELD = re.compile(
    r"""['"](descr|fortran_order|shape)['"]:\s*('[^'\[\]]*'|"[^"\[\]]*"|True|False|\([0-9, ]*\))"""
)
_TYPE = re.compile(r"[<>|=]?[?biufcOSUVmM]\w*")  # of one value: NumPy parses lists of types with `ast`, too
_PICKLES = ("pkl", "pickle", "pyd", "pth", "pt")


def kind_of(field: str) -> str:
    """Return the kind of content of files with this suffix: ``npy``, ``json``, ``text`` or ``bytes``."""
    last = field.rpartition(".")[2]
    if last in ("npy", "json"):
        return last
    return "text" if last in (*_TEXTS, *_CLASSES) else "bytes"


def check_stream(name: str, stream: Stream, field: str) -> None:
    """Check that a stream of numbers can be decoded from files of this suffix.

    Raises:
        SchemaError: the stream cannot be decoded.
    """
    pickle = field.rpartition(".")[2] in _PICKLES
    if kind_of(field) == "bytes" or stream.sparse or stream.dtype.kind not in "biufc":
        advice = "feedline never unpickles data" if pickle else "decode its bytes in an fl.Map"
        raise SchemaError(
            f"expected bytes or str, or numbers of .npy, .json, .cls or .txt, for stream `{name}` of .{field}, got "
            f"{stream}; declare fl.Stream(dtype='bytes'): {advice}"
        )


def stream_of(field: str, content: bytes, path: str) -> Stream:
    """Return the stream of files of a suffix, by the content of the first file.

    Raises:
        DataError: it is a ``.npy`` file whose header cannot be read, or not of numbers.
    """
    kind = kind_of(field)
    if kind == "npy":
        try:
            shape, _, dtype, _ = _npy_header(content)
            if dtype.kind not in "biufc":
                raise ValueError(f"expected a .npy file of numbers, got one of {dtype}")
        except ValueError as error:
            raise DataError(f"{error} (member .{field} of the first sample)", path=path) from error
        return Stream(shape, dtype.newbyteorder("="))
    if kind == "text" and field.rpartition(".")[2] in _CLASSES:
        return Stream((), "int64")
    return Stream(dtype="bytes" if kind == "bytes" else "str")


def numbers(files: BytesValue, stream: Stream, kind: str, *, skip: Container[int]) -> tuple[DenseValue, dict[int, str]]:
    """Return the numbers of files, rows of the stream's shape and dtype, and by index the reason why a file cannot be
    decoded.

    Args:
        files: contents of the files.
        stream: declaration.
        kind: result of `kind_of`.
        skip: indices of files that are not decoded. Their rows are zeros, like rows of files that cannot be decoded.
    """
    count = files.num_samples
    if kind == "npy":
        equal = _equal_files_rows(files, stream)
        if equal is not None:
            return DenseValue(equal), {}
    parse: Callable[[memoryview], Any] = {"npy": _npy, "json": _json, "text": _text}[kind]
    rows, wrong = np.zeros((count, *stream.shape), stream.dtype), dict[int, str]()
    memory, bounds = files.data.data, files.bounds.tolist()
    for i in range(count):
        if i in skip:
            continue
        try:
            rows[i] = convert(parse(memory[bounds[i] : bounds[i + 1]]), stream)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            wrong[i] = str(error)
    return DenseValue(rows), wrong


def convert(data: Any, stream: Stream) -> NDArray[Any]:
    """Return numbers as a sample of a stream.

    Raises:
        ValueError: they have another shape, or the dtype cannot hold them.
    """
    try:
        array = np.asarray(data)
    except ValueError as error:  # ragged
        raise ValueError(f"expected numbers of shape {stream.shape}, got {shown(data, 60)}") from error
    if array.dtype.kind not in "biufc":
        raise ValueError(f"expected numbers, got {shown(data, 60)}")
    if array.shape != stream.shape:
        raise ValueError(f"expected shape {stream.shape}, got {array.shape}")
    if array.dtype == stream.dtype:
        return array
    to_floats = np.can_cast(array.dtype, stream.dtype, "same_kind") and stream.dtype.kind in "fc"
    if to_floats or (array.dtype.kind in "biuf" and stream.dtype.kind in "biu"):
        with np.errstate(invalid="ignore", over="ignore"):
            cast = array.astype(stream.dtype)
        if to_floats or (cast == array).all():
            return cast
    raise ValueError(f"expected numbers that {stream.dtype.name} can hold, got {shown(array.tolist(), 60)}")


def _json(text: memoryview) -> Any:
    return json.loads(bytes(text))


def _text(text: memoryview) -> Any:
    words = bytes(text).split()
    parsed = [_number(word) for word in words]
    return parsed[0] if len(parsed) == 1 else parsed


def _number(word: bytes) -> int | float:
    try:
        return int(word)
    except ValueError:
        return float(word)


def _npy(content: memoryview) -> NDArray[Any]:
    shape, fortran, dtype, begin = _npy_header(bytes(content[: _MAX_HEADER + 12]))
    size = math.prod(shape) * dtype.itemsize
    if len(content) - begin < size:
        raise ValueError(f"expected {size} bytes of {dtype} after a .npy header, got {len(content) - begin}")
    flat = np.frombuffer(content[begin : begin + size], dtype)
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def _equal_files_rows(files: BytesValue, stream: Stream) -> NDArray[Any] | None:
    """Return the rows of .npy files that all begin with the same header, or None if they do not."""
    sizes = files.sizes
    if not len(sizes) or (sizes != sizes[0]).any() or sizes[0] == 0:
        return None
    table = files.data.reshape(len(sizes), int(sizes[0]))
    try:
        shape, fortran, dtype, begin = _npy_header(table[0].tobytes())
    except ValueError:
        return None
    if fortran or shape != stream.shape or dtype != stream.dtype or (table[:, :begin] != table[0, :begin]).any():
        return None
    if int(sizes[0]) - begin != stream.size * dtype.itemsize:
        return None
    return np.ascontiguousarray(table[:, begin:]).view(dtype).reshape(len(sizes), *shape)


def _npy_header(content: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return the shape, whether the order is Fortran's, the dtype, and the first byte of the data.

    Raises:
        ValueError: there is no header, or it is one of Python objects.
    """
    # Without NumPy's reader, which parses the header with `ast`, and fails at random in several threads of Python 3.11.
    if content[:6] != _NPY or len(content) < 12 or content[6] not in (1, 2, 3):
        raise ValueError(f"expected a .npy file of version 1 to 3, got one that begins with {content[:8]!r}")
    begin = 10 if content[6] == 1 else 12
    end = begin + int.from_bytes(content[8:begin], "little")
    if end > min(len(content), _MAX_HEADER):
        raise ValueError(f"expected the header of a .npy file to end within {len(content)} bytes, got {end}")
    text = content[begin:end].decode("latin-1")
    fields = dict(_HEADER_FIELD.findall(text))
    try:
        shape = tuple(int(n) for n in fields["shape"].strip("()").replace(" ", "").split(",") if n)
        descr, fortran = fields["descr"].strip("'\""), fields["fortran_order"] == "True"
        if _TYPE.fullmatch(descr) is None:
            raise ValueError(descr)
        dtype = np.dtype(descr)
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"expected a .npy file of numbers, got one with the header {shown(text, 100)}") from error
    if dtype.hasobject:
        raise ValueError("expected numbers in a .npy file, got pickled Python objects, which are never unpickled")
    return shape, fortran, dtype, end
