"""Ways through a graph: orders, search, and new graphs from old ones.

All of them visit each node once, without recursion, in time linear in nodes and edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace as changed
from operator import attrgetter
from typing import TypeVar

from feedline.networks.cells import CELLS, opened
from feedline.networks.node import Node, Type, Weights
from feedline.networks.registry import Site, apply, infer

T = TypeVar("T")
CLONES = ("share", "clone", "freeze")


def topological(roots: Iterable[T], below: Callable[[T], Iterable[T]] = attrgetter("inputs")) -> list[T]:
    """All nodes of any graph, inputs before those who use them; equal graphs give equal orders.

    Args:
        roots: where to begin.
        below: the inputs to follow of a node.
    """
    order: list[T] = []
    seen: set[T] = set()
    for root in roots:
        stack: list[tuple[T, Iterator[T]]] = []
        if root not in seen:
            seen.add(root)
            stack.append((root, iter(below(root))))
        while stack:
            node, rest = stack[-1]
            for child in rest:
                if child not in seen:
                    seen.add(child)
                    stack.append((child, iter(below(child))))
                    break
            else:
                order.append(node)
                stack.pop()
    return order


def depth_first(roots: Iterable[Node]) -> list[Node]:
    """All nodes, each before its inputs, in the order in which they are met from the roots."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack = list(reversed(list(roots)))
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        order.append(node)
        stack.extend(reversed(node.inputs))
    return order


def leaves(roots: Iterable[Node], *ops: str) -> list[Node]:
    """Leaves of the given kinds, in the order in which they are met from the roots.

    Placeholders that a recurrence has closed are its own state, and none of them.
    """
    nodes = depth_first(roots)
    states = {state for node in nodes if node.op == "loop" for state in loop_parts(node)[1]}
    return [node for node in nodes if node.op in ops and node not in states]


