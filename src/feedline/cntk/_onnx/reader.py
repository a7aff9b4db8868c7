"""Walking through an ONNX graph: values by name, and for each node what a table says of its operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedline.cntk._nodes import constant_node
from feedline.cntk._onnx import library
from feedline.cntk._onnx.values import Known, Value, is_lengths
from feedline.errors import CompatError

Translation = Callable[["Given"], Any]


@dataclass(frozen=True, slots=True)
class Given:
    """A node of an ONNX graph, to be translated.

    Attributes:
        reader: reader of the graph.
        op: type of the operation.
        inputs, outputs: names; empty ones are left out.
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
        """Return an input as it is."""
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

    def known(self, i: int) -> Known:
        """Return an input whose numbers are known.

        Raises:
            CompatError: they are not.
        """
        found = self.raw(i)
        if isinstance(found, np.ndarray):
            return found
        if isinstance(found, Value) and found.node.weights is not None:
            weights = found.node.weights
            return np.asarray(weights.fill(weights.shape))
        raise self.refuse(f"expected numbers that the file has as input {i}, got computed ones")

    def numbers(self, i: int, attribute: str) -> list[int] | None:
        """Return whole numbers from an input, or from an attribute, as older files have it; None: neither."""
        if attribute in self.attributes:
            found = self.attributes[attribute]
            return list(found) if isinstance(found, (list, tuple)) else [int(found)]
        if not self.has(i):
            return None
        array = self.known(i)
        if is_lengths(array):
            raise self.refuse(f"expected lengths that the file has as input {i}, got some that data decides")
        return [int(n) for n in array.reshape(-1)]

    def refuse(self, what: str) -> CompatError:
        """Return an error that names the node."""
        return CompatError(f"{self.label}: {what}; build this part in Python")


class Reader:
    """Values of an ONNX graph.

    Args:
        translations: what each operation becomes: a value, or a list of them.
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
        for made in nodes:
            label = f"{made.op_type} `{made.name or (made.output[0] if made.output else '')}`"
            self.at = label
            translate = self.translations.get(made.op_type) if made.domain in ("", "ai.onnx") else None
            if translate is None:
                raise CompatError(
                    f"{label}: expected an operation that feedline has, got another one; build this part in Python"
                )
            attributes = library.attributes_of(made)
            found = translate(Given(self, made.op_type, list(made.input), list(made.output), attributes, label))
            results = found if isinstance(found, list) else [found]
            for name, value in zip(made.output, results, strict=False):
                if name:
                    self.values[name] = value
            missing = [name for name in made.output[len(results) :] if name]
            if missing:
                raise CompatError(
                    f"{label}: expected {len(results)} outputs, got {missing} too; build this part in Python"
                )

    def value(self, name: str, label: str = "output") -> Value:
        """Return a value as a tensor.

        Raises:
            CompatError: it is something else.
        """
        found = self.values[name]
        if isinstance(found, Value):
            return found
        if isinstance(found, np.ndarray) and not is_lengths(found):
            dtype = found.dtype.name if found.dtype.kind == "f" else "float32"
            self.values[name] = Value(constant_node(found.astype(dtype)))
            value: Value = self.values[name]
            return value
        raise CompatError(f"{label}: expected a tensor, got {type(found).__name__} {name}; build this part in Python")
