"""Scopes of MXNet's operations, which have none, from the common parts of their names.

``stage1_unit2_conv1`` is ``conv1`` in ``unit2`` in ``stage1``. Names that MXNet generated (``_plus0``, ``activation3``)
carry no information, so these operations belong to the scope of the operations that they join or connect. A product or
convolution and the operations that follow it under one name (``mixed_conv_conv2d``, ``mixed_conv_batchnorm``,
``mixed_conv_relu``) are one layer. The time is linear in operations, except for unnamed ones that join several.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise

from feedline.graph.graph import Operation, OutputReference, Path, Scope
from feedline.graph.op_families import family
from feedline.networks.importers.layers import FOLLOWING, layer_settings

KIND = "block"
_WORD = re.compile(r"[^_]+(?:_\d+)*")  # a number belongs to the word before it: mixed_1 is another mixed
_FIRST = ("convolution", "product")


def add_scopes(operations: Sequence[Operation]) -> tuple[list[Operation], dict[Path, Scope]]:
    """Return operations with the scopes of their names. An operation keeps the part of its name after its scope.

    Args:
        operations: operations of a symbol, each after its sources, without scopes.

    Returns:
        The operations in the same order, and the scopes.
    """
    named = [o for o in operations if o.role == "operation" and not _made_by_mxnet(o)]
    paths = _from_names(named)
    outer = {path[0] for path in paths.values() if path}
    # ch_concat_mixed_3_chconcat is part of mixed_3.
    mention = {o.key: [word for word in _WORD.findall(o.name) if word in outer] for o in named}
    paths = _connect(operations, paths, mention)
    outer = {path[0] for path in paths.values() if path}
    for key, words in mention.items():
        if not paths[key]:
            paths[key] = tuple([word for word in words if word in outer][-1:])
    layers = _layers(operations, paths)
    _adopt(operations, paths, layers)
    scopes = {path[:n]: Scope(KIND) for path in paths.values() for n in range(1, len(path) + 1)}
    renamed = []
    for operation in operations:
        path = paths.get(operation.key, ())
        name = operation.name.removeprefix("_".join(path) + "_") if path else operation.name
        renamed.append(replace(operation, scope=path, name=name))
    return renamed, scopes | layers


def _made_by_mxnet(operation: Operation) -> bool:
    """Return whether a name is the kind of the operation and a number: ``_plus0``, ``convolution12``."""
    bare = operation.name.strip("_").rstrip("0123456789")
    return operation.name.startswith("_") or bare.replace("_", "").lower() == operation.kind.replace("_", "").lower()


def _from_names(named: Sequence[Operation]) -> dict[str, Path]:
    """Return the path of each operation by its name."""
    root = _Group()
    for operation in named:
        group = root
        for word in _WORD.findall(operation.name)[:-1]:
            group = group.groups.setdefault(word, _Group())
        group.operations.append(operation)
    _gather(root)
    return {operation.key: path for path, operation in _paths(root, (), len(named))}


@dataclass
class _Group:
    """Operations whose names begin with the same words, and groups of further ones by their next word."""

    operations: list[Operation] = field(default_factory=list)
    groups: dict[str, _Group] = field(default_factory=dict)

    def count(self) -> int:
        """Return the number of operations in it."""
        return len(self.operations) + sum(group.count() for group in self.groups.values())


def _gather(group: _Group) -> None:
    """Move operations into the group that has their whole name: ``unit1_sc`` to ``unit1_sc_bn``."""
    for inner in group.groups.values():
        _gather(inner)
    stay: list[Operation] = []
    for operation in group.operations:
        target = group.groups.get(_WORD.findall(operation.name)[-1])
        (stay if target is None else target.operations).append(operation)
    group.operations = stay


def _paths(group: _Group, path: Path, everything: int) -> Iterator[tuple[Path, Operation]]:
    """Iterate over operations with their paths. Groups of one, or of everything, are no scopes."""
    for operation in group.operations:
        yield path, operation
    for word, inner in group.groups.items():
        words = word
        while not inner.operations and len(inner.groups) == 1:
            ((word, inner),) = inner.groups.items()
            words = f"{words}_{word}"
        is_trivial = inner.count() in (1, everything)
        yield from _paths(inner, path if is_trivial else (*path, words), everything)


def _connect(
    operations: Sequence[Operation], paths: Mapping[str, Path], mention: Mapping[str, Sequence[str]]
) -> dict[str, Path]:
    """Return the paths without scopes whose operations are not connected: they are of one kind, not of one part.

    An operation without a name connects all its neighbours, and so does an operation that mentions a scope in its name.
    """
    above: dict[tuple[Path, str], tuple[Path, str]] = {}

    def top(member: tuple[Path, str]) -> tuple[Path, str]:
        while (parent := above.get(member, member)) != member:
            above[member] = member = above.get(parent, parent)
        return member

    def reach(key: str, neighbour: str) -> set[Path]:
        """Return the scopes within which an operation is connected to a neighbour."""
        around = paths.get(key, paths.get(neighbour, ()))
        return {around[:n] for n in range(1, len(around) + 1)} | {(word,) for word in mention.get(key, ())}

    for operation in operations:
        for source in operation.inputs:
            for path in reach(operation.key, source.key) & reach(source.key, operation.key):
                above[top((path, source.key))] = top((path, operation.key))
    parts: dict[Path, set[tuple[Path, str]]] = {}
    for key, path in paths.items():
        for n in range(1, len(path) + 1):
            parts.setdefault(path[:n], set()).add(top((path[:n], key)))
    connected = {path for path, members in parts.items() if len(members) == 1}
    return {key: _join(path, connected) for key, path in paths.items()}


def _join(path: Path, scopes: Collection[Path]) -> Path:
    """Return a path without the words that are no scopes, which become the beginning of the next scope's name."""
    joined: list[str] = []
    words: list[str] = []
    for n, word in enumerate(path, 1):
        words.append(word)
        if path[:n] in scopes:
            joined.append("_".join(words))
            words = []
    return tuple(joined)


