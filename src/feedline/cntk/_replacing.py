"""Placeholders replaced in place, over nodes that never change.

In CNTK a function's graph changes when its placeholders are replaced, and all functions that share the changed nodes
see it. Here nodes stay what they are; for each that would have changed there is another one that stands for it from
then on, under the same `uid`. Functions and variables ask `present` for the nodes that they stand for now. It costs a
walk through their graphs after each replacement, and nothing where none was ever made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace as changed
from weakref import WeakKeyDictionary

from feedline.networks import Node
from feedline.networks.traverse import close, remade, topological


class _Became:
    """What the nodes of one replacement became; each is made when it is first asked for."""

    def __init__(self, known: Mapping[Node, Node]) -> None:
        # Weakly, as who asks holds the old node: else no graph that was ever changed would go.
        self._new: WeakKeyDictionary[Node, Node] = WeakKeyDictionary(known)

    def of(self, node: Node) -> Node:
        """The node that stands for this one; itself if it does not depend on what was replaced."""
        for below in topological([node], lambda n: () if n in self._new else n.inputs):
            if below not in self._new:
                inputs = tuple(self._new[child] for child in below.inputs)
                self._new[below] = below if _same(inputs, below.inputs) else _named(remade(below, inputs), below)
        return self._new[node]


_became: WeakKeyDictionary[Node, _Became] = WeakKeyDictionary()
_leaves: WeakKeyDictionary[Node, Node] = WeakKeyDictionary()
_replacements = 0


def count() -> int:
    """How many replacements there have been: what `present` gave holds until there is another one."""
    return _replacements


def present(roots: Sequence[Node]) -> list[Node]:
    """The nodes that stand for these now."""
    if not _became:
        return list(roots)
    new: dict[Node, Node] = {}
    for node in topological(roots, lambda n: () if n in _became else n.inputs):
        if node in _became:
            new[node] = present([_became[node].of(node)])[0]
            continue
        inputs = tuple(new[child] for child in node.inputs)
        if _same(inputs, node.inputs):
            new[node] = node
        else:
            new[node] = _named(remade(node, inputs), node)
            # All functions that share this one get the same.
            _became[node] = _Became({node: new[node]})
    return [new[root] for root in roots]


def stands_for(leaf: Node) -> Node:
    """What a placeholder was replaced by last; itself if it was not."""
    while leaf in _leaves:
        leaf = _leaves[leaf]
    return leaf


def replace_in_place(roots: Sequence[Node], changes: Mapping[Node, Node]) -> None:
    """Let other nodes stand for placeholders below ``roots``, for all who share the nodes above them.

    A placeholder that comes to stand for what depends on it ties a recurrence.

    Raises:
        ValueError: shapes or axes that do not fit, or a recurrence that cannot be tied. Nothing has changed then.
    """
    global _replacements
    loops = {p: end for p, end in changes.items() if p in topological([end])}
    plain = {p: end for p, end in changes.items() if p not in loops}
    known = dict(plain)
    if loops:
        # Other nodes inside the recurrence than those that stood there: what stands for these is outside.
        states = {p: Node("placeholder", given=p.given, name=p.name) for p in loops}
        inside = _Became({**plain, **states})
        bodies, ends = [inside.of(root) for root in roots], [inside.of(end) for end in loops.values()]
        closed = close(bodies, dict(zip(states.values(), ends, strict=True)))
        tied = dict(zip([*roots, *loops.values()], closed, strict=True))
        known |= {old: _named(new, old) for old, new in tied.items() if not old.is_leaf}
        known |= {p: known.get(end, new) for (p, end), new in zip(loops.items(), closed[len(roots) :], strict=True)}
    became = _Became(known)
    for root in roots:
        became.of(root)
    for node in _dependent([*roots, *loops.values()], changes):
        _became[node] = became
    _leaves.update(plain)
    _replacements += 1


def _dependent(roots: Iterable[Node], placeholders: Iterable[Node]) -> list[Node]:
    """Nodes at or below roots that depend on placeholders, without these."""
    reached = set(placeholders)
    found = []
    for node in topological(roots):
        if not node.is_leaf and any(child in reached for child in node.inputs):
            reached.add(node)
            found.append(node)
    return found


def _same(some: Sequence[Node], others: Sequence[Node]) -> bool:
    return all(a is b for a, b in zip(some, others, strict=True))


def _named(new: Node, old: Node) -> Node:
    """Scripts keep variables, and look for them by `uid`: it stays."""
    return changed(new, uid=old.uid)
