"""Writing networks as source of torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from feedline.cntk._model_files.compositions import without_packing
from feedline.networks import Node
from feedline.networks.torch_source.module_file import write_module
from feedline.networks.torch_source.source_recurrences import find_cells
from feedline.networks.torch_source.source_writer import ModuleParts, SourceWriter
from feedline.networks.torch_source.torch_layers import blocks_of, find_layers, layer_names
from feedline.networks.torch_source.torch_operators import OPERATORS, find_quotients


def write_torch(path: Path, roots: Sequence[Node], arguments: Sequence[Node], origin: str) -> float:
    """Write a graph as ``path``, a module of torch, and its weights next to it. See `write_module`.

    Returns:
        The largest difference of an output on random inputs, relative to its largest value or 1.

    Raises:
        CompatError: an operation that the source cannot express, or an output that differs. The error names it.
        ValueError: a shape that is not known yet.
    """
    paths = blocks_of(roots)
    w = SourceWriter(OPERATORS, ModuleParts(roots, layer_names(roots, paths)), without_packing)
    find_layers(w, paths)
    find_cells(w)
    find_quotients(w)
    return write_module(path, w, roots, [node for node in arguments if node in w.parts.order], origin)
