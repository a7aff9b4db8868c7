"""What does a network look like? Nodes, ways through them, their execution by torch; pictures and tables of networks.

`node`, `traverse`, `shapes` and `registry` need nothing but Python; `ops` and `compile` need torch and are imported by
whoever runs a network. `graph` is what `plot` draws and `summary` sums, read by `importers` from anybody's networks: of
them, only those of torch's modules import torch.
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
