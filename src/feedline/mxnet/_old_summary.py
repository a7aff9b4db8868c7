"""MXNet 1.9's `print_summary`, errors included: it guesses counts, and takes the numbers of one head as heads."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any


def print_rows(symbol: Any, shapes: Mapping[str, Any] | None, table: Any) -> None:
    """Print the table.

    Args:
        symbol: symbol to print.
        shapes: shapes of all outputs of all nodes, by name. None if they are not shown.
        table: printer of rows.

    Raises:
        IndexError: with shapes, a layer is applied to an output of one axis.
    """
    graph = json.loads(symbol.tojson())
    nodes, heads = graph["nodes"], set(graph["heads"][0])
    table.head()
    total = 0
    for i, node in enumerate(nodes):
        if node["op"] == "null" and i > 0:
            continue
        shape = ()
        if shapes is not None and (node["op"] != "null" or i in heads):
            shape = shapes.get(_key(node), ())[1:]
        previous, channels = [], 0
        for number, *_ in node["inputs"] if node["op"] != "null" else ():
            below = nodes[number]
            if below["op"] != "null" or number in heads:
                previous.append(below["name"])
                if shapes is not None and _key(below) in shapes:
                    channels += int(shapes[_key(below)][1:][0])
        count = _guess(node, channels, shapes)
        total += count
        table.layer(f"{node['name']}({node['op']})", "x".join(map(str, shape)), count, previous)
        table.line("=" if i == len(nodes) - 1 else "_")
    print(f"Total params: {total}")
    table.line("_")


def _key(node: Mapping[str, Any]) -> str:
    return str(node["name"]) if node["op"] == "null" else f"{node['name']}_output"


def _guess(node: Mapping[str, Any], channels: int, shapes: Mapping[str, Any] | None) -> int:
    get = node.get("attrs", {})
    bare = get.get("no_bias") == "True"
    if node["op"] == "Convolution":
        filters = int(get["num_filter"])
        cells = math.prod(int(k) for k in re.findall(r"\d+", get["kernel"]))
        return channels * filters // int(get.get("num_group", "1")) * cells + (0 if bare else filters)
    if node["op"] == "FullyConnected":
        return int(get["num_hidden"]) * (channels if bare else channels + 1)
    if node["op"] == "BatchNorm":
        return 2 * int(shapes[_key(node)][1]) if shapes is not None else 0
    return int(get["input_dim"]) * int(get["output_dim"]) if node["op"] == "Embedding" else 0
