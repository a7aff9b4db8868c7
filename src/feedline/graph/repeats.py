"""Frames for repetitions that have none: runs of equal stretches of operations, such as a loop over lambdas makes.

A stretch is several operations or scopes in a row that have parameters. It must occur at least three times in a row,
and each occurrence must feed the next. So a frame shows structure, and never a guess from names. The time is quadratic
in the operations and scopes directly within one scope.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from feedline.graph.graph import Graph, Operation, Path, Scope

MIN_TIMES = 3  # times that a stretch occurs
KIND = "repeated"  # kind of the frames

Unit = tuple[Operation, ...]


def add_frames(graph: Graph) -> Graph:
    """Return a graph in which each stretch of a run has a frame, numbered from 1."""
    units: dict[Path, dict[Path | str, list[Operation]]] = {}
    for operation in graph.operations:
        for n in range(len(operation.scope) + 1):
            inner: Path | str = operation.scope[: n + 1] if n < len(operation.scope) else operation.key
            units.setdefault(operation.scope[:n], {}).setdefault(inner, []).append(operation)
    moved: dict[str, Path] = {}  # the new scope of each operation
    scopes: dict[Path, Scope] = {}
    for path, members in units.items():
        builtin = any(graph.scopes[path[:n]].builtin for n in range(1, len(path) + 1))
        if builtin or any(o.key in moved for unit in members.values() for o in unit):
            continue
        run = [[o for unit in stretch for o in unit] for stretch in _run(graph, path, [*map(tuple, members.values())])]
        for n, stretch in enumerate(run, 1):
            frame = (*path, f"{KIND} {n}")
            scopes[frame] = Scope(KIND)
            for operation, first in zip(stretch, run[0], strict=True):
                moved[operation.key] = (*frame, *first.scope[len(path) :])  # numbers of layers start again in each
                for depth in range(len(path) + 1, len(operation.scope) + 1):
                    inside = graph.scopes[operation.scope[:depth]]
                    scopes[(*frame, *first.scope[len(path) : depth])] = inside
    if not moved:
        return graph
    operations = tuple(replace(o, scope=moved.get(o.key, o.scope)) for o in graph.operations)
    used = {o.scope[:n] for o in operations for n in range(1, len(o.scope) + 1)}
    used_scopes = {path: scope for path, scope in (*graph.scopes.items(), *scopes.items()) if path in used}
    return replace(graph, operations=operations, scopes=used_scopes)


def _run(graph: Graph, path: Path, units: Sequence[Unit]) -> list[Sequence[Unit]]:
    """Return the stretches of the run that covers the most operations of a scope. Empty if there is none."""
    kinds = [_kind(graph, path, unit) for unit in units]
    best: list[Sequence[Unit]] = []
    for period in range(2, len(units) // MIN_TIMES + 1):
        for start in range(len(units) - MIN_TIMES * period + 1):
            times = 1
            while kinds[start : start + period] == kinds[start + times * period : start + (times + 1) * period]:
                times += 1
            stretches = [units[start + n * period : start + (n + 1) * period] for n in range(times)]
            if times >= MIN_TIMES and times * period > sum(map(len, best)) and _is_chain(stretches):
                best = stretches
    return best


def _kind(graph: Graph, path: Path, unit: Unit) -> tuple[object, ...]:
    """Return the properties that equal units share."""
    place = {o.key: i for i, o in enumerate(unit)}
    return tuple(
        (
            *(o.kind, o.role, o.outputs, o.settings, len(o.scope) - len(path)),
            tuple((graph.parameters[name].type, graph.parameters[name].trains) for name in o.parameters),
            tuple((place.get(s.key), s.index, s.feedback) for s in o.inputs),
        )
        for o in unit
    )


def _is_chain(stretches: Sequence[Sequence[Unit]]) -> bool:
    """Return whether stretches have parameters, and equal connections within each and to the one before."""
    blocks = [[o for unit in stretch for o in unit] for stretch in stretches]
    places: list[Mapping[str, int]] = [{o.key: i for i, o in enumerate(block)} for block in blocks]
    if not all(any(o.parameters for o in block) for block in blocks) or any(o.role != "operation" for o in blocks[0]):
        return False
    patterns = []
    for n in range(1, len(blocks)):
        sources = [s for o in blocks[n] for s in o.inputs]
        if any(s.key not in places[n] and s.key not in places[n - 1] for s in sources):
            return False
        patterns.append([(places[n].get(s.key), places[n - 1].get(s.key), s.index) for s in sources])
        if not any(s.key in places[n - 1] for s in sources):
            return False
    return all(pattern == patterns[0] for pattern in patterns)
