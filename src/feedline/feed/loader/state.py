"""The state of a loader: a few numbers in JSON types, and the checks that it fits a loader.

A state names the order and a place in it. It does not hold batch size, number of workers, partition or kind of workers,
which may change whenever it is loaded. Its cost does not depend on the data, except that the indices of a user's
sampler without a state are drawn again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from feedline.feed.argument_errors import damage_error, expect_same
from feedline.feed.loader.collate import torch_side

STATE_VERSION = 1

LIMIT = 2**63
"""Exclusive upper bound of every number in a state: sweeps and places beyond cannot be hashed, counted or reached."""


class ResumePoint(NamedTuple):
    """Where to continue.

    Attributes:
        sweep: number of the sweep.
        start: place in it, counted in items, or in batches for a batch sampler or an iterable dataset.
        done: ranges of places after ``start`` that were delivered out of turn (``in_order=False``).
        memo: state of a user's sampler or an iterable dataset there.
    """

    sweep: int
    start: int = 0
    done: tuple[tuple[int, int], ...] = ()
    memo: Any = None


def to_json(identity: Mapping[str, Any], place: ResumePoint) -> dict[str, Any]:
    """Return a state in JSON types."""
    state: dict[str, Any] = {"feedline": STATE_VERSION, **identity, "sweep": place.sweep, "sequence": place.start}
    if place.done:
        state["delivered"] = [list(run) for run in place.done]
    if place.memo is not None:
        state["memo"] = place.memo
    return state


def from_json(
    state: Any,
    identity: Mapping[str, Any],
    check_memo: Callable[[Any, int], None],
    length: Callable[[int], int | None],
) -> ResumePoint:
    """Return the place that a state names. All fields are checked before anything changes.

    Args:
        state: the saved state.
        identity: identity of this loader. ``dataset`` is compared only if both have it: datasets that cannot be
            identified have none.
        check_memo: function that raises KeyError, TypeError or ValueError if a memo is invalid at a place.
        length: function that returns the places in a sweep, or None if they are unknown.

    Raises:
        StateError: ``state`` is damaged, or does not fit.
    """
    current = {"feedline": STATE_VERSION, **identity}
    if "dataset" not in state:
        current.pop("dataset", None)
    expect_same(
        state, current, "this state was taken from another order or other data", partial(_to_continue, state, current)
    )
    try:
        sweep = whole(state, "sweep")
        places = length(sweep)
        limit = LIMIT if places is None else places + 1  # start == places: all delivered, but the sweep has not ended
        start = whole(state, "sequence", limit)
        done = _ranges(state.get("delivered", ()), start, limit)
        memo = state.get("memo")
        check_memo(memo, start)
    except (KeyError, TypeError, ValueError) as error:
        raise damage_error(error) from error
    return ResumePoint(sweep, start, done, memo)


def _to_continue(state: Mapping[str, Any], current: Mapping[str, Any], differing: list[str]) -> str:
    """Return how to create a loader that fits, as far as the state shows that."""
    items = state.get("items")
    grown = type(items) is int and 0 < items < current.get("items", 0)
    hints = {
        "seed": f"pass seed={int(state['seed'], 16)}" if is_hex(state.get("seed")) else "pass its seed",
        "shuffle": "pass the same shuffle or fl.Weighted",
        "items": "load it over the same data, with as many items"
        + (f"; torch.utils.data.Subset(dataset, range({items})) ends the sweep over its first ones" if grown else ""),
        "dataset": "load it over the same data; if it is the same nevertheless (modified in place, or a Hugging "
        "Face dataset whose fingerprint was drawn at random), remove `dataset` from the state",
        "order": "pass the same kind of dataset and sampler",
        "corpus": "open the same files with the same settings; new ones come behind them. Rows that were replaced or "
        "removed do not fit: restore them, or begin a new run",
        "workers": "an IterableDataset is split by the number of workers: pass the same num_workers",
    }
    return "to continue: " + "; ".join(hints.get(key, f"pass the same {key}") for key in differing)


def whole(fields: Mapping[str, Any], key: str, limit: int = LIMIT) -> int:
    """Return a field that is an int from 0 to below ``limit``.

    Raises:
        KeyError: the field is missing.
        TypeError, ValueError: the field is something else.
    """
    value = fields[key]
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"expected `{key}` as an int, got {value!r:.80}")
    if not 0 <= value < limit:
        raise ValueError(f"expected 0 <= {key} < {limit}, got {_short(value)}")
    return value


def _ranges(delivered: Any, start: int, limit: int) -> tuple[tuple[int, int], ...]:
    """Check and return ``delivered``: ranges [a, b) after ``start``, in ascending order."""
    if not isinstance(delivered, (list, tuple)):
        raise TypeError(f"expected `delivered` as a list, got {delivered!r:.80}")
    ranges, end = [], start
    for run in delivered:
        if not isinstance(run, (list, tuple)) or len(run) != 2:
            raise TypeError(f"expected `delivered` to hold pairs, got {run!r:.80}")
        a, b = (whole({"delivered": place}, "delivered", limit) for place in run)
        if not end < a < b:
            raise ValueError(f"expected `delivered` to hold ascending ranges after {end}, got [{a}, {b}]")
        ranges.append((a, b))
        end = b
    return tuple(ranges)


def _short(value: int) -> str:
    """Format an int. Python refuses to print very long ones."""
    return str(value) if value.bit_length() < 256 else f"a number of {value.bit_length()} bits"


def seed_to_json(seed: int | None, seed_sweep: int | None) -> dict[str, Any]:
    """Return a seed, and the sweep that it was drawn for, in JSON types. None if the seed has yet to be drawn, or holds
    for all sweeps."""
    text = None if seed is None else f"{seed:016x}"
    return {"seed": text} if seed is None or seed_sweep is None else {"seed": text, "drawn": seed_sweep}


def seed_from_json(state: Mapping[str, Any], sweep: int) -> tuple[int | None, int | None, dict[str, str]]:
    """Return the seed in a state of a sweep, the sweep that it was drawn for, and the states of generators that the
    next seed follows from.

    Raises:
        StateError: one of them is damaged.
    """
    try:
        text, torch = state["seed"], torch_side()
        if text is not None and not is_hex(text):
            raise TypeError(f"expected `seed` as 16 hex digits, got {text!r:.80}")
        seed_sweep = whole(state, "drawn", sweep + 1) if "drawn" in state else None
        generators = {name: state[name] for name in ("generator", "global") if state.get(name) is not None}
        if torch is not None:
            for saved in generators.values():
                torch.check_generator_state(saved)
    except (KeyError, TypeError, ValueError) as error:
        raise damage_error(error) from error
    return None if text is None else int(text, 16), seed_sweep, generators


def is_hex(text: Any) -> bool:
    """Return whether a value is a seed as states write it."""
    return isinstance(text, str) and len(text) == 16 and all(c in "0123456789abcdef" for c in text)
