"""Columns of a picture: where a long network may be cut, so that it continues at the top beside itself.

A cut is between two operations outside of all frames, or between frames, where a single tensor goes on; or a few, if
that leaves columns too high. Heights are estimates, in points: dot decides. Linear in operations and edges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from feedline.graph.graph import Graph, Operation, Path

_BOX, _GAP = 44.0, 40.0  # points: a box of two lines, and an arrow with its label
_MOST_CROSSING = 6  # tensors; more circles with numbers would hide what goes where
_TOO_HIGH = 1.4
_WORTH_IT = 0.9  # of the height without these cuts


def columns(graph: Graph, height: float) -> list[list[Operation]]:
    """Return the operations in columns, as few as make none much higher than ``height`` points.

    Fewer and higher ones, where the network has no place to be cut. Within a column they are in order; an input stands
    in the column in which it is used first.
    """
    found, highest = [list(graph.operations)], _height(graph.operations)
    for crossing in range(1, _MOST_CROSSING + 1):
        if highest <= (height if crossing == 1 else _TOO_HIGH * height):
            break
        other = _columns(graph, height, crossing)
        high = max(map(_height, other), default=0.0)
        if high < _WORTH_IT * highest:
            found, highest = other, high
    return _inputs_moved(graph, found)


def _inputs_moved(graph: Graph, parts: Sequence[Sequence[Operation]]) -> list[list[Operation]]:
    place = {operation.key: i for i, part in enumerate(parts) for operation in part}
    used: dict[str, int] = {}
    for edge in graph.edges():
        used[edge.tail] = min(used.get(edge.tail, len(parts)), place[edge.head])
    found: list[list[Operation]] = [[] for _ in parts]
    for operation in graph.operations:
        home = place[operation.key]
        found[used.get(operation.key, home) if operation.role == "input" else home].append(operation)
    return [part for part in found if part]


def _columns(graph: Graph, height: float, crossing: int) -> list[list[Operation]]:
    operations = graph.operations
    cuts = [0, *_cuts(graph, crossing), len(operations)]
    parts = [operations[a:b] for a, b in pairwise(cuts)]
    heights = [_height(part) for part in parts]
    count = max(1, math.ceil(sum(heights) / height))
    limit = max([sum(heights) / count, *heights])
    while len(found := _filled(parts, heights, limit)) > count:
        limit *= 1.05
    return found


def _filled(parts: Sequence[Sequence[Operation]], heights: Sequence[float], limit: float) -> list[list[Operation]]:
    found: list[list[Operation]] = []
    used = math.inf
    for part, height in zip(parts, heights, strict=True):
        if used + height > limit:
            found.append([])
            used = 0.0
        found[-1] += part
        used += height
    return found


def _cuts(graph: Graph, crossing: int) -> list[int]:
    """Return the places, before an operation, at which a picture may be cut, with so many tensors going on at most."""
    operations = graph.operations
    around = _common([o.scope for o in operations if o.role == "operation"])
    place = {o.key: i for i, o in enumerate(operations)}
    reach = [0] * len(operations)  # how far an operation's outputs go
    for i, operation in enumerate(operations):
        for source in operation.inputs:
            first, last = sorted((place[source.key], i))
            reach[first] = max(reach[first], last)
    found, going = [], dict[int, int]()
    for i, operation in enumerate(operations):
        going = {j: end for j, end in going.items() if end >= i}
        before = operations[i - 1]
        unit, earlier = _unit(operation, around), _unit(before, around)
        if i and 1 <= len(going) <= crossing and (unit != earlier or not unit) and before.role != "input":
            found.append(i)
        if reach[i] > i:
            going[i] = reach[i]
    return [i for i in found if operations[i].role != "output"]


def _common(paths: Sequence[Path]) -> Path:
    """Return the longest beginning of all paths that leaves something of one of them."""
    if not paths:
        return ()
    shortest = min(paths, key=len)
    n = 0
    while n < len(shortest) - 1 and all(path[: n + 1] == shortest[: n + 1] for path in paths):
        n += 1
    return shortest[:n]


def _unit(operation: Operation, around: Path) -> Path:
    """Return the frame, directly inside of ``around``, in which an operation stands; empty: none."""
    outer = operation.scope[:-1] if operation.whole else operation.scope
    return outer[len(around) : len(around) + 1]


def _height(part: Sequence[Operation]) -> float:
    """Return the length of the longest path through some operations, in points."""
    lengths: dict[str, float] = {}
    for operation in part:
        before = max((lengths[s.key] for s in operation.inputs if s.key in lengths), default=0.0)
        lines = bool(operation.settings) + bool(operation.parameters)
        lengths[operation.key] = before + _BOX + 13.0 * lines + _GAP
    return max(lengths.values(), default=0.0)
