"""Where a loader stands, as a few JSON numbers, and whether such numbers fit a loader.

A state names the order and a place in it. Batch size, workers, partition and method of loading are not in it: they may
change at every restore. Costs nothing that grows with the data, except for samplers of the user's without a state,
whose indices are drawn again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from feedline.errors import StateError

STATE_VERSION = 1

LIMIT = 2**63
"""What every number of a state is below: sweeps and places beyond cannot be hashed, counted or reached."""


class ResumePoint(NamedTuple):
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


def to_json(identity: Mapping[str, Any], place: ResumePoint) -> dict[str, Any]:
    """A state in JSON types."""
    state: dict[str, Any] = {"feedline": STATE_VERSION, **identity, "sweep": place.sweep, "sequence": place.start}
    if place.done:
        state["delivered"] = [list(run) for run in place.done]
    if place.memo is not None:
        state["memo"] = place.memo
    return state


def from_json(
    state: Any, identity: Mapping[str, Any], check_memo: Callable[[Any, int], None], length: int | None
) -> ResumePoint:
    """The place that a state names. Every field is looked at here; nothing has changed when one is refused.

    Args:
        state: what was saved.
        identity: of this loader. A ``dataset`` is compared where both name one: states of feedline 0.1 have none, nor
            do datasets that nothing can be said of.
        check_memo: raises KeyError, TypeError or ValueError if it cannot be what a sampler or an iterable dataset said
            at a place.
        length: places of a sweep; None: unknown.

    Raises:
        StateError: it is no state of a loader, is damaged, or does not fit.
    """
    if not isinstance(state, Mapping) or "feedline" not in state:
        raise StateError(f"expected a state of a feedline DataLoader, got {type(state).__name__}")
    current = {"feedline": STATE_VERSION, **identity}
    if "dataset" not in state:
        current.pop("dataset", None)
    differing = [key for key in current if not _equal(state.get(key), current[key])]
    if differing:
        hints = {
            "seed": f"pass seed={int(state['seed'], 16)}" if _is_hex(state.get("seed")) else "pass its seed",
            "shuffle": "give shuffle or weights as they were",
            "items": "load it over the same data; what has grown or shrunk is other data",
            "dataset": "load it over the same data; if it is the same all the same (written to in place, or a Hugging "
            "Face dataset whose fingerprint was drawn at random), leave `dataset` out of the state",
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
        limit = LIMIT if length is None else length + 1  # at the length, a sweep has been delivered but not ended
        sweep, start = whole(state, "sweep"), whole(state, "sequence", limit)
        done = _ranges(state.get("delivered", ()), start, limit)
        memo = state.get("memo")
        check_memo(memo, start)
    except (KeyError, TypeError, ValueError) as error:
        what = f"expected `{error.args[0]}`, got none" if isinstance(error, KeyError) else str(error)
        raise StateError(f"this state is damaged: {what}", hint="load another checkpoint") from error
    return ResumePoint(sweep, start, done, memo)


def no_memo(memo: Any, start: int) -> None:
    """A ``check_memo`` of orders that need none.

    Raises:
        ValueError: there is one.
    """
    if memo is not None:
        raise ValueError(f"expected no `memo` for this order, got {memo!r:.80}")


def whole(fields: Mapping[str, Any], key: str, limit: int = LIMIT) -> int:
    """A field that is an int from 0 to below ``limit``.

    Raises:
        KeyError: there is none.
        TypeError, ValueError: it is something else.
    """
    value = fields[key]
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"expected `{key}` as an int, got {value!r:.80}")
    if not 0 <= value < limit:
        raise ValueError(f"expected 0 <= {key} < {limit}, got {_short(value)}")
    return value


def _ranges(found: Any, start: int, limit: int) -> tuple[tuple[int, int], ...]:
    """``delivered``: ranges [a, b) behind ``start``, in order."""
    if not isinstance(found, (list, tuple)):
        raise TypeError(f"expected `delivered` as a list, got {found!r:.80}")
    ranges, end = [], start
    for run in found:
        if not isinstance(run, (list, tuple)) or len(run) != 2:
            raise TypeError(f"expected `delivered` to hold pairs, got {run!r:.80}")
        a, b = (whole({"delivered": place}, "delivered", limit) for place in run)
        if not end < a < b:
            raise ValueError(f"expected `delivered` to hold ranges behind {end}, in order, got [{a}, {b}]")
        ranges.append((a, b))
        end = b
    return tuple(ranges)


def _equal(saved: Any, current: Any) -> bool:
    """As JSON has it: true is not 1."""
    return isinstance(saved, bool) is isinstance(current, bool) and bool(saved == current)


def _short(value: int) -> str:
    """Python refuses to write very long numbers down."""
    return str(value) if value.bit_length() < 256 else f"a number of {value.bit_length()} bits"


def seed_of(state: Any) -> int | None:
    """The seed in a state; None if there is none to be read."""
    text = state.get("seed") if isinstance(state, Mapping) else None
    return int(text, 16) if isinstance(text, str) and _is_hex(text) else None


def _is_hex(text: Any) -> bool:
    return isinstance(text, str) and len(text) == 16 and all(c in "0123456789abcdef" for c in text)
