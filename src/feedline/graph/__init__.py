"""What does a network look like? Nodes, ways through them, and their execution by torch.

`node`, `traverse`, `types` and `registry` need nothing but Python, so that pictures and summaries of foreign networks
do without torch; `ops` and `compile` need it and are imported by whoever runs a network.
"""

from __future__ import annotations

from feedline.graph.node import BATCH, Node, Type, Weights
from feedline.graph.registry import apply
from feedline.graph.traverse import clone, find_all, find_by_name, leaves, replace, topological

__all__ = [
    "BATCH",
    "Node",
    "Type",
    "Weights",
    "apply",
    "clone",
    "find_all",
    "find_by_name",
    "leaves",
    "replace",
    "topological",
]
