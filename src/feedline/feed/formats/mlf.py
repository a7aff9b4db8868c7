"""HTK master label files (MLF): a `Deserializer` of one label per frame, for utterances by name.

Guarantees: CNTK 2.7's grammar, times and rounding; text is read with pread, by utterance, never as a whole; an
utterance that is not what it should be is an unreadable sequence, with file and line. Cost: the first opening reads the
files once, natively, to index them (24 bytes an utterance, kept as CTF's is: see `ctf_index`); later ones read
O(chunks); reading parses text without the GIL.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.value import DenseValue, SparseValue
from feedline.errors import DataError, SchemaError
from feedline.feed.files.paths import PathLike, list_files, name_of, open_file, read_at
from feedline.feed.files.reading import read_exactly
from feedline.feed.formats.ctf import by_file, open_texts, read_together
from feedline.feed.formats.ctf_errors import line_of
from feedline.feed.formats.ctf_index import Cache, IndexOptions
from feedline.feed.protocol import CHUNK_MEMORY, ChunkInfo, Deserializer, declared_streams, whole_number
from feedline.feed.showing import Progress

CHUNK_TEXT = 64 << 20
"""Bytes of text in a chunk: CNTK's."""

_FAULT = np.dtype([("byte", "<i8"), ("sequence", "<i8"), ("code", "<i4"), ("zero", "<i4")])
_NAMES = {code: name for name, code in _native.MLF_ERRORS.items()}
_SHOWN = 200
_SKIP = 'pass on_error="skip" to the source to skip such utterances and list them'
_BYTES_PER_FRAME = 32  # of a decoded chunk, at most
_SENTENCES = {
    "no_header": "expected `#!MLF!#` as first line",
    "no_name": "expected the name of an utterance in quotes",
    "cut": "expected a line with `.` at the end of an utterance, got the end of the text",
    "too_few_words": "expected `start end state`, or without a state list exactly 4 words, the last one a class",
    "bad_time": "expected start and end as numbers from 0, below 2**31 frames",
    "not_contiguous": "expected an interval that begins where the one before ends, the first at 0",
    "no_lines": "expected at least one frame in an utterance, got none",
    "unknown_state": "expected a state of the state list",
    "bad_class": "expected a class below {classes}",
    "too_long": "expected utterances of at most 4294967295 bytes, got a longer one",
}


@dataclass(frozen=True)
class MlfOptions(IndexOptions):
    """The options that an index of labels depends on.

    Attributes:
        drop_invalid: whether utterances with gaps between their intervals are dropped.
    """

    drop_invalid: bool = False

    def indexer(self) -> _native.MlfIndexer:
        """Return an indexer for a text."""
        return _native.MlfIndexer(self.drop_invalid)

    def describe(self, path: Path, text: BinaryIO, code: int, byte: int) -> DataError:
        """Return why a text cannot be indexed."""
        return _error(path, text, _NAMES[code], byte=byte, classes=0)


