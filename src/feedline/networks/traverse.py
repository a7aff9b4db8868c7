"""Traversal and rewriting of graphs: orders, search, and new graphs from old ones.

All functions visit each node once, without recursion, in time linear in nodes and edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace as changed
from operator import attrgetter
from types import MappingProxyType
from typing import TypeVar

from feedline.networks import deferred
from feedline.networks.cells import CELLS, open_cell
from feedline.networks.node import Node, Type, Weights, is_fixed, placeholder_node
from feedline.networks.registry import Site, apply, infer, op
from feedline.networks.shapes import broadcast, same

T = TypeVar("T")
Make = Callable[[Node, tuple[Node, ...]], Node]
CLONES = ("share", "clone", "freeze")


def topological(roots: Iterable[T], below: Callable[[T], Iterable[T]] = attrgetter("inputs")) -> list[T]:
    """Return all nodes of any graph, each after its inputs. Equal graphs give equal orders.

    Args:
        roots: nodes to start from.
        below: function that returns a node's inputs.
    """
    order: list[T] = []
    visited: set[T] = set()
    for root in roots:
        stack: list[tuple[T, Iterator[T]]] = []
        if root not in visited:
            visited.add(root)
            stack.append((root, iter(below(root))))
        while stack:
            node, children = stack[-1]
            for child in children:
                if child not in visited:
                    visited.add(child)
                    stack.append((child, iter(below(child))))
                    break
            else:
                order.append(node)
                stack.pop()
    return order


def depth_first(roots: Iterable[Node]) -> list[Node]:
    """Return all nodes in depth-first preorder from the roots."""
    order: list[Node] = []
    visited: set[Node] = set()
    stack = list(reversed(list(roots)))
    while stack:
        node = stack.pop()
        if node in visited:
            continue
        visited.add(node)
        order.append(node)
        stack.extend(reversed(node.inputs))
    return order


def leaves(roots: Iterable[Node], *ops: str) -> list[Node]:
    """Return the leaves with these operations, depth first, without placeholders that are states of recurrences."""
    nodes = depth_first(roots)
    states = {state for node in nodes if node.op == "loop" for state in loop_parts(node)[1]}
    return [node for node in nodes if node.op in ops and node not in states]


def loop_parts(loop: Node) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Return the outputs and the states of a recurrence. Its last outputs are the next states."""
    count = loop.attributes["count"]
    return loop.inputs[:count], loop.inputs[count:]


def resolve_alias(node: Node) -> Node:
    """Return the node to which an alias, a name or a block, refers."""
    while node.op == "alias":
        node = node.inputs[0]
    return node


def reads(node: Node) -> list[Node]:
    """Return the nodes whose values a node needs, with names and blocks resolved."""
    return [resolve_alias(child) for child in node.inputs]


def find_all(roots: Iterable[Node], condition: Callable[[Node], bool]) -> list[Node]:
    """Return all nodes for which ``condition`` is true, in depth-first order."""
    return [node for node in depth_first(roots) if condition(node)]


def replace(roots: Sequence[Node], changes: Mapping[Node, Node], make: Make | None = None) -> list[Node]:
    """Return the roots of a graph with some nodes replaced. Unaffected nodes are shared.

    Types are inferred again, so that a placeholder may be replaced by a node with another shape.

    Args:
        roots: roots of the graph.
        changes: replacements of nodes.
        make: function of a node and its new inputs that returns the new node. None means `remade`.

    Raises:
        ValueError: shapes or axes that do not fit.
    """

    def shared(node: Node, inputs: tuple[Node, ...]) -> Node:
        same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        return node if same else (make or remade)(node, inputs)

    return _rebuilt(roots, changes, shared)


def clone(
    roots: Sequence[Node],
    method: str = "share",
    changes: Mapping[Node, Node] | None = None,
    make: Make | None = None,
) -> list[Node]:
    """Copy a graph.

    Args:
        roots: roots of the graph.
        method: treatment of parameters. ``"share"`` keeps them, ``"clone"`` creates new ones with the same values,
            ``"freeze"`` creates constants with the same values, of constants, too.
        changes: replacements of nodes.
        make: as for `replace`.

    Raises:
        ValueError: unknown method, or shapes or axes that do not fit.
    """
    if method not in CLONES:
        raise ValueError(f"expected one of {', '.join(map(repr, CLONES))}, got {method!r}")

    def copied(node: Node, inputs: tuple[Node, ...]) -> Node:
        if node.op in ("input", "placeholder") or (node.is_leaf and method == "share"):
            return node
        return _copy(node, method) if node.is_leaf else (make or remade)(node, inputs)

    return _rebuilt(roots, changes or {}, copied)


