"""Operations along sequences: ends, shifts, sums, softmax, selection of steps. None iterates over steps in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from feedline.networks.node import BATCH, Node
from feedline.networks.ops.align import adapter, dense, lower_directly
from feedline.networks.packed_minibatch import PackedBatch, Run, Sequences, SparseRows
from feedline.networks.registry import Shape, Site, declare
from feedline.networks.shapes import broadcast_shapes, fits_lengths, same, scalar


def with_sequences(site: Site, i: int = 0) -> tuple[str, ...]:
    """Return the dynamic axes of an input that must have a sequence axis."""
    axes = site.types[i].axes
    if axes is None or len(axes) < 2:
        site.refuse("an input with a sequence axis")
    return axes


def to_batch(site: Site) -> tuple[str, ...]:
    """Return the batch axis: one result for each sequence."""
    with_sequences(site)
    return (BATCH,)


def _of(batch: PackedBatch, node: Node) -> Sequences:
    """Return the sequences of the first input."""
    return batch.sequences[node.inputs[0].axes[1]]


def _first(node: Node, batch: PackedBatch, x: Any) -> Any:
    return x.index_select(0, _of(batch, node).first)


def _last(node: Node, batch: PackedBatch, x: Any) -> Any:
    return x.index_select(0, _of(batch, node).last)


def _is_first(node: Node, batch: PackedBatch, x: Any) -> Any:
    ends = _of(batch, node).first
    if batch.cut is not None:  # other sequences continue from an earlier minibatch
        ends = ends[torch.from_numpy(batch.cut.begins).to(ends.device)]
    return _mark(x, ends)


def _is_last(node: Node, batch: PackedBatch, x: Any) -> Any:
    return _mark(x, _of(batch, node).last)


def _mark(x: Any, ends: torch.Tensor) -> torch.Tensor:
    """Return 1 for these rows, 0 for all other rows, in the type of ``x``, dense or sparse."""
    return torch.zeros(len(x), dtype=x.dtype, device=ends.device).index_fill(0, ends, 1)


declare("sequence_first", same, lower_directly(_first), axes=to_batch, stepwise=False, whole=True)
declare("sequence_last", same, lower_directly(_last), axes=to_batch, stepwise=False, whole=True)
declare("sequence_is_first", scalar, lower_directly(_is_first), axes=with_sequences, stepwise=False)
declare("sequence_is_last", scalar, lower_directly(_is_last), axes=with_sequences, stepwise=False, whole=True)


def _like(site: Site) -> tuple[str, ...]:
    axes, like = site.types[0].axes, site.types[1].axes
    if not like:
        site.refuse("a second operand with a batch axis")
    if axes is not None and len(axes) > len(like):
        site.refuse("an operand without a sequence axis; use sequence.last or sequence.first")
    return like


def _broadcast_as(node: Node) -> Run:
    operand = node.inputs[0]
    to_rows = adapter(operand, node.axes, None)

    def run(batch: PackedBatch, x: Any, like: Any) -> Any:
        if len(operand.axes) > 1:
            present, expected = batch.sequences[operand.axes[1]], batch.sequences[node.axes[1]]
            if not present.same(expected):
                raise ValueError(
                    f"{node.label}: expected steps as the second operand has, {expected.lengths.tolist()[:10]}, got "
                    f"{present.lengths.tolist()[:10]}: use sequence.last or sequence.first to repeat one of them"
                )
        if operand.axes:
            return x if to_rows is None else to_rows(batch, x)
        return dense(x, node).expand(batch.rows(node.axes), *node.shape)

    return run


declare("sequence_broadcast_as", same, _broadcast_as, axes=_like)


def _delayed_shape(site: Site) -> Shape:
    shape, initial = site.shapes[0], site.shapes[1]
    if shape is None and initial and site.guessing == 2:
        return initial
    shape = site.shape(0)
    if initial is None:
        return shape
    if not fits_lengths(broadcast_shapes(site, [shape, initial]), shape):
        site.refuse("an initial state that broadcasts to the operand")
    return shape


def _delay_axes(site: Site) -> tuple[str, ...] | None:
    # While guessing, a state's axes are unknown: they become the axes of the recurrence.
    return None if site.guessing and site.types[0].axes is None else with_sequences(site)


def _delay(node: Node) -> Run:
    """Delay outside recurrences. Inside one it reads an earlier step's result, see `feedline.networks.loop`.

    Of an initial state with sequences, past values take the last steps, and future values the first ones.
    """
    steps, rank, before_axes = node.attributes["steps"], len(node.shape), node.inputs[1].axes
    to_rows = adapter(node.inputs[1], node.axes, rank) if len(before_axes) < 2 else None
    padded = (slice(None), *(None,) * (rank - len(node.inputs[1].shape)))

    def begun(batch: PackedBatch, x: torch.Tensor, initial: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Delay dense data after an initial state with sequences of any lengths."""
        sequences, count = _of(batch, node), abs(steps)
        try:
            source = batch.sequences[before_axes[1]].ends(steps)
        except ValueError as error:
            raise ValueError(f"{node.label}: initial state: {error}") from error
        inside = np.arange(count) < sequences.lengths[:, None]
        if steps > 0:
            target = sequences.offsets[:-1, None] + np.arange(count)
        else:
            target = sequences.offsets[1:, None] - 1 - np.arange(count)
        to, of = (torch.from_numpy(a[inside]).to(x.device) for a in (target, source))
        values = initial.index_select(0, of)[padded].expand(len(of), *node.shape)
        return x.index_select(0, rows).index_copy(0, to, values.to(x.dtype))

    def continued(batch: PackedBatch, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Delay truncated sequences, which continue from the lanes' last steps."""
        if steps < 0:
            raise ValueError(f"{node.label}: expected whole sequences for a future value, got truncated ones")
        sequences = _of(batch, node)
        before = batch.cut.before(node.uid, steps, node.shape, x)
        past, exists = before
        place = np.arange(steps)
        piece, place = (a.ravel() for a in np.meshgrid(np.arange(sequences.count), place, indexing="ij"))
        inside = place < sequences.lengths[piece]
        rows = torch.from_numpy((sequences.offsets[piece] + place)[inside]).to(x.device)
        taken = torch.from_numpy(inside).to(x.device)
        present = exists.reshape(-1)[taken]
        y = y.index_copy(0, rows[present], past.reshape(-1, *node.shape)[taken][present].to(y.dtype))
        batch.cut.after(node.uid, x, sequences, before)
        return y

    def run(batch: PackedBatch, x: Any, initial: Any) -> Any:
        rows, outside = _of(batch, node).shift(steps)
        if isinstance(x, SparseRows) and x.dense_dtype is not None:
            x = x.dense()
        if isinstance(initial, SparseRows) and initial.dense_dtype is not None:
            initial = initial.dense()
        if isinstance(x, SparseRows):
            if isinstance(initial, SparseRows) or bool(initial.any()):
                raise TypeError(f"{node.label}: expected an initial state of 0 for sparse data, got another one")
            if batch.cut is not None:
                raise TypeError(f"{node.label}: expected dense data for truncated sequences, got sparse samples")
            return x.index_select(0, rows, empty=outside)
        initial = initial if to_rows is None else to_rows(batch, initial)
        if len(x) and len(before_axes) > 1:
            y = begun(batch, x, initial, rows)
        elif len(x):
            y = torch.where(outside.reshape(-1, *(1,) * rank), initial.to(x.dtype), x.index_select(0, rows))
        else:
            y = x
        return y if batch.cut is None else continued(batch, x, y)

    return run


declare("delay", _delayed_shape, _delay, axes=_delay_axes, stepwise=False)


class _SegmentMax(torch.autograd.Function):
    """Maximum with the whole gradient for each of several equal elements, among which torch would divide it."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, owner: torch.Tensor, count: int) -> torch.Tensor:
        start = x.new_full((count, *x.shape[1:]), -torch.inf)
        index = owner.reshape(-1, *(1,) * (x.ndim - 1)).expand_as(x)
        maxima = start.scatter_reduce(0, index, x, "amax", include_self=False)
        context.save_for_backward(x, maxima, owner)
        return maxima

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        x, maxima, owner = context.saved_tensors
        return torch.where(x == maxima.index_select(0, owner), gradient.index_select(0, owner), 0.0), None, None


def segment_max(x: torch.Tensor, sequences: Sequences) -> torch.Tensor:
    """Return the elementwise maximum of each sequence's packed rows."""
    return _SegmentMax.apply(x, sequences.owner, sequences.count)


def segment_sum(x: torch.Tensor, sequences: Sequences) -> torch.Tensor:
    """Return the elementwise sum of each sequence's packed rows."""
    return x.new_zeros(sequences.count, *x.shape[1:]).index_add(0, sequences.owner, x)


def _reduce(function: Callable[[torch.Tensor, Sequences], torch.Tensor]) -> Callable[[Node], Run]:
    return lambda node: lambda batch, x: function(dense(x, node), _of(batch, node))


def _mean(x: torch.Tensor, sequences: Sequences) -> torch.Tensor:
    lengths = torch.from_numpy(sequences.lengths).to(x.device, x.dtype)
    return segment_sum(x, sequences) / lengths.reshape(-1, *(1,) * (x.ndim - 1))


def _softmax(x: torch.Tensor, sequences: Sequences) -> torch.Tensor:
    owner = sequences.owner
    shifted = (x - segment_max(x.detach(), sequences).index_select(0, owner)).exp()
    return shifted / segment_sum(shifted, sequences).index_select(0, owner)


declare("sequence_reduce_sum", same, _reduce(segment_sum), axes=to_batch, stepwise=False, whole=True)
declare("sequence_reduce_mean", same, _reduce(_mean), axes=to_batch, stepwise=False, whole=True)
declare("sequence_reduce_max", same, _reduce(segment_max), axes=to_batch, stepwise=False, whole=True)
declare("sequence_softmax", same, _reduce(_softmax), axes=with_sequences, stepwise=False, whole=True)


def _selected_axes(site: Site) -> tuple[str, ...]:
    with_sequences(site)
    if set(site.shape(len(site.inputs) - 1)) - {1}:
        site.refuse("one number a sample as the condition")
    lengths = site.attributes.get("lengths")
    if lengths == (0, 1):
        return (BATCH,)
    # Everything selected by one condition, or of the same promised lengths, has the same axis.
    if lengths is not None:
        return (BATCH, f"{site.types[-1].axes[1]} * {lengths[0]} + {lengths[1]}")  # type: ignore[index]
    return (BATCH, f"where {site.inputs[-1].uid}")


def select(condition: torch.Tensor, sequences: Sequences) -> tuple[torch.Tensor, np.ndarray[Any, Any]]:
    """Return the rows that a condition selects, int64, and the offsets of the new sequences.

    The condition is the number of times that each step is repeated: 1 or 0, any other number, or a fraction. A fraction
    is rounded up, and the next steps are repeated less to make up for it. Within rounding of the element type, the
    result up to a step n has ``ceil(sum of the condition up to n)`` steps, and never fewer than up to an earlier step.
    """
    repetitions = condition.detach().reshape(-1).double().cpu().numpy()
    total = np.cumsum(repetitions)
    before = np.concatenate([[0.0], total])[sequences.offsets[:-1]]
    total -= np.repeat(before, sequences.lengths)
    targets = np.ceil(total * (1 - torch.finfo(condition.dtype).eps))
    targets = np.maximum(targets, total > 0).astype(np.int64)
    repeats = np.zeros_like(targets)
    for begin, end in zip(sequences.offsets[:-1].tolist(), sequences.offsets[1:].tolist(), strict=True):
        reached = np.maximum.accumulate(np.maximum(targets[begin:end], 0))
        repeats[begin:end] = np.diff(reached, prepend=0)
    rows = np.repeat(np.arange(len(repeats)), repeats)
    offsets = np.concatenate([[0], np.cumsum(repeats)])[sequences.offsets]
    return torch.from_numpy(rows).to(condition.device), offsets.astype(np.int64)


def _select(batch: PackedBatch, node: Node, condition: Any) -> torch.Tensor:
    """Select rows where the condition holds, and register their sequences."""
    old = batch.sequences[node.inputs[-1].axes[1]]
    rows, offsets = select(condition, old)
    selected, promised = Sequences(offsets, rows.device), node.attributes.get("lengths")
    if promised is not None:
        expected = promised[0] * old.lengths + promised[1]
        if not np.array_equal(selected.lengths, expected):
            raise ValueError(
                f"{node.label}: expected {expected.tolist()[:10]} steps, as new_sequence_axis_typeinfo={promised} "
                f"promises, got {selected.lengths.tolist()[:10]} from the condition"
            )
    if len(node.axes) > 1:
        batch.sequences[node.axes[1]] = selected
    return rows


def _gather(node: Node, batch: PackedBatch, x: Any, condition: Any) -> Any:
    return x.index_select(0, _select(batch, node, dense(condition, node)))


def _where(node: Node, batch: PackedBatch, condition: Any) -> Any:
    condition = dense(condition, node)
    rows = _select(batch, node, condition)
    old, new = _of(batch, node), batch.sequences[node.axes[1]]
    begins = torch.from_numpy(np.repeat(old.offsets[:-1], new.lengths)).to(rows.device)
    return (rows - begins).to(condition.dtype)


declare("sequence_gather", same, lower_directly(_gather), axes=_selected_axes, stepwise=False)
declare("sequence_where", scalar, lower_directly(_where), axes=_selected_axes, stepwise=False, whole=True)


def _scattered_axes(site: Site) -> tuple[str, ...]:
    axes, like = site.types[0].axes or (), with_sequences(site, 1)
    # Lengths that were promised are compared when it runs.
    promised = len(axes) > 1 and axes[1].startswith(f"{like[1]} * ")
    if axes not in ((BATCH,), (BATCH, f"where {site.inputs[1].uid}")) and not promised:
        site.refuse("data that sequence.gather selected by this condition, or one sample for each sequence")
    return like


def _scatter(node: Node, batch: PackedBatch, x: Any, condition: Any) -> Any:
    rows, _ = select(dense(condition, node), batch.sequences[node.axes[1]])
    if len(node.inputs[0].axes) == 1:
        owner = batch.sequences[node.axes[1]].owner.index_select(0, rows)
        if not torch.equal(owner, torch.arange(batch.count, device=owner.device)):
            raise ValueError(f"{node.label}: expected one step of each sequence where the condition is not 0")
    if len(rows) != len(x):
        raise ValueError(f"{node.label}: expected {len(x)} steps where the condition is not 0, got {len(rows)}")
    if isinstance(x, SparseRows) and x.dense_dtype is None and len(rows.unique()) == len(rows):
        total = batch.rows(node.axes)
        source = torch.zeros(total, dtype=torch.int64, device=rows.device)
        empty = torch.ones(total, dtype=torch.bool, device=rows.device)
        source = source.index_copy(0, rows, torch.arange(len(rows), device=rows.device))
        return x.index_select(0, source, empty=empty.index_fill(0, rows, False)) if len(x) else x
    x = dense(x, node)
    return x.new_zeros(batch.rows(node.axes), *node.shape).index_add(0, rows, x)


declare("sequence_scatter", same, lower_directly(_scatter), axes=_scattered_axes, stepwise=False)


def _stretched_axes(site: Site) -> tuple[str, ...]:
    axes, factor = with_sequences(site), site.attributes["factor"]
    return axes if factor == 1 else (BATCH, f"{axes[1]} * {factor:g}")


def _stretched_ones(node: Node, batch: PackedBatch, x: Any) -> Any:
    sequences, factor = _of(batch, node), node.attributes["factor"]
    if factor != 1:
        # As many steps as `select` takes for a condition of ``factor`` at each step. 3 * (1 / 3) is 1.
        lengths = np.ceil(sequences.lengths * factor * (1 - np.finfo(np.float32).eps))
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        sequences = batch.sequences[node.axes[1]] = Sequences(offsets, sequences.device)
    return torch.ones(sequences.total, dtype=x.dtype, device=sequences.device)


# 1 for each step of sequences that are ``factor`` times as long.
declare("sequence_ones", scalar, lower_directly(_stretched_ones), axes=_stretched_axes, stepwise=False, whole=True)


def _sliced_axes(site: Site) -> tuple[str, ...]:
    name = f"{with_sequences(site)[1]}[{site.attributes['begin']}:{site.attributes['end'] or ''}]"
    return (BATCH, name)


def _slice(node: Node, batch: PackedBatch, x: Any) -> Any:
    begin, end = node.attributes["begin"], node.attributes["end"] or None
    old = _of(batch, node)
    starts, stops = (
        np.clip(np.where(n < 0, old.lengths + n, n), 0, old.lengths) if n is not None else old.lengths
        for n in (np.int64(begin), end)
    )
    lengths = np.maximum(stops - starts, 0)
    if (lengths == 0).any():
        raise ValueError(f"{node.label}: expected every sequence to have steps from {begin} to {end or 'its end'}")
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.arange(offsets[-1]) + np.repeat(old.offsets[:-1] + starts - offsets[:-1], lengths)
    batch.sequences[node.axes[1]] = Sequences(offsets, old.device)
    return x.index_select(0, torch.from_numpy(rows).to(old.device))


declare("sequence_slice", same, lower_directly(_slice), axes=_sliced_axes, stepwise=False, whole=True)
