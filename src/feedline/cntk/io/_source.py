"""`MinibatchSource` with CNTK's arguments and results, over `feedline.MinibatchSource`."""

from __future__ import annotations

import operator
import os
from collections.abc import Hashable, Mapping
from operator import attrgetter
from typing import Any

from feedline.cntk import cntk_py
from feedline.cntk._errors import CntkStateError, as_cntk
from feedline.cntk._names import absent_members
from feedline.cntk.cntk_py import FULL_DATA_SWEEP, INFINITELY_REPEAT, MinibatchSourceConfig
from feedline.cntk.core import Value
from feedline.cntk.device import DeviceDescriptor
from feedline.cntk.io._counts import SampleCounts
from feedline.cntk.io._deserializers import corpora_of
from feedline.cntk.io._images import pictures_of
from feedline.cntk.io._minibatch import MinibatchData
from feedline.cntk.io._pictures import Pictures
from feedline.cntk.io._streams import StreamInformation
from feedline.cntk.io._user import UserCorpus, UserDeserializer, stream_named
from feedline.cntk.logging import TraceLevel
from feedline.cntk.variables import Record
from feedline.data import Minibatch, Position
from feedline.errors import CompatError
from feedline.feed.arguments import Quarantine
from feedline.feed.composed.frames import Frames
from feedline.feed.composed.join import Join
from feedline.feed.formats.cntk.htk import HTKFeatureDeserializer
from feedline.feed.protocol import Broadcast, Deserializer, is_sized
from feedline.feed.source import MinibatchSource as Modern
from feedline.feed.timeline import Window

_POSITION = "minibatchSourcePosition"
_EXACT = "feedline"  # in addition to CNTK's keys, where they do not suffice
_LARGEST = 2**31
_UNBOUNDED = 1 << 62


