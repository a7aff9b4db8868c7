"""User-defined sources and deserializers, and their adapters to feedline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from feedline.cntk._names import absent_members
from feedline.cntk.core import Value
from feedline.cntk.device import DeviceDescriptor
from feedline.cntk.io._minibatch import MinibatchData
from feedline.cntk.io._streams import StreamInformation
from feedline.cntk.variables import Record
from feedline.data import Stream
from feedline.data import Value as Packed
from feedline.errors import SchemaError
from feedline.feed.formats.user import UserDeserializer as ModernDeserializer
from feedline.feed.user_source import UserMinibatch
from feedline.feed.user_source import UserMinibatchSource as ModernSource


@absent_members("cntk.io")
class UserMinibatchSource:
    """Base class of user-defined sources.

    Subclasses define `stream_infos` and `next_minibatch`, and, to be resumable, `get_checkpoint_state` and
    `restore_from_checkpoint`. This constructor calls `stream_infos`, so call it last in yours.

    Attributes:
        streams: `StreamInformation` by name, in a `Record`.
    """

    def __init__(self) -> None:
        self.streams = Record(**{info.m_name: info for info in self.stream_infos()})

    def stream_infos(self) -> list[StreamInformation]:
        """Return the streams delivered."""
        raise NotImplementedError("define stream_infos(): a list of StreamInformation")

    def stream_info(self, name: str) -> StreamInformation:
        """Return the stream of this name.

        Raises:
            RuntimeError: no such stream, or several.
        """
        return stream_named(self.stream_infos(), name)

    def __getitem__(self, name: str) -> StreamInformation:
        return self.stream_info(name)

    def next_minibatch(
        self, num_samples: int, number_of_workers: int, worker_rank: int, device: DeviceDescriptor | None = None
    ) -> Mapping[StreamInformation, MinibatchData]:
        """Return this worker's part of the next minibatch, or ``{}`` at the end.

        Args:
            num_samples: largest number of samples to return.
            number_of_workers, worker_rank: number of workers, and the index of this worker.
            device: device on which data will be used.
        """
        raise NotImplementedError("define next_minibatch(num_samples, number_of_workers, worker_rank, device)")

    def get_checkpoint_state(self) -> dict[str, Any]:
        """Return the state, with strings as keys."""
        return {}

    def restore_from_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Restore a state.

        Raises:
            NotImplementedError: the state is not empty, and the subclass does not define this.
        """
        if state:
            raise NotImplementedError("define restore_from_checkpoint(state) to resume from a state that is not empty")

    def is_infinite(self) -> bool:
        """Return whether the source never ends."""
        return False


@absent_members("cntk.io")
class UserDeserializer:
    """Base class of user-defined deserializers: chunks of sequences, by number.

    Subclasses define `stream_infos`, `num_chunks` and `get_chunk`.
    """

    def stream_infos(self) -> list[StreamInformation]:
        """Return the streams delivered."""
        raise NotImplementedError("define stream_infos(): a list of StreamInformation")

    def num_chunks(self) -> int:
        """Return the number of chunks."""
        raise NotImplementedError("define num_chunks()")

    def get_chunk(self, chunk_id: int) -> Mapping[str, Any]:
        """Return the sequences of a chunk, the same at every call.

        Returns:
            Data by stream name: an array ``(N, *shape)`` or CSR matrix ``(N, size)`` of N sequences of one sample, or a
            list with one array ``(length, *shape)`` or CSR matrix ``(length, size)`` per sequence.
        """
        raise NotImplementedError("define get_chunk(chunk_id): a dictionary by stream name")


