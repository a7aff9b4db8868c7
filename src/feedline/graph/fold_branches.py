"""Branches of a module, which describe the content of its box in a few lines.

Only layers that show the purpose of a module count: convolutions, products, recurrent layers, attention, pooling. A
branch is a chain of such layers. The time is linear in operations and edges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

from feedline.graph.graph import Operation
from feedline.graph.op_families import family

_SHOWN_FAMILIES = ("attention", "recurrent", "convolution", "product", "pooling")
_MAX_LINES = 6  # more lines would be less clear than the numbers of layers
_MAX_CHARACTERS = 64  # in a line


def branches(members: Sequence[Operation]) -> tuple[str, ...]:
    """Return a line for each branch of a module, such as ``"Conv2d 1×1, 3×3"``.

    If there are too many lines, or too long ones, return one line with the number of layers of each kind. For a single
    operation, which displays its settings, return no line.

    Args:
        members: operations of the module, in order.
    """
    if len(members) < 2:
        return ()
    shown = {o.key: o for o in members if family(o.kind) in _SHOWN_FAMILIES}
    before = _sources(members, shown)
    users = Counter(key for keys in before.values() for key in keys)
    chains: dict[str, list[Operation]] = {}  # by the key of the first operation
    first: dict[str, str] = {}
    for key, operation in shown.items():
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
    if len(lines) <= _MAX_LINES and all(len(line) <= _MAX_CHARACTERS for line in lines):
        return tuple(reversed(lines))
    kinds = Counter(o.kind for o in shown.values())
    return (", ".join(kind if n == 1 else f"{kind} ×{n}" for kind, n in kinds.items()),)


def _sources(members: Sequence[Operation], shown: Mapping[str, Operation]) -> dict[str, frozenset[str]]:
    """Return the shown operations that feed each shown operation, directly or through operations that are not shown."""
    through: dict[str, frozenset[str]] = {}
    feeds: dict[str, frozenset[str]] = {}
    for operation in members:
        fed = frozenset[str]().union(*(through.get(s.key, frozenset()) for s in operation.inputs if not s.feedback))
        if operation.key in shown:
            feeds[operation.key] = fed
        through[operation.key] = frozenset([operation.key]) if operation.key in shown else fed
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
