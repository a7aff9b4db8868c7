"""Writing ONNX files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from feedline.cntk._onnx import library
from feedline.cntk._onnx.write_operators import OPERATORS
from feedline.cntk._onnx.writer import Writer, dimensions
from feedline.networks import Node


def write_onnx(path: Path, roots: Sequence[Node], arguments: Sequence[Node]) -> None:
    """Write a graph as an ONNX file, atomically replacing ``path``.

    Raises:
        CompatError: an operation that ONNX cannot express. The error names it.
        ValueError: a shape that is not known yet.
        StateError: tensors of 2 GiB or more.
    """
    writer = Writer(OPERATORS)
    for argument in arguments:
        writer.value(argument)
    outputs = []
    for i, root in enumerate(roots):
        result = writer.value(root)
        name = writer.free(root.name or f"output{i}")
        writer.nodes.append(library.node("Identity", [result], [name]))
        outputs.append(library.describe(name, writer.dtype_of(result), dimensions(root)))
    nodes, names = library.keep_used(writer.nodes, [output.name for output in outputs])
    tensors = [initializer for initializer in writer.initializers if initializer.name in names]
    library.save(path, library.graph(nodes, writer.inputs, outputs, tensors))
