"""Scopes of MXNet's operations, which have none: what their names have in common.

``stage1_unit2_conv1`` is ``conv1`` in ``unit2`` in ``stage1``. Names that MXNet made (``_plus0``, ``activation3``) say
nothing, so these operations belong to what they join, or stand between. A product or convolution and what follows it
under one name (``mixed_conv_conv2d``, ``mixed_conv_batchnorm``, ``mixed_conv_relu``) is one layer. Linear in
operations, but for those without a name that join several.
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


def scoped(operations: Sequence[Operation]) -> tuple[list[Operation], dict[Path, Scope]]:
    """Return operations with the scopes of their names, in which they are called by what is left of these.

    Args:
        operations: those of a symbol, each after its sources, without scopes.

    Returns:
        The operations in the same order, and the scopes.
    """
    named = [o for o in operations if o.role == "operation" and not _made_by_mxnet(o)]
    paths = _from_names(named)
    outer = {path[0] for path in paths.values() if path}
    # ch_concat_mixed_3_chconcat is part of mixed_3.
    mention = {o.key: [word for word in _WORD.findall(o.name) if word in outer] for o in named}
    paths = _connected(operations, paths, mention)
    outer = {path[0] for path in paths.values() if path}
    for key, words in mention.items():
        if not paths[key]:
            paths[key] = tuple([word for word in words if word in outer][-1:])
    layers = _layers(operations, paths)
    _adopt(operations, paths, layers)
    scopes = {path[:n]: Scope(KIND) for path in paths.values() for n in range(1, len(path) + 1)}
    found = []
    for operation in operations:
        path = paths.get(operation.key, ())
        left = operation.name.removeprefix("_".join(path) + "_") if path else operation.name
        found.append(replace(operation, scope=path, name=left))
    return found, scopes | layers


def _made_by_mxnet(operation: Operation) -> bool:
    """Return whether a name is a number behind the operation's own: ``_plus0``, ``convolution12``."""
    bare = operation.name.strip("_").rstrip("0123456789")
    return operation.name.startswith("_") or bare.replace("_", "").lower() == operation.kind.replace("_", "").lower()


def _from_names(named: Sequence[Operation]) -> dict[str, Path]:
    """Return the paths that names tell."""
    whole = _Group()
    for operation in named:
        group = whole
        for word in _WORD.findall(operation.name)[:-1]:
            group = group.groups.setdefault(word, _Group())
        group.operations.append(operation)
    _gathered(whole)
    return {operation.key: path for path, operation in _paths(whole, (), len(named))}


@dataclass
class _Group:
    """Operations whose names begin alike: here, and in groups by their next word."""

    operations: list[Operation] = field(default_factory=list)
    groups: dict[str, _Group] = field(default_factory=dict)

    def count(self) -> int:
        """Return the number of operations in it."""
        return len(self.operations) + sum(group.count() for group in self.groups.values())


def _gathered(group: _Group) -> None:
    """Move operations into the group that has their whole name: ``unit1_sc`` to ``unit1_sc_bn``."""
    for inner in group.groups.values():
        _gathered(inner)
    stay: list[Operation] = []
    for operation in group.operations:
        own = group.groups.get(_WORD.findall(operation.name)[-1])
        (stay if own is None else own.operations).append(operation)
    group.operations = stay


def _paths(group: _Group, path: Path, everything: int) -> Iterator[tuple[Path, Operation]]:
    """Iterate over operations with their paths; groups of one, or of everything, are no scopes."""
    for operation in group.operations:
        yield path, operation
    for word, inner in group.groups.items():
        words = word
        while not inner.operations and len(inner.groups) == 1:
            ((word, inner),) = inner.groups.items()
            words = f"{words}_{word}"
        one = inner.count() in (1, everything)
        yield from _paths(inner, path if one else (*path, words), everything)