def _common(a: Path, b: Path) -> Path:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return a[:n]


def _adopt(operations: Sequence[Operation], paths: dict[str, Path], layers: Mapping[Path, Scope]) -> None:
    """Set the paths of operations with generated names: the scope of the operations that they join or connect."""
    place = {operation.key: i for i, operation in enumerate(operations)}
    users: dict[str, set[Path]] = {}
    for operation in operations:
        for source in operation.inputs:
            users.setdefault(source.key, set()).add(paths.get(operation.key, ()))
    for operation in operations:
        if operation.role != "operation" or operation.key in paths:
            continue
        sources = sorted({source.key for source in operation.inputs}, key=lambda key: place[key])
        scopes = [_outside(paths.get(key, ()), layers) for key in sources]
        if len(sources) > 1 and scopes[-1]:
            # A shortcut around a block starts before the block, so sources that lead to the last one do not count.
            before = _before(operations[place[sources[-1]]], operations, place)
            joined = [path for key, path in zip(sources, scopes, strict=True) if key not in before]
            paths[operation.key] = reduce(_common, joined)
        elif scopes and any(path[: len(scopes[-1])] == scopes[-1] for path in users.get(operation.key, ())):
            paths[operation.key] = scopes[-1]


def _before(operation: Operation, operations: Sequence[Operation], place: Mapping[str, int]) -> set[str]:
    """Return the keys of all operations that lead to one."""
    keys, waiting = set[str](), [operation]
    while waiting:
        new = {source.key for source in waiting.pop().inputs} - keys
        keys |= new
        waiting += [operations[place[key]] for key in new]
    return keys


def _outside(path: Path, layers: Mapping[Path, Scope]) -> Path:
    """Return the path around a layer, or the path itself if it is no layer."""
    return path[:-1] if path in layers else path


def _layers(operations: Sequence[Operation], paths: Mapping[str, Path]) -> dict[Path, Scope]:
    """Return the scopes that are one layer: a product or convolution, and a chain of operations that belong to it."""
    inside: dict[Path, list[Operation]] = {}
    for operation in operations:
        path = paths.get(operation.key, ())
        for n in range(1, len(path) + 1):
            inside.setdefault(path[:n], []).append(operation)
    layers = {}
    for path, (first, *then) in inside.items():
        chain = all(b.inputs == (OutputReference(a.key),) for a, b in pairwise([first, *then]))
        if chain and then and family(first.kind) in _FIRST and all(family(o.kind) in FOLLOWING for o in then):
            layers[path] = Scope(first.kind, builtin=True, settings=layer_settings(inside[path]))
    return layers
