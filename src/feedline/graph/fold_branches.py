"""Branches of a module: a short description of the content of its box.

Only layers count that show the purpose of a module: convolutions, products, recurrent layers, attention, pooling. A
branch is a chain of them. Linear in operations and edges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

from feedline.graph.graph import Operation
from feedline.graph.op_families import family

_TELLING = ("attention", "recurrent", "convolution", "product", "pooling")
_MOST = 6  # lines: more would be less clear than the numbers of layers
_LONGEST = 64  # characters of a line


def branches(members: Sequence[Operation]) -> tuple[str, ...]:
    """Return a line for each branch of a module, such as ``"Conv2d 1×1, 3×3"``.

    If there are too many lines, or too long ones, return one line with the number of layers of each kind. For a single
    operation, which displays its settings, return no line.

    Args:
        members: operations of the module, in order.
    """
    if len(members) < 2:
        return ()
    telling = {o.key: o for o in members if family(o.kind) in _TELLING}
    before = _sources(members, telling)
    users = Counter(key for keys in before.values() for key in keys)
    chains: dict[str, list[Operation]] = {}  # by the key of the first operation
    first: dict[str, str] = {}
    for key, operation in telling.items():
        only = next(iter(before[key])) if len(before[key]) == 1 else ""
        first[key] = first[only] if only and users[only] == 1 else key
        chains.setdefault(first[key], []).append(operation)
    parts: dict[str, list[str]] = {}  # of a branch that splits
    lines = []
    for key in reversed(chains):
        parent = first[next(iter(before[key]))] if len(before[key]) == 1 else ""
        line = _line(chains[key], previous=chains[parent][-1].kind if parent else "")
        if key in parts:
            line += ", then " + " beside ".join(reversed(parts[key]))
        if parent:
            parts.setdefault(parent, []).append(line)
        else:
            lines.append(f"then {line}" if before[key] else line)
    if len(lines) <= _MOST and all(len(line) <= _LONGEST for line in lines):
        return tuple(reversed(lines))
    kinds = Counter(o.kind for o in telling.values())
    return (", ".join(kind if n == 1 else f"{kind} ×{n}" for kind, n in kinds.items()),)


def _sources(members: Sequence[Operation], telling: Mapping[str, Operation]) -> dict[str, frozenset[str]]:
    """Return the ``telling`` operations that feed each telling one, directly or through other operations."""
    through: dict[str, frozenset[str]] = {}
    feeds: dict[str, frozenset[str]] = {}
    for operation in members:
        fed = frozenset[str]().union(*(through.get(s.key, frozenset()) for s in operation.inputs if not s.feedback))
        if operation.key in telling:
            feeds[operation.key] = fed
        through[operation.key] = frozenset([operation.key]) if operation.key in telling else fed
    return feeds


def _line(chain: Sequence[Operation], previous: str) -> str:
    """Return the kinds and sizes of a chain, without the first kind if it equals the ``previous`` one."""
    parts: list[str] = []
    for kind, equal in groupby(chain, key=lambda o: o.kind):
        sizes = [" ".join(s.words for s in o.settings if s.name in ("kind", "kernel") and s.words) for o in equal]
        words = ", ".join(size for size in sizes if size)
        if words:
            parts.append(words if kind == previous and not parts else f"{kind} {words}")
        else:
            parts.append(kind if len(sizes) == 1 else f"{kind} ×{len(sizes)}")
    return ", ".join(parts)
