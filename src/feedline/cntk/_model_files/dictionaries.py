"""CNTK's dictionaries in files: protobuf messages as Python values, and back.

CNTK stores models and checkpoints as one message, a dictionary by name of numbers, strings, shapes, axes, lists,
dictionaries and arrays. This module converts them to Python's and NumPy's. Shapes and arrays are row-major, as
everywhere in Python, while the file lists the axes of the same memory from the last to the first. So elements keep
their order.

The wire format is CNTK's. The descriptors are built from `_MESSAGES`, without a compiler. Where a field's wire format
allows a type that is cheaper in Python, the table has that type: packed floats are bytes, maps lists of entries, and
enumerations numbers. Reading needs up to three times a file's size in memory.

A file whose message would reach 2 GiB has several parts: `_MAGIC`, the length of the message, the message without the
arrays' elements, and the elements of one array after another.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline.cntk._model_files.file_values import DATA_TYPES, FileAxis, Shape, Signed, Single
from feedline.errors import StateError, install_line, shown
from feedline.interop.tensor_file import sync

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"protobuf, which CNTK's files are made with, is not installed; run: {install_line('cntk')}"
    ) from error

_MAGIC = b"ktnc"
LARGEST_MESSAGE_BYTES = 2**31 - 1  # protobuf's limit
_VERSION = 1  # of dictionaries and of their values, as CNTK 2.7 writes it

_INT32, _UINT64, _BOOL, _STRING, _BYTES, _FLOAT, _DOUBLE, _SINT32, _MESSAGE = 5, 4, 8, 9, 12, 2, 1, 17, 11
# For each message: name, number and type of its fields. A `*` after a name means repeated.
_MESSAGES: dict[str, list[tuple[str, int, int | str]]] = {
    "NDShape": [("shape_dim*", 1, _UINT64)],
    "Axis": [("static_axis_idx", 1, _INT32), ("name", 2, _STRING), ("is_ordered_dynamic_axis", 3, _BOOL)],
    "Elements": [("value", 1, _BYTES)],  # of floats, doubles or bytes
    "IntValues": [("value*", 1, _SINT32)],
    "NDArrayView": [
        ("data_type", 1, _INT32),
        ("storage_format", 2, _INT32),
        ("shape", 3, "NDShape"),
        ("float_values", 4, "Elements"),
        ("double_values", 5, "Elements"),
        ("bytes_values", 6, "Elements"),
        ("sint32_values", 7, "IntValues"),
    ],
    "Vector": [("value*", 1, "DictionaryValue")],
    "Entry": [("key", 1, _STRING), ("value", 2, "DictionaryValue")],
    "Dictionary": [("version", 1, _UINT64), ("data*", 2, "Entry")],
    "DictionaryValue": [
        ("version", 1, _UINT64),
        ("value_type", 2, _INT32),
        ("bool_value", 3, _BOOL),
        ("int_value", 4, _INT32),
        ("size_t_value", 5, _UINT64),
        ("float_value", 6, _FLOAT),
        ("double_value", 7, _DOUBLE),
        ("string_value", 8, _STRING),
        ("nd_shape_value", 9, "NDShape"),
        ("axis_value", 10, "Axis"),
        ("vector_value", 11, "Vector"),
        ("dictionary_value", 12, "Dictionary"),
        ("nd_array_view_value", 13, "NDArrayView"),
    ],
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="cntk_dictionary.proto", package="cntk", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name == "DictionaryValue":
            message.oneof_decl.add(name="value")  # so that zeros and empty strings are written, too
        for label, number, kind in fields:
            field = message.field.add(name=label.rstrip("*"), number=number, label=3 if label.endswith("*") else 1)
            if label.endswith("_value"):
                field.oneof_index = 0
            if isinstance(kind, str):
                field.type, field.type_name = _MESSAGE, f".cntk.{kind}"
            else:
                field.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"cntk.{name}")) for name in _MESSAGES}


_CLASS = _classes()

# For each of CNTK's element types: NumPy's type, and the field with the elements.
_ELEMENTS = {
    1: ("<f4", "float_values"),
    2: ("<f8", "double_values"),
    4: ("<f4", "float_values"),  # half precision is stored in single precision
    5: ("<i1", "bytes_values"),
    6: ("<i2", "sint32_values"),
}
_NUMBER_OF = {name: number for number, name in DATA_TYPES.items()}
_SENTINELS = 2**64 - 3  # dimensions from this on are unknown


def read_dictionary(path: Path) -> dict[str, Any]:
    """Return the dictionary in a file: bool, int, float, str, list, dict, `Shape`, `FileAxis`, arrays (*shape).

    Raises:
        StateError: the file is missing, torn, or not of this format.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(8)
            separate = head[:4] == _MAGIC
            if separate:
                (size,) = struct.unpack("<I", head[4:]) if len(head) == 8 else (0,)
                content = file.read(size)
                if len(content) != size:
                    raise _Damaged(f"a message of {size} bytes, got {len(content)}: the file is truncated")
            else:
                content = head + file.read()
            message = _CLASS["Dictionary"]()
            message.ParseFromString(content)
            del content
            dictionary = _Reader(file if separate else None).dictionary(message)
            trailing = len(file.read(1)) if separate else 0
            if trailing:
                raise _Damaged("no more bytes after the last array, got some: the file is of another version")
            return dictionary
    except OSError as error:
        raise StateError(f"expected a readable file at {path}: {error.strerror}") from error
    except DecodeError as error:
        raise StateError(
            f"expected a dictionary of CNTK in {path}, got something else: the file is truncated, or of another format",
            hint="copy the file again; an ONNX file is loaded by format=ModelFormat.ONNX",
        ) from error
    except (_Damaged, RecursionError, UnicodeDecodeError) as error:
        raise StateError(
            f"expected a dictionary of CNTK in {path}: expected {error}", hint="copy the file again"
        ) from error


