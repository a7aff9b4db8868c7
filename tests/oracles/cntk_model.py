"""Model files of CNTK 2.7, byte by byte, from the published layout of its messages: independent of the reader under
test, and of protobuf. Shapes and axes are written as CNTK's C++ has them, from the last axis of a sample to the first.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

MAGIC = b"\x6b\x74\x6e\x63"
DYNAMIC, ALL_STATIC, UNKNOWN, END, ALL = 2147483647, 2147483646, 2147483645, 2147483644, 2147483643


class Dims(NamedTuple):
    """A shape: the lengths of axes, beginning with the last axis of a sample."""

    lengths: tuple[int, ...]


class Axis(NamedTuple):
    """An axis by its number, 0 for the last of a sample, or a dynamic one by its name."""

    index: int
    name: str = ""
    ordered: bool = False


class Int(int):
    """A signed number."""


class Float(float):
    """A number in single precision."""


BATCH, SEQUENCE = Axis(DYNAMIC, "defaultBatchAxis"), Axis(DYNAMIC, "defaultDynamicAxis", True)


def varint(n: int) -> bytes:
    n %= 1 << 64
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def number(field: int, n: int) -> bytes:
    return varint(field << 3) + varint(n)


def unless_zero(field: int, n: int) -> bytes:
    """A number that is left out if it is 0, as those outside a `oneof` are."""
    return number(field, n) if n else b""


def counted(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def shape(dims: Dims) -> bytes:
    return counted(1, b"".join(map(varint, dims.lengths)))


def axis(of: Axis) -> bytes:
    name = counted(2, of.name.encode()) if of.name else b""
    return unless_zero(1, of.index) + name + unless_zero(3, of.ordered)


def array(x: np.ndarray, filled: bool = True) -> bytes:
    """A row-major array: the same memory, with its axes named from the last to the first."""
    kind = {"float32": 1, "float64": 2, "float16": 4, "int8": 5, "int16": 6}[x.dtype.name]
    about = number(1, kind) + counted(3, shape(Dims(x.shape[::-1])))
    if not filled:
        return about
    flat = x.ravel()
    if kind in (1, 4):
        return about + counted(4, counted(1, struct.pack(f"<{x.size}f", *flat.astype("f4"))))
    if kind == 2:
        return about + counted(5, counted(1, struct.pack(f"<{x.size}d", *flat)))
    if kind == 5:
        return about + counted(6, counted(1, flat.tobytes()))
    return about + counted(7, counted(1, b"".join(varint(n << 1 ^ n >> 31) for n in map(int, flat))))


def value(x: Any, filled: bool = True) -> bytes:
    version = number(1, 1)
    if x is None:
        return version
    if isinstance(x, bool):
        return version + number(2, 1) + number(3, x)
    if isinstance(x, Int):
        return version + number(2, 2) + number(4, x)
    if isinstance(x, int):
        return version + number(2, 3) + number(5, x)
    if isinstance(x, Float):
        return version + number(2, 4) + varint(6 << 3 | 5) + struct.pack("<f", x)
    if isinstance(x, float):
        return version + number(2, 5) + varint(7 << 3 | 1) + struct.pack("<d", x)
    if isinstance(x, str):
        return version + number(2, 6) + counted(8, x.encode())
    if isinstance(x, Dims):
        return version + number(2, 7) + counted(9, shape(x))
    if isinstance(x, Axis):
        return version + number(2, 8) + counted(10, axis(x))
    if isinstance(x, list):
        return version + number(2, 9) + counted(11, b"".join(counted(1, value(item, filled)) for item in x))
    if isinstance(x, dict):
        return version + number(2, 10) + counted(12, dictionary(x, filled))
    return version + number(2, 11) + counted(13, array(x, filled))


def dictionary(x: dict[str, Any], filled: bool = True) -> bytes:
    entries = (counted(2, counted(1, key.encode()) + counted(2, value(item, filled))) for key, item in x.items())
    return number(1, 1) + b"".join(entries)


def two_parts(x: dict[str, Any], arrays: list[np.ndarray]) -> bytes:
    """The layout of files of 2 GiB or more: the elements of all arrays follow the message."""
    message = dictionary(x, filled=False)
    return MAGIC + struct.pack("<I", len(message)) + message + b"".join(a.tobytes() for a in arrays)


def leaf(uid: str, kind: int, dims: tuple[int, ...], axes: list[Axis] = (), **more: Any) -> dict[str, Any]:
    """A variable: 0 an input, 2 a parameter, 3 a constant, 4 a placeholder."""
    return {
        "version": 1,
        "type": "Variable",
        "uid": uid,
        "kind": kind,
        "data_type": 1,
        "dynamic_axis": list(axes),
        "is_sparse": False,
        "needs_gradient": kind == 2,
        "shape": Dims(dims),
        **more,
    }


def given(uid: str, kind: int, x: Any, **more: Any) -> dict[str, Any]:
    x = np.asarray(x, "f4") if not isinstance(x, np.ndarray) else x
    return leaf(uid, kind, x.shape[::-1], value=x, **more)


def function(
    uid: str, op: int, inputs: list[str], attributes: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "version": 24,
        "type": "PrimitiveFunction",
        "uid": uid,
        "inputs": inputs,
        "op": op,
        "attributes": attributes or {},
        **more,
    }


def block(
    uid: str, kind: str, root: str, arguments: dict[str, str], attributes: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """A block over placeholders, each with the identifier of its operand."""
    inside = {"version": 1, "type": "CompositeFunction", "root": root, "uid": f"{uid}Composite"}
    return function(
        uid,
        57,
        list(arguments.values()),
        attributes,
        block_function_composite=inside,
        block_function_op_name=kind,
        block_function_composite_arguments_map_keys=list(arguments),
        block_function_composite_arguments_map_values=list(arguments.values()),
        **more,
    )


def model(root: str, leaves: list[dict[str, Any]], functions: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "version": 1,
        "type": "CompositeFunction",
        "root": root,
        "uid": "CompositeFunction1",
        "inputs": leaves,
        "primitive_functions": functions,
        "state": {},
    }
