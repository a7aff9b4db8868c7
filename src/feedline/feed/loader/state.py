"""Where a loader stands, as a few JSON numbers, and whether such numbers fit a loader.

A state names the order and a place in it. Batch size, workers, partition and method of loading are not in it: they may
change at every restore. Costs nothing that grows with the data, except for samplers of the user's without a state,
whose indices are drawn again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from feedline.errors import StateError

STATE_VERSION = 1


class Place(NamedTuple):
    """What comes next.

    Attributes:
        sweep: which sweep.
        start: place in it: items for an order of ours and for a sampler, batches for a batch sampler.
        done: places behind ``start`` that were delivered before their turn (``in_order=False``).
        memo: what a sampler or an iterable dataset says of itself there.
    """

    sweep: int
    start: int = 0
    done: tuple[tuple[int, int], ...] = ()
    memo: Any = None


def to_json(identity: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """A state in JSON types."""
    state: dict[str, Any] = {"feedline": STATE_VERSION, **identity, "sweep": place.sweep, "sequence": place.start}
    if place.done:
        state["delivered"] = [list(run) for run in place.done]
    if place.memo is not None:
        state["memo"] = place.memo
    return state


def from_json(state: Any, identity: Mapping[str, Any]) -> Place:
    """The place that a state names.

    Raises:
        StateError: it is no state of a loader, is damaged, or does not fit.
    """
    if not isinstance(state, Mapping) or "feedline" not in state:
        raise StateError(f"expected a state of a feedline DataLoader, got {type(state).__name__}")
    current = {"feedline": STATE_VERSION, **identity}
    differing = [key for key in current if state.get(key) != current[key]]
    if differing:
        hints = {
            "seed": f"pass seed={int(str(state.get('seed')), 16)}" if _is_hex(state.get("seed")) else "pass its seed",
            "shuffle": "give shuffle or weights as they were",
            "items": "load it over the same data; what has grown or shrunk is other data",
            "order": "give the dataset, sampler and weights as they were",
            "workers": "an IterableDataset is shared out by number of workers: give num_workers as it was",
        }
        raise StateError(
            "this state was taken from another order or other data",
            saved={key: state.get(key) for key in differing},
            current={key: current[key] for key in differing},
            hint="to go on: " + "; ".join(hints.get(key, f"give {key} as it was") for key in differing),
        )
    try:
        sweep, start = (_integer(state, key) for key in ("sweep", "sequence"))
        done = tuple((int(a), int(b)) for a, b in state.get("delivered", ()))
        items = identity.get("items")
        if items is not None and start and not start < items:
            raise ValueError(f"expected 0 <= sequence < {items}, got {start}")
        if any(not start <= a < b for a, b in done):
            raise ValueError(f"expected ranges behind {start}, got {done}")
    except (KeyError, TypeError, ValueError) as error:
        what = f"expected `{error.args[0]}`, got none" if isinstance(error, KeyError) else str(error)
        raise StateError(f"this state is damaged: {what}", hint="load another checkpoint") from error
    return Place(sweep, start, done, state.get("memo"))


def seed_of(state: Any) -> int | None:
    """The seed in a state; None if there is none to be read."""
    text = state.get("seed") if isinstance(state, Mapping) else None
    return int(str(text), 16) if _is_hex(text) else None


def _is_hex(text: Any) -> bool:
    return isinstance(text, str) and len(text) == 16 and all(c in "0123456789abcdef" for c in text)


def _integer(state: Mapping[str, Any], key: str) -> int:
    value = state[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"expected `{key}` as an int of at least 0, got {value!r}")
    return value
