"""Levels of a network that goes down and up again, as a U-Net does: its turn, and the operations at equal heights.

Such a network has nested ways across: the first to leave is the last to join. If there are only two, their tensors must
differ in shape, as blocks in blocks that add what they took have two of one shape. A picture draws the way up next to
the way down, from below, with both ends of a way across at one height. The time is quadratic in joints, and linear in
the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from feedline.graph.graph import Edge, Graph

MIN_WAYS = 2  # across
SHARE = 0.5  # share of all operations that must be between the ends of the outermost way


class Levels(NamedTuple):
    """The arrangement of the two ways next to each other.

    Attributes:
        up: keys of the operations on the way up.
        across: (tail, head) of the edges from one way to the other.
        lengths: number of ranks that an edge (tail, head) spans, if it is more than one.
    """

    up: frozenset[str]
    across: frozenset[tuple[str, str]]
    lengths: Mapping[tuple[str, str], int]


def levels(graph: Graph) -> Levels | None:
    """Return the levels of a graph, or None if it does not go down and up again."""
    keys = [operation.key for operation in graph.operations]
    place = {key: i for i, key in enumerate(keys)}
    edges = [edge for edge in graph.edges() if not edge.feedback]
    incoming: dict[str, list[Edge]] = {}
    for edge in edges:
        incoming.setdefault(edge.head, []).append(edge)
    joins = {key: {place[e.tail] for e in into} for key, into in incoming.items() if len({e.tail for e in into}) > 1}
    pairs = _nested(sorted((min(tails), place[key]) for key, tails in joins.items()))
    if len(pairs) < MIN_WAYS or pairs[0][1] - pairs[0][0] < SHARE * len(keys):
        return None
    shapes = {e.type.shape for tail, head in pairs for e in incoming[keys[head]] if place[e.tail] == tail}
    if len(pairs) == MIN_WAYS and len(shapes) < MIN_WAYS:
        return None
    first, last = pairs[-1]
    lowest = _path(keys[first], keys[last], incoming, place, frozenset())
    turn = place[lowest[len(lowest) // 2][0]] if lowest else first
    up = frozenset(keys[turn + 1 :])
    across = frozenset((e.tail, e.head) for e in edges if place[e.tail] < turn and e.head in up)
    lengths = dict[tuple[str, str], int]()
    for (a, b), (c, d) in pairwise([*pairs, (turn, turn)]):
        down, above = _path(keys[a], keys[c], incoming, place, across), _path(keys[d], keys[b], incoming, place, across)
        if not down or not above:
            return None  # a way that leaves its side has no level
        shorter, longer = sorted((down, above), key=len)
        lengths[shorter[-1]] = 1 + len(longer) - len(shorter)
    return Levels(up, across, {edge: n for edge, n in lengths.items() if n > 1})


def _nested(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest nested chain of the sorted pairs, outermost first."""
    best: list[list[tuple[int, int]]] = []
    for first, last in pairs:
        outer = [chain for chain in best if chain[-1][0] < first and last < chain[-1][1]]
        best.append([*max(outer, key=len, default=[]), (first, last)])
    return max(best, key=len, default=[])


def _path(
    start: str,
    end: str,
    incoming: Mapping[str, Sequence[Edge]],
    place: Mapping[str, int],
    without: frozenset[tuple[str, str]],
) -> list[tuple[str, str]]:
    """Return the edges of a longest way from one operation to another. Empty if there is none."""
    longest: dict[str, list[tuple[str, str]]] = {start: []}
    order = sorted((key for key in place if place[start] < place[key] <= place[end]), key=place.__getitem__)
    for key in order:
        ways = [[*longest[e.tail], (e.tail, key)] for e in incoming.get(key, ()) if e.tail in longest]
        ways = [way for way in ways if way[-1] not in without]
        if ways:
            longest[key] = max(ways, key=len)
    return longest.get(end, [])