@absent_members("cntk.io")
class MinibatchSource:
    """Minibatches from deserializers, in CNTK 2.7's order and filling.

    Args:
        deserializers: deserializer, or a list of them to join by sequence key. A `UserDeserializer` must be alone.
        max_samples, max_sweeps: limits, counted from the start, not from a restore. At most one may be set.
        randomization_window_in_chunks, randomization_window_in_samples: size of the window. At most one may be set.
        randomization_seed: seed of the first sweep. Each sweep adds 1.
        trace_level: accepted, but nothing is printed.
        multithreaded_deserializer: accepted, but chunks are always read in background threads.
        frame_mode: whether every sequence has one sample.
        truncation_length: samples per piece for truncated backpropagation. 0: no truncation.
        randomize: whether to shuffle.
        max_errors: number of errors that text readers tolerate, unless their ``maxErrors`` is set.

    Raises:
        ValueError: no deserializer, or a `UserDeserializer` with others.
        RuntimeError: contradictory settings, streams of one name, a missing file, or a file that is not CTF.
        CompatError: a setting without an equivalent in feedline.

    Attributes:
        feed: underlying `feedline.MinibatchSource`.
    """

    def __init__(
        self,
        deserializers: Any,
        max_samples: int = INFINITELY_REPEAT,
        max_sweeps: int = INFINITELY_REPEAT,
        randomization_window_in_chunks: int = cntk_py.WINDOW_IN_CHUNKS,
        randomization_window_in_samples: int = 0,
        randomization_seed: int = 0,
        trace_level: int | TraceLevel = TraceLevel.Warning,
        multithreaded_deserializer: bool | None = None,
        frame_mode: bool = False,
        truncation_length: int = 0,
        randomize: bool = True,
        max_errors: int = 0,
    ) -> None:
        deserializers = list(deserializers) if isinstance(deserializers, (list, tuple)) else [deserializers]
        config = MinibatchSourceConfig(deserializers, randomize)
        config.max_samples, config.max_sweeps = max_samples, max_sweeps
        if randomize:
            config.randomization_window_in_chunks = randomization_window_in_chunks
            config.randomization_window_in_samples = randomization_window_in_samples
        config.randomization_seed, config.trace_level = randomization_seed, int(trace_level)
        config.is_frame_mode_enabled, config.truncation_length = frame_mode, truncation_length
        if multithreaded_deserializer is not None:
            config.is_multithreaded.set(multithreaded_deserializer)
        config.check()
        if len(deserializers) > 1 and any(isinstance(d, UserDeserializer) for d in deserializers):
            raise ValueError("expected a UserDeserializer as the only one, got several: it has no keys to join by")
        self._config = config
        with as_cntk():
            self.feed, self._pictures = _feed(config, max_errors)
        counts = SampleCounts(self.feed)
        if isinstance(self.feed.corpus, UserCorpus):
            self._infos = self.feed.corpus.infos
            for info in self._infos:
                info._count = counts.of(info.m_name)
        else:
            self._infos = [
                StreamInformation.of(name, number, stream, counts.of(name))
                for number, (name, stream) in enumerate(self.feed.schema.items())
            ]
        self._streams = Record(**{info.m_name: info for info in self._infos})

    # ---- streams ----------------------------------------------------------------------------------

    def stream_infos(self) -> list[StreamInformation]:
        """Return the streams delivered."""
        return list(self._infos)

    streams = property(attrgetter("_streams"), doc="Streams delivered, by name.")

    def stream_info(self, name: str) -> StreamInformation:
        """Return the stream of this name.

        Raises:
            RuntimeError: no such stream.
        """
        return stream_named(self._infos, name)

    def __getitem__(self, name: str) -> StreamInformation:
        return self.stream_info(name)

    # ---- minibatches ------------------------------------------------------------------------------

    def next_minibatch(
        self,
        minibatch_size_in_samples: int,
        input_map: Mapping[Any, StreamInformation] | None = None,
        device: DeviceDescriptor | None = None,
        num_data_partitions: int | None = None,
        partition_index: int | None = None,
    ) -> dict[Hashable, MinibatchData]:
        """Return the next minibatch, or this worker's part of it.

        Args:
            minibatch_size_in_samples: size over all workers: as many whole sequences as fit, or a single longer one.
            input_map: mapping from keys of the result to streams. None means that the streams are the keys.
            device: device on which data will be used.
            num_data_partitions: number of workers. None means 1.
            partition_index: index of this worker. None means 0.

        Returns:
            `MinibatchData` by key, or ``{}`` at the end, and where this worker has no part.

        Raises:
            ValueError: a size of 0, or fewer lanes than workers under truncation.
            RuntimeError: the data is damaged, a size above 2**31 - 1, or a `UserDeserializer` raised (the cause).
            KeyError: a stream in ``input_map`` that this source does not have.
        """
        minibatch = self._next(minibatch_size_in_samples, (partition_index or 0, num_data_partitions or 1))
        if not minibatch or minibatch.num_sequences == 0:
            return {}
        sequences, sweep_end = minibatch.num_sequences, minibatch.sweep_end
        begins, lanes = minibatch.begins, minibatch.lanes
        data: dict[Hashable, MinibatchData] = {}
        for info, packed in zip(self._infos, minibatch.values(), strict=True):
            value = Value.of(packed, device, begins, lanes, info.sample_shape if info.is_sparse else None)
            data[info] = MinibatchData(value, sequences, packed.num_samples, sweep_end)
        return {key: data[info] for key, info in input_map.items()} if input_map else data

    def _next(self, size: int, partition: tuple[int, int]) -> Minibatch:
        samples = operator.index(size)
        if samples < 1:
            raise ValueError(f"expected a minibatch size of at least 1 sample, got {samples}")
        if samples >= _LARGEST and (not self._config.randomizes or self.is_infinite()):
            raise RuntimeError(
                f"expected a minibatch size below 2**31, got {samples}; for one pass set max_sweeps=1, and read until "
                "the minibatch is empty"
            )
        with as_cntk():
            minibatch = self.feed.next_minibatch(min(samples, _UNBOUNDED), partition=partition)
            if minibatch and minibatch.num_sequences == 0:
                # The sweep ended, and the next sequence did not fit. The second read returns it. CNTK returns an empty
                # minibatch there, which looks like the end. Empty twice: the worker has no part in a whole sweep.
                crossed = minibatch.sweep_end
                minibatch = self.feed.next_minibatch(min(samples, _UNBOUNDED), partition=partition)
                minibatch.sweep_end = minibatch.sweep_end or crossed
        return minibatch

    def is_infinite(self) -> bool:
        """Return whether there is no limit."""
        return self.feed.is_infinite

    def reset(self) -> None:
        """Move to the start of the next sweep, unless at the start of one.

        Sequences that were partly delivered under truncation are dropped.
        """
        p = self.feed.position
        begins = p.sequence == 0 and not p.window
        if begins and not self._config.truncation_length:
            return
        with as_cntk():
            self.feed.seek(p if begins else self._next_sweep(p))

    def _next_sweep(self, p: Position) -> Position:
        if p.window is not None:
            # Counting skipped samples would require reading them, so only delivered samples count.
            return Position(p.sweep + 1, 0, p.samples, p.label_samples, 0)
        return Position(p.sweep + 1, 0, (p.sweep + 1) * self.feed.num_samples, p.label_samples)

    # ---- checkpoints ------------------------------------------------------------------------------

    def get_checkpoint_state(self) -> dict[str, Any]:
        """Return the position under CNTK's keys, independent of read-ahead.

        ``minibatchSourcePosition`` is the number of samples since the start, including the samples of other workers.
        A `UserDeserializer` has chunk, sequence and sweep instead. Under truncation there is also ``feedline``, with
        the sequences that were partly delivered.
        """
        p = self.feed.position
        state: dict[str, Any] = _user_state(p, self._config) if self._is_user else {_POSITION: p.samples}
        if self._config.truncation_length:
            state[_EXACT] = self.feed.state_dict()
        return state

    def restore_from_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        """Restore a position. Reads no data, except one window of a `UserDeserializer`.

        A position inside a sequence is rounded up to the next sequence.

        Raises:
            ValueError: a key is missing, or the state does not fit.
        """
        with as_cntk():
            if _EXACT in checkpoint and self._config.truncation_length:
                self.feed.load_state_dict(checkpoint[_EXACT])
                return
            try:
                if self._is_user:
                    self.feed.seek(_user_position(checkpoint, self._config))
                else:
                    self.feed.seek(samples=operator.index(_field(checkpoint, _POSITION)))
            except (IndexError, TypeError) as error:
                raise CntkStateError(f"this checkpoint does not fit: {error}", saved=dict(checkpoint)) from error

    @property
    def current_position(self) -> dict[str, Any]:
        """Position, as in `get_checkpoint_state` and `restore_from_checkpoint`."""
        return self.get_checkpoint_state()

    @current_position.setter
    def current_position(self, position: Mapping[str, Any]) -> None:
        self.restore_from_checkpoint(position)

    @property
    def interpolation(self) -> str | None:
        """The library that scales pictures: ``"feedline"``, within one level of 255 of OpenCV. None means no
        pictures."""
        return None if self._pictures is None else "feedline"

    @property
    def _is_user(self) -> bool:
        return not is_sized(self.feed.corpus)

    def __repr__(self) -> str:
        return f"MinibatchSource({', '.join(map(repr, self._infos))})"


