"""Recurrences: torch's fused kernels where the rule is theirs, a step loop over the batch for all others.

The fused kernels run over steps first, padded at the end of each sequence, where valid steps never see the padding.
This was measured to be 1.2 to 4 times as fast on a CPU as torch's packed kernels. Where padding would more than double
the work, sequences run in groups of similar lengths, at most as many groups as the longest length has binary digits. So
the number of torch calls does not grow with the length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from feedline.networks.loop import loop
from feedline.networks.node import UNKNOWN, Node
from feedline.networks.ops.align import dense, one_of_several
from feedline.networks.ops.sequence import with_sequences
from feedline.networks.packed_minibatch import PackedBatch, Run, SparseRows
from feedline.networks.registry import Shape, Site, declare, no_axes
from feedline.networks.shapes import fits_lengths, scalar


def _cell(gates: int) -> Any:
    """Inputs: x, W (inputs, gates * cells), H (cells, gates * cells), b (gates * cells,), initial states (cells,).

    A GRU has a second bias before its state.
    """

    def shape(site: Site) -> Shape:
        x, recurrent = site.shape(0), site.shape(2)
        if len(x) != 1:
            site.refuse("a vector as the input of a recurrence")
        if len(recurrent) != 2 or recurrent[1] != gates * recurrent[0]:
            site.refuse(f"recurrent weights (cells, {gates} * cells)")
        weights = site.shape(1)
        if UNKNOWN in weights:
            site.fix_shape(1, (x[0], *weights[1:]))
        elif not fits_lengths(weights, (x[0], recurrent[1])):
            site.refuse("weights (inputs, the gates of all cells)")
        return (recurrent[0],)

    return shape


def _along_sequences(site: Site) -> tuple[str, ...]:
    axes = with_sequences(site)
    for state in site.types[4:]:
        if state.axes is not None and len(state.axes) > 1:
            site.refuse("initial states without sequences")
    return axes


class _Weights:
    """Conversion of a recurrence's input and weights to the layout of torch's kernels.

    Args:
        order: index in the graph of each of torch's gates, int64 (gates,). None means the same order.
    """

    def __init__(self, order: torch.Tensor | None) -> None:
        self._order = order
        self._into: torch.Tensor | None = None

    def _reorder_gates(self, weights: torch.Tensor) -> torch.Tensor:
        if self._order is None:
            return weights.contiguous()
        if self._order.device != weights.device:
            self._order = self._order.to(weights.device)
        return weights.index_select(0, self._order)

    def __call__(
        self, x: Any, w: torch.Tensor, h: torch.Tensor, b: torch.Tensor, node: Node
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return dense input, and weights with gates first, with or without biases. The graph has gates last.

        Args:
            x: dense or sparse rows.
            w, h, b: weights as in the graph.
            node: node of the recurrence.
        """
        if not isinstance(x, SparseRows):
            return dense(x, node), [
                self._reorder_gates(w.t()),
                self._reorder_gates(h.t()),
                self._reorder_gates(b),
                torch.zeros_like(b),
            ]
        # The kernels do not accept gates that are already summed, so looked-up rows are multiplied by an identity.
        into = self._into
        if into is None or into.device != b.device or into.dtype != b.dtype:
            into = self._into = self._reorder_gates(torch.eye(len(b), dtype=b.dtype, device=b.device))
        return x.matmul(w) + b, [into, self._reorder_gates(h.t())]


def _initial(state: torch.Tensor, node: Node, batch: PackedBatch, like: torch.Tensor) -> torch.Tensor:
    cells = node.shape[0]
    if state.dtype != like.dtype:  # a number, in a network of another type
        state = state.to(like.dtype)
    return state.expand(batch.count, cells).contiguous()[None]


Kernel = Callable[..., Any]


