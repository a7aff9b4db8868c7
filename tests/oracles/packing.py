"""Packing, slow and obvious: one sequence (or one sample) after the other, from the axis as a plain list."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Step(NamedTuple):
    """One sequence of the axis."""

    ordinal: int
    length: int
    sweep: int
    last: bool  # of its sweep
    mine: bool


def local_minibatches(axis, room, shuffled):
    """CNTK's filling by one worker over a finite axis: (ids, samples passed, sweep end) of every minibatch."""
    at = 0
    while at < len(axis):
        start, ids, taken, sweep_end, whole_sweep = at, [], 0, False, False
        while at < len(axis):
            step = axis[at]
            if step.mine:
                fits = taken + step.length <= room or (not ids and not sweep_end)
                if taken >= room or not fits:
                    break
                ids.append(step.ordinal)
                taken += step.length
            at += 1
            sweep_end = sweep_end or step.last
            if step.last and taken == 0:
                # No sample of a whole sweep is mine: hand out an empty minibatch, unless the axis ends here.
                first = next(i for i, s in enumerate(axis) if s.sweep == step.sweep)
                whole_sweep = first >= start
                if whole_sweep:
                    break
            if taken >= room and (not shuffled or step.last):
                break
        if ids or (at < len(axis)):
            yield ids, sum(s.length for s in axis[start:at]), sweep_end


class Sample(NamedTuple):
    """A sample in a lane. ``step`` is None for a sequence without samples."""

    ordinal: int
    step: int | None
    sweep: int
    completes_sweep: bool


def lane_minibatches(axis, length, sizes):
    """Truncated BPTT over a finite axis by one process or worker: (pieces, sweep end) of every minibatch.

    A piece is (lane, ordinal, sweep, [steps]). ``sizes`` gives the size of every call, as long as needed. A worker
    without a sequence in a whole sweep is not supported.
    """
    axis, lanes = deque(axis), []
    for size in sizes:
        width = max(1, size // length)
        while len(lanes) < width:
            lanes.append(deque())
        served, passed = range(len(lanes) - width, len(lanes)), False
        for lane in served:
            while lane < width and sum(sample.step is not None for sample in lanes[lane]) <= length and axis:
                s = axis.popleft()
                if not s.mine:
                    passed = passed or s.last
                    continue
                steps = range(s.length) if s.length else [None]
                lanes[lane].extend(Sample(s.ordinal, i, s.sweep, s.last and i in (None, s.length - 1)) for i in steps)
        if not any(lanes):
            return
        pieces, sweep_end = [], passed
        for lane in served:
            piece, taken = None, 0
            while lanes[lane] and (taken < length or lanes[lane][0].step is None):
                sample = lanes[lane].popleft()
                sweep_end = sweep_end or sample.completes_sweep
                if sample.step is None:
                    continue
                taken += 1
                if piece is None or piece[1:3] != (sample.ordinal, sample.sweep) or sample.step == 0:
                    piece = (lane, sample.ordinal, sample.sweep, [])
                    pieces.append(piece)
                piece[3].append(sample.step)
        while lanes and not lanes[-1]:
            lanes.pop()
        yield pieces, sweep_end
