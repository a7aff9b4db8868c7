"""Minibatches of any source, by a script's keys."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from feedline.cntk.core import Value
from feedline.cntk.device import DeviceDescriptor
from feedline.cntk.io._minibatch import MinibatchData
from feedline.cntk.io._source import MinibatchSource
from feedline.cntk.io._streams import StreamInformation
from feedline.cntk.io._user import UserMinibatchSource, sequences_of


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