def _feed(config: MinibatchSourceConfig, max_errors: int) -> tuple[Modern, Pictures | None]:
    corpus, pictures = _corpus(config, max_errors)
    max_samples = None if config.max_samples == INFINITELY_REPEAT else config.max_samples
    max_sweeps = None if config.max_sweeps == INFINITELY_REPEAT else config.max_sweeps
    if max_samples == FULL_DATA_SWEEP:
        max_samples, max_sweeps = None, 1
    if not is_sized(corpus) and config.randomization_window_in_samples:
        raise CompatError(
            "expected randomization_window_in_chunks with a UserDeserializer, got a window in samples: sizes of its "
            "chunks are unknown before reading; or write an fl.UserDeserializer with chunk_info"
        )
    feed = Modern(
        corpus,
        seed=config.randomization_seed,
        shuffle=_window(config),
        order="cntk" if is_sized(corpus) else "feedline",
        filling="cntk",
        frame_mode=config.is_frame_mode_enabled,
        truncation_length=config.truncation_length or None,
        max_samples=max_samples,
        max_sweeps=max_sweeps,
        transforms=[pictures] if pictures is not None else [],
        on_error=Quarantine(os.devnull) if pictures is not None and pictures.lenient else "raise",
    )
    return feed, pictures


def _corpus(config: MinibatchSourceConfig, max_errors: int) -> tuple[Deserializer, Pictures | None]:
    """Return the corpus of a configuration, and the transform that decodes its pictures, if any."""
    first, *following = config.deserializers
    if isinstance(first, UserDeserializer):
        return UserCorpus(first), None
    frames = config.is_frame_mode_enabled
    corpora = [
        corpus
        for number, deserializer in enumerate((first, *following))
        for corpus in corpora_of(deserializer, max_errors, frames, number == 0, config.randomizes)
    ]
    if corpora[0].capability(Broadcast) is not None:
        raise RuntimeError(f"expected features of whole utterances first, got {corpora[0].name} with broadcast=True")
    joined = Join(*corpora, cache=False) if len(corpora) > 1 else corpora[0]
    # Only CNTK's speech readers split sequences into frames. Sequences of other readers must be frames already.
    if frames and isinstance(corpora[0], HTKFeatureDeserializer):
        joined = Frames(joined)
    return joined, pictures_of(corpora)


def _window(config: MinibatchSourceConfig) -> bool | Window:
    if config.randomization_window_in_chunks:
        return Window(chunks=config.randomization_window_in_chunks)
    if config.randomization_window_in_samples:
        return Window(samples=config.randomization_window_in_samples)
    return False


def _field(checkpoint: Mapping[str, Any], name: str) -> Any:
    try:
        return checkpoint[name]
    except KeyError:
        raise CntkStateError(
            f"expected the field {name} in a checkpoint, got {', '.join(checkpoint) or 'none'}"
        ) from None


def _user_state(p: Position, config: MinibatchSourceConfig) -> dict[str, Any]:
    common = {
        "baseSweepCount": p.sweep,
        "baseSampleCount": p.samples,
        "baseCurrentSequencePositionInWindow": p.sequence,
    }
    window = p.window or 0
    if config.randomizes:
        return {"chunkPosition": window * config.randomization_window_in_chunks, "sweepIndex": p.sweep, **common}
    return {"currentChunkPosition": window, "currentSequencePosition": p.sequence, **common}


def _user_position(checkpoint: Mapping[str, Any], config: MinibatchSourceConfig) -> Position:
    if config.randomizes:
        width = config.randomization_window_in_chunks
        window, sweep = divmod(_field(checkpoint, "chunkPosition"), width)[0], _field(checkpoint, "sweepIndex")
        ordinal = _field(checkpoint, "baseCurrentSequencePositionInWindow")
    else:
        window, sweep = _field(checkpoint, "currentChunkPosition"), _field(checkpoint, "baseSweepCount")
        ordinal = _field(checkpoint, "currentSequencePosition")
    return Position(sweep, ordinal, _field(checkpoint, "baseSampleCount"), 0, window)
