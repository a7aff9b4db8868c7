"""The only import of the package onnx for networks: parts of files, which are saved and loaded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import StateError, install_line
from feedline.interop.tensor_file import sync

try:
    import onnx
    from onnx import helper, numpy_helper
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"onnx is not installed; run: {install_line('onnx')}") from error

OPSET, _IR = 18, 8  # of 2022, which every runtime of today knows
# Element types by their names in NumPy.
TYPES: dict[str, int] = {
    name: helper.np_dtype_to_tensor_dtype(np.dtype(name))
    for name in ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
}
NAMES = {number: name for name, number in TYPES.items()}
_OTHERS = "copy the file again; models of CNTK and feedline are loaded without a format"
_LARGEST_BYTES = 2**31 - 1  # protobuf's limit


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    """Return an ONNX node. Subgraphs and arrays among its attributes are converted."""
    return helper.make_node(op, list(inputs), list(outputs), **attributes)


def tensor(array: NDArray[Any], name: str) -> Any:
    """Return an initializer."""
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def array_of(initializer: Any) -> NDArray[Any]:
    """Return the array of an initializer."""
    array: NDArray[Any] = numpy_helper.to_array(initializer)
    return array


def describe(name: str, dtype: str, shape: Sequence[int | str] | None) -> Any:
    """Return the declaration of an input or output. A dimension with a name may have any length."""
    return helper.make_tensor_value_info(name, TYPES[dtype], None if shape is None else list(shape))


def graph(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], initializers: Sequence[Any] = ()) -> Any:
    """Return a graph."""
    return helper.make_graph(list(nodes), "function", list(inputs), list(outputs), list(initializers))


def keep_used(nodes: Sequence[Any], results: Iterable[str]) -> tuple[list[Any], set[str]]:
    """Return the nodes that the results need, and the names of all values that are read.

    Args:
        nodes: nodes, each after the nodes that it reads.
        results: names of the results.
    """
    names, needed = set(results), []
    for proto in reversed(nodes):
        if names.isdisjoint(proto.output):
            continue
        needed.append(proto)
        names.update(_read(proto))
    return needed[::-1], names


def _read(proto: Any) -> set[str]:
    """Return the names that a node, or the body of one, reads."""
    names = set(proto.input)
    for attribute in proto.attribute:
        for inner in attribute.g.node:
            names |= _read(inner)
    return names


def save(path: Path, onnx_graph: Any) -> None:
    """Write a graph as a model, atomically replacing ``path``.

    Raises:
        StateError: the graph has 2 GiB or more.
    """
    model = helper.make_model(onnx_graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR)
    model.producer_name = "feedline"
    size = sum(len(initializer.raw_data) for initializer in onnx_graph.initializer)
    if size >= _LARGEST_BYTES:
        raise StateError(
            f"expected tensors of less than 2 GiB for {path}, got {size} bytes",
            hint="save by ModelFormat.CNTKv2, or without a format",
        )
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    writing = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(writing, "xb") as file:
            file.write(model.SerializeToString())
            file.flush()
            os.fsync(file.fileno())
        writing.replace(path)
    except BaseException:
        writing.unlink(missing_ok=True)
        raise
    sync(path.parent)


def load(path: Path) -> Any:
    """Return the model in a file.

    Raises:
        StateError: the file is missing, damaged or no ONNX model.
    """
    try:
        model = onnx.load(str(path))
    except OSError as error:
        raise StateError(f"expected a readable ONNX file at {path}: {error.strerror or error}") from error
    except Exception as error:  # of protobuf, whose errors have no common base with others
        raise StateError(f"expected an ONNX model in {path}, got none: {error}", hint=_OTHERS) from error
    if not model.ir_version or not model.graph.output:
        raise StateError(f"expected an ONNX model in {path}, got one without outputs", hint=_OTHERS)
    return model


def attributes_of(proto: Any) -> dict[str, Any]:
    """Return the attributes of a node by name: numbers, strings, lists, arrays and graphs."""
    attributes = {}
    for attribute in proto.attribute:
        value = helper.get_attribute_value(attribute)
        if isinstance(value, onnx.TensorProto):
            value = array_of(value)
        elif isinstance(value, bytes):
            value = value.decode()
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], bytes):
            value = [item.decode() for item in value]
        attributes[attribute.name] = value
    return attributes