def _rebuilt(roots: Sequence[Node], changes: Mapping[Node, Node], make: Make) -> list[Node]:
    """Return the roots with some nodes replaced, and ``make(node, inputs)`` for all others, from the leaves up."""
    new = dict(changes)
    for node in topological(roots, lambda n: () if n in changes else n.inputs):
        if node not in new:
            new[node] = make(node, tuple(new[child] for child in node.inputs))
    return [new[root] for root in roots]


def _copy(node: Node, method: str) -> Node:
    old = node.weights
    assert old is not None
    if node.op == "constant" and not old.keeps and method != "freeze":
        return node
    trains = old.trains and method == "clone"
    fill = old.fill if old.tensor is None else _values(old)
    weights = Weights(old.shape, fill, old.dtype, trains, old.keeps)
    return Node("parameter" if trains else "constant", weights=weights, name=node.name, dtype=node.dtype)


def _values(weights: Weights) -> Callable[[tuple[int, ...]], object]:
    values = weights.tensor.detach().clone()
    return lambda shape: values


def close(roots: Sequence[Node], states: Mapping[Node, Node]) -> list[Node]:
    """Close a recurrence: each placeholder becomes a node's value at an earlier or later step.

    Args:
        roots: outputs of the recurrence.
        states: node for each placeholder.

    Returns:
        A node outside the recurrence for each root, and then for each state.

    Raises:
        ValueError: a state's type cannot be inferred, or differs after a step.
    """
    bodies = (*roots, *states.values())
    loop = _loop(bodies, tuple(states))
    return [apply("pick", [loop], {"index": i}, body.name) for i, body in enumerate(bodies)]


def _loop(bodies: tuple[Node, ...], states: tuple[Node, ...]) -> Node:
    """Create the loop node. Infer the types of states from the bodies, unless these have open placeholders."""
    bodies, states = _merge(bodies, states)
    declared = states
    bodies, states = _forget_open_types(bodies, states)
    settings, ends = {"count": len(bodies)}, bodies[len(bodies) - len(states) :]
    if not all(state.type.is_known for state in states):
        unknown = [n for n in leaves(bodies, "placeholder") if n not in states and not n.type.is_known]
        if unknown:
            return apply("loop", [*bodies, *states], settings)
        guess = _guess_types(bodies, states, 1)
        if not all(guess[end].is_known for end in ends):
            guess = _guess_types(bodies, states, 2)
        changes = {}
        for state, end, before in zip(states, ends, declared, strict=True):
            known = guess[end] if guess[end].is_known else before.type
            if not known.is_known:
                raise ValueError(
                    f"expected a type for the state {state.label}, which the recurrence does not determine; give the "
                    "placeholder a shape and dynamic axes"
                )
            changes[state] = Node("placeholder", given=known, name=state.name)
        bodies, states = tuple(replace(bodies, changes)), tuple(changes[state] for state in states)
        ends = bodies[len(bodies) - len(states) :]
    for state, end in zip(states, ends, strict=True):
        if end.type.is_known and state.type != end.type:
            raise ValueError(f"expected the state {state.label} to stay {state.type}, got {end.type} after a step")
    return apply("loop", [*bodies, *states], settings)


