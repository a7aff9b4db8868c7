"""Functions in files: the graph as JSON in the header of a safetensors file, whose tensors are its parameters.

Nothing is pickled, so reading a file runs no code of it. Nodes stand inputs first; attributes are numbers, strings and
lists. Costs one copy of the tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feedline.errors import CompatError, StateError
from feedline.feed.formats.atomic import replaced
from feedline.graph import Node, Type, Weights, apply
from feedline.graph.node import parameter_node
from feedline.graph.traverse import topological

_FORMAT, _VERSION = "feedline.graph", 1


def save(path: str | Path, roots: Sequence[Node], arguments: Sequence[Node], format: Any = None) -> None:
    """Write a graph. See `Function.save`."""
