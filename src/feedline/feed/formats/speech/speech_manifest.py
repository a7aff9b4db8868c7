"""Rows of a manifest as sequences of one recording each, whose lengths are known before a recording is opened.

Guarantees: rows are in the order of the file. A damaged row, and one whose recording is missing in its archive, is an
unreadable sequence. A chunk with a recording of an archive that has changed cannot be read. Recordings in files are not
opened: they are delivered as addresses, which a transform decodes.
Cost: opening reads the durations of all rows, natively, and keeps 8 bytes for each. Reading a chunk parses its rows in
Python, some 20 µs each.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.chunk import LazyErrors
from feedline.data.schema import encodable
from feedline.data.value import BytesValue, DenseValue, strings_from_list
from feedline.errors import DataError, SchemaError
from feedline.feed.formats.indexed.indexed_file import SKIP
from feedline.feed.formats.indexed.rows import TextRows
from feedline.feed.formats.jsonl import JSONLinesDeserializer
from feedline.feed.formats.pickled_by_arguments import PickledByArguments
from feedline.feed.formats.speech.tar_members import ChangedArchiveError, TarMembers
from feedline.feed.protocol import ChunkInfo, Ints, Selective, whole_number

RATE = 16000
"""Samples per second in which lengths are counted by default."""

_FIELDS = ("audio", "text", "duration", "id")
_CHUNK_TEXT = 1 << 20  # bytes of rows in a chunk
_CHUNK_TEXT_ARCHIVED = 16 << 10  # the same if a chunk has their recordings, too: some tens of them
_MAX_SECONDS = 1e6  # of a recording, so that lengths can be summed


class Utterance(NamedTuple):
    """A row.

    Attributes:
        audio: the address of its recording, or its encoded recording.
        text: what is said.
        duration_s: duration in seconds.
        name: what the manifest calls it.
    """

    audio: str | bytes
    text: str
    duration_s: float
    name: str


class SpeechManifest(PickledByArguments, JSONLinesDeserializer, Selective):
    """A manifest. Subclasses name the values in a row, and make an `Utterance` of them.

    Args:
        paths: paths of the manifests.
        columns: the values in a row, by name.
        members: the members of all archives with recordings. Of no archives if they are in files.
        rate: samples per second in which lengths are counted.
        memory_bytes: bytes that the rows of a chunk, and their recordings, may take.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        columns: Mapping[str, Stream],
        *,
        streams: Mapping[str, Stream] | None,
        members: TarMembers,
        rate: int,
        memory_bytes: int,
    ) -> None:
        self._rate, self._archives, self._members = whole_number("rate", rate, 1), members.sizes, members
        chunk_size = _CHUNK_TEXT_ARCHIVED if self._archives else _CHUNK_TEXT
        super().__init__(paths, columns, sequences=(), chunk_size=chunk_size, memory=memory_bytes)
        self.schema = self._declared_schema(streams)
        self._lengths = self._count()
        ends = np.cumsum([info.sequences for info in self._infos])
        samples = np.add.reduceat(self._lengths, np.concatenate([[0], ends[:-1]])).tolist()
        each = sum(self._archives.values()) // len(self._lengths)
        self._infos = [
            ChunkInfo(info.sequences, n, info.bytes + each * info.sequences)
            for info, n in zip(self._infos, samples, strict=True)
        ]

    def _declared_schema(self, streams: Mapping[str, Stream] | None) -> Schema:
        kinds = {
            "audio": Stream(dtype="bytes" if self._archives else "str", defines_size=True),
            "text": Stream(dtype="str"),
            "duration": Stream((), "float64"),
            "id": Stream(dtype="str"),
        }
        self._fields_of = {name: stream.field or name for name, stream in (streams or kinds).items()}
        for name, field in self._fields_of.items():
            if field not in kinds:
                raise SchemaError(
                    f"expected one of {', '.join(_FIELDS)} as field of stream `{name}`, got `{field}`; write "
                    f"{name}=fl.Stream(..., field='audio')"
                )
            if streams and (streams[name].shape, streams[name].dtype) != (kinds[field].shape, kinds[field].dtype):
                raise SchemaError(f"expected {kinds[field]} for stream `{name}` of {self.name}, got {streams[name]}")
        return Schema({name: kinds[field] for name, field in self._fields_of.items()})

    def _count(self) -> Ints:
        """Return the samples of all rows. A row without a valid duration has one."""
        duration = Stream((), "float64", missing=math.nan)
        rows = JSONLinesDeserializer(
            self._paths, {"duration": duration}, sequences=(), chunk_size=self._chunk_size, memory=self._memory_bytes
        )
        try:
            seconds = [self._durations(rows.read(chunk)) for chunk in range(len(rows.chunks()))]
        finally:
            rows.close()
        counts: Ints = np.maximum(1, np.rint(np.concatenate(seconds) * self._rate)).astype(np.int64)
        return counts

    @staticmethod
    def _durations(chunk: Chunk) -> Any:
        seconds = chunk["duration"].rows
        return np.where((seconds > 0) & (seconds <= _MAX_SECONDS), seconds, 0.0)

    # ---- description ------------------------------------------------------------------------------

    def lengths(self, ordinals: Ints) -> Ints | None:
        """Return the samples of recordings, by their durations, int64 (n,)."""
        lengths: Ints = self._lengths[ordinals]
        return lengths

    def _content_identity(self) -> tuple[str, ...]:
        identity, *fields = super()._content_identity()
        sizes = list(self._archives.values())
        return (f"{identity}{type(self).__name__} {self._rate} {sorted(self._fields_of.items())} {sizes};", *fields)

    def _remedy(self, name: str | None) -> str | None:
        return None

    # ---- reading ----------------------------------------------------------------------------------

    @abstractmethod
    def _utterance(self, row: Mapping[str, Any], part: TextRows, memory_bytes: int) -> Utterance:
        """Return what a row says.

        Args:
            row: the values by name, numbers and texts.
            part: its file.
            memory_bytes: bytes that its recording may take.

        Raises:
            DataError: it is damaged, or its recording cannot be read.
        """

    def _make_chunk(self, part: TextRows, values: dict[str, Value], errors: Mapping[int, DataError]) -> Chunk:
        utterances: list[Utterance | None] = []
        own: dict[int, DataError] = {}
        memory_bytes = self._memory_bytes
        for i, row in enumerate(_rows_of(values)):
            utterance = None
            if i not in errors:
                try:
                    utterance = _encodable(self._utterance(row, part, memory_bytes))
                    memory_bytes -= len(utterance.audio) if self._archives else 0
                except ChangedArchiveError:
                    raise
                except DataError as error:
                    own[i] = self._located(error, part, i)
            utterances.append(utterance)
        columns = {name: _column(field, utterances, self.schema[name]) for name, field in self._fields_of.items()}
        if isinstance(errors, LazyErrors):
            given = errors
            rows = np.union1d(list(given), list(own)).astype(np.int64)
            return Chunk(self.schema, columns, LazyErrors(rows, lambda row: own[row] if row in own else given[row]))
        return Chunk(self.schema, columns, {**errors, **own})

    def _located(self, error: DataError, part: TextRows, i: int) -> DataError:
        manifest = str(part.file.source)
        return DataError(
            error.what if error.path is None else f"{error.what}, which {manifest} names",
            path=error.path or manifest,
            byte=error.byte,
            line=self._line(part.entries, i) if error.path is None else None,
            sequence=int(part.ordinals[i]),
            stream=error.stream,
            hint=SKIP if error.hint is None else f"{error.hint}; {SKIP}",
        )


