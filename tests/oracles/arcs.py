"""Orders in arcs as plain Python: sequences are dealt out one at a time, from the recipe and not from the code."""

from __future__ import annotations

import itertools
from collections import deque
from typing import NamedTuple

from tests.oracles import order as slow


class Window(NamedTuple):
    """A window of an arc: the units (chunks or blocks) it needs, and its ordinals in order."""

    units: list[int]
    ordinals: list[int]


def arcs(seed, sweep, sizes, costs, budget, lanes, shuffle=True):
    """The windows of each arc of a sweep.

    Args:
        seed, sweep, shuffle: of the order.
        sizes, costs: sequences and cost of each unit, in corpus order.
        budget: cost of a window of all arcs together. None: no limit.
        lanes: number of arcs.
    """
    units = list(range(len(sizes)))
    if shuffle:
        units = slow.fisher_yates(slow.hash_key([seed, sweep, 0]), len(sizes))
    left = deque((unit, sum(sizes[:unit]) + i) for unit in units for i in range(sizes[unit]))
    total, found = len(left), []
    for arc in range(lanes):
        mine = [left.popleft() for _ in range(total // lanes + (arc < total % lanes))]
        filled, spent = [], 0
        for unit, ordinal in mine:
            if filled and filled[-1].units[-1] == unit:
                filled[-1].ordinals.append(ordinal)
                continue
            # The budget is shared by all arcs, rounded up: spent + cost <= ceil(budget / lanes).
            if not filled or (budget is not None and (spent + costs[unit] - 1) * lanes >= budget):
                filled.append(Window([], []))
                spent = 0
            filled[-1].units.append(unit)
            filled[-1].ordinals.append(ordinal)
            spent += costs[unit]
        for number, window in enumerate(filled):
            if shuffle:
                key = slow.hash_key([seed, sweep, 14, arc, number])
                window.ordinals[:] = [window.ordinals[i] for i in slow.fisher_yates(key, len(window.ordinals))]
        found.append(filled)
    assert not left
    return found


def interleaved(found):
    """(ordinal, arc, number of its window) of each place of the sweep: every arc gives one sequence in turn."""
    queues = [
        deque((ordinal, arc, number) for number, window in enumerate(windows) for ordinal in window.ordinals)
        for arc, windows in enumerate(found)
    ]
    places = []
    while any(queues):
        places += [queue.popleft() for queue in queues if queue]
    return places


def units_in_order_of_need(found, own):
    """The units of the arcs ``own``, window by window as they begin, the first ones of all arcs before the others."""
    begun = [(0, arc, windows[0]) for arc, windows in enumerate(found)]
    for arc, windows in enumerate(found):
        place = 0
        for before, window in itertools.pairwise(windows):
            place += len(before.ordinals)
            begun.append((place, arc, window))
    return [unit for _, arc, window in sorted(begun, key=lambda one: one[:2]) if arc in own for unit in window.units]
