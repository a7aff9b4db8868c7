"""Recurrences without a fused kernel: one step at a time, all sequences at once.

Everything that does not depend on the recurrence's state is computed for all steps before the first, usually the
product with the input, so that a step has only the product with the state. Sequences are sorted longest first, so that
ended ones drop out at the end and no mask is needed. Python iterates over steps, never over sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from feedline.networks.node import Node
from feedline.networks.packed_minibatch import PackedBatch, PackedStep, Run, SparseRows, Steps
from feedline.networks.registry import op
from feedline.networks.traverse import loop_parts, reads, resolve_alias, topological


def _resolved_parts(node: Node) -> tuple[list[Node], list[Node]]:
    outputs, states = loop_parts(node)
    return [resolve_alias(output) for output in outputs], list(states)


def inside(node: Node) -> set[Node]:
    """Return the nodes of a recurrence that depend on its state, and are therefore computed step by step."""
    outputs, states = _resolved_parts(node)
    dependent: set[Node] = set(states)
    for below in topological(outputs, reads):
        if any(child in dependent for child in reads(below)):
            dependent.add(below)
    return dependent


def operands(node: Node) -> list[Node]:
    """Return the nodes outside a recurrence that are computed before its first step, in a fixed order."""
    stepped = inside(node)
    outputs, _ = _resolved_parts(node)
    needed: dict[Node, None] = {}
    for below in topological(outputs, lambda n: reads(n) if n in stepped else ()):
        if below not in stepped:
            needed[below] = None
    return list(needed)


def loop(node: Node) -> Run:
    """Lower a recurrence to a function of its `operands` that returns its outputs."""
    outputs, states = _resolved_parts(node)
    stepped = inside(node)
    outside = operands(node)
    ends = dict(zip(states, outputs[len(outputs) - len(states) :], strict=True))
    delays, order = _parts(stepped, outputs, ends)
    axis, backwards = _direction(node, delays, order)
    # Slots: operands, then delays, then computed nodes.
    slot: dict[Node, int] = {n: i for i, n in enumerate([*outside, *delays, *order])}
    for state, end in ends.items():
        slot[state] = slot[end]
    plan = [(slot[n], [slot[child] for child in reads(n)], op(n.op).lower(n)) for n in order]
    past = [
        (slot[d], *(slot[child] for child in reads(d)), abs(d.attributes["steps"]), d.shape, d.inputs[1])
        for d in delays
    ]
    recorded = sorted({source for _, source, _, _, _, _ in past} | {slot[out] for out in outputs})
    results = [slot[out] for out in outputs]
    size = len(slot) - len(ends)
    # An initial state may have different sequences, of which only delays read the ends.
    rows_of = [len(n.axes) if n.axes[1:] in ((), (axis,)) else None for n in outside]
    begins = [(slot[i] if i in outside and len(i.axes) > 1 else None, d) for d, i in ((d, reads(d)[1]) for d in delays)]
    inner = slice(len(outside), size)

    def begun(batch: PackedBatch, tensors: Any, steps: Steps) -> list[Any]:
        """Return the last steps of the lanes' earlier pieces for each delay, in step order and as stored."""
        like = next((x for x in tensors if isinstance(x, torch.Tensor)), torch.zeros(0))
        carried = []
        for d in delays:
            if backwards:
                raise ValueError(f"{d.label}: expected whole sequences for a future value, got truncated ones")
            before = batch.cut.before(d.uid, abs(d.attributes["steps"]), d.shape, like)
            carried.append((*(x.index_select(0, steps.order) for x in before), before))
        return carried

    def run(batch: PackedBatch, *tensors: Any) -> list[Any]:
        steps = batch.sequences[axis].steps(backwards)
        entering = [_arrange(x, n, steps) for x, n in zip(tensors, rows_of, strict=True)]
        states = [_last_steps(tensors[i], d, batch, steps) if i is not None else None for i, d in begins]
        history: dict[int, list[Any]] = {k: [] for k in recorded}
        carried = None if batch.cut is None else begun(batch, tensors, steps)
        values: list[Any] = [*entering, *[None] * (size - len(entering))]
        begin = 0
        for t, active in enumerate(steps.active):
            for i, n in enumerate(rows_of):
                if n == 2:
                    values[i] = entering[i][begin : begin + active]
            step = PackedStep(batch, active)
            for i, (target, source, initial, back, shape, first) in enumerate(past):
                if t >= back:
                    values[target] = history[source][t - back][:active]
                else:
                    state = states[i]
                    values[target] = _before(
                        values[initial] if state is None else state[:, t], len(first.axes), active, shape
                    )
                    if carried is not None:
                        earlier, exists, _ = carried[i]
                        mask = exists[:active, t].reshape(-1, *(1,) * len(shape))
                        values[target] = torch.where(mask, earlier[:active, t], values[target])
            for target, below, function in plan:
                values[target] = function(step, *[values[i] for i in below])
            for k in recorded:
                history[k].append(values[k])
            begin += active
            values[inner] = [None] * (size - len(outside))
        if carried is not None:
            for d, (_, source, _, _, _, _), (_, _, before) in zip(delays, past, carried, strict=True):
                batch.cut.after(d.uid, _whole(history[source], steps, d, values), batch.sequences[axis], before)
        return [_whole(history[k], steps, outputs[i], values) for i, k in enumerate(results)]

    return run