def loop_parts(loop: Node) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Outputs and own states of a recurrence; the last outputs are what the states become."""
    count = loop.attributes["count"]
    return loop.inputs[:count], loop.inputs[count:]


def behind(node: Node) -> Node:
    """What a name or a block stands for."""
    while node.op == "alias":
        node = node.inputs[0]
    return node


def reads(node: Node) -> list[Node]:
    """What a node needs the values of; names and blocks are looked through."""
    return [behind(child) for child in node.inputs]


def find_all(roots: Iterable[Node], wanted: Callable[[Node], bool]) -> list[Node]:
    """All nodes that are wanted, in the order in which they are met from the roots."""
    return [node for node in depth_first(roots) if wanted(node)]


def find_by_name(roots: Iterable[Node], name: str) -> Node | None:
    """The node of this name; None if there is none.

    Raises:
        ValueError: several nodes have it.
    """
    found = find_all(roots, lambda node: node.name == name)
    if len(found) > 1:
        raise ValueError(f"expected one node with the name {name!r}, got {len(found)}: {', '.join(map(repr, found))}")
    return found[0] if found else None


def replace(roots: Sequence[Node], changes: Mapping[Node, Node]) -> list[Node]:
    """Roots of a graph in which other nodes stand for some; what does not depend on them is shared.

    Types are inferred anew, so that placeholders may be replaced by what has another shape.

    Raises:
        ValueError: shapes or axes that do not fit.
    """
    new: dict[Node, Node] = dict(changes)
    for node in topological(roots, lambda n: () if n in changes else n.inputs):
        if node in new:
            continue
        inputs = tuple(new[child] for child in node.inputs)
        same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        new[node] = node if same else remade(node, inputs)
    return [new[root] for root in roots]


def clone(roots: Sequence[Node], method: str = "share", changes: Mapping[Node, Node] | None = None) -> list[Node]:
    """A copy of a graph.

    Args:
        roots: where to begin.
        method: what becomes of parameters: ``"share"``: the same; ``"clone"``: others of the same values; ``"freeze"``:
            constants of the same values.
        changes: what stands for some nodes.

    Raises:
        ValueError: another method, or shapes or axes that do not fit.
    """
    if method not in CLONES:
        raise ValueError(f"expected one of {', '.join(map(repr, CLONES))}, got {method!r}")
    new: dict[Node, Node] = dict(changes or {})
    for node in topological(roots, lambda n: () if n in (changes or {}) else n.inputs):
        if node in new:
            continue
        if node.op in ("input", "placeholder") or (node.is_leaf and method == "share"):
            new[node] = node
        elif node.weights is not None:
            new[node] = _copied(node, method)
        else:
            new[node] = remade(node, tuple(new[child] for child in node.inputs))
    return [new[root] for root in roots]


def _copied(node: Node, method: str) -> Node:
    old = node.weights
    assert old is not None
    if node.op == "constant" and not old.keeps:
        return node
    trains = old.trains and method == "clone"
    fill = old.fill if old.tensor is None else _values(old)
    weights = Weights(old.shape, fill, old.dtype, trains, old.keeps)
    return Node("parameter" if trains else "constant", weights=weights, name=node.name, dtype=node.dtype)


def _values(weights: Weights) -> Callable[[tuple[int, ...]], object]:
    values = weights.tensor.detach().clone()
    return lambda shape: values


def close(roots: Sequence[Node], states: Mapping[Node, Node]) -> list[Node]:
    """Tie a recurrence: each placeholder becomes what one of the nodes gave at an earlier or later step.

    Args:
        roots: outputs of the recurrence.
        states: for each placeholder the node that it stands for.

    Returns:
        for each root, and then for each state, a node that stands outside the recurrence.

    Raises:
        ValueError: the state's type cannot be told, or is another one after a step.
    """
    bodies = (*roots, *states.values())
    loop = _loop(bodies, tuple(states))
    return [apply("pick", [loop], {"index": i}, body.name) for i, body in enumerate(bodies)]


def _loop(bodies: tuple[Node, ...], states: tuple[Node, ...]) -> Node:
    """Tells the types of the states from the bodies, unless these have placeholders that are still open."""
    bodies, states = _merged(bodies, states)
    settings, ends = {"count": len(bodies)}, bodies[len(bodies) - len(states) :]
    if not all(state.type.known for state in states):
        unknown = [n for n in leaves(bodies, "placeholder") if n not in states and not n.type.known]
        if unknown:
            return apply("loop", [*bodies, *states], settings)
        guess = _guessed(bodies, states, 1)
        if not all(guess[end].known for end in ends):
            guess = _guessed(bodies, states, 2)
        changes = {}
        for state, end in zip(states, ends, strict=True):
            if not guess[end].known:
                raise ValueError(
                    f"expected a type for the state {state.label}, which nothing else in the recurrence tells; give "
                    "the placeholder a shape and dynamic axes"
                )
            changes[state] = Node("placeholder", given=guess[end], name=state.name)
        bodies, states = tuple(replace(bodies, changes)), tuple(changes[state] for state in states)
        ends = bodies[len(bodies) - len(states) :]
    for state, end in zip(states, ends, strict=True):
        if end.type.known and state.type != end.type:
            raise ValueError(f"expected the state {state.label} to stay {state.type}, got {end.type} after a step")
    return apply("loop", [*bodies, *states], settings)


def _merged(bodies: tuple[Node, ...], states: tuple[Node, ...]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Recurrences that depend on the states of this one become part of it: one recurrence, with the states of all."""
    dependent: set[Node] = set(states)
    order = topological(bodies)
    for node in order:
        if any(child in dependent for child in node.inputs):
            dependent.add(node)
    inner = [node for node in order if node in dependent and node.op in ("loop", *CELLS)]
    if not inner:
        return bodies, states
    new: dict[Node, Node] = {}
    more: dict[Node, Node] = {}
    for node in order:
        inputs = tuple(new[child] for child in node.inputs)
        if node not in dependent or node in states:
            new[node] = node
        elif node.op == "pick" and node.inputs[0] in inner:
            new[node] = new[loop_parts(node.inputs[0])[0][node.attributes["index"]]]
        elif node.op == "loop":
            new[node] = node  # nobody takes from it but those above
            outputs, own = loop_parts(node)
            more.update(zip(own, (new[end] for end in outputs[len(outputs) - len(own) :]), strict=True))
        elif node.op in CELLS:
            new[node], own_states = opened(remade(node, inputs))
            more.update(own_states)
        else:
            new[node] = remade(node, inputs)
    return (*(new[body] for body in bodies), *more.values()), (*states, *more)


def remade(node: Node, inputs: tuple[Node, ...]) -> Node:
    """The same operation on other inputs; types are inferred anew.

    Raises:
        ValueError: shapes or axes that do not fit.
    """
    if node.op == "loop":
        count = node.attributes["count"]
        return _loop(inputs[:count], inputs[count:])
    return apply(node.op, inputs, node.attributes, node.name)


def _guessed(bodies: Sequence[Node], placeholders: Sequence[Node], guessing: int) -> dict[Node, Type]:
    """Types where nothing is known of the states; twice, as one state may tell of another."""
    types: dict[Node, Type] = {}
    known: dict[Node, Type] = {p: p.type for p in placeholders}
    for _ in range(2):
        types = dict(known)
        for node in topological(bodies):
            if node in types:
                continue
            if node.is_leaf or node.type.known:
                types[node] = node.type
                continue
            below = tuple(types[child] for child in node.inputs)
            try:
                types[node] = infer(Site(node.op, node.inputs, node.attributes, node.name, guessing, below))
            except ValueError:
                # A guess below was wrong; if the error is not of the guess, it comes again when all is known.
                types[node] = Type()
        for placeholder, body in zip(placeholders, bodies[-len(placeholders) :], strict=True):
            known[placeholder] = types[body]
    return types


def renamed(node: Node, name: str) -> Node:
    """The same node under another name."""
    return changed(node, name=name, uid=node.uid)
