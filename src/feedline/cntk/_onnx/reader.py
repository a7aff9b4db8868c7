"""Walk through an ONNX graph: values by name, and a table that translates each node's operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedline.cntk._nodes import constant_node
from feedline.cntk._onnx.values import Array, Value, is_lengths
from feedline.errors import CompatError
from feedline.networks.onnx import onnx_library as library

Translation = Callable[["Call"], Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operation: a node of an ONNX graph, to be translated.

    Attributes:
        reader: reader of the graph.
        op: type of the operation.
        inputs, outputs: names. An empty one is an omitted input or output.
        attributes: settings.
        label: operation and name, for messages.
    """

    reader: Reader
    op: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: Mapping[str, Any]
    label: str

    def has(self, i: int) -> bool:
        """Whether an input is given."""
        return i < len(self.inputs) and bool(self.inputs[i])

    def raw(self, i: int) -> Any:
        """Return an input as it is: a tensor, an array or a part of one."""
        return self.reader.values[self.inputs[i]]

    def value(self, i: int = 0) -> Value:
        """Return an input as a tensor.

        Raises:
            CompatError: it is something else.
        """
        return self.reader.value(self.inputs[i], self.label)

    def values(self) -> list[Value]:
        """Return all inputs as tensors."""
        return [self.value(i) for i in range(len(self.inputs)) if self.has(i)]

    def array(self, i: int) -> Array:
        """Return an input whose numbers are in the file.

        Raises:
            CompatError: the numbers are computed.
        """
        content = self.raw(i)
        if isinstance(content, np.ndarray):
            return content
        if isinstance(content, Value) and content.node.weights is not None:
            weights = content.node.weights
            return np.asarray(weights.fill(weights.shape))
        raise self.refuse(f"expected constant numbers as input {i}, got computed ones")

    def numbers(self, i: int, attribute: str) -> list[int] | None:
        """Return integers from an input, or from an attribute, as in older files. None if neither exists."""
        if attribute in self.attributes:
            setting = self.attributes[attribute]
            return list(setting) if isinstance(setting, (list, tuple)) else [int(setting)]
        if not self.has(i):
            return None
        array = self.array(i)
        if is_lengths(array):
            raise self.refuse(f"expected constant lengths as input {i}, got lengths that depend on the data")
        return [int(n) for n in array.reshape(-1)]

    def refuse(self, problem: str) -> CompatError:
        """Return an error that names the node."""
        return CompatError(f"{self.label}: {problem}; build this part in Python")


class Reader:
    """Values of an ONNX graph.

    Args:
        translations: for each operation a function that returns its value, or a list of values.
        opset: version of the operations.
        outer: reader of the graph around this one.

    Attributes:
        values: values by name.
        at: operation and name of the node that is being translated.
    """

    def __init__(self, translations: Mapping[str, Translation], opset: int, outer: Reader | None = None) -> None:
        self.translations, self.opset = translations, opset
        self.values: dict[str, Any] = {} if outer is None else dict(outer.values)
        self.at = "graph"

    def run(self, nodes: Iterable[Any]) -> None:
        """Translate nodes in order.

        Raises:
            CompatError: an operation that feedline does not have, or not with these settings.
        """
        for proto in nodes:
            label = f"{proto.op_type} `{proto.name or (proto.output[0] if proto.output else '')}`"
            self.at = label
            translate = self.translations.get(proto.op_type) if proto.domain in ("", "ai.onnx") else None
            if translate is None:
                raise CompatError(
                    f"{label}: expected an operation that feedline supports, got another one; build this part in Python"
                )
            attributes = library.attributes_of(proto)
            result = translate(Call(self, proto.op_type, list(proto.input), list(proto.output), attributes, label))
            results = result if isinstance(result, list) else [result]
            for name, value in zip(proto.output, results, strict=False):
                if name:
                    self.values[name] = value
            missing = [name for name in proto.output[len(results) :] if name]
            if missing:
                raise CompatError(
                    f"{label}: expected {len(results)} outputs, got {missing} too; build this part in Python"
                )

    def value(self, name: str, label: str = "output") -> Value:
        """Return a value as a tensor.

        Raises:
            CompatError: it is something else.
        """
        raw = self.values[name]
        if isinstance(raw, Value):
            return raw
        if isinstance(raw, np.ndarray) and not is_lengths(raw):
            dtype = raw.dtype.name if raw.dtype.kind == "f" else "float32"
            self.values[name] = Value(constant_node(raw.astype(dtype)))
            value: Value = self.values[name]
            return value
        raise CompatError(f"{label}: expected a tensor, got {type(raw).__name__} {name}; build this part in Python")