def _parts(stepped: set[Node], outputs: Sequence[Node], ends: Mapping[Node, Node]) -> tuple[list[Node], list[Node]]:
    """Return the delays, and the other nodes in the order of computation within a step.

    A state that is read without a delay is the result of its end in the same step. That end has to read other states
    by a delay.
    """
    delays: list[Node] = []
    order: list[Node] = []
    waiting: list[Node] = list(outputs)
    visited: set[Node] = set(ends)

    def before(node: Node) -> Sequence[Node]:
        # A delay reads another step, so its operand may be computed later in this one.
        return [ends.get(child, child) for child in reads(node)] if node in stepped and node.op != "delay" else ()

    while waiting:
        for node in topological(waiting, before):
            if node not in stepped or node in visited:
                continue
            visited.add(node)
            (delays if node.op == "delay" else order).append(node)
        delayed = (ends.get(reads(d)[0], reads(d)[0]) for d in delays)
        waiting = [source for source in delayed if source in stepped and source not in visited]
    place = {node: i for i, node in enumerate(order)}
    for node in order:
        for child, source in zip(reads(node), before(node), strict=True):
            if place.get(source, -1) >= place[node]:
                raise ValueError(
                    f"{node.label} uses the state {child.label} of the same step; read it by sequence.past_value or "
                    "sequence.future_value"
                )
        if not op(node.op).stepwise:
            raise ValueError(f"{node.label} needs whole sequences, so it cannot be part of a recurrence")
    return delays, order


def _direction(node: Node, delays: Sequence[Node], order: Sequence[Node]) -> tuple[str, bool]:
    signs = {d.attributes["steps"] > 0 for d in delays}
    if len(signs) != 1:
        kinds = "both past and future values" if signs else "no past or future value"
        raise ValueError(f"expected a recurrence in one direction, got {kinds} of its state in {node.inputs[0].label}")
    axes = {n.axes for n in (*delays, *order)}
    if len(axes) != 1 or len(next(iter(axes))) < 2:
        raise ValueError(f"expected a recurrence along one axis of sequences, got {sorted(axes)}")
    return next(iter(axes))[1], not signs.pop()


def _arrange(x: Any, axes: int | None, steps: Steps) -> Any:
    """Reorder rows by steps, or by sequences, longest first. Rows along other sequences stay."""
    if not axes:
        return x
    return _dense(x).index_select(0, steps.rows if axes == 2 else steps.order)


def _dense(x: Any) -> torch.Tensor:
    if isinstance(x, SparseRows) and x.dense_dtype is not None:
        x = x.dense()
    if isinstance(x, SparseRows):
        raise TypeError("expected dense data inside a recurrence, got sparse rows; multiply them by a parameter first")
    assert isinstance(x, torch.Tensor)
    return x


def _last_steps(x: Any, delay: Node, batch: PackedBatch, steps: Steps) -> torch.Tensor:
    """Return the steps of an initial state with sequences that a delay reads, (sequences, steps, *shape)."""
    try:
        rows = batch.sequences[delay.inputs[1].axes[1]].ends(delay.attributes["steps"])
    except ValueError as error:
        raise ValueError(f"{delay.label}: initial state: {error}") from error
    x = _dense(x)
    ends = x.index_select(0, torch.from_numpy(rows.ravel()).to(x.device)).reshape(*rows.shape, *x.shape[1:])
    return ends.index_select(0, steps.order)


def _before(initial: Any, axes: int, active: int, shape: tuple[int, ...]) -> Any:
    """Return the initial state."""
    if not axes:
        return initial.expand(active, *shape)
    rows = initial[:active]
    missing = len(shape) - (rows.ndim - 1)
    return rows[(slice(None), *(None,) * missing)].expand(active, *shape)


def _whole(parts: list[Any], steps: Steps, node: Node, values: list[Any]) -> Any:
    if not parts:
        like = next((v for v in values if isinstance(v, torch.Tensor)), torch.zeros(0))
        return like.new_zeros(0, *node.shape)
    return torch.cat(parts).index_select(0, steps.back)