def _connected(
    operations: Sequence[Operation], paths: Mapping[str, Path], mention: Mapping[str, Sequence[str]]
) -> dict[str, Path]:
    """Return the paths without scopes whose operations do not hang together: they are of one kind, not of one part.

    What has no name of its own holds together all that it touches, and so does what mentions a scope in its name.
    """
    above: dict[tuple[Path, str], tuple[Path, str]] = {}

    def top(one: tuple[Path, str]) -> tuple[Path, str]:
        while (other := above.get(one, one)) != one:
            above[one] = one = above.get(other, other)
        return one

    def reach(key: str, other: str) -> set[Path]:
        """Return the scopes within which an operation holds together with a neighbour."""
        around = paths.get(key, paths.get(other, ()))
        return {around[:n] for n in range(1, len(around) + 1)} | {(word,) for word in mention.get(key, ())}

    for operation in operations:
        for source in operation.inputs:
            for path in reach(operation.key, source.key) & reach(source.key, operation.key):
                above[top((path, source.key))] = top((path, operation.key))
    parts: dict[Path, set[tuple[Path, str]]] = {}
    for key, path in paths.items():
        for n in range(1, len(path) + 1):
            parts.setdefault(path[:n], set()).add(top((path[:n], key)))
    kept = {path for path, found in parts.items() if len(found) == 1}
    return {key: _joined(path, kept) for key, path in paths.items()}


def _joined(path: Path, kept: Collection[Path]) -> Path:
    """Return a path in which scopes that are none are the beginning of the next one's name."""
    found: list[str] = []
    words: list[str] = []
    for n, word in enumerate(path, 1):
        words.append(word)
        if path[:n] in kept:
            found.append("_".join(words))
            words = []
    return tuple(found)


def _common(a: Path, b: Path) -> Path:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return a[:n]


def _adopt(operations: Sequence[Operation], paths: dict[str, Path], layers: Mapping[Path, Scope]) -> None:
    """Give operations without a name of their own a path: that of what they join, or stand between."""
    place = {operation.key: i for i, operation in enumerate(operations)}
    users: dict[str, set[Path]] = {}
    for operation in operations:
        for source in operation.inputs:
            users.setdefault(source.key, set()).add(paths.get(operation.key, ()))
    for operation in operations:
        if operation.role != "operation" or operation.key in paths:
            continue
        sources = sorted({source.key for source in operation.inputs}, key=lambda key: place[key])
        given = [_outside(paths.get(key, ()), layers) for key in sources]
        if len(sources) > 1 and given[-1]:
            # The way around a block comes from before it: what leads to another source does not count.
            before = _before(operations[place[sources[-1]]], operations, place)
            beside = [path for key, path in zip(sources, given, strict=True) if key not in before]
            paths[operation.key] = reduce(_common, beside)
        elif given and any(path[: len(given[-1])] == given[-1] for path in users.get(operation.key, ())):
            paths[operation.key] = given[-1]


def _before(operation: Operation, operations: Sequence[Operation], place: Mapping[str, int]) -> set[str]:
    """Return the keys of all operations that lead to one."""
    found, waiting = set[str](), [operation]
    while waiting:
        new = {source.key for source in waiting.pop().inputs} - found
        found |= new
        waiting += [operations[place[key]] for key in new]
    return found


def _outside(path: Path, layers: Mapping[Path, Scope]) -> Path:
    """Return the path around a layer, or a path that is none."""
    return path[:-1] if path in layers else path


def _layers(operations: Sequence[Operation], paths: Mapping[str, Path]) -> dict[Path, Scope]:
    """Return the scopes that are one layer: a product or convolution, and a chain of what belongs to it."""
    inside: dict[Path, list[Operation]] = {}
    for operation in operations:
        path = paths.get(operation.key, ())
        for n in range(1, len(path) + 1):
            inside.setdefault(path[:n], []).append(operation)
    found = {}
    for path, (first, *then) in inside.items():
        chain = all(b.inputs == (OutputReference(a.key),) for a, b in pairwise([first, *then]))
        if chain and then and family(first.kind) in _FIRST and all(family(o.kind) in FOLLOWING for o in then):
            found[path] = Scope(first.kind, builtin=True, settings=layer_settings(inside[path]))
    return found
