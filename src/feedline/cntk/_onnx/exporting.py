"""Writing ONNX files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from feedline.cntk._model_files.compositions import without_packing
from feedline.networks import Node
from feedline.networks.onnx import onnx_library as library
from feedline.networks.onnx.onnx_operators import OPERATORS
from feedline.networks.onnx.onnx_writer import Writer, dimensions


def write_onnx(path: Path, roots: Sequence[Node], arguments: Sequence[Node]) -> None:
    """Write a graph as an ONNX file, atomically replacing ``path``.

    Raises:
        CompatError: an operation that ONNX cannot express. The error names it.
        ValueError: a shape that is not known yet.
        StateError: tensors of 2 GiB or more.
    """
    writer = Writer(OPERATORS, without_packing)
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
