"""The states of an optimizer that runs in several servers, each of which has those of its parts: put together, and cut.

So a file of states is the same whatever store wrote it. Costs: a copy of all states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from feedline.kvstore.base import Key
from feedline.kvstore.messages import Entry
from feedline.kvstore.optimizers import Optimizer
from feedline.kvstore.parts import parts
from feedline.kvstore.wire import sliced


def whole_states(entries: Iterable[Entry], found: Sequence[Mapping[Key, Any]], rule: Optimizer) -> dict[Key, Any]:
    """States of whole arrays, of those of their parts."""
    whole = {}
    for entry in entries:
        there = [found[part.server].get(entry.key) for part in entry.parts]
        if not any(there):
            continue
        states = {}
        for name in rule.keeps:
            # A push on its way may have reached some servers only.
            pieces = [
                torch.zeros(sliced(entry.meta, part).shape, dtype=entry.meta.dtype) if one is None else one[0][name]
                for one, part in zip(there, entry.parts, strict=True)
            ]
            states[name] = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        whole[entry.key] = states, max(one[1] for one in there if one is not None)
    return whole


def cut_states(rule: Optimizer, servers: int) -> list[dict[Key, Any]]:
    """For each server the states of its parts, with memory of their own: a slice is pickled with its whole."""
    pieces: list[dict[Key, Any]] = [{} for _ in range(servers)]
    for key, (states, count) in rule.states().items():
        shape = next((state.shape for state in states.values()), ())
        for part in parts(key, shape, servers):
            pieces[part.server][key] = {name: sliced(state, part).clone() for name, state in states.items()}, count
    return pieces
