"""Fields of states in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from feedline.errors import shown

_SHOWN = 60


def is_state(content: Any) -> bool:
    """Return whether a dictionary is a state of feedline."""
    return isinstance(content, Mapping) and "feedline" in content and "order" in content


def facts_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kind of object that a state is of, and facts by name.

    Returns:
        ``of``, ``facts``: texts by name, and ``state``: the state's fields that the facts are made of, in JSON types.
    """
    facts = {"place": _place(state)}
    for name, say in _WORDS.items():
        if name in state and state[name] is not None:
            facts[say[0]] = say[1](state[name])
    for name, value in state.items():
        if name not in _WORDS and name not in _PLACE:
            facts[str(name)] = shown(value, _SHOWN)
    numbers = {name: state[name] for name in _PLACE if isinstance(state.get(name), (int, str))}
    return {"of": "MinibatchSource" if "filling" in state else "DataLoader", "facts": facts, "state": numbers}


def _place(state: Mapping[str, Any]) -> str:
    count = state.get("sequences", state.get("items"))
    unit = "batches" if state["order"] == "iterable" else "items" if "items" in state else "sequences"
    place = f"sweep {state.get('sweep')} (from 0), {state.get('sequence')}"
    delivered = f" of {count} {unit} of it" if count is not None else f" {unit} of it"
    samples = f"; {state['samples']} samples in all" if "samples" in state else ""
    labels = f", {state['label_samples']} of labels" if state.get("label_samples") else ""
    window = f"; window {state['window']}" if state.get("window") is not None else ""
    return f"{place}{delivered} delivered{window}{samples}{labels}"


def _seed(value: Any) -> str:
    try:
        return str(int(value, 16))
    except (TypeError, ValueError):
        return shown(value, _SHOWN)


def _shuffle(value: Any) -> str:
    if isinstance(value, Mapping) and len(value) == 1:
        ((unit, size),) = value.items()
        return f"within windows of {size} {unit}"
    return "no" if value is False else "all of a sweep together" if value == "all" else shown(value, _SHOWN)


def _stages(value: Any) -> str:
    try:
        parts = [
            f"from {start} on {' : '.join(map(str, weights))}{' (changed on the way)' if changed else ''}"
            for start, weights, changed in value
        ]
    except (TypeError, ValueError):
        return shown(value, _SHOWN)
    return "; ".join(parts)


def _shares(value: Any) -> str:
    return " : ".join(map(str, value)) if isinstance(value, list) else shown(value, _SHOWN)


def _ranges(value: Any) -> str:
    try:
        return ", ".join(f"{begin} to {end}" for begin, end in value)
    except (TypeError, ValueError):
        return shown(value, _SHOWN)


def _lanes(value: Any) -> str:
    if not isinstance(value, list):
        return shown(value, _SHOWN)
    return f"{len(value)} lanes, each with sequences that are partly delivered" if value else "none in progress"


def _versions(value: Any) -> str:
    try:
        return "; ".join(f"from sweep {sweep} on {count} sequences" for sweep, _, count in value)
    except (TypeError, ValueError):
        return shown(value, _SHOWN)


def _generator(value: Any) -> str:
    return f"state of torch's global generator, {len(str(value)) // 2} bytes"


def _text(value: Any) -> str:
    return shown(value, _SHOWN).strip("'")


_PLACE = ("sweep", "sequence", "sequences", "items", "samples", "label_samples", "window")
# Name of a field, its name in words, and the function that says it.
_WORDS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "order": ("order", _text),
    "seed": ("seed", _seed),
    "shuffle": ("shuffled", _shuffle),
    "filling": ("minibatches filled", _text),
    "stages": ("weights of the mixture", _stages),
    "windows": ("windows of the corpora", _shares),
    "versions": ("data grew", _versions),
    "jumps": ("passed over", _ranges),
    "lanes": ("truncated sequences", _lanes),
    "drawn": ("numbers drawn", _text),
    "global": ("random numbers", _generator),
    "corpus": ("digest of the data", _text),
    "dataset": ("digest of the dataset", _text),
    "schema": ("digest of the streams", _text),
    "fingerprint": ("digest of what was delivered", _text),
    "feedline": ("format version", _text),
}
