"""`MinibatchSourceFromData`: arrays in memory as a source, in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from feedline.cntk._errors import as_cntk
from feedline.cntk._names import absent_members
from feedline.cntk.cntk_py import INFINITELY_REPEAT
from feedline.cntk.core import Value
from feedline.cntk.device import DeviceDescriptor
from feedline.cntk.io._counts import SampleCounts
from feedline.cntk.io._minibatch import MinibatchData
from feedline.cntk.io._streams import ELEMENTS, StreamInformation
from feedline.cntk.io._user import UserMinibatchSource
from feedline.data import Position
from feedline.errors import SchemaError
from feedline.feed.formats.arrays import ArrayDeserializer
from feedline.feed.source import MinibatchSource as Modern


@absent_members("cntk.io")
class MinibatchSourceFromData(UserMinibatchSource):
    """Minibatches of data in memory, in order, repeated. No minibatch crosses the end of a sweep.

    Several workers share each minibatch, and each counts its part.

    Args:
        data_streams: data by stream name: an array ``(N, *shape)``, a SciPy CSR matrix ``(N, size)``, a `Value`, a
            list with one array or matrix per sequence, or a tuple of such data and a type, which is ignored.
        max_samples: number of samples after which it ends. The last minibatch is cut there.

    Raises:
        ValueError: no stream, or no data.
        TypeError: data of another type, or streams of different lengths.
        RuntimeError: an element type that CNTK does not have.

    Attributes:
        feed: underlying `feedline.MinibatchSource`.
    """

    def __init__(self, data_streams: Mapping[str, Any], max_samples: int = INFINITELY_REPEAT) -> None:
        if not data_streams:
            raise ValueError("expected at least one stream as name=data or name=(data, type), got none")
        data = {name: _data(name, item) for name, item in data_streams.items()}
        if any(_count(item) == 0 for item in data.values()):
            raise ValueError("expected at least one sequence, got no data")
        self._max_samples = max_samples
        try:
            corpus = ArrayDeserializer(data)
        except SchemaError as error:
            raise TypeError(str(error)) from error
        for name, stream in corpus.schema.items():
            if stream.dtype not in ELEMENTS:
                raise RuntimeError(
                    f"expected one of {', '.join(t.name for t in ELEMENTS)} for stream `{name}`, got "
                    f"{stream.dtype.name}; use .astype(np.float32)"
                )
        self.feed = Modern(corpus, shuffle=False, partition=(0, 1))
        counts = SampleCounts(self.feed)
        self._infos = [
            StreamInformation.of(name, number, stream, counts.of(name))
            for number, (name, stream) in enumerate(corpus.schema.items())
        ]
        super().__init__()

    def stream_infos(self) -> list[StreamInformation]:
        """Return the streams delivered."""
        return list(self._infos)

    def next_minibatch(
        self,
        num_samples: int,
        number_of_workers: int = 1,
        worker_rank: int = 0,
        device: DeviceDescriptor | None = None,
    ) -> dict[StreamInformation, MinibatchData]:
        """See `UserMinibatchSource.next_minibatch`. A sequence longer than the size is returned alone."""
        p = self.feed.position
        if p.samples >= self._max_samples:
            return {}
        # The rest of the sweep limits the size.
        remaining = (p.sweep + 1) * self.feed.num_samples - p.samples
        with as_cntk():
            minibatch = self.feed.next_minibatch(
                min(num_samples, remaining, self._max_samples - p.samples), (worker_rank, number_of_workers)
            )
        at_end = minibatch.sweep_end or self.feed.position.samples >= self._max_samples
        return {
            info: MinibatchData(_value(value, device), minibatch.num_sequences, value.num_samples, at_end)
            for info, value in zip(self._infos, minibatch.values(), strict=True)
        }

    def is_infinite(self) -> bool:
        """Return whether there is no ``max_samples``."""
        return self._max_samples == INFINITELY_REPEAT

    def get_checkpoint_state(self) -> dict[str, Any]:
        """Return ``cursor``, the next sequence, and ``total_num_samples`` delivered."""
        p = self.feed.position
        return {"cursor": p.sequence, "total_num_samples": p.samples}

    def restore_from_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        """Restore a state.

        Raises:
            ValueError: a key is missing, or the position does not exist.
        """
        try:
            cursor, samples = int(checkpoint["cursor"]), int(checkpoint["total_num_samples"])
            self.feed.seek(Position(samples // self.feed.num_samples, cursor, samples))
        except (KeyError, IndexError) as error:
            raise ValueError(f"expected a cursor and total_num_samples of this data, got {dict(checkpoint)}") from error


def _data(name: str, item: Any) -> Any:
    data = item[0] if isinstance(item, tuple) else item
    if isinstance(data, Value):
        data = data._rectangular() if data.packed is None else data.packed
    first = data[0] if isinstance(data, list) and data else data
    if not isinstance(first, (np.ndarray, list)) and not hasattr(first, "tocsr") and not hasattr(first, "offsets"):
        raise TypeError(
            f"expected a NumPy array, a SciPy CSR matrix or a list of them for stream `{name}`, got "
            f"{type(first).__name__}"
        )
    return data


def _count(data: Any) -> int:
    return int(data.shape[0]) if hasattr(data, "tocsr") else len(data)


def _value(packed: Any, device: DeviceDescriptor | None) -> Value:
    """Return a value. Data without a time axis becomes an array without one, as in CNTK."""
    if not packed.one_sample_each:
        return Value.of(packed, device)
    return Value.over(packed.to_scipy() if packed.is_sparse else packed.rows, device=device)