def _encodable(utterance: Utterance) -> Utterance:
    """Return a row whose texts UTF-8 can represent.

    Raises:
        DataError: it cannot.
    """
    for text in (utterance.audio, utterance.text, utterance.name):
        if isinstance(text, str) and not encodable(text):
            raise DataError(f"expected text in UTF-8 without half surrogates, got {text!a:.80}")
    return utterance


def check_duration(seconds: float) -> float:
    """Return a duration.

    Raises:
        DataError: it is none.
    """
    if not 0 < seconds <= _MAX_SECONDS:
        raise DataError(f"expected a duration above 0 s, up to {_MAX_SECONDS:.0f} s, got {seconds}")
    return seconds


def _rows_of(values: Mapping[str, Value]) -> Iterator[dict[str, Any]]:
    columns = [value.tolist() for value in values.values()]
    return (dict(zip(values, row, strict=True)) for row in zip(*columns, strict=True))


def _column(field: str, utterances: Sequence[Utterance | None], stream: Stream) -> Value:
    """Return a stream, with nothing for unreadable rows."""
    if field == "duration":
        return DenseValue(np.array([0.0 if row is None else row.duration_s for row in utterances], np.float64))
    empty: str | bytes = "" if stream.is_text else b""
    at = {"audio": 0, "text": 1, "id": 3}[field]
    value = strings_from_list([empty if row is None else row[at] for row in utterances], stream.is_text)
    return BytesValue(value.bounds, value.data, None, text=stream.is_text)