class _Damaged(Exception):
    """A dictionary that CNTK does not write. The text follows "expected"."""


class _Reader:
    """Conversion of messages to values.

    Args:
        file: file to read the arrays' elements from, in the order of the arrays. None means that they are in the
            message.
    """

    def __init__(self, file: BinaryIO | None) -> None:
        self._file = file
        self._value: list[Callable[[Any], Any]] = [
            lambda m: None,
            lambda m: bool(m.bool_value),
            lambda m: Signed(m.int_value),
            lambda m: int(m.size_t_value),
            lambda m: Single(m.float_value),
            lambda m: float(m.double_value),
            lambda m: str(m.string_value),
            lambda m: _shape(m.nd_shape_value),
            lambda m: _axis(m.axis_value),
            lambda m: [self.value(v) for v in m.vector_value.value],
            lambda m: self.dictionary(m.dictionary_value),
            lambda m: self._array(m.nd_array_view_value),
        ]

    def dictionary(self, message: Any) -> dict[str, Any]:
        return {entry.key: self.value(entry.value) for entry in message.data}

    def value(self, message: Any) -> Any:
        kind = message.value_type
        if not 0 <= kind < len(self._value):
            raise _Damaged(
                f"a kind of value from 0 to {len(self._value) - 1}, got {kind}: is the file of a newer version?"
            )
        return self._value[kind](message)

    def _array(self, message: Any) -> NDArray[Any]:
        shape, kind = _shape(message.shape), message.data_type
        if kind not in _ELEMENTS or message.storage_format != 0:
            raise _Damaged(
                f"a dense array of {', '.join(DATA_TYPES.values())}, got element type {kind}, storage format "
                f"{message.storage_format}"
            )
        if any(n < 0 for n in shape):
            raise _Damaged(f"an array whose dimensions are known, got {tuple(shape)}")
        dtype, field = _ELEMENTS[kind]
        count = math.prod(shape)
        flat: NDArray[Any]
        if self._file is not None:
            flat = self._elements(kind, dtype, count)
        elif field == "sint32_values":
            flat = np.array(message.sint32_values.value, dtype)
        else:
            content = getattr(message, field).value
            if len(content) % np.dtype(dtype).itemsize:
                raise _Damaged(f"whole elements of an array {tuple(shape)}, got {len(content)} bytes")
            flat = np.frombuffer(content, dtype)
        if len(flat) != count:
            raise _Damaged(f"{count} elements of an array {tuple(shape)}, got {len(flat)}")
        return flat.astype(DATA_TYPES[kind]).reshape(shape)

    def _elements(self, kind: int, dtype: str, count: int) -> NDArray[Any]:
        if kind not in (1, 2):
            # CNTK's own reader and writer disagree about the other types.
            raise _Damaged(f"float32 or float64 in a file of two parts, got {DATA_TYPES[kind]}")
        assert self._file is not None
        size, remaining = count * np.dtype(dtype).itemsize, os.fstat(self._file.fileno()).st_size - self._file.tell()
        if remaining < size:
            raise _Damaged(f"{size} bytes of an array, got {remaining}: the file is truncated")
        flat = np.empty(count, dtype)
        self._file.readinto(flat.view(np.uint8))  # type: ignore[attr-defined]  # of every such file
        return flat


def _shape(message: Any) -> Shape:
    return Shape(n - 2**64 if n >= _SENTINELS else n for n in reversed(message.shape_dim))


def _axis(message: Any) -> FileAxis:
    return FileAxis(message.static_axis_idx, message.name, message.is_ordered_dynamic_axis)


