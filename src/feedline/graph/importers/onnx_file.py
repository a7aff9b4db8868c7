"""Import of ONNX files and models. Weights in other files are not read, as a graph needs only shapes.

Initializers are parameters. Integers, running statistics and inputs that are settings, such as the bounds of a Clip,
count as buffers. Results of Constant nodes are constants. Requires the package onnx, which infers the shapes.
"""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from feedline.errors import install_line
from feedline.graph.costs import activations, multiply_adds
from feedline.graph.graph import (
    Graph,
    Operation,
    OutputReference,
    Parameter,
    Path,
    Scope,
    TensorType,
    output_operation,
    unique,
)
from feedline.graph.settings import ShapesAround, settings_of

try:
    import onnx
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"onnx is not installed; run: {install_line('onnx')}") from error

_DTYPES = {"FLOAT": "float32", "DOUBLE": "float64"}
# Inputs that are settings, by place, with the names that they had when they were attributes.
_AXES = {1: "axes"}
_SETTINGS: dict[str, dict[int, str]] = {
    "Clip": {1: "min", 2: "max"},
    "ConstantOfShape": {0: "shape"},
    "CumSum": {1: "axis"},
    "DequantizeLinear": {1: "scale", 2: "zero_point"},
    "Dropout": {1: "ratio", 2: "training_mode"},
    "Expand": {1: "shape"},
    "OneHot": {1: "depth", 2: "values"},
    "Pad": {1: "pads", 2: "value", 3: "axes"},
    "Pow": {1: "exponent"},
    "QuantizeLinear": {1: "scale", 2: "zero_point"},
    "Range": {0: "start", 1: "limit", 2: "delta"},
    "Reshape": {1: "shape"},
    "Resize": {1: "roi", 2: "scales", 3: "sizes"},
    "Slice": {1: "starts", 2: "ends", 3: "axes", 4: "steps"},
    "Split": {1: "split"},
    "Squeeze": _AXES,
    "Tile": {1: "repeats"},
    "TopK": {1: "k"},
    "Trilu": {1: "k"},
    "Unsqueeze": _AXES,
    "Upsample": {1: "scales"},
    **{
        f"Reduce{name}": _AXES
        for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    },
}
_MAX_VALUES = 16  # in a setting that is displayed
_STATISTICS = re.compile(r"running_(mean|var)|moving_(mean|variance|var)|num_batches_tracked")


def from_onnx(model: Any, inputs: Mapping[str, Any] | None = None) -> Graph:
    """Return the graph of an ONNX file or model.

    Args:
        model: path of the file, or an `onnx.ModelProto`.
        inputs: shapes of inputs by name, which replace the shapes in the model, if any.

    Raises:
        FileNotFoundError: there is no such file.
        TypeError: the shapes are not a mapping from names.
        ValueError: the file is not a valid model, or the shapes do not fit it.
    """
    if inputs is not None and not isinstance(inputs, Mapping):
        raise TypeError(f"expected shapes of inputs by name, such as {{'x': (1, 3)}}, got {inputs!r:.80}")
    model = _read(model)
    _set_shapes(model, inputs or {})
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        raise ValueError(f"expected an ONNX model whose shapes fit, got one that does not: {error}") from error
    importer = _OnnxImporter(model.graph)
    for i, node in enumerate(model.graph.node):
        importer.add(i, node)
    for i, value in enumerate(model.graph.output):
        importer.output(i, value.name)
    return Graph(tuple(importer.operations), importer.parameters, importer.scopes, "ONNX")


def _read(model: Any) -> Any:
    if not isinstance(model, (str, os.PathLike)):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)  # shapes are written into it
        return copy
    if not os.path.isfile(model):
        raise FileNotFoundError(f"expected an ONNX file, got {os.fspath(model)}, which is not a file")
    try:
        loaded = onnx.load(os.fspath(model), load_external_data=False)
    except Exception as error:  # an error of protobuf, whose class depends on the implementation
        raise ValueError(f"expected an ONNX file, got {os.fspath(model)}: {error}") from error
    if not loaded.graph.output:
        raise ValueError(f"expected an ONNX model with outputs, got {os.fspath(model)}, which has none")
    return loaded


def _set_shapes(model: Any, shapes: Mapping[str, Any]) -> None:
    initialized = {value.name for value in model.graph.initializer}
    inputs = {value.name: value for value in model.graph.input if value.name not in initialized}
    for name, shape in shapes.items():
        if name not in inputs:
            raise ValueError(f"expected shapes of the inputs {', '.join(inputs)}, got one of {name}")
        dims = inputs[name].type.tensor_type.shape
        shape = tuple(shape)
        if len(dims.dim) not in (0, len(shape)):
            raise ValueError(f"expected a shape of {len(dims.dim)} axes for the input {name}, got {shape}")
        del dims.dim[:]
        for n in shape:
            dims.dim.add().dim_value = n
    if shapes:
        del model.graph.value_info[:]  # shapes of results, which may have changed
        for value in model.graph.output:
            value.type.tensor_type.ClearField("shape")