def _run(kernel: Kernel, node: Node, batch: PackedBatch, x: torch.Tensor, weights: Any, states: Any) -> torch.Tensor:
    """Run a torch kernel and return its rows.

    Args:
        kernel: function of padded or packed steps, states (1, sequences, cells) and weights.
        node: node of the recurrence.
        batch: minibatch.
        x: input rows.
        weights: weights of the kernel.
        states: one or two initial states.
    """
    sequences, backwards = batch.sequences[node.axes[1]], node.attributes.get("backwards", False)
    if not sequences.total:
        return x.new_zeros(0, node.shape[0])
    if batch.cut is not None:
        return _run_pieces(kernel, node, batch, x, weights, states)
    settings = (weights, len(weights) == 4, 1, 0.0, batch.training, False, False)
    groups = sequences.padded(backwards)
    if groups[0].rows is None:
        return groups[0].packed(kernel(groups[0].padded(x), _as_one(states), *settings)[0])
    y = x.new_zeros(len(x), node.shape[0])
    for group in groups:
        mine = _as_one([s.index_select(1, group.which) for s in states])
        y = y.index_copy(0, group.rows, group.packed(kernel(group.padded(x), mine, *settings)[0]))
    return y


def _run_pieces(
    kernel: Kernel, node: Node, batch: PackedBatch, x: torch.Tensor, weights: Any, states: Any
) -> torch.Tensor:
    """Continue from the lanes' states, with packed steps, since padding would change the final states."""
    if node.attributes.get("backwards", False):
        raise ValueError(f"{node.label}: expected whole sequences for a backward recurrence, got truncated ones")
    sequences = batch.sequences[node.axes[1]]
    steps = sequences.steps(False)
    initial = torch.cat(states, 2)[0]
    past, exists = batch.cut.before(node.uid, 1, tuple(initial.shape[1:]), initial)
    begun = torch.where(exists, past[:, 0], initial)
    # Empty sequences come last, and are not passed to the kernel.
    mine = [s[None].contiguous() for s in begun.index_select(0, steps.order)[: steps.active[0]].chunk(len(states), 1)]
    sizes = torch.tensor(steps.active)
    y, *ends = kernel(
        x.index_select(0, steps.rows), sizes, _as_one(mine), weights, len(weights) == 4, 1, 0.0, batch.training, False
    )
    nonempty = steps.order[: steps.active[0]]
    batch.cut.keep_ends(node.uid, begun.detach().index_copy(0, nonempty, torch.cat(ends, 2)[0].detach()))
    return y.index_select(0, steps.back)


def _as_one(states: Sequence[torch.Tensor]) -> Any:
    return states[0] if len(states) == 1 else tuple(states)


def _fuse(kernel: Kernel, prepare: _Weights, node: Node) -> Run:
    def run(batch: PackedBatch, x: Any, w: Any, h: Any, b: Any, *initial: Any) -> Any:
        data, weights = prepare(x, w, h, b, node)
        return _run(kernel, node, batch, data, weights, [_initial(state, node, batch, h) for state in initial])

    return run


def _lstm(node: Node) -> Run:
    cells = node.shape[0]
    # The order of gates is input, candidate, forget, output in CNTK, and input, forget, candidate, output in torch.
    return _fuse(torch.lstm, _Weights(torch.arange(4 * cells).reshape(4, cells)[[0, 2, 1, 3]].reshape(-1)), node)


def _rnn(node: Node) -> Run:
    kernel = {"tanh": torch.rnn_tanh, "relu": torch.rnn_relu}[node.attributes["activation"]]
    return _fuse(kernel, _Weights(None), node)


def _gru(node: Node) -> Run:
    """GRU of torch, which resets the product of the state. It has a bias for the input and one for the state."""
    prepare = _Weights(None)

    def run(batch: PackedBatch, x: Any, w: Any, h: Any, b: Any, of_state: Any, initial: Any) -> Any:
        data, weights = prepare(x, w, h, b, node)
        bias = weights[2] if len(weights) == 4 else torch.zeros_like(b)  # looked-up rows have theirs already
        states = [_initial(initial, node, batch, h)]
        return _run(torch.gru, node, batch, data, [*weights[:2], bias, of_state.contiguous()], states)

    return run


declare("gru", _cell(3), _gru, axes=_along_sequences, stepwise=False)
declare("lstm", _cell(4), _lstm, axes=_along_sequences, stepwise=False)
declare("rnn", _cell(1), _rnn, axes=_along_sequences, stepwise=False)


def _pick(site: Site) -> Node:
    node: Node = site.inputs[0].inputs[site.attributes["index"]]
    return node


# A node with several outputs has no type. `pick` selects one output.
declare("loop", scalar, loop, axes=no_axes, stepwise=False)
declare("pick", lambda site: _pick(site).shape, one_of_several, axes=lambda site: _pick(site).type.axes)
