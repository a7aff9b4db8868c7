"""In-place replacement of placeholders over immutable nodes.

In CNTK, replacing placeholders changes a function's graph, and all functions that share the changed nodes see it.
feedline's nodes are immutable. Each node that would have changed gets a substitute with the same `uid`. Functions and
variables call `current` for their current nodes. This costs a traversal of their graphs after each replacement, and
nothing before the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace as changed
from weakref import WeakKeyDictionary

from feedline.networks import Node
from feedline.networks.traverse import close, remade, topological


class _Substitution:
    """Substitutes of the nodes of one replacement, created on demand."""

    def __init__(self, substitutes: Mapping[Node, Node]) -> None:
        # Weak, as callers have the old node. Otherwise changed graphs would never be freed.
        self._new: WeakKeyDictionary[Node, Node] = WeakKeyDictionary(substitutes)

    def of(self, node: Node) -> Node:
        """Return the substitute of a node, or the node if it does not depend on a replaced node."""
        for below in topological([node], lambda n: () if n in self._new else n.inputs):
            if below not in self._new:
                inputs = tuple(self._new[child] for child in below.inputs)
                self._new[below] = below if _same(inputs, below.inputs) else _rename(remade(below, inputs), below)
        return self._new[node]


_substitutions: WeakKeyDictionary[Node, _Substitution] = WeakKeyDictionary()
_leaves: WeakKeyDictionary[Node, Node] = WeakKeyDictionary()
_replacements = 0


def count() -> int:
    """Return the number of replacements so far. Results of `current` are valid until it changes."""
    return _replacements


def current(roots: Sequence[Node]) -> list[Node]:
    """Return the current substitutes of nodes."""
    if not _substitutions:
        return list(roots)
    new: dict[Node, Node] = {}
    for node in topological(roots, lambda n: () if n in _substitutions else n.inputs):
        if node in _substitutions:
            new[node] = current([_substitutions[node].of(node)])[0]
            continue
        inputs = tuple(new[child] for child in node.inputs)
        if _same(inputs, node.inputs):
            new[node] = node
        else:
            new[node] = _rename(remade(node, inputs), node)
            # All functions that share the node get the same substitute.
            _substitutions[node] = _Substitution({node: new[node]})
    return [new[root] for root in roots]


def replacement_of(leaf: Node) -> Node:
    """Return the last replacement of a placeholder, or itself."""
    while leaf in _leaves:
        leaf = _leaves[leaf]
    return leaf


def replace_in_place(roots: Sequence[Node], changes: Mapping[Node, Node]) -> None:
    """Replace placeholders below ``roots``, for all functions that share the nodes above them.

    A placeholder that is replaced by a node that depends on it closes a recurrence.

    Raises:
        ValueError: shapes or axes that do not fit, or a recurrence that cannot be closed. Nothing has changed then.
    """
    global _replacements
    loops = {p: end for p, end in changes.items() if p in topological([end])}
    plain = {p: end for p, end in changes.items() if p not in loops}
    swaps = dict(plain)
    if loops:
        # The recurrence gets new nodes, since the substitutes of its old nodes are outside it.
        states = {p: Node("placeholder", given=p.given, name=p.name) for p in loops}
        inside = _Substitution({**plain, **states})
        bodies, ends = [inside.of(root) for root in roots], [inside.of(end) for end in loops.values()]
        closed = close(bodies, dict(zip(states.values(), ends, strict=True)))
        tied = dict(zip([*roots, *loops.values()], closed, strict=True))
        swaps |= {old: _rename(new, old) for old, new in tied.items() if not old.is_leaf}
        swaps |= {p: swaps.get(end, new) for (p, end), new in zip(loops.items(), closed[len(roots) :], strict=True)}
    substitution = _Substitution(swaps)
    for root in roots:
        substitution.of(root)
    for node in _dependent([*roots, *loops.values()], changes):
        _substitutions[node] = substitution
    _leaves.update(plain)
    _replacements += 1


def _dependent(roots: Iterable[Node], placeholders: Iterable[Node]) -> list[Node]:
    """Return the nodes at or below roots that depend on placeholders, without the placeholders."""
    reached = set(placeholders)
    dependent = []
    for node in topological(roots):
        if not node.is_leaf and any(child in reached for child in node.inputs):
            reached.add(node)
            dependent.append(node)
    return dependent


def _same(first: Sequence[Node], second: Sequence[Node]) -> bool:
    return all(a is b for a, b in zip(first, second, strict=True))


def _rename(new: Node, old: Node) -> Node:
    """Keep name and `uid` of the old node, by which scripts find variables."""
    return changed(new, uid=old.uid)
