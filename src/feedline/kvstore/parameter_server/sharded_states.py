"""Conversion of optimizer states between the parts on servers and whole arrays.

So files of states are the same for every type of store. Costs: a copy of all states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from feedline.errors import StoreError
from feedline.kvstore.base import Key
from feedline.kvstore.optimizers import MASTER, Optimizer
from feedline.kvstore.parameter_server.placement import RowRange, parts
from feedline.kvstore.parameter_server.push_encoder import ShardedKey
from feedline.kvstore.parameter_server.wire_format import slice_rows


def join_states(
    entries: Iterable[ShardedKey], answers: Sequence[tuple[str, Mapping[Key, Any]]], rule: Optimizer
) -> dict[Key, Any]:
    """Gather the states of whole arrays from the states of their parts.

    Args:
        entries: keys of the arrays.
        answers: name of each server, and the states of its parts.
        rule: optimizer that keeps the states.

    Raises:
        StoreError: the states of a server do not fit its parts.
    """
    gathered = {}
    for entry in entries:
        reports = [(part, *answers[part.server]) for part in entry.parts]
        pieces = [_check_report(states.get(entry.key), entry, part, rule, name) for part, name, states in reports]
        if not any(pieces):
            continue
        states = {}
        wide = [piece is not None and MASTER in piece[0] for piece in pieces]
        dtype = torch.float32 if any(wide) else entry.meta.dtype
        for name in (*rule.keeps, MASTER) if all(wide) else rule.keeps:
            # A push in flight may have reached only some servers.
            parts_of = [
                torch.zeros(slice_rows(entry.meta, part).shape, dtype=dtype) if piece is None else piece[0][name]
                for piece, part in zip(pieces, entry.parts, strict=True)
            ]
            states[name] = parts_of[0] if len(parts_of) == 1 else torch.cat(parts_of)
        gathered[entry.key] = states, max(piece[1] for piece in pieces if piece is not None)
    return gathered


def _check_report(report: Any, entry: ShardedKey, part: RowRange, rule: Optimizer, server: str) -> Any:
    """Return states and count of a part as reported by a server, or None, after checking that they fit the part."""
    if report is None:
        return None
    states, count = report
    shape = slice_rows(entry.meta, part).shape
    dtype = torch.float32 if MASTER in states else entry.meta.dtype
    if (
        {*states} - {MASTER} != {*rule.keeps}
        or any(state.shape != shape or state.dtype is not dtype for state in states.values())
        or type(count) is not int
    ):
        got = {name: (tuple(state.shape), state.dtype) for name, state in states.items()}
        raise StoreError(
            f"expected {', '.join(rule.keeps) or 'no states'} of shape {tuple(shape)} and {dtype} for rows "
            f"{part.start} to {part.stop} of key {entry.key!r} from {server}, got {got} after {count!r} updates"
        )
    return report


def split_states(rule: Optimizer, servers: int) -> list[dict[Key, Any]]:
    """Split states by server, cloned, as a pickled slice would include the whole tensor."""
    pieces: list[dict[Key, Any]] = [{} for _ in range(servers)]
    for key, (states, count) in rule.states().items():
        shape = next((state.shape for state in states.values()), ())
        for part in parts(key, shape, servers):
            pieces[part.server][key] = {name: slice_rows(state, part).clone() for name, state in states.items()}, count
    return pieces
