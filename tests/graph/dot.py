"""The content of DOT, parsed by Graphviz itself."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest


def parsed(source):
    """Nodes by key with their labels, and edges (tail, head, label), as `dot -Tdot_json` reads them."""
    if shutil.which("dot") is None:
        pytest.skip("the program dot is not installed")
    done = subprocess.run(["dot", "-Tdot_json"], input=source, capture_output=True, text=True, check=True, timeout=100)
    assert not done.stderr, done.stderr
    document = json.loads(done.stdout)
    objects = {o["_gvid"]: o for o in document.get("objects", [])}
    nodes = {o["name"]: o.get("label", "") for o in objects.values() if "nodes" not in o and "subgraphs" not in o}
    edges = [
        (objects[e["tail"]]["name"], objects[e["head"]]["name"], e.get("label", "")) for e in document.get("edges", [])
    ]
    return nodes, edges