def _forget_open_types(bodies: tuple[Node, ...], states: tuple[Node, ...]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Return the recurrence without shapes of states that data determines, as they may be known by now."""
    changes = {
        state: placeholder_node(None, state.axes, state.name)
        for state in states
        if state.type.is_known and not is_fixed(state.shape)
    }
    if not changes:
        return bodies, states
    return tuple(replace(bodies, changes)), tuple(changes.get(state, state) for state in states)


def _merge(bodies: tuple[Node, ...], states: tuple[Node, ...]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Merge recurrences that depend on this one's states into it: one recurrence, with the states of all."""
    dependent: set[Node] = set(states)
    order = topological(bodies)
    for node in order:
        if any(child in dependent for child in node.inputs):
            dependent.add(node)
    inner = [node for node in order if node in dependent and node.op in ("loop", *CELLS)]
    if not inner:
        return bodies, states
    new: dict[Node, Node] = {}
    merged: dict[Node, Node] = {}
    for node in order:
        inputs = tuple(new[child] for child in node.inputs)
        if node not in dependent or node in states:
            new[node] = node
        elif node.op == "pick" and node.inputs[0] in inner:
            new[node] = new[loop_parts(node.inputs[0])[0][node.attributes["index"]]]
        elif node.op == "loop":
            new[node] = node  # only nodes above use it
            outputs, closed = loop_parts(node)
            merged.update(zip(closed, (new[end] for end in outputs[len(outputs) - len(closed) :]), strict=True))
        elif node.op in CELLS:
            new[node], cell_states = open_cell(remade(node, inputs))
            merged.update(cell_states)
        else:
            new[node] = remade(node, inputs)
    return (*(new[body] for body in bodies), *merged.values()), (*states, *merged)


def remade(node: Node, inputs: tuple[Node, ...]) -> Node:
    """Apply the same operation to other inputs. Types are inferred again.

    Raises:
        ValueError: shapes or axes that do not fit.
    """
    if node.op == "loop":
        count = node.attributes["count"]
        return _loop(inputs[:count], inputs[count:])
    if node.op == "late":
        return deferred.remade(node, inputs)
    attributes = node.attributes
    if node.op == "times" and attributes.get("map_rank") == 0 and not inputs[0].type.is_known:
        rank = _state_rank(inputs[0])
        attributes = attributes if rank is None else {**attributes, "state_rank": rank}
    return apply(node.op, inputs, attributes, node.name)


def _state_rank(left: Node) -> int | None:
    """Return the number of axes that a step gives its state, for a state of unknown type, or None.

    Only operations that keep the shape may lie between the recurrence and ``left``.
    """
    below = resolve_alias(left)
    while below.op != "pick":
        unknown = [child for child in below.inputs if not child.type.is_known]
        if len(unknown) != 1 or op(below.op).shape not in (same, broadcast):
            return None
        below = resolve_alias(unknown[0])
    if below.type.is_known:
        return None
    state = loop_parts(below.inputs[0])[0][below.attributes["index"]]
    shape = _guess_types([state], [], 1)[state].shape
    return None if shape is None else len(shape)


def _guess_types(bodies: Sequence[Node], placeholders: Sequence[Node], guessing: int) -> dict[Node, Type]:
    """Infer types when nothing is known about the states, in two rounds, as one state may determine another."""
    types: dict[Node, Type] = {}
    assumed: dict[Node, Type] = {p: p.type for p in placeholders}
    for _ in range(2):
        types = dict(assumed)
        for node in topological(bodies):
            if node in types:
                continue
            if node.is_leaf or node.type.is_known:
                types[node] = node.type
                continue
            below = tuple(types[child] for child in node.inputs)
            try:
                types[node] = infer(Site(node.op, node.inputs, node.attributes, node.name, guessing, below))
            except ValueError:
                # A guess below was wrong. Any other error is raised again when all types are known.
                types[node] = Type()
        for placeholder, body in zip(placeholders, bodies[len(bodies) - len(placeholders) :], strict=True):
            assumed[placeholder] = types[body]
    return types


def rename_node(node: Node, name: str) -> Node:
    """Return the node with another name."""
    return changed(node, name=name, uid=node.uid)


def change_attribute(node: Node, name: str, value: object) -> None:
    """Change an attribute that an operation reads whenever it runs, in compiled networks, too."""
    object.__setattr__(node, "attributes", MappingProxyType({**node.attributes, name: value}))


def element_type(node: Node) -> str:
    """Return the element type of a node: the type of the first leaf below it, or the type to which it was cast."""
    return known_element_type(node) or "float32"


def known_element_type(node: Node) -> str | None:
    """Return `element_type`, or None if the first leaf is a placeholder."""
    while node.inputs:
        if node.op == "cast":
            return str(node.attributes["dtype"])
        node = node.inputs[0]
    return None if node.op == "placeholder" else node.dtype
