"""Alike operations: operations of the same kind and use, but of different widths, as in the blocks of an Inception.

Operations are alike if they differ only in numbers of filters or units, the kind of an activation or pooling, the rate
of a dropout, and consequently in one axis of each tensor. Resolutions are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from feedline.graph.graph import Graph, Operation, Setting, Shape, TensorType

_MAY_DIFFER = ("units", "kind", "rate")


def are_alike(graph: Graph, a: Operation, b: Operation) -> bool:
    """Return whether two operations of a graph are alike."""
    return _properties(graph, a) == _properties(graph, b) and all(map(_shapes_alike, a.outputs, b.outputs))


def combine(operations: Sequence[Operation]) -> Operation:
    """Return the first of alike operations, with the types and settings of all."""
    first = operations[0]
    if all(o.outputs == first.outputs and o.settings == first.settings for o in operations):
        return first
    outputs = tuple(map(_combine_types, zip(*(o.outputs for o in operations), strict=True)))
    settings = tuple(map(_combine_settings, zip(*(o.settings for o in operations), strict=True)))
    return replace(first, outputs=outputs, settings=settings)


def _properties(graph: Graph, o: Operation) -> tuple[object, ...]:
    """Return the properties that alike operations share."""
    members = [(kind, _fixed(settings)) for kind, settings in o.members]
    weights = [(p.trains, _rank(p.type)) for p in (graph.parameters[name] for name in o.parameters)]
    outputs = [(t.dtype, _rank(t)) for t in o.outputs]
    return (o.kind, o.role, o.whole, o.inside, _fixed(o.settings), members, weights, outputs)


def _fixed(settings: Sequence[Setting]) -> list[Setting | str]:
    return [setting.name if setting.name in _MAY_DIFFER else setting for setting in settings]


def _rank(type_: TensorType) -> int | None:
    return None if type_.shape is None else len(type_.shape)


def _shapes_alike(a: TensorType, b: TensorType) -> bool:
    return sum(n != m for n, m in zip(a.shape or (), b.shape or (), strict=True)) <= 1


def _combine_types(types: Sequence[TensorType]) -> TensorType:
    first = types[0]
    if first.shape is None:
        return first
    shape: Shape = tuple(map(_combine_lengths, zip(*(t.shape or () for t in types), strict=True)))
    return replace(first, shape=shape)


def _combine_lengths(lengths: Sequence[int | str]) -> int | str:
    numbers = [n for n in lengths if isinstance(n, int)]
    if len(set(lengths)) == 1:
        return lengths[0]
    return f"{min(numbers)}…{max(numbers)}" if len(numbers) == len(lengths) else " or ".join(map(str, lengths))


def _combine_settings(settings: Sequence[Setting]) -> Setting:
    first, values = settings[0], list(dict.fromkeys(setting.value for setting in settings))
    if len(values) == 1:
        return first
    try:
        low, high = min(values, key=float), max(values, key=float)
    except ValueError:
        words = list(dict.fromkeys(setting.words or setting.value for setting in settings))
        return Setting(first.name, " or ".join(values), " or ".join(words))
    largest = next(setting for setting in settings if setting.value == high)
    span = f"{low}…{high}"
    return Setting(first.name, span, (largest.words or largest.value).replace(high, span))
