"""Errors for an object of the wrong kind in place of data or a state, with the call that was probably meant.

Objects are recognised by the names of their classes, so that no library is imported for this.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from feedline.errors import StateError, shown

_FRAMES = {("pandas", "DataFrame"), ("pandas", "Series"), ("polars", "DataFrame"), ("polars", "Series")}
_TABLES = {("pyarrow", "Table"), ("pyarrow", "RecordBatch")}
_SPLITS = {("datasets", "DatasetDict"), ("datasets", "IterableDatasetDict")}
_DATASETS = {
    ("torch", "Dataset"),
    ("torch", "IterableDataset"),
    ("datasets", "Dataset"),
    ("datasets", "IterableDataset"),
}
_LOADERS = {("feedline", "DataLoader"), ("torch", "DataLoader")}
_SOURCES = {("feedline", "MinibatchSource"), ("feedline", "UserMinibatchSource")}

_CONVERT = "convert it once, fl.convert({}, path), and read fl.open_corpus(path)"

# By taker of the data: the data that it expects, and a call with a dictionary of arrays.
_TAKERS = {
    "DataLoader": ("a dataset of items", "DataLoader({columns})"),
    "MinibatchSource": ("a feedline Deserializer", "MinibatchSource(fl.ArrayDeserializer({columns}))"),
    "convert": ("a deserializer, a path or a dataset", "fl.convert(fl.ArrayDeserializer({columns}), path)"),
}


def refuse(data: Any, taker: str) -> None:
    """Raise a TypeError with the correct call if ``data`` is something that ``taker`` cannot take.

    Args:
        data: object that was passed as data.
        taker: "DataLoader", "MinibatchSource" or "convert".
    """
    hint = _hint(data, taker)
    if hint is not None:
        package, name = _package(type(data)), type(data).__name__
        if not isinstance(data, type) and package not in ("builtins", "__main__"):
            name = f"{package}.{name}"
        raise TypeError(f"expected {_TAKERS[taker][0]}, got {name}: {hint}")


def _hint(data: Any, taker: str) -> str | None:
    """Return a correction for ``data``, or None if it may be valid."""
    classes = _class_names(data)
    if isinstance(data, type):
        return f"it is a class; make an object of it: {data.__name__}(...)"
    if isinstance(data, (bytes, bytearray)) and taker == "convert":
        return "a path is a str: os.fsdecode(path)"
    if type(data) is dict and taker == "convert" and any(isinstance(value, list) for value in data.values()):
        return "its columns must be arrays: {name: np.asarray(column) for name, column in columns.items()}"
    if classes & (_FRAMES | _TABLES):
        return _columns_of(data, taker)
    if classes & _SPLITS:
        return f"choose a split, such as splits[{next(iter(data), 'train')!r}]"
    if classes & _SOURCES:
        return {
            "DataLoader": "it is a feed itself: iterate over source.minibatches(size), or pass its corpus: "
            "DataLoader(source.corpus, batch_size)",
            "MinibatchSource": "it is a MinibatchSource already",
            "convert": "pass its corpus: fl.convert(source.corpus, path)",
        }[taker]
    if classes & _LOADERS:
        return {
            "DataLoader": None,
            "MinibatchSource": f"{_CONVERT.format('loader.dataset')}, or iterate over the loader",
            "convert": "it delivers batches; pass its dataset: fl.convert(loader.dataset, path)",
        }[taker]
    if taker != "MinibatchSource":
        return None
    if isinstance(data, (list, tuple)) and all(isinstance(part, (str, os.PathLike)) for part in data):
        if not data:
            return "there is nothing to read"
        return "fl.open_corpus(paths) opens them as one corpus; fl.Join joins corpora by key"
    if isinstance(data, dict) or hasattr(data, "__array__"):
        return "fl.ArrayDeserializer(...) makes one of arrays"
    if classes & _DATASETS or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return f"{_CONVERT.format('dataset')}, or use fl.DataLoader(dataset), which reads it item by item"
    return "see docs/formats"


def _columns_of(frame: Any, taker: str) -> str:
    if {("pandas", "Series"), ("polars", "Series")} & _class_names(frame):
        return f"pass its array: {_TAKERS[taker][1].format(columns='{series.name: series.to_numpy()}')}"
    names = "frame.column_names" if any(package == "pyarrow" for package, _ in _class_names(frame)) else "frame.columns"
    columns = f"{{name: frame[name].to_numpy() for name in {names}}}"
    return f"pass its columns as arrays: {_TAKERS[taker][1].format(columns=columns)}"


def _class_names(data: Any) -> set[tuple[str, str]]:
    """Return the packages and names of the classes that ``data`` is an instance of."""
    return {(_package(kind), kind.__name__) for kind in type(data).__mro__}


def _package(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def expect_state(state: Any, taker: str) -> None:
    """Raise a StateError that names the object if it is no state, or not a state of ``taker``.

    Args:
        state: object that was passed as a state.
        taker: "DataLoader" or "MinibatchSource".
    """
    expected = f"expected a state of a feedline {taker}"
    if not isinstance(state, Mapping) or "feedline" not in state:
        entries = state if isinstance(state, Mapping) else {}
        if "_iterator_finished" in entries:
            raise StateError(
                f"{expected}, got one of torchdata's StatefulDataLoader{_delivered(entries)}: it holds torch's "
                "generators, which do not determine an order here",
                hint="finish this epoch with torchdata's loader, or begin one here",
            )
        inside = (key for key, value in entries.items() if isinstance(value, Mapping) and "feedline" in value)
        raise StateError(
            f"expected a state of a feedline {'source' if taker == 'MinibatchSource' else taker}, got "
            f"{type(state).__name__} {shown(state, 80)}",
            hint=next((f"[{key!r}] looks like one" for key in inside), None),
        )
    owner = "MinibatchSource" if "fingerprint" in state or "filling" in state else "DataLoader"
    if "sequence" in state and owner != taker:
        raise StateError(f"{expected}, got one of a {owner}", hint=f"load it into a {owner} over the same data")


def expect_same(
    state: Mapping[str, Any], current: Mapping[str, Any], what: str, hint: Callable[[list[str]], str]
) -> None:
    """Raise a StateError with the message ``what`` if fields of a state are not the current ones.

    Args:
        state: the state.
        current: the fields that have to be the same, as JSON compares them: true is not 1.
        what: message of the error.
        hint: function that returns a remedy, from the names of the fields that differ.
    """
    differing = []
    for key, value in current.items():
        saved = state.get(key)
        if isinstance(saved, bool) is not isinstance(value, bool) or saved != value:
            differing.append(key)
    if differing:
        raise StateError(
            what,
            saved={key: state.get(key) for key in differing},
            current={key: current[key] for key in differing},
            hint=hint(differing),
        )


def damage_error(error: Exception) -> StateError:
    """Return the error for a state in which a field is missing, a KeyError, or invalid."""
    what = f"expected `{error.args[0]}`, got none" if isinstance(error, KeyError) else str(error)
    return StateError(f"this state is damaged: {what}", hint="load another checkpoint")


def _delivered(state: Mapping[str, Any]) -> str:
    """Return the number of batches delivered up to a state of torchdata, as a text, if the state has it."""
    inner = state.get("_snapshot")
    main = inner.get("_main_snapshot") if isinstance(inner, Mapping) else state
    count = main.get("_sampler_iter_yielded") if isinstance(main, Mapping) else None
    steps = state.get("_steps_since_snapshot", 0)
    if type(count) is not int or type(steps) is not int:
        return ""
    return f" after {count + steps} batches"
