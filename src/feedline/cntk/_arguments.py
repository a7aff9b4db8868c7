"""Conversion of a script's data to minibatches of feedline's trainer."""

from __future__ import annotations

from collections.abc import Hashable, ItemsView, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.cntk._feeding import begun, pieces_of
from feedline.cntk.core import Value
from feedline.cntk.device import DeviceDescriptor
from feedline.cntk.io._minibatch import MinibatchData
from feedline.cntk.io._source import MinibatchSource
from feedline.cntk.io._streams import StreamInformation
from feedline.cntk.io._user import UserMinibatchSource, sequences_of
from feedline.data import Value as Packed
from feedline.errors import CompatError
from feedline.networks import Node


class Arguments(Mapping[Hashable, Packed]):
    """A minibatch, passed to models, losses and metrics: `feedline.Value` objects under the script's keys.

    Attributes:
        num_sequences: number of sequences of each value. It is 0 for an empty minibatch, which is false.
        sweep_end: whether it contains the end of a sweep.
        lanes, begins: under truncation, see `feedline.Minibatch`, else None.
        partition: (0, 1), as a script divides its data itself.
    """

    partition = (0, 1)

    def __init__(
        self,
        values: Mapping[Hashable, Packed],
        sweep_end: bool,
        lanes: NDArray[np.int64] | None = None,
        begins: NDArray[np.bool_] | None = None,
    ) -> None:
        self._values, self.sweep_end, self.lanes, self.begins = dict(values), sweep_end, lanes, begins
        self.num_sequences = next((value.num_sequences for value in self._values.values()), 0)

    def __getitem__(self, key: Hashable) -> Packed:
        try:
            return self._values[key]
        except KeyError:
            keys = ", ".join(map(repr, self._values)) or "none"
            raise KeyError(f"expected an argument of {keys}, got {key!r}") from None

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._values)

    def items(self) -> ItemsView[Hashable, Packed]:
        """Return pairs of key and value, faster than the method of `Mapping`."""
        return self._values.items()

    def __len__(self) -> int:
        return len(self._values)


def arguments_of(arguments: Any, criterion: Any, is_sweep_end: bool | None = None) -> Arguments:
    """Convert a script's minibatch.

    Args:
        arguments: mapping from keys to `MinibatchData`, a `Value`, a `feedline.Value`, an array ``(N, *shape)`` or
            SciPy CSR matrix ``(N, size)`` of N sequences of one sample, or of a single sequence for a variable with a
            sequence axis, or a list with one array ``(length, *shape)`` or matrix per sequence. Or only the data, if
            the criterion has one argument. Or a pair of any of these and a list of one bool per sequence: whether it
            begins here, rather than continuing from the last minibatch.
        criterion: criterion, which may have ``arguments``.
        is_sweep_end: whether the minibatch contains the end of a sweep, if ``arguments`` do not have it.

    Raises:
        ValueError: ``is_sweep_end`` with data that already has it, or different numbers of sequences.
        CompatError: not a mapping, for a criterion without ``arguments``.
    """
    arguments, flags = begun(arguments)
    if not isinstance(arguments, Mapping):
        arguments = dict(zip(keys_of(criterion, 1, "pass a dictionary of data by key"), [arguments], strict=True))
    sweep_ends = [data.end_of_sweep for data in arguments.values() if isinstance(data, MinibatchData)]
    if sweep_ends and is_sweep_end is not None:
        raise ValueError(f"expected no is_sweep_end with MinibatchData, which already has it, got {is_sweep_end}")
    values = {key: _value(data) for key, data in arguments.items()}
    packed = {
        # Items of a list are sequences already.
        key: _pack(value, None if isinstance(arguments[key], (list, tuple)) else _node(key, criterion))
        for key, value in values.items()
    }
    counts = [value.num_sequences for value in packed.values()]
    if counts and min(counts) != max(counts):
        raise ValueError(
            f"expected one number of sequences for all arguments, got {dict(zip(packed, counts, strict=True))}"
        )
    if flags is not None and (not counts or counts[0] != len(flags)):
        by_key = dict(zip(packed, counts, strict=True))
        raise ValueError(f"expected a bool for each sequence, got {len(flags)} for {by_key}")
    lanes, begins = pieces_of(values.values(), flags)
    return Arguments(packed, any(sweep_ends) or bool(is_sweep_end), lanes, begins)


def _node(key: Hashable, criterion: Any) -> Node | None:
    """Return the node of a key that is a variable or its name, or None for other keys."""
    node = getattr(key, "node", None)
    if node is None:  # rare: the arguments of a criterion take a walk through its graph
        named = {v.name: v for v in getattr(criterion, "arguments", None) or () if getattr(v, "name", "")}
        node = getattr(named.get(str(key)), "node", None)
    return node if isinstance(node, Node) else None


def keys_of(criterion: Any, count: int, otherwise: str) -> tuple[Hashable, ...]:
    """Return the ``count`` arguments of a criterion.

    Raises:
        CompatError: the criterion has no ``arguments``. The message ends with ``otherwise``.
        ValueError: it has more or fewer arguments.
    """
    keys = getattr(criterion, "arguments", None)
    if keys is None:
        raise CompatError(f"expected a criterion with `arguments`, got one that names none: {otherwise}")
    if len(keys) != count:
        raise ValueError(f"expected data for the {len(keys)} arguments of the criterion, got {count}")
    return tuple(keys)


def read(
    source: MinibatchSource | UserMinibatchSource,
    size: int,
    streams: Mapping[Any, StreamInformation],
    device: DeviceDescriptor | None = None,
    partition: tuple[int, int] = (0, 1),
) -> dict[Hashable, MinibatchData]:
    """Read the next minibatch of any source, by the keys of ``streams``. It is empty at the end, and for size 0."""
    if size == 0:
        return {}
    index, count = partition
    if isinstance(source, MinibatchSource):
        return source.next_minibatch(size, streams, device, count, index)
    minibatch = source.next_minibatch(size, count, index, device)
    return {key: _declared(minibatch[info], info) for key, info in streams.items()} if minibatch else {}


def _declared(data: MinibatchData, info: StreamInformation) -> MinibatchData:
    """Convert data of a user-defined source to sequences of samples of its declared stream."""
    value = Value.of(sequences_of(data.data, info), data.data.device, data.data._starts, data.data.lanes)
    return MinibatchData(value, data.num_sequences, data.num_samples, data.end_of_sweep)


def _value(data: Any) -> Value:
    if isinstance(data, MinibatchData):
        return data.data
    return data if isinstance(data, Value) else Value.over(data)


def _pack(value: Value, node: Node | None) -> Packed:
    """Return rows and offsets. Rows without offsets are a single sequence for a node with a sequence axis."""
    if value.packed is not None:
        return value.packed
    array = value._rectangular()
    if node is not None and len(node.axes) > 1 and array.ndim == len(node.shape) + 1:
        return Packed.from_sequences([array])
    return Packed.from_scipy(array) if hasattr(array, "tocsr") else Packed.from_dense(array)
