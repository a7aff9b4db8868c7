"""Columns of a picture: places to cut a long network, which continues at the top of the next column.

A cut is between two operations outside of all frames, or between frames, where a single tensor crosses it. If columns
would be too high otherwise, cuts may also be inside of frames, which then continue, or where a few tensors cross. No
cut is inside of a frame that represents several. Heights are estimates in points, as dot decides. The time is linear in
operations and edges, for each depth of frames.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import pairwise

from feedline.graph.graph import Graph, Operation, Path
from feedline.graph.labels import box_lines

# Average heights in points: a box with an arrow and its label, a line of a box, an end of a frame, and the caption, the
# legend, and the circles at which columns begin and end.
_BOX, _LINE, _FRAME, _AROUND = 56.0, 7.0, 22.0, 160.0
_MAX_CROSSINGS = 6  # more circles with numbers would confuse
_TOO_HIGH = 1.4
_MORE = 2  # additional columns that are tried, as parts cannot be divided
_WORTH_IT = 0.9  # largest fraction of the height without cuts for which they are made


def columns(graph: Graph, height: float) -> list[list[Operation]]:
    """Return the operations in as few columns as possible, without columns that are much higher than ``height`` points.

    Columns are fewer and higher if the network has no place to cut. Within a column operations are in order. An input
    is in the column of its first use.
    """
    height = max(height - _AROUND, height / 2)
    sizes = {operation.key: _BOX + _LINE * len(box_lines(graph, operation)) for operation in graph.operations}
    best, highest = [list(graph.operations)], _height(graph.operations, sizes)
    deepest = max((len(operation.scope) for operation in graph.operations), default=0)
    for crossing in range(1, _MAX_CROSSINGS + 1):
        for depth in range(deepest + 1):
            if highest <= (height if crossing == 1 else _TOO_HIGH * height):
                return _move_inputs(graph, best)
            candidate = _columns(graph, height, sizes, _cuts(graph, crossing, depth))
            high = max((_height(part, sizes) for part in candidate), default=0.0)
            if high < _WORTH_IT * highest:
                best, highest = candidate, high
    return _move_inputs(graph, best)


def _move_inputs(graph: Graph, parts: Sequence[Sequence[Operation]]) -> list[list[Operation]]:
    place = {operation.key: i for i, part in enumerate(parts) for operation in part}
    used: dict[str, int] = {}
    for edge in graph.edges():
        used[edge.tail] = min(used.get(edge.tail, len(parts)), place[edge.head])
    moved: list[list[Operation]] = [[] for _ in parts]
    for operation in graph.operations:
        home = place[operation.key]
        moved[used.get(operation.key, home) if operation.role == "input" else home].append(operation)
    return [part for part in moved if part]


def _columns(graph: Graph, height: float, sizes: Mapping[str, float], cuts: Sequence[int]) -> list[list[Operation]]:
    operations = graph.operations
    cuts = [0, *cuts, len(operations)]
    parts = [operations[a:b] for a, b in pairwise(cuts)]
    continued = [0, *(len(_common(operations[n - 1].frames, operations[n].frames)) for n in cuts[1:-1]), 0]
    # Height that a part adds to a column that already has the frames around its ends.
    heights = [_height(part, sizes) - _FRAME * sum(ends) for part, ends in zip(parts, pairwise(continued), strict=True)]
    min_count = max(1, math.ceil(sum(heights) / height))
    best, highest = [list(operations)], math.inf
    for count in range(min_count, min_count + _MORE + 1):
        limit = max([sum(heights) / count, *heights])
        while len(candidate := _fill(parts, heights, limit)) > count:
            limit *= 1.05
        high = max(_height(part, sizes) for part in candidate)
        if high < _WORTH_IT * highest:
            best, highest = candidate, high
        if highest <= height:
            break
    return best


def _fill(parts: Sequence[Sequence[Operation]], heights: Sequence[float], limit: float) -> list[list[Operation]]:
    """Return the parts in columns of at most this height."""
    filled: list[list[Operation]] = []
    used = math.inf
    for part, height in zip(parts, heights, strict=True):
        if used + height > limit:
            filled.append([])
            used = 0.0
        filled[-1] += part
        used += height
    return filled


def _cuts(graph: Graph, crossing: int, depth: int) -> list[int]:
    """Return the places, before an operation, at which a picture may be cut.

    Args:
        graph: graph of the picture.
        crossing: largest number of tensors that cross a cut.
        depth: largest number of frames that continue, not counting frames around everything.
    """
    operations = graph.operations
    scopes = [o.scope for o in operations if o.role == "operation"]
    around = reduce(_common, scopes, min(scopes, key=len, default=())[:-1])  # leaves at least one name of each scope
    place = {o.key: i for i, o in enumerate(operations)}
    reach = [0] * len(operations)  # the last operation that uses an operation's outputs
    for i, operation in enumerate(operations):
        for source in operation.inputs:
            first, last = sorted((place[source.key], i))
            reach[first] = max(reach[first], last)
    cuts, open_tensors = [], dict[int, int]()
    for i, operation in enumerate(operations):
        open_tensors = {j: end for j, end in open_tensors.items() if end >= i}
        before = operations[i - 1]
        continued = _common(before.frames, operation.frames)
        repeated = any(graph.scopes[continued[:n]].repeats > 1 for n in range(1, len(continued) + 1))
        outside = len(continued) <= len(around) + depth and not repeated
        if i and 1 <= len(open_tensors) <= crossing and outside and before.role != "input":
            cuts.append(i)
        if reach[i] > i:
            open_tensors[i] = reach[i]
    return [i for i in cuts if operations[i].role != "output"]


def _common(first: Path, second: Path) -> Path:
    """Return the longest beginning of both paths."""
    n = 0
    while n < min(len(first), len(second)) and first[n] == second[n]:
        n += 1
    return first[:n]


def _height(part: Sequence[Operation], sizes: Mapping[str, float]) -> float:
    """Return the length of the longest path through some operations and the ends of their frames, in points."""
    lengths: dict[str, float] = {}
    inside = {operation.key: operation for operation in part}
    for operation in part:
        frames = operation.frames
        above = [(lengths[s.key], inside[s.key].frames) for s in operation.inputs if s.key in lengths]
        ways = [n + _FRAME * (len(frames) + len(tail) - 2 * len(_common(tail, frames))) for n, tail in above]
        lengths[operation.key] = sizes[operation.key] + max(ways, default=_FRAME * len(frames))
    return max((length + _FRAME * len(inside[key].frames) for key, length in lengths.items()), default=0.0)