def write_dictionary(path: Path, values: Mapping[str, Any], largest_bytes: int = LARGEST_MESSAGE_BYTES) -> None:
    """Write a dictionary as `read_dictionary` returns it, atomically replacing ``path``.

    Args:
        path: path of the file.
        values: values. An `int` must not be negative unless it is `Signed`.
        largest_bytes: size from which the arrays' elements are written after the message.

    Raises:
        TypeError: a value of another type.
        StateError: a message that is too large even without the arrays' elements, or arrays after the message that are
            neither float32 nor float64.
    """
    arrays = list(_arrays(values))
    total = sum(array.nbytes for array in arrays)
    # The rest of a message is small against this limit, except for very large graphs. The next check finds those.
    separate = total >= largest_bytes
    content = b"" if separate else _dictionary(values, True).SerializeToString()
    separate = separate or len(content) >= largest_bytes
    if separate:
        unsupported = {array.dtype.name for array in arrays} - {"float32", "float64"}
        if unsupported:
            raise StateError(f"expected float32 and float64 in a file of more than 2 GiB, got {', '.join(unsupported)}")
        content = _dictionary(values, False).SerializeToString()
        if len(content) >= LARGEST_MESSAGE_BYTES:
            raise StateError(f"expected a graph of less than 2 GiB without its arrays, got {len(content)} bytes")
    path.parent.mkdir(parents=True, exist_ok=True)  # as CNTK does
    writing = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(writing, "xb") as file:
            file.write(_MAGIC + struct.pack("<I", len(content)) if separate else b"")
            file.write(content)
            for array in arrays if separate else ():
                file.write(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
            file.flush()
            os.fsync(file.fileno())
        writing.replace(path)
    except BaseException:
        writing.unlink(missing_ok=True)
        raise
    sync(path.parent)


def _arrays(value: Any) -> Iterator[NDArray[Any]]:
    """Yield all arrays in the order of `_Reader`."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _arrays(item)
    elif isinstance(value, list):
        for item in value:
            yield from _arrays(item)


def _dictionary(values: Mapping[str, Any], filled: bool) -> Any:
    message = _CLASS["Dictionary"]()
    _fill(message, values, filled)
    return message


def _fill(message: Any, values: Mapping[str, Any], filled: bool) -> None:
    message.version = _VERSION
    for key, value in values.items():
        _set(message.data.add(key=key).value, value, filled)


def _set(message: Any, value: Any, filled: bool) -> None:
    message.version = _VERSION
    if isinstance(value, (bool, np.bool_)):
        message.value_type, message.bool_value = 1, bool(value)
    elif isinstance(value, Signed):
        message.value_type, message.int_value = 2, int(value)
    elif isinstance(value, int):
        message.value_type, message.size_t_value = 3, value
    elif isinstance(value, Single):
        message.value_type, message.float_value = 4, float(value)
    elif isinstance(value, float):
        message.value_type, message.double_value = 5, value
    elif isinstance(value, str):
        message.value_type, message.string_value = 6, value
    elif isinstance(value, Shape):
        message.value_type = 7
        message.nd_shape_value.SetInParent()
        message.nd_shape_value.shape_dim.extend(n % 2**64 for n in reversed(value))
    elif isinstance(value, FileAxis):
        message.value_type = 8
        axis = message.axis_value
        axis.static_axis_idx, axis.name, axis.is_ordered_dynamic_axis = value.index, value.name, value.ordered
        axis.SetInParent()
    elif isinstance(value, list):
        message.value_type = 9
        message.vector_value.SetInParent()
        for item in value:
            _set(message.vector_value.value.add(), item, filled)
    elif isinstance(value, Mapping):
        message.value_type = 10
        _fill(message.dictionary_value, value, filled)
    elif isinstance(value, np.ndarray):
        message.value_type = 11
        _set_array(message.nd_array_view_value, value, filled)
    else:
        raise TypeError(f"expected a value that CNTK's dictionaries hold, got {shown(value, 80)}")


def _set_array(message: Any, array: NDArray[Any], filled: bool) -> None:
    if array.dtype.name not in _NUMBER_OF:
        raise TypeError(f"expected an array of {', '.join(_NUMBER_OF)}, got {array.dtype.name}")
    kind = _NUMBER_OF[array.dtype.name]
    message.data_type = kind
    message.shape.SetInParent()
    message.shape.shape_dim.extend(reversed(array.shape))
    if not filled:
        return
    dtype, field = _ELEMENTS[kind]
    if field == "sint32_values":
        message.sint32_values.value.extend(array.reshape(-1).tolist())
    else:
        getattr(message, field).value = np.ascontiguousarray(array, dtype).tobytes()
