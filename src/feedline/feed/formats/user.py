"""User-defined corpora, chunk by chunk, like CNTK's `UserDeserializer`.

There are two kinds. With ``chunk_info`` (and ``chunk_lengths`` if sequences are ragged), chunk sizes are known before
reading, and the corpus can be shuffled, planned, sought and joined like any other. Without it, windows count chunks, a
state is (sweep, window, place in the window), and restoring a state reads one window. The result of ``get_chunk`` is
checked against the declared sizes.
"""

from __future__ import annotations

import abc
import functools
import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from feedline.concurrency.fork_local import PerProcess
from feedline.data import Chunk, Schema, Stream
from feedline.errors import DataError, FeedlineError, WorkerError
from feedline.feed.files.lru import LruCache
from feedline.feed.protocol import Capability, ChunkInfo, Deserializer, Ints, Unsized
from feedline.feed.unique import distinct
from feedline.feed.user_values import convert_values

_MAX_LENGTHS_BYTES = 32 << 20  # of lengths that are kept
_STRING_BYTES = 1 << 10  # assumed size of a byte string


class UserDeserializer(Deserializer, Unsized):
    """Base class of user-defined corpora. Define ``num_chunks``, ``get_chunk`` and either ``streams`` or ``schema``.

    Optional: ``chunk_info`` (and ``chunk_lengths``) for chunk sizes known before reading, ``keys`` to join by other
    keys than ordinals (then also derive from `Keyed`), ``digest``, ``close``. There is no ``__init__`` to call.

    Attributes:
        concurrent: whether several reading threads may call ``get_chunk`` at a time.
        name: name of the corpus in errors, by default the name of the class.
    """

    concurrent: bool = False
    _turn: PerProcess[threading.Lock]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Create an object that is ready without ``__init__``, which subclasses need not call."""
        self = super().__new__(cls)
        self._turn = PerProcess(threading.Lock)
        return self

    # ---- for subclasses ---------------------------------------------------------------------------

    def streams(self) -> Mapping[str, Stream]:
        """Return the streams by name. Called once."""
        raise NotImplementedError(f"{type(self).__name__} defines neither `streams()` nor the attribute `schema`")

    @abc.abstractmethod
    def num_chunks(self) -> int:
        """Return the number of chunks, always the same."""

    @abc.abstractmethod
    def get_chunk(self, chunk: int) -> Mapping[str, Any] | Chunk:
        """Return the sequences of chunk number ``chunk``, the same in every call.

        Returns:
            Data by stream name, with the same number of sequences N in all streams: an array ``(N, *shape)`` or a SciPy
            sparse matrix ``(N, size)`` if each sequence is one sample, a list of N arrays ``(length, *shape)`` or
            sparse matrices ``(length, size)``, or a `Value`. Or a `Chunk`, which can also have unreadable sequences
            (`Chunk.errors`).

        Called in reading threads, one at a time unless ``concurrent``. An exception reaches the caller of
        ``next_minibatch`` as the cause of a `WorkerError` (a `FeedlineError` as itself). The source keeps its position,
        and the next call tries again.
        """

    def chunk_info(self, chunk: int) -> ChunkInfo | tuple[int, ...]:
        """Return (sequences, samples) of chunk number ``chunk``, or `ChunkInfo` with stored bytes, without reading it.

        ``samples`` are counted as in the minibatch budget: the longest stream of each sequence, or the stream that
        defines the size. Without stored bytes, the bytes of the samples are used, with one non-zero per sparse sample
        and 1 KiB per byte string.

        Raises:
            ValueError: the class does not define it, as sizes are unknown before reading.
        """
        raise ValueError(
            f"expected a corpus that knows the sizes of its chunks before reading them, got {self.name} without "
            "chunk_info; implement `UserDeserializer.chunk_info`, or convert the corpus to a store"
        )

    def chunk_lengths(self, chunk: int) -> ArrayLike:
        """Return the samples of each sequence of chunk number ``chunk``, without reading it, for ragged data.

        Without this method, ragged data is treated as if there were no ``chunk_info``.
        """
        raise NotImplementedError

    def digest(self) -> str:
        """Return hex digits that identify the content.

        This default covers the name of the class, its streams and chunk sizes, but not the data: a state fits other
        data of the same form. Override it to make saved states refuse data that has changed.
        """
        infos = self._infos if self._has_infos else self.num_chunks()
        text = json.dumps([type(self).__name__, self.schema.digest, infos])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    # ---- the deserializer -------------------------------------------------------------------------

    @functools.cached_property
    def schema(self) -> Schema:  # type: ignore[override]
        """The streams."""
        return Schema(self.streams())

    def capability(self, kind: type[Capability]) -> Capability | None:
        """See `Deserializer.capability`. Sizes are known if ``chunk_info`` is defined and lengths follow from it."""
        return None if kind is Unsized and self._sized else super().capability(kind)

    @functools.cached_property
    def _sized(self) -> bool:
        return self._has_infos and (self._has_lengths or all(info.sequences == info.samples for info in self._infos))

    @property
    def _has_infos(self) -> bool:
        return type(self).chunk_info is not UserDeserializer.chunk_info

    @property
    def _has_lengths(self) -> bool:
        return type(self).chunk_lengths is not UserDeserializer.chunk_lengths

    @functools.cached_property
    def _infos(self) -> list[ChunkInfo]:
        row = sum(_nominal_bytes(stream) for stream in self.schema.values())
        infos = []
        for chunk in range(self.num_chunks()):
            info = tuple(int(n) for n in self.chunk_info(chunk))
            if len(info) not in (2, 3) or min(info) < 0:
                raise DataError(
                    f"expected (sequences, samples) or (sequences, samples, bytes) from chunk_info({chunk}), "
                    f"got {info}",
                    path=self.name,
                )
            infos.append(ChunkInfo(*info) if len(info) == 3 else ChunkInfo(info[0], info[1], info[1] * row))
        return infos

    def chunks(self) -> Sequence[ChunkInfo]:
        """Return the result of ``chunk_info`` for each chunk. It is called once a chunk."""
        return self._infos

    @functools.cached_property
    def _starts(self) -> Ints:
        return np.concatenate([[0], np.cumsum([info.sequences for info in self._infos])]).astype(np.int64)

    @functools.cached_property
    def _lengths(self) -> LruCache[int, Ints]:
        return LruCache(self._lengths_of, _nbytes, _MAX_LENGTHS_BYTES)

    def _lengths_of(self, chunk: int) -> Ints:
        lengths = np.asarray(self.chunk_lengths(chunk), np.int64)
        info = self._infos[chunk]
        if lengths.shape != (info.sequences,) or lengths.sum() != info.samples:
            raise DataError(
                f"expected {info.sequences} lengths with a sum of {info.samples} from chunk_lengths({chunk}), as "
                f"chunk_info says, got shape {lengths.shape} with a sum of {lengths.sum()}",
                path=self.name,
            )
        return lengths

    def lengths(self, ordinals: Ints) -> Ints | None:
        """Return the samples of the sequences ``ordinals``, from ``chunk_lengths``, or None if every sequence has
        one."""
        if not self._has_lengths:
            return None
        out = np.empty(len(ordinals), np.int64)
        chunk_of = np.searchsorted(self._starts, ordinals, side="right") - 1
        for chunk in distinct(chunk_of).tolist():
            at = chunk_of == chunk
            out[at] = self._lengths.get(chunk)[ordinals[at] - self._starts[chunk]]
        return out

    def read(self, chunk: int) -> Chunk:
        """Return the result of ``get_chunk``, checked.

        Raises:
            WorkerError: ``get_chunk`` raised an exception, which is the cause.
            DataError: it returned other counts than ``chunk_info`` or ``chunk_lengths``.
            SchemaError: it returned other streams, shapes or dtypes than declared.
        """
        where = f"get_chunk({chunk}) of {self.name}"
        try:
            with nullcontext() if self.concurrent else self._turn.get():
                data = self.get_chunk(chunk)
        except FeedlineError as error:
            error.add_note(f"raised by {where}")
            raise
        except Exception as error:
            raise WorkerError(f"{where} raised {type(error).__name__}: {error}") from error
        if not isinstance(data, Chunk):
            data = Chunk(self.schema, convert_values(self.schema, data, where))
        elif data.schema != self.schema:
            raise DataError(f"expected a chunk with the streams of {self.name} from {where}, got {data.schema!r}")
        if self._has_infos:
            self._compare(chunk, data)
        return data

    def _compare(self, number: int, chunk: Chunk) -> None:
        info, lengths = self._infos[number], chunk.lengths
        samples = chunk.num_sequences if lengths is None else int(lengths.sum())
        bad = list(chunk.errors)  # sequences whose samples are unknown
        if chunk.num_sequences != info.sequences or (samples != info.samples and not bad):
            raise DataError(
                f"expected {info.sequences} sequences with {info.samples} samples in chunk {number}, as chunk_info "
                f"says, got {chunk.num_sequences} with {samples} from get_chunk",
                path=self.name,
            )
        if not self._sized:
            return
        expected = self._lengths.get(number) if self._has_lengths else np.ones(info.sequences, np.int64)
        got = np.ones(info.sequences, np.int64) if lengths is None else lengths
        differ = got != expected
        differ[bad] = False
        if differ.any():
            first = int(np.flatnonzero(differ)[0])
            method = "chunk_lengths" if self._has_lengths else "chunk_info"
            raise DataError(
                f"expected {expected[first]} samples, as {method} says, got {got[first]} from get_chunk({number})",
                path=self.name,
                sequence=int(self._starts[number]) + first,
                hint=None if self._has_lengths else "define chunk_lengths: these sequences are ragged",
            )


def _nominal_bytes(stream: Stream) -> int:
    if stream.is_bytes:
        return _STRING_BYTES
    return stream.dtype.itemsize + 4 if stream.sparse else stream.dtype.itemsize * stream.size


def _nbytes(array: Ints) -> int:
    return array.nbytes
