"""`MinibatchSourceFromData`: arrays in memory as a source, in their own order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from feedline.cntk._errors import as_cntk
from feedline.cntk.cntk_py import INFINITELY_REPEAT
from feedline.cntk.core import Value
from feedline.cntk.device import DeviceDescriptor
from feedline.cntk.io._counts import SampleCounts
from feedline.cntk.io._minibatch import MinibatchData
from feedline.cntk.io._streams import StreamInformation
from feedline.cntk.io._user import UserMinibatchSource
from feedline.data import Position
from feedline.errors import SchemaError
from feedline.feed.formats.arrays import ArrayDeserializer
from feedline.feed.source import MinibatchSource as Modern

_DTYPES = tuple(np.dtype(t) for t in ("float32", "float64", "float16", "int8", "int16"))


class MinibatchSourceFromData(UserMinibatchSource):
    """Minibatches of data in memory, in order, again and again; none goes beyond a sweep.

    Several workers share each minibatch and count their own part of it.

    Args:
        data_streams: by stream name: an array ``(N, *shape)``, a SciPy CSR matrix ``(N, size)``, a `Value`, or a list
            with one array or matrix a sequence; or a tuple of those and a type, which is not needed.
        max_samples: where it ends; a minibatch is cut there.

    Raises:
        ValueError: no stream, or no data.
        TypeError: data of another kind, or streams of different lengths.
        RuntimeError: an element type that CNTK does not have.

    Attributes:
        feed: the `feedline.MinibatchSource` beneath.
    """

    def __init__(self, data_streams: Mapping[str, Any], max_samples: int = INFINITELY_REPEAT) -> None:
        if not data_streams:
            raise ValueError("expected at least one stream as name=data or name=(data, type), got none")
        data = {name: _data(name, given) for name, given in data_streams.items()}
        if any(_count(given) == 0 for given in data.values()):
            raise ValueError("expected at least one sequence, got no data")
        self._max_samples = max_samples
        try:
            corpus = ArrayDeserializer(data)
        except SchemaError as error:
            raise TypeError(str(error)) from error
        for name, stream in corpus.schema.items():
            if stream.dtype not in _DTYPES:
                raise RuntimeError(
                    f"expected one of {', '.join(t.name for t in _DTYPES)} for stream `{name}`, got "
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
        """The streams delivered."""
        return list(self._infos)

    def next_minibatch(
        self,
        num_samples: int,
        number_of_workers: int = 1,
        worker_rank: int = 0,
        device: DeviceDescriptor | None = None,
    ) -> dict[StreamInformation, MinibatchData]:
        """See `UserMinibatchSource.next_minibatch`; a sequence that alone is longer comes alone."""
        p = self.feed.position
        if p.samples >= self._max_samples:
            return {}
        # Never beyond the sweep: what is left of it is the budget.
        left = (p.sweep + 1) * self.feed.num_samples - p.samples
        with as_cntk():
            minibatch = self.feed.next_minibatch(
                min(num_samples, left, self._max_samples - p.samples), (worker_rank, number_of_workers)
            )
        at_end = minibatch.sweep_end or self.feed.position.samples >= self._max_samples
        return {
            info: MinibatchData(_value(value, device), minibatch.num_sequences, value.num_samples, at_end)
            for info, value in zip(self._infos, minibatch.values(), strict=True)
        }

    def is_infinite(self) -> bool:
        """Whether ``max_samples`` was left out."""
        return self._max_samples == INFINITELY_REPEAT

    def get_checkpoint_state(self) -> dict[str, Any]:
        """``cursor``, the next sequence, and ``total_num_samples`` delivered."""
        p = self.feed.position
        return {"cursor": p.ordinal, "total_num_samples": p.samples}

    def restore_from_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Go to where ``state`` was taken.

        Raises:
            ValueError: a key is missing, or no such place.
        """
        try:
            cursor, samples = int(state["cursor"]), int(state["total_num_samples"])
            self.feed.seek(Position(samples // self.feed.num_samples, cursor, samples))
        except (KeyError, IndexError) as error:
            raise ValueError(f"expected a cursor and total_num_samples of this data, got {dict(state)}") from error


def _data(name: str, given: Any) -> Any:
    data = given[0] if isinstance(given, tuple) else given
    if isinstance(data, Value):
        data = data._held() if data.packed is None else data.packed
    first = data[0] if isinstance(data, list) and data else data
    if not isinstance(first, (np.ndarray, list)) and not hasattr(first, "tocsr") and not hasattr(first, "offsets"):
        raise TypeError(
            f"expected a NumPy array, a SciPy CSR matrix or a list of those for stream `{name}`, got "
            f"{type(first).__name__}"
        )
    return data


def _count(data: Any) -> int:
    return int(data.shape[0]) if hasattr(data, "tocsr") else len(data)


def _value(packed: Any, device: DeviceDescriptor | None) -> Value:
    """Of data without a time axis, an array without one, as CNTK hands it out."""
    if not packed.one_sample_each:
        return Value.of(packed, device)
    return Value.over(packed.to_scipy() if packed.is_sparse else packed.rows, device=device)
