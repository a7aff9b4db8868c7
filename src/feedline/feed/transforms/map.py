"""User-defined functions on sequences, which run in Python, once per sequence, when a minibatch is made."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any

from feedline.data import Schema, Stream, Value
from feedline.errors import SchemaError
from feedline.feed.transforms.transform import DrawKeys, Transform, Transformed
from feedline.feed.user_values import convert_value

_SLOW_S = 100e-6  # seconds for a sequence, from which sequences are timed one by one: that takes half a microsecond


class Map(Transform):
    """A function applied to each sequence.

    Args:
        function: ``function(sequence)`` or, to draw random numbers, ``function(sequence, rng)``. ``sequence`` maps
            stream names to arrays ``(length, *shape)`` (sparse streams: a sparse `Value` of one sequence), and so does
            the result. Streams left out are unchanged.
        streams: declarations of streams that the function adds, or whose shape or dtype it changes.
    """

    def __init__(self, function: Callable[..., Mapping[str, Any]], **streams: Stream) -> None:
        if not callable(function):
            raise TypeError(f"expected a function of a sequence, got {function!r:.80}")
        self.function, self.streams = function, streams
        self._times_sequences = False
        try:
            parameters = [
                p
                for p in inspect.signature(function).parameters.values()
                if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
            ]
            self.random = len(parameters) > 1
        except (TypeError, ValueError):  # builtins without a signature take the sequence alone
            self.random = False

    @property
    def name(self) -> str:
        """Name in errors."""
        return f"the transform {getattr(self.function, '__qualname__', repr(self.function))}"

    def schema(self, before: Schema) -> Schema:
        """Return the schema after this transform."""
        return Schema({**before, **self.streams})

    def run_all(self, before: Schema, values: dict[str, Value], keys: DrawKeys) -> Transformed:
        """See `Transform.run_all`."""
        began = time.perf_counter()
        after, count = self.schema(before), len(keys.ordinals)
        if count == 0:
            changed = self.streams.keys() | (after.keys() - values.keys())
            return Transformed({name: Value.empty(after[name]) if name in changed else values[name] for name in after})
        columns = {name: value.sequences() for name, value in values.items()}
        out: dict[str, list[Any]] = {}
        timed, last, slowest = self._times_sequences, time.perf_counter(), (0.0, 0)
        for i in range(count):
            sequence = {name: column[i] for name, column in columns.items()}
            for name, data in self._run(sequence, keys, i).items():
                out.setdefault(name, []).append(data)
            if timed:
                now = time.perf_counter()
                slowest, last = max(slowest, (now - last, i)), now
        results = dict(values)
        for name, sequences in out.items():
            if name not in after:
                raise SchemaError(
                    f"expected streams {', '.join(after)} from {self.name}, got `{name}`; declare it: "
                    f"fl.Map(function, {name}=fl.Stream(shape=...))"
                )
            if len(sequences) != count:
                raise SchemaError(
                    f"expected stream `{name}` for all {count} sequences from {self.name}, got it for {len(sequences)}"
                )
            results[name] = _join(name, after[name], sequences, self.name)
        missing = [name for name in after if name not in results]
        if missing:
            raise SchemaError(f"expected stream `{missing[0]}` from {self.name}, as it declares, got none")
        seconds = time.perf_counter() - began
        self._times_sequences = seconds >= _SLOW_S * count
        return Transformed({name: results[name] for name in after}, seconds=seconds, slowest=slowest if timed else None)

    def _run(self, sequence: dict[str, Any], keys: DrawKeys, i: int) -> Mapping[str, Any]:
        try:
            result = self.function(sequence, keys.generator(i)) if self.random else self.function(sequence)
        except Exception as error:
            error.add_note(f"raised by {self.name} for sequence {keys.ordinals[i]} in sweep {keys.sweeps[i]}")
            raise
        if not isinstance(result, Mapping):
            raise SchemaError(f"expected a mapping from stream name to data from {self.name}, got {result!r:.60}")
        return result


def _join(name: str, stream: Stream, sequences: list[Any], where: str) -> Value:
    if stream.sparse:
        sequences = [s.to_scipy() if isinstance(s, Value) else s for s in sequences]
    return convert_value(name, stream, sequences, where)
