"""How does an old network run? Nodes, ways through them, and their execution by torch.

`node`, `traverse`, `shapes` and `registry` need nothing but Python; `ops` and `compile` need torch and are imported by
whoever runs a network.
"""

from __future__ import annotations

import importlib

from feedline.networks.node import BATCH, Node, Type, Weights
from feedline.networks.registry import DECLARING, apply
from feedline.networks.traverse import clone, find_all, find_by_name, leaves, replace, topological

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

DECLARING.append(lambda: importlib.import_module("feedline.networks.ops"))
