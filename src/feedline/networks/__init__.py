"""Networks of old frameworks: nodes, traversals, and their execution by torch.

`node`, `traverse`, `shapes` and `registry` require only Python. `ops` and `compile` require torch and are imported only
to run a network.
"""

from __future__ import annotations

import importlib

from feedline.networks.node import BATCH, Node, Type, Weights
from feedline.networks.registry import DECLARING, apply
from feedline.networks.traverse import clone, find_all, leaves, replace, topological

__all__ = [
    "BATCH",
    "Node",
    "Type",
    "Weights",
    "apply",
    "clone",
    "find_all",
    "leaves",
    "replace",
    "topological",
]

DECLARING.append(lambda: importlib.import_module("feedline.networks.ops"))