class MLFDeserializer(Deserializer):
    """Labels of MLF files, joined to features by the names of utterances.

    ```text
    #!MLF!#
    "*/an4/cen5-fjam-b.lab"
    0 100000 sil[2]
    100000 5500000 sil[3]
    .
    ```

    Times are units of 100 ns where an interval is at least 99,999 long (100,000 are a frame, rounded), else numbers of
    frames.

    Args:
        path: a file, a list of files (read as their concatenation), a folder or a glob pattern (sorted by path).
        streams: the stream delivered, by name; also given as a keyword argument. ``fl.Stream(classes, sparse=True)``:
            one-hot, a value of 1 for each frame; ``fl.Stream((), "int64")``: the classes as numbers.
        states: path of a list of states, one a line, whose place is their class; the third word of a line is looked up
            in it. None: the fourth word, the last one, is the class.
        boundaries: whether the first frame of every interval has the value 2 instead of 1 (for CTC); sparse only.
        invalid: ``"error"``: an utterance whose intervals leave gaps is an unreadable sequence; ``"drop"``: it is left
            out when the text is indexed, as CNTK does.
        chunk_size: bytes of text per chunk. Part of the order.
        cache: where to keep the index, as for `CTFDeserializer`.
        memory: bytes that a decoded chunk may take.
        progress: called with (bytes done, bytes in total) while indexing; an exception from it aborts. True: shown
            on stderr.
        stream_kwargs: the stream, as a keyword argument.

    Attributes:
        dropped: number of utterances dropped with ``invalid="drop"``.

    Raises:
        SchemaError: no stream or several, or one that labels cannot fill.
        DataError: a file is missing or no MLF, two states have the same name, or the index cannot be written.
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        streams: Mapping[str, Stream] | None = None,
        *,
        states: PathLike | None = None,
        boundaries: bool = False,
        invalid: str = "error",
        chunk_size: int = CHUNK_TEXT,
        cache: Cache = True,
        memory: int = CHUNK_MEMORY,
        progress: Progress = None,
        **stream_kwargs: Stream,
    ) -> None:
        if invalid not in ("error", "drop"):
            raise ValueError(f'expected invalid="error" or "drop", got {invalid!r}')
        chunk_size, self._memory = whole_number("chunk_size", chunk_size, 1), whole_number("memory", memory, 1)
        paths = list_files(path)
        self.schema = Schema(declared_streams(streams, stream_kwargs))
        self.name = name_of(paths)
        self._arguments = {
            "states": states,
            "boundaries": boundaries,
            "invalid": invalid,
            "chunk_size": chunk_size,
            "cache": cache,
            "memory": memory,
        }
        self._boundaries = bool(boundaries)
        names = None if states is None else read_states(states)
        self._names = names
        self._classes = _classes(self.schema, names, self._boundaries)
        self._parser = _native.MlfParser(names, self._classes)
        options = MlfOptions(None, False, False, chunk_size, invalid == "drop")
        self._files = open_texts(paths, options, cache, progress)
        self._infos = [ChunkInfo(*row) for file in self._files for row in file.sizes()]
        self._starts = np.cumsum([0, *(file.index.header.sequences for file in self._files)])
        self._chunk_starts = np.cumsum([0, *(len(file.index.table) for file in self._files)])
        self.dropped = sum(file.index.header.lines for file in self._files)
        if not self._infos:
            raise DataError("expected at least one utterance, got none", path=self.name)

    # ---- description ------------------------------------------------------------------------------

    def chunks(self) -> list[ChunkInfo]:
        """Return the size of every chunk; ``bytes`` are those of its text."""
        return self._infos

    def digest(self) -> str:
        """Return 32 hex digits over the files' sizes, excerpts and chunk tables, and over the classes' names."""
        content = hashlib.blake2b(f"mlf {self._classes} {self._boundaries};".encode(), digest_size=16)
        content.update(repr(self._names).encode())
        for file in self._files:
            head = file.index.header
            content.update(repr((head.file_size, head.sample, head.sequences)).encode())
            content.update(file.index.table.tobytes())
        return content.hexdigest()

    def paths(self) -> list[str]:
        """Return the paths of the files."""
        return [str(file.path) for file in self._files]

    def lengths(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the frames of utterances, int64 (n,); 0 for an invalid one."""
        return self._entries(ordinals)["samples"].astype(np.int64)

    def keys(self, ordinals: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return hashes of the names of utterances, uint64 (n,)."""
        return np.ascontiguousarray(self._entries(ordinals)["key"])

    def _entries(self, ordinals: NDArray[np.int64]) -> NDArray[Any]:
        ordinals = np.asarray(ordinals, np.int64)
        parts = [(at, self._files[number].entries_at(local)) for number, at, local in by_file(ordinals, self._starts)]
        if len(parts) == 1:
            return parts[0][1]
        found = np.empty(len(ordinals), self._files[0].index.at(np.empty(0, np.int64)).dtype)
        for at, entries in parts:
            found[at] = entries
        return found

    # ---- reading ----------------------------------------------------------------------------------

    def read(self, chunk: int) -> Chunk:
        """Return the utterances of a chunk.

        Raises:
            DataError: the file has changed since it was indexed, or the decoded chunk would exceed ``memory``.
        """
        if not 0 <= chunk < len(self._infos):
            raise IndexError(f"expected a chunk from 0 to {len(self._infos) - 1}, got {chunk}")
        number = int(np.searchsorted(self._chunk_starts, chunk, side="right")) - 1
        first = self._files[number].index.first
        local = chunk - int(self._chunk_starts[number])
        return self.select(np.arange(first[local], first[local + 1]) + self._starts[number])

    def select(self, ordinals: NDArray[np.int64]) -> Chunk:
        """Return the utterances ``ordinals``, in that order, reading only their text.

        Raises:
            IndexError: an ordinal is outside the corpus.
            DataError: as for `read`.
        """
        ordinals = np.asarray(ordinals, np.int64)
        entries = self._entries(ordinals)
        needed = int(entries["samples"].sum(dtype=np.uint64)) * _BYTES_PER_FRAME + int(
            entries["size"].sum(dtype=np.uint64)
        )
        if needed > self._memory:
            raise DataError(
                f"expected at most {self._memory} bytes when decoded at a time (memory), got {needed}",
                path=self.name,
                hint="raise memory=, or lower chunk_size=",
            )
        runs: list[tuple[NDArray[np.uint32], NDArray[np.uint32]]] = [_NO_RUNS] * len(ordinals)
        errors: dict[int, DataError] = {}
        for number, at, local in by_file(ordinals, self._starts):
            once, inverse = np.unique(local, return_inverse=True)
            parts, faults = self._parsed(number, once)
            for place, k in zip(at.tolist(), inverse.tolist(), strict=True):
                runs[place] = parts[k]
                if k in faults:
                    errors[place] = faults[k]
        return Chunk(self.schema, self._values(runs), errors)

    def _parsed(
        self, number: int, local: NDArray[np.int64]
    ) -> tuple[list[tuple[NDArray[np.uint32], NDArray[np.uint32]]], dict[int, DataError]]:
        """Return the runs (frames, classes) of utterances of one file, ``local`` ascending, and their errors."""
        file = self._files[number]
        entries = file.entries_at(local)
        lows, highs, places, position = read_together(entries)
        size = np.ascontiguousarray(entries["size"])
        buffer = np.empty(int(places[-1]), np.uint8)
        with file.opened() as text:
            for low, high, place in zip(lows.tolist(), highs.tolist(), places.tolist(), strict=False):
                read_exactly(text, buffer[place : place + high - low], low, file.path)
            file.compare(text)
            offsets, frames, classes, found = self._parser.parse(buffer, position, size)
            errors: dict[int, DataError] = {}
            near = (0, 1)
            for fault in found.view(_FAULT):
                k = int(fault["sequence"])
                byte = int(fault["byte"] - position[k]) + int(entries["offset"][k])
                near = (byte, line_of(text, byte, near))
                code = _NAMES[int(fault["code"])]
                errors[k] = _error(
                    file.path,
                    text,
                    code,
                    byte=byte,
                    classes=self._classes,
                    line=near[1],
                    sequence=int(local[k] + self._starts[number]),
                )
        bounds = offsets.tolist()
        return [(frames[a:b], classes[a:b]) for a, b in itertools.pairwise(bounds)], errors

    def _values(self, runs: Sequence[tuple[NDArray[np.uint32], NDArray[np.uint32]]]) -> dict[str, Value]:
        (name, stream), *_ = self.schema.items()
        counts = np.array([int(frames.sum(dtype=np.uint64)) for frames, _ in runs], np.int64)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        frames = np.concatenate([_NO_RUNS[0], *(frames for frames, _ in runs)])
        classes = np.repeat(np.concatenate([_NO_RUNS[0], *(classes for _, classes in runs)]), frames)
        if not stream.sparse:
            return {name: DenseValue(classes.astype(stream.dtype), offsets)}
        values = np.ones(len(classes), stream.dtype)
        if self._boundaries:
            ends = np.cumsum(frames, dtype=np.int64)
            values[ends - frames] = 2
        indptr = np.arange(len(classes) + 1)
        return {name: SparseValue(indptr, classes.astype(np.int32), values, stream.size, offsets)}

    # ---- other ------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.paths(), dict(self.schema.streams), self._arguments)

    def __repr__(self) -> str:
        return f"MLFDeserializer({self.name}: {self._starts[-1]} utterances, {len(self._infos)} chunks)"


_NO_RUNS = (np.empty(0, np.uint32), np.empty(0, np.uint32))


def read_states(path: PathLike) -> list[bytes]:
    """Return the names in a list of states, one a line; blank lines are not counted.

    Raises:
        DataError: it cannot be read, is empty, or has a name twice.
    """
    with open_file(path, -1) as file:
        text = file.read()
    names: dict[bytes, int] = {}
    for number, raw in enumerate(text.split(b"\n"), 1):
        name = raw.strip()
        if not name:
            continue
        if name in names:
            raise DataError(
                f"expected each state once, got `{name.decode(errors='replace')}` again, first on line {names[name]}",
                path=os.fspath(path),
                line=number,
            )
        names[name] = number
    if not names:
        raise DataError("expected at least one state, got none", path=os.fspath(path))
    return list(names)


def _classes(schema: Schema, names: Sequence[bytes] | None, boundaries: bool) -> int:
    """Return the number of classes that a stream can hold."""
    if len(schema) != 1:
        raise SchemaError(f"expected one stream, got {', '.join(schema)}: open the labels for each, and join them")
    ((name, stream),) = schema.items()
    if stream.sparse and stream.dtype.kind == "f":
        if not 1 <= stream.size < 2**31:
            raise SchemaError(f"expected 1 to {2**31 - 1} classes for stream `{name}`, got {stream.size}")
        return stream.size
    if boundaries or stream.sparse or stream.shape != () or stream.dtype.kind not in "iu":
        raise SchemaError(
            f"expected fl.Stream(classes, sparse=True) or, without boundaries, fl.Stream((), 'int64') for stream "
            f"`{name}`, got {stream}"
        )
    most = int(np.iinfo(stream.dtype).max) + 1
    return min(most, 2**31 - 1) if names is None else min(most, len(names))


def _error(
    path: Path,
    text: BinaryIO,
    code: str,
    *,
    byte: int,
    classes: int,
    line: int | None = None,
    sequence: int | None = None,
) -> DataError:
    shown = read_at(text, _SHOWN, byte).split(b"\n")[0].decode(errors="replace").strip()
    what = _SENTENCES[code].format(classes=classes)
    return DataError(
        f"{what}, got {shown[:120]!r}" if shown and code not in ("cut", "no_lines", "too_long") else what,
        path=str(path),
        byte=byte,
        line=line_of(text, byte) if line is None else line,
        sequence=sequence,
        hint=_SKIP if sequence is not None else None,
    )


def _reopen(paths: list[str], streams: dict[str, Stream], arguments: dict[str, Any]) -> MLFDeserializer:
    return MLFDeserializer(paths, streams, **arguments)


def open_files(paths: list[str], streams: Mapping[str, Stream], memory_bytes: int) -> MLFDeserializer:
    """Open files of labels with a declared stream; see `open_corpus`.

    Raises:
        DataError: no stream is declared.
    """
    if not streams:
        raise DataError(
            "expected a declared stream for labels, as their text does not say how many states there are",
            path=paths[0],
            hint="fl.MLFDeserializer(path, labels=fl.Stream(classes, sparse=True), states=...)",
        )
    return MLFDeserializer(paths, streams, memory=memory_bytes)