class UserCorpus(ModernDeserializer):
    """Adapter of a `UserDeserializer` to a feedline corpus.

    Raises:
        ValueError: no stream or no chunk.
    """

    def __init__(self, deserializer: UserDeserializer) -> None:
        self._deserializer = deserializer
        self.infos = list(deserializer.stream_infos())
        self._chunks = int(deserializer.num_chunks())
        self.name = type(deserializer).__name__
        if not self.infos or self._chunks < 1:
            raise ValueError(
                f"expected at least one stream and one chunk from {self.name}, got {len(self.infos)} and {self._chunks}"
            )

    def streams(self) -> dict[str, Stream]:
        """See `UserDeserializer.stream_infos`."""
        return {info.m_name: info.stream for info in self.infos}

    def num_chunks(self) -> int:
        """See `UserDeserializer.num_chunks`."""
        return self._chunks

    def get_chunk(self, chunk: int) -> Mapping[str, Any]:
        """See `UserDeserializer.get_chunk`."""
        return self._deserializer.get_chunk(chunk)


class UserFeed(ModernSource):
    """Adapter of a `UserMinibatchSource` to a feedline feed, for trainers and sessions.

    Its states are the source's.

    Args:
        source: user-defined source.
        partition: (index, count). For None see `feedline.UserMinibatchSource`.
        device: device passed to ``next_minibatch``.
    """

    def __init__(
        self,
        source: UserMinibatchSource,
        partition: tuple[int, int] | None = None,
        device: DeviceDescriptor | None = None,
    ) -> None:
        self.source, self.partition, self.device = source, partition, device
        self.is_infinite = source.is_infinite()

    def streams(self) -> dict[str, Stream]:
        """Return the streams of the source."""
        return {info.m_name: info.stream for info in self.source.stream_infos()}

    def make_minibatch(
        self, num_samples: int, number_of_workers: int, worker_rank: int, device: Any
    ) -> UserMinibatch | None:
        """Return the result of the source's ``next_minibatch``."""
        minibatch = self.source.next_minibatch(num_samples, number_of_workers, worker_rank, device)
        if not minibatch:
            return None
        streams = {info.m_name: sequences_of(data.data, info) for info, data in minibatch.items()}
        return UserMinibatch(streams, any(data.end_of_sweep for data in minibatch.values()))

    def get_checkpoint_state(self) -> dict[str, Any]:
        """Return the state of the source."""
        return dict(self.source.get_checkpoint_state())

    def restore_from_checkpoint(self, state: dict[str, Any]) -> None:
        """Restore the state of the source."""
        self.source.restore_from_checkpoint(state)


def sequences_of(value: Value, info: StreamInformation) -> Packed:
    """Convert a value to sequences of samples of a declared stream.

    If an array has one axis more than batch and sample together, its second axis is time.

    Raises:
        SchemaError: an array with another shape.
    """
    if value.packed is not None:
        packed = value.packed
        if info.is_sparse and not packed.is_sparse:
            return Packed.from_scipy(packed.to_scipy(), packed.offsets)
        return packed if packed.is_sparse == info.is_sparse else packed.dense()
    array, shape = value._rectangular(), info.sample_shape
    if hasattr(array, "tocsr"):
        sparse = Packed.from_scipy(array)
        return sparse if info.is_sparse else sparse.dense()
    if array.shape[1:] == shape:
        dense: Packed = Packed.from_dense(array)
    elif array.shape[2:] == shape and array.ndim == len(shape) + 2:
        count, length = array.shape[:2]
        offsets = np.arange(count + 1) * length
        dense = Packed.from_dense(array.reshape(count * length, *shape), offsets)
    else:
        raise SchemaError(
            f"expected an array (N, *{shape}) or (N, length, *{shape}) for stream `{info.m_name}`, got {array.shape}"
        )
    return Packed.from_scipy(dense.to_scipy(), dense.offsets) if info.is_sparse else dense


def stream_named(infos: list[StreamInformation], name: str) -> StreamInformation:
    """Return the only stream of this name.

    Raises:
        RuntimeError: no stream, or several.
    """
    matches = [info for info in infos if info.m_name == name]
    if len(matches) != 1:
        names = ", ".join(info.m_name for info in infos)
        raise RuntimeError(f"expected the name of one stream of {names}, got {name!r}")
    return matches[0]
