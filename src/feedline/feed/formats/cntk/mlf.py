"""HTK master label files (MLF): a `Deserializer` of utterances, with one label per frame.

Guarantees: CNTK 2.7's grammar, times and rounding. Text is read with pread, by utterance, never as a whole. A malformed
utterance is an unreadable sequence, with file and line. Cost: the first opening reads the files once, natively, to
index them (24 bytes an utterance, see `file_index`). Later ones read O(chunks). Reading parses text without the GIL.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.value import DenseValue, SparseValue
from feedline.errors import DataError, SchemaError
from feedline.feed.files.paths import PathLike, open_file, read_at
from feedline.feed.files.read_into import read_exactly
from feedline.feed.formats.indexed.file_index import Cache, IndexKind
from feedline.feed.formats.indexed.indexed_corpus import IndexedCorpus, check_memory, line_of, merge_reads
from feedline.feed.progress_bar import Progress
from feedline.feed.protocol import CHUNK_MEMORY, Ints, Keyed, declared_streams

CHUNK_TEXT = 64 << 20
"""Bytes of text in a chunk, as in CNTK."""

_FAULT = np.dtype([("byte", "<i8"), ("sequence", "<i8"), ("code", "<i4"), ("zero", "<i4")])
_NAMES = {code: name for name, code in _native.MLF_ERRORS.items()}
_SHOWN = 200
_SKIP = 'pass on_error="skip" to the source to skip such utterances and list them'
_BYTES_PER_FRAME = 32  # maximum of a decoded chunk
_MESSAGES = {
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


class MLFDeserializer(IndexedCorpus, Keyed):
    """Labels of MLF files, joined to features by the names of utterances.

    ```text
    #!MLF!#
    "*/an4/cen5-fjam-b.lab"
    0 100000 sil[2]
    100000 5500000 sil[3]
    .
    ```

    Times are units of 100 ns if an interval is at least 99,999 long (100,000 are a frame, rounded), else numbers of
    frames.

    Args:
        path: a file, a list of files (read as their concatenation), a folder or a glob pattern (sorted by path).
        streams: the stream by name, also as a keyword argument. ``fl.Stream(classes, sparse=True)``:
            one-hot, a value of 1 for each frame. ``fl.Stream((), "int64")``: the classes as numbers.
        states: path of a list of states, one a line, whose place is their class. The third word of a line is looked up
            in it. By default the fourth word, the last one, is the class.
        boundaries: whether the first frame of every interval has the value 2 instead of 1 (for CTC). Sparse only.
        invalid: ``"error"``: an utterance whose intervals leave gaps is an unreadable sequence. ``"drop"``: it is left
            out when the text is indexed, as in CNTK.
        chunk_size: bytes of text per chunk. Part of the order.
        cache: where to keep the index, as for `CTFDeserializer`.
        memory: bytes that a decoded chunk may take.
        progress: function that is called with (bytes done, bytes in total) while indexing. An exception from it
            aborts. With True, a bar is shown on stderr.
        stream_kwargs: the stream, as a keyword argument.

    Attributes:
        dropped: number of utterances dropped with ``invalid="drop"``.

    Raises:
        SchemaError: there is no stream, or several, or labels cannot fill it.
        DataError: a file is missing or no MLF, two states have the same name, or the index cannot be written.
    """

    _unit = "utterance"

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
        super().__init__(
            path,
            chunk_size=chunk_size,
            cache=cache,
            memory_bytes=memory,
            states=states,
            boundaries=boundaries,
            invalid=invalid,
        )
        self.schema = Schema(declared_streams(streams, stream_kwargs))
        self._boundaries = bool(boundaries)
        names = None if states is None else read_states(states)
        self._names = names
        self._classes = _classes(self.schema, names, self._boundaries)
        self._parser = _native.MlfParser(names, self._classes)
        drop = invalid == "drop"
        kind = IndexKind(self._chunk_size, ["mlf", invalid], lambda: _native.MlfIndexer(drop), _index_error)
        self._index(kind, progress)
        self.dropped = sum(file.index.header.lines for file in self._files)

    # ---- description ------------------------------------------------------------------------------

    def _content_identity(self) -> tuple[str, ...]:
        return (f"mlf {self._classes} {self._boundaries};{self._names!r}",)

    def keys(self, ordinals: Ints) -> NDArray[np.uint64]:
        """Return hashes of the names of utterances, uint64 (n,)."""
        return np.ascontiguousarray(self._entries(ordinals, "key"))

    # ---- reading ----------------------------------------------------------------------------------

    def read(self, chunk: int) -> Chunk:
        """Return the utterances of a chunk.

        Raises:
            DataError: the file has changed since it was indexed, or the decoded chunk would exceed ``memory``.
        """
        return self.select(np.array(self._ordinals(self._place(chunk))))

    def _select_in(self, number: int, local: Ints) -> Chunk:
        file = self._files[number]
        entries = file.entries_at(local)
        frames, text_bytes = (int(entries[field].sum(dtype=np.uint64)) for field in ("samples", "size"))
        check_memory(frames * _BYTES_PER_FRAME + text_bytes, self._memory_bytes, self.name)
        lows, highs, places, position = merge_reads(entries)
        buffer = np.empty(int(places[-1]), np.uint8)
        errors: dict[int, DataError] = {}
        with file.open() as text:
            for low, high, place in zip(lows.tolist(), highs.tolist(), places.tolist(), strict=False):
                read_exactly(text, buffer[place : place + high - low], low, file.path)
            file.compare(text)
            runs = self._parser.parse(buffer, position, np.ascontiguousarray(entries["size"]))
            near = (0, 1)
            for fault in runs[-1].view(_FAULT):
                k = int(fault["sequence"])
                byte = int(fault["byte"] - position[k]) + int(entries["offset"][k])
                near = (byte, line_of(text, byte, near))
                errors[k] = DataError(
                    _message(text, int(fault["code"]), byte, self._classes),
                    path=str(file.path),
                    byte=byte,
                    line=near[1],
                    sequence=int(local[k] + self._starts[number]),
                    hint=_SKIP,
                )
        return Chunk(self.schema, self._values(*runs[:-1]), errors)

    def _values(self, bounds: Ints, frames: NDArray[np.uint32], run_classes: NDArray[np.uint32]) -> dict[str, Value]:
        """Return the labels of utterances from their runs of frames with one class.

        Args:
            bounds: first run of each utterance, and the number of runs.
            frames, run_classes: frames and class of each run.
        """
        (name, stream), *_ = self.schema.items()
        offsets = np.concatenate([[0], np.cumsum(frames, dtype=np.int64)])[bounds]
        classes = np.repeat(run_classes, frames)
        if not stream.sparse:
            return {name: DenseValue(classes.astype(stream.dtype), offsets)}
        values = np.ones(len(classes), stream.dtype)
        if self._boundaries:
            ends = np.cumsum(frames, dtype=np.int64)
            values[ends - frames] = 2
        indptr = np.arange(len(classes) + 1)
        return {name: SparseValue(indptr, classes.astype(np.int32), values, stream.size, offsets)}


def read_states(path: PathLike) -> list[bytes]:
    """Return the names in a list of states, one a line. Blank lines are not counted.

    Raises:
        DataError: the list cannot be read, is empty, or has a name twice.
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
    limit = int(np.iinfo(stream.dtype).max) + 1
    return min(limit, 2**31 - 1) if names is None else min(limit, len(names))


def _index_error(path: Path, text: BinaryIO, code: int, byte: int) -> DataError:
    return DataError(_message(text, code, byte, 0), path=str(path), byte=byte, line=line_of(text, byte))


def _message(text: BinaryIO, code: int, byte: int, classes: int) -> str:
    """Return the error message for a fault at a byte of the text."""
    what = _MESSAGES[_NAMES[code]].format(classes=classes)
    shown = read_at(text, _SHOWN, byte).split(b"\n")[0].decode(errors="replace").strip()
    return f"{what}, got {shown[:120]!r}" if shown and _NAMES[code] not in ("cut", "no_lines", "too_long") else what


def open_files(paths: list[str], streams: Mapping[str, Stream], memory_bytes: int) -> MLFDeserializer:
    """Open files of labels with a declared stream. See `open_corpus`.

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
