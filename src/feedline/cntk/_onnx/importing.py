"""Reading ONNX files: an ONNX graph as nodes.

Leading axes whose length the file leaves open are dynamic. One is the batch, two are the steps of sequences and the
batch, as CNTK and feedline write them. The layouts of all other tensors follow from the inputs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from feedline.cntk._nodes import constant_node
from feedline.cntk._onnx.read_operators import TRANSLATIONS
from feedline.cntk._onnx.reader import Reader
from feedline.cntk._onnx.values import BATCHES, STEPS, Value
from feedline.errors import CompatError, FeedlineError, StateError
from feedline.networks import BATCH, Node, Weights, apply
from feedline.networks.node import FREE, input_node, parameter_node
from feedline.networks.onnx import onnx_library as library

_STEPS_OF = "steps of "
_SUPPORTED = ("float16", "float32", "float64", "int8", "int16")


def read_onnx(path: Path) -> tuple[list[Node], list[Node]]:
    """Return the outputs and the inputs of the graph in a file.

    Raises:
        StateError: the file is missing, damaged or no ONNX model.
        CompatError: an operation that feedline does not have, or axes that it cannot distinguish. The error names it.
    """
    model = library.load(path)
    reader = Reader(
        TRANSLATIONS, max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)
    )
    try:
        return _outputs_and_inputs(model.graph, reader)
    except FeedlineError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, MemoryError) as error:
        raise StateError(
            f"expected a consistent ONNX model in {path}, got an error at {reader.at}: {error}",
            hint="check it with onnx.checker.check_model(model, full_check=True)",
        ) from error


def _outputs_and_inputs(graph: Any, reader: Reader) -> tuple[list[Node], list[Node]]:
    statistics = {name for proto in graph.node if proto.op_type == "BatchNormalization" for name in proto.input[3:5]}
    for initializer in graph.initializer:
        reader.at = f"tensor `{initializer.name}`"
        reader.values[initializer.name] = _initial(initializer, statistics)
    inputs = []
    for declared in graph.input:
        if declared.name not in reader.values:
            reader.values[declared.name] = value = _input(declared)
            inputs.append(value.node)
    reader.run(graph.node)
    return [_name(reader.value(output.name).node, output.name) for output in graph.output], inputs


def _initial(initializer: Any, statistics: set[str]) -> Any:
    """Return integers as they are, floats as parameters, and a single float as a constant."""
    array = library.array_of(initializer)
    if array.dtype.name not in _SUPPORTED:
        return array
    if array.ndim == 0:
        return Value(constant_node(array))
    trains = initializer.name not in statistics
    weights = Weights(array.shape, lambda shape: array, array.dtype.name, trains, keeps=not trains)
    return Value(parameter_node(weights, initializer.name))


def _input(declared: Any) -> Value:
    kind = declared.type.tensor_type
    dtype = library.NAMES.get(kind.elem_type, "")
    if dtype not in _SUPPORTED and dtype not in ("int32", "int64", "bool"):
        raise CompatError(f"input `{declared.name}`: expected numbers, got element type {kind.elem_type}")
    dims: list[int | str] = [
        d.dim_value if d.WhichOneof("value") == "dim_value" else d.dim_param for d in kind.shape.dim
    ]
    leading = next((i for i, n in enumerate(dims) if isinstance(n, int)), len(dims))
    if leading > 2:
        if str(dims[0]).startswith(_STEPS_OF):
            leading = 2
        elif dims[0] == BATCH:
            leading = 1
        else:
            raise CompatError(
                f"input `{declared.name}`: expected axes of any length only for the batch, or for steps and the "
                f"batch, got {dims}: set the other lengths in the file"
            )
    if leading == 2 and dims[0] == BATCH:
        leading = 1
    layout = (STEPS, BATCHES)[2 - leading :]
    axes: tuple[str, ...] = (BATCH,)[: leading and 1]
    if leading == 2:
        first = str(dims[0])
        axes = (BATCH, first.removeprefix(_STEPS_OF) or "defaultDynamicAxis")
    shape = tuple(n if isinstance(n, int) else FREE for n in dims[leading:])
    fed = dtype if dtype in _SUPPORTED else "float32"
    return Value(input_node(shape, axes, declared.name, False, fed), layout)


def _name(node: Node, name: str) -> Node:
    """Return a node under the name of an output, unless `exporting` invented that name."""
    if node.name == name or re.fullmatch(r"output\d+(_\d+)?", name):
        return node
    return apply("alias", [node], {}, name)