class _OnnxImporter:
    def __init__(self, graph: Any) -> None:
        self.operations: list[Operation] = []
        self.parameters: dict[str, Parameter] = {}
        self.scopes: dict[Path, Scope] = {}
        types = {v.name: _type_of(v.type) for v in (*graph.value_info, *graph.input, *graph.output)}
        self._types = defaultdict(TensorType, types)  # unknown types for other names
        self._sources: dict[str, OutputReference] = {}
        self._keys: set[str] = set()
        self._values: dict[str, Any] = {}  # of small constants
        self._settings = _only_settings(graph)
        for tensor in graph.initializer:
            self._remember(tensor.name, tensor)
            self._add_parameter(tensor.name, TensorType(tuple(tensor.dims), _dtype(tensor.data_type)))
        for tensor in graph.sparse_initializer:
            self._add_parameter(tensor.values.name, TensorType(tuple(tensor.dims), _dtype(tensor.values.data_type)))
        for value in graph.input:
            if value.name not in self.parameters:
                key = self._key(value.name)
                self._sources[value.name] = OutputReference(key)
                self.operations.append(Operation(key, "input", value.name, "input", outputs=(self._types[value.name],)))

    def _add_parameter(self, name: str, type_: TensorType, constant: bool = False) -> None:
        constant = constant or name in self._settings
        buffer = constant or not type_.dtype.startswith(("float", "bfloat")) or bool(_STATISTICS.search(name))
        self.parameters[name] = Parameter(name, type_, trains=not buffer, buffer=buffer)
        self._types[name] = type_

    def _remember(self, name: str, tensor: Any) -> None:
        """Keep the value of a small tensor that is in the file itself."""
        if tensor.data_location != onnx.TensorProto.EXTERNAL and math.prod(tensor.dims) <= _MAX_VALUES:
            self._values[name] = onnx.numpy_helper.to_array(tensor).tolist()

    def _key(self, name: str) -> str:
        key = unique(re.sub(r"[^\w.@-]+", "_", name).strip("_") or "n", self._keys)
        self._keys.add(key)
        return key

    def add(self, i: int, node: Any) -> None:
        """Add node ``i``."""
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Constant":
            for name in node.output:
                if "value" in attributes:
                    self._remember(name, attributes["value"])
                else:
                    self._values[name] = next(iter(attributes.values()), None)  # value_float, value_ints, …
                self._add_parameter(name, self._types[name], constant=True)
            return
        inputs = [name for name in node.input if name]
        for name in inputs:
            if name not in self.parameters and name not in self._sources:
                # Its source is unknown if the file is not in order, or if it comes from outside the body of a loop.
                self._add_parameter(name, self._types[name], constant=True)
        outputs = tuple(self._types[name] for name in node.output if name)
        places = _SETTINGS.get(node.op_type, {})
        setting_inputs = {name: node.input[i] for i, name in places.items() if i < len(node.input)}
        weights = [name for name in inputs if name in self.parameters and name not in setting_inputs.values()]
        around = ShapesAround(
            [self._types[name].shape for name in inputs],
            [self.parameters[name].type.shape for name in weights],
            outputs[0].shape if outputs else None,
        )
        settings = {name: v.decode("utf-8", "replace") if isinstance(v, bytes) else v for name, v in attributes.items()}
        settings |= {name: self._values[source] for name, source in setting_inputs.items() if source in self._values}
        key = self._key(node.name or f"{node.op_type}_{i}")
        scope, name = self._place(node.name)
        self.operations.append(
            Operation(
                key=key,
                kind=node.op_type,
                name=name,
                scope=scope,
                inputs=tuple(self._sources[name] for name in inputs if name in self._sources),
                outputs=outputs,
                parameters=tuple(dict.fromkeys(weights)),
                multiply_adds=multiply_adds(node.op_type, *around),
                activations=activations(node.op_type, outputs),
                detail=", ".join(f"{k}={v}" for k, v in settings.items() if isinstance(v, (int, float, str, list))),
                settings=settings_of(node.op_type, settings, around),
            )
        )
        self._sources.update({n: OutputReference(key, j) for j, n in enumerate(n for n in node.output if n)})

    def _place(self, name: str) -> tuple[Path, str]:
        """Return the scope and the last part of the name of a node. Exporters write ``/layer1/layer1.0/conv1/Conv``."""
        parts = [part for part in name.split("/") if part]
        path: Path = ()
        for part in parts[:-1] if name.startswith("/") else ():
            path = (*path, re.sub(r"[^\w.-]", "_", part))
            self.scopes.setdefault(path, Scope("module"))
        return path, parts[-1] if parts else ""

    def output(self, i: int, name: str) -> None:
        """Add output ``i`` of the model."""
        sources = (self._sources[name],) if name in self._sources else ()
        parameters = (name,) if name in self.parameters else ()
        self.operations.append(output_operation(i, name, sources, parameters))


def _only_settings(graph: Any) -> set[str]:
    """Return the names that operations of a graph use only as settings."""
    settings, operands = set[str](), {value.name for value in graph.output}
    for node in graph.node:
        places = _SETTINGS.get(node.op_type, {})
        for i, name in enumerate(node.input):
            (settings if i in places else operands).add(name)
    return settings - operands


def _type_of(type_: Any) -> TensorType:
    tensor = type_.tensor_type
    if not type_.HasField("tensor_type"):
        return TensorType()
    dims = enumerate(tensor.shape.dim)
    axes = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"axis{i}" for i, dim in dims]
    return TensorType(tuple(axes) if tensor.HasField("shape") else None, _dtype(tensor.elem_type))


def _dtype(number: int) -> str:
    name = onnx.TensorProto.DataType.Name(number)
    return "" if name == "UNDEFINED" else _DTYPES.get(name, name.lower())
