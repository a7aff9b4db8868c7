"""Folding of graphs: `collapse` makes a scope one operation, and `fold_repeats` makes a run of equal scopes one scope.

Both return a new `Graph`. Parameters, multiply-adds and memory of removed operations are attributed to their
substitute. Only a run shows the numbers of one of its scopes, and the original graph has the totals. The time is linear
in operations for each scope.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from feedline.graph.fold_alike import are_alike, combine
from feedline.graph.fold_branches import branches
from feedline.graph.graph import Graph, Operation, OutputReference, Path, Setting, total

Block = tuple[Path, tuple[Operation, ...]]
Output = tuple[str, int]  # key of an operation, and index of its output


def collapse(graph: Graph, depth: int | None = None, expand: bool = False) -> Graph:
    """Return a graph in which scopes are single operations.

    Args:
        graph: graph to collapse.
        depth: largest number of scopes around an operation. Deeper scopes become one operation. None means no limit.
        expand: whether to keep the inside of the library's layers. Otherwise layers without other modules become one
            operation.

    Raises:
        ValueError: a negative depth.
    """
    if depth is not None and depth < 0:
        raise ValueError(f"expected depth=None or a number of scopes from 0, got {depth}")
    if depth is not None and not expand:
        graph = collapse(graph)  # so that modules contain layers, not functions
    outer = frozenset(o.scope[:n] for o in graph.operations for n in range(1, len(o.scope)))
    groups: dict[Path, list[Operation]] = {}
    for operation in graph.operations:
        path = _border(graph, operation, depth, expand, outer)
        if path is not None and not (operation.whole and operation.scope == path):
            groups.setdefault(path, []).append(operation)
    merged = _merge(graph, groups)
    if merged is not None:
        return merged
    # Merging all groups at once would make a cycle. So merge one after another, as far as possible.
    for path, members in groups.items():
        graph = _merge(graph, {path: [graph[o.key] for o in members]}) or graph
    return graph


def _border(graph: Graph, operation: Operation, depth: int | None, expand: bool, outer: frozenset[Path]) -> Path | None:
    """Return the outermost scope around an operation that has to become one operation, or None."""
    for n in range(1, len(operation.scope) + 1):
        path = operation.scope[:n]
        if (depth is not None and n > depth) or (not expand and graph.scopes[path].builtin and path not in outer):
            return path
    return None


def _merge(graph: Graph, groups: Mapping[Path, Sequence[Operation]]) -> Graph | None:
    """Merge each group into one operation. Return None if that makes a cycle."""
    group_of = {o.key: path for path, members in groups.items() for o in members}
    keys = _free_keys(graph, groups, group_of)
    used_outputs: dict[Path, dict[Output, None]] = {path: {} for path in groups}
    for operation in graph.operations:
        for source in operation.inputs:
            path = group_of.get(source.key)
            if path is not None and group_of.get(operation.key) != path:
                used_outputs[path].setdefault((source.key, source.index))
    substitutes: dict[Output, Output] = {}
    changes: dict[str, Operation | None] = dict.fromkeys(group_of)
    for path, members in groups.items():
        sources = [s for o in members for s in o.inputs if group_of.get(s.key) != path]
        settings = [o.settings for o in members if o.settings]
        changes[members[-1].key] = Operation(
            key=keys[path],
            kind=graph.scopes[path].kind,
            name=path[-1],
            scope=path,
            inputs=tuple(dict.fromkeys(sources)),
            outputs=tuple(graph[key].outputs[index] for key, index in used_outputs[path]),
            parameters=tuple(dict.fromkeys(name for o in members for name in o.parameters)),
            multiply_adds=total([o.multiply_adds for o in members]),
            activations=total([o.activations for o in members]),
            detail=graph.scopes[path].detail,
            settings=graph.scopes[path].settings or (settings[0] if len(settings) == 1 else ()),
            whole=True,
            members=tuple(member for o in members for member in (o.members or ((o.kind, o.settings),))),
            inside=branches(members),
        )
        substitutes |= {output: (keys[path], i) for i, output in enumerate(used_outputs[path])}
    removed_scopes = {p for p in graph.scopes for n in range(1, len(p)) if p[:n] in groups}
    return _rebuild(graph, changes, substitutes, removed_scopes)


def _free_keys(graph: Graph, groups: Iterable[Path], group_of: Mapping[str, Path]) -> dict[Path, str]:
    used = {o.key for o in graph.operations if o.key not in group_of}
    keys = {}
    for path in groups:
        key = re.sub(r"[^\w.@-]", "_", ".".join(path))
        while key in used:
            key += "_"
        used.add(key)
        keys[path] = key
    return keys


def _rebuild(
    graph: Graph,
    changes: Mapping[str, Operation | None],
    substitutes: Mapping[Output, Output],
    removed_scopes: Collection[Path],
) -> Graph | None:
    """Replace or remove operations, redirect sources, and remove scopes. Return None if that makes a cycle."""
    operations = []
    for old in graph.operations:
        operation = changes.get(old.key, old)
        if operation is not None:
            sources = [(s, substitutes.get((s.key, s.index))) for s in operation.inputs]
            inputs = tuple(s if to is None else OutputReference(*to, s.feedback) for s, to in sources)
            operations.append(replace(operation, inputs=inputs))
    ordered = _sort(operations)
    scopes = {path: scope for path, scope in graph.scopes.items() if path not in removed_scopes}
    return Graph(ordered, graph.parameters, scopes, graph.importer, graph.notes) if ordered else None


def _sort(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """Sort operations after their sources, otherwise in their present order. Empty if there is a cycle."""
    place = {o.key: i for i, o in enumerate(operations)}
    below = [{place[s.key] for s in o.inputs if not s.feedback} for o in operations]
    above: list[list[int]] = [[] for _ in operations]
    for i, sources in enumerate(below):
        for j in sources:
            above[j].append(i)
    waiting = [len(sources) for sources in below]
    ready = [i for i, n in enumerate(waiting) if n == 0]
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(operations[i])
        for j in above[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(ready, j)
    return tuple(order) if len(order) == len(operations) else ()


def fold_repeats(graph: Graph, alike: bool = False) -> Graph:
    """Return a graph in which runs of equal scopes, each fed by the one before, appear once.

    Scopes are equal if their operations, edges, and shapes of results and parameters are equal. Sources outside of the
    run must be the same, too, and only the last scope may feed operations outside. A run may begin with a scope that
    has additional operations and other shapes, like the first block of a stage of a ResNet.

    Args:
        graph: graph to fold.
        alike: whether to fold runs of scopes that differ in widths, too, as the blocks of an Inception do. The types
            and settings in the result then cover all of them.
    """
    done: set[Path] = set()
    while True:
        users, runs = _users(graph), []
        for path, blocks in _families(graph).items():
            if path not in done:
                done.add(path)
                runs = _runs(graph, blocks, users, alike)
                if runs:
                    break
        else:
            return _fold_stages(graph)
        for run in runs:
            graph = _fold_run(graph, run)


def _fold_stages(graph: Graph) -> Graph:
    """Fold blocks into the block before them if that block differs from them as the first block of a stage does."""
    while True:
        users = _users(graph)
        pairs = (pair for blocks in _families(graph).values() for pair in pairwise(blocks))
        smaller = next((fold for pair in pairs if (fold := _fold_stage(graph, *pair, users)) is not None), None)
        if smaller is None:
            return graph
        graph = smaller


def _fold_stage(graph: Graph, first: Block, second: Block, users: Mapping[str, set[str]]) -> Graph | None:
    """Return the graph with the second block folded into the first, or None if they do not begin a stage."""
    (path, before), (next_path, after) = first, second
    head, tail = graph.scopes[path], graph.scopes[next_path]
    if head.repeats > 1 or (head.kind, head.builtin) != (tail.kind, tail.builtin) or head.first_only:
        return None
    names = {_subscope(o, next_path) for o in after}
    extra = {_subscope(o, path) for o in before} - names - {""}
    common = [o for o in before if _subscope(o, path) not in extra]
    pairs = list(zip(common, after, strict=False))
    twin = {a.key: b.key for a, b in pairs}
    if len(common) != len(after) or not all(_equal_but_for_shapes(graph, a, path, b, next_path) for a, b in pairs):
        return None
    first_keys, second_keys = {o.key for o in before}, set(twin.values())
    outer = {a.key: (a, b) for a, b in pairs if users.get(b.key, set()) - second_keys}
    fed = False
    for a, b in pairs:
        for s, t in zip(a.inputs, b.inputs, strict=True):
            if t.key in second_keys:
                if twin.get(s.key) != t.key or s.index != t.index:
                    return None
            elif s.key in twin:
                return None
            elif t.key in first_keys:
                if t.key not in outer:
                    return None  # outputs that pass from block to block must be the outputs of the last one
                fed = True
            elif s != t:
                return None
    if not fed or any(a.outputs != b.outputs for a, b in outer.values()):
        return None
    if any(users.get(key, set()) - first_keys - second_keys for key in first_keys):
        return None
    # The settings of the first block that the others do not have.
    changed = [s for a, b in pairs for x, y in _settings(a, b) for s, t in zip(x, y, strict=True) if s != t]
    if not extra and all(setting.name != "stride" for setting in changed):
        return None  # different shapes alone do not make a stage, as the levels of a pyramid should be visible
    only = dict.fromkeys([*sorted(extra), *(_describe_setting(setting) for setting in changed)])
    smaller = _without(graph, [second], {b: a for a, b in twin.items()}, {})
    last = tail.last if tail.repeats > 1 else next_path[-1]
    scope = replace(head, repeats=1 + tail.repeats, last=last, first_only=tuple(only))
    return replace(smaller, scopes={**smaller.scopes, path: scope})


def _subscope(operation: Operation, path: Path) -> str:
    """Return the name of the direct subscope that contains an operation, without the number of its call.

    For an operation in no subscope, return its name if it has parameters, otherwise an empty text.
    """
    if len(operation.scope) > len(path):
        return operation.scope[len(path)].partition("@")[0]
    return operation.name if operation.parameters else ""


def _equal_but_for_shapes(graph: Graph, a: Operation, path: Path, b: Operation, other_path: Path) -> bool:
    """Return whether operations differ only in shapes, and in settings in which the first block may differ."""
    if _without_shapes(graph, a, path) != _without_shapes(graph, b, other_path):
        return False
    return all(_equal_but_for_first(x, y) for x, y in _settings(a, b))


def _without_shapes(graph: Graph, o: Operation, path: Path) -> tuple[object, ...]:
    """Return the properties of an operation in a scope, without shapes and settings."""
    weights = [(p.trains, len(p.type.shape or ())) for p in (graph.parameters[name] for name in o.parameters)]
    inside = [graph.scopes[o.scope[:n]] for n in range(len(path) + 1, len(o.scope) + 1)]
    runs = [(scope.kind, scope.builtin, scope.repeats, scope.last, scope.first_only) for scope in inside]
    kinds = [kind for kind, _ in o.members]
    return (o.kind, o.role, o.whole, len(o.inputs), len(o.outputs), weights, _path_within(o, path), runs, kinds)


def _settings(a: Operation, b: Operation) -> list[tuple[tuple[Setting, ...], tuple[Setting, ...]]]:
    """Return pairs of the settings of two operations, and of the operations inside of them."""
    inside = [(x, y) for (_, x), (_, y) in zip(a.members, b.members, strict=True)]
    return [(a.settings, b.settings), *inside]


def _equal_but_for_first(a: tuple[Setting, ...], b: tuple[Setting, ...]) -> bool:
    differing = (*_MAY_DIFFER_IN_FIRST, "groups") if _is_depthwise(a) and _is_depthwise(b) else _MAY_DIFFER_IN_FIRST
    return [s.name if s.name in differing else s for s in a] == [s.name if s.name in differing else s for s in b]


def _is_depthwise(settings: tuple[Setting, ...]) -> bool:
    values = {setting.name: setting.value for setting in settings}
    return "groups" in values and values["groups"] == values.get("units")


# Settings in which the first block of a stage may differ, and which a picture names.
_MAY_DIFFER_IN_FIRST = ("stride", "padding", "dilation", "rate", "units")


def _describe_setting(setting: Setting) -> str:
    """Return a setting of the first block in words. Widths are without numbers, as there are many."""
    if setting.name in ("units", "groups"):
        return "other widths"
    return setting.words or f"{setting.name} {setting.value}"


def _without(graph: Graph, blocks: Sequence[Block], twin: Mapping[str, str], changes: Mapping[str, Operation]) -> Graph:
    """Remove blocks, replace the outputs of their operations by outputs of their twins, and apply changes."""
    removed = [o for _, block in blocks for o in block]
    substitutes = {(o.key, i): (twin[o.key], i) for o in removed if o.key in twin for i in range(len(o.outputs))}
    removed_scopes = {p for p in graph.scopes for path, _ in blocks if p[: len(path)] == path}
    smaller = _rebuild(graph, {**changes, **{o.key: None for o in removed}}, substitutes, removed_scopes)
    assert smaller is not None, "a chain without its end"
    return smaller


def _families(graph: Graph) -> dict[Path, list[Block]]:
    """Return the direct subscopes of each scope with their operations, in order of the first one, and outer scopes
    first."""
    inside: dict[Path, dict[Path, list[Operation]]] = {}
    for operation in graph.operations:
        for n in range(len(operation.scope)):
            family = inside.setdefault(operation.scope[:n], {})
            family.setdefault(operation.scope[: n + 1], []).append(operation)
    ordered = sorted(inside, key=len)
    return {path: [(p, tuple(o)) for p, o in inside[path].items()] for path in ordered}


def _runs(graph: Graph, blocks: Sequence[Block], users: Mapping[str, set[str]], alike: bool) -> list[list[Block]]:
    """Return the longest runs of at least two blocks, each of which continues the one before."""
    runs: list[list[Block]] = []
    current = [blocks[0]]
    for block in blocks[1:]:
        if _follows(graph, current, block, users, alike):
            current.append(block)
        else:
            runs.append(current)
            current = [block]
    runs.append(current)
    runs = [run[:-1] if _ends_elsewhere(run, users) else run for run in runs]
    return [run for run in runs if len(run) > 1]


def _ends_elsewhere(run: Sequence[Block], users: Mapping[str, set[str]]) -> bool:
    """Return whether the last block ends at another operation than the operation that connects blocks."""
    if len(run) < 2:
        return False
    (_, before), (_, last) = run[-2:]
    keys = {o.key for o in last}
    ends = [bool(users.get(o.key, set()) - keys) for o in last]
    return any(ends) and any(users.get(o.key, set()) & keys and not end for o, end in zip(before, ends, strict=True))


def _users(graph: Graph) -> dict[str, set[str]]:
    users: dict[str, set[str]] = {}
    for operation in graph.operations:
        for source in operation.inputs:
            users.setdefault(source.key, set()).add(operation.key)
    return users


def _follows(graph: Graph, run: Sequence[Block], block: Block, users: Mapping[str, set[str]], alike: bool) -> bool:
    (path, before), (next_path, after) = run[-1], block
    first, second = graph.scopes[path], graph.scopes[next_path]
    same = (first.kind, first.builtin) == (second.kind, second.builtin) if alike else first == second
    if not same or len(before) != len(after):
        return False
    twin = {a.key: b.key for a, b in zip(before, after, strict=True)}
    fed = False
    for a, b in zip(before, after, strict=True):
        equal = _properties(graph, a, path) == _properties(graph, b, next_path)
        if not equal and not (alike and _path_within(a, path) == _path_within(b, next_path) and are_alike(graph, a, b)):
            return False
        if len(a.inputs) != len(b.inputs):
            return False
        for s, t in zip(a.inputs, b.inputs, strict=True):
            if s.key in twin or t.key in twin.values():
                if twin.get(s.key) != t.key or (s.index, s.feedback) != (t.index, t.feedback):
                    return False
            elif t.key in twin:
                if len(run) > 1 and not _same_place(run, s, t):
                    return False
                fed = True
            elif s != t:
                return False
    allowed = set(twin) | set(twin.values())
    return fed and all(users.get(a.key, set()) <= allowed for a in before)


def _same_place(run: Sequence[Block], s: OutputReference, t: OutputReference) -> bool:
    """Return whether a block uses the same output of the block before it as that block uses of its predecessor."""
    earlier = [o.key for o in run[-2][1]]
    latest = [o.key for o in run[-1][1]]
    return s.key in earlier and earlier.index(s.key) == latest.index(t.key) and s.index == t.index


def _properties(graph: Graph, operation: Operation, path: Path) -> tuple[object, ...]:
    """Return the properties that equal operations share."""
    parameters = tuple((graph.parameters[name].type, graph.parameters[name].trains) for name in operation.parameters)
    costs = (operation.multiply_adds, operation.activations, operation.detail, operation.settings)
    return (operation.kind, operation.outputs, _path_within(operation, path), parameters, costs, operation.members)


def _path_within(operation: Operation, path: Path) -> Path:
    """Return the path of an operation within a scope, without numbers of calls."""
    return tuple(part.partition("@")[0] for part in operation.scope[len(path) :])


def _fold_run(graph: Graph, run: Sequence[Block]) -> Graph:
    """Replace a run by its first block."""
    run = [(path, tuple(graph[o.key] for o in block)) for path, block in run]  # other runs may have been folded since
    (path, first), (last_path, last) = run[0], run[-1]
    merged = {all_[0].key: combine(all_) for all_ in zip(*(block for _, block in run), strict=True)}
    last_keys, users = {o.key for o in last}, _users(graph)
    for f, o in zip(first, last, strict=True):
        if not users.get(o.key, set()) <= last_keys:  # the last block feeds the following operations
            merged[f.key] = replace(merged[f.key], outputs=o.outputs)
    smaller = _without(graph, run[1:], {o.key: f.key for f, o in zip(first, last, strict=True)}, merged)
    tied = [o.parameters for o in first] == [o.parameters for o in last]
    counts = [[graph.parameters[n].count for o in block for n in o.parameters] for _, block in run]
    differ = any(merged[o.key] != o for o in first) or any(count != counts[0] for count in counts)
    scope = replace(smaller.scopes[path], repeats=len(run), last=last_path[-1], tied=tied, alike=differ)
    return replace(smaller, scopes={**smaller.scopes, path: scope})
