"""RecordIO files of MXNet: a `Deserializer` of labels and pictures, in place, without MXNet.

Guarantees: a damaged record keeps its place and reports why, and the next one is found. Cost: see `mapped_corpus`.
Labels are copied from the map, natively. Pictures are views of it, and copied once, into the minibatch. A chunk with a
record of several parts, which is one of a million, is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.scattered import ScatteredBytes, without_gaps
from feedline.data.value import BytesValue, DenseValue
from feedline.errors import DataError, SchemaError
from feedline.feed.files.paths import PathLike, open_file, read_at, status_of
from feedline.feed.files.remote import object_at
from feedline.feed.formats.indexed.file_index import Cache, IndexKind
from feedline.feed.formats.indexed.indexed_corpus import by_file, check_memory, offsets_of
from feedline.feed.formats.indexed.indexed_file import IndexedFile
from feedline.feed.formats.indexed.mapped_corpus import (
    ArchivePart,
    HeaderScan,
    MappedCorpus,
    archives_at,
    scan_headers,
)
from feedline.feed.progress_bar import Progress
from feedline.feed.protocol import CHUNK_MEMORY, ChunkInfo, Ints, Keyed, declared_streams

MAGIC = b"\x0a\x23\xd7\xce"
"""The first bytes of a record."""

_FAULT = np.dtype([("byte", "<i8"), ("expected", "<i8"), ("got", "<i8"), ("record", "<i4"), ("code", "<i4")])
_NAMES = {code: name for name, code in _native.RECORDIO_ERRORS.items()}
_MESSAGES = {
    "cut": "expected a record of {expected} bytes, got {got} up to the end",
    "bad_magic": "expected a record, which begins with {expected:#010x}, got {got:#010x}",
    "bad_part": "expected the beginning or the next part of a record, got a part of kind {got}",
    "length": "expected a record of {expected} bytes, up to the next one, got a length of {got}",
    "header": "expected a record of {expected} bytes or more for its header and labels, got {got}",
    "labels": "expected {expected} labels, got {got}",
}


def _index_error(path: Path, file: BinaryIO, code: int, byte: int) -> DataError:
    """Return the error for a file that cannot be indexed. The only cause is that it has no record."""
    head = read_at(file, 8, 0)
    what = f"expected a RecordIO file, whose records begin with {MAGIC!r}, got one that begins with {head!r}"
    return DataError(what, path=str(path), byte=byte)


class RecordIODeserializer(MappedCorpus, Keyed):
    """Records of MXNet's ``.rec`` files, each a sequence of labels and a picture.

    Undeclared streams are ``label``, float32, and ``image``, bytes. Labels are one number, a vector if all records have
    the same number of them, else a sequence of scalars. The ranges of ids in InsightFace's files, which begin with one,
    are no sequences. A record that is damaged, or has other labels than declared, is unreadable.

    Keys are the numbers in the ``.idx`` file next to a ``.rec`` file, of the same name, else the numbers of records in
    their file, from 0. The ``.idx`` file is read by `keys` only.

    Args:
        path: a file, a list of files (read as their concatenation), a folder, or a glob pattern.
        streams: stream name to `Stream`, also as keyword arguments. ``field`` is ``"label"`` or ``"image"``, by default
            the stream's name. Labels are float32, pictures bytes.
        sequences: names of the streams that have any number of samples. By default the label, if it is not declared and
            records have different numbers of labels.
        chunk_size: bytes of the file in a chunk. Part of the order.
        cache: where to keep the index, as for `CTFDeserializer`.
        memory: bytes that the labels of a chunk may take.
        progress: function that is called with (bytes done, bytes in total) while indexing. An exception from it
            aborts. With True, a bar is shown on stderr.
        stream_kwargs: more streams.

    Raises:
        SchemaError: a stream is declared twice, or records cannot fill it.
        DataError: a file is missing or no RecordIO file, there is no record, or an index cannot be written.
    """

    _unit = "record"

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        streams: Mapping[str, Stream] | None = None,
        *,
        sequences: Sequence[str] | None = None,
        chunk_size: int = 32 << 20,
        cache: Cache = True,
        memory: int = CHUNK_MEMORY,
        progress: Progress = None,
        **stream_kwargs: Stream,
    ) -> None:
        super().__init__(archives_at(path, ".rec"), chunk_size=chunk_size, cache=cache, memory_bytes=memory)
        scan = scan_headers(_native.RecordIOIndexer)
        self._index(IndexKind(self._chunk_size, "recordio", HeaderScan, _index_error, scan), progress)
        equal = self._equal_labels()
        declared = declared_streams(streams, stream_kwargs)
        if not declared:
            shape = () if equal in (None, 1) else equal
            declared = {"label": Stream(shape), "image": Stream(dtype="bytes")}
            sequences = ["label"] if equal is None and sequences is None else sequences
        self._fields = {name: stream.field or name for name, stream in declared.items()}
        self._ragged = frozenset(sequences or ())
        self._arguments["sequences"] = sorted(self._ragged)
        _check_streams(declared, self._fields, self._ragged)
        self.schema = Schema(declared)
        self._labels = next((stream for name, stream in declared.items() if self._fields[name] == "label"), None)
        self._by_labels = bool(self._ragged) and self.schema.size_stream in (None, *self._ragged)
        if not self._by_labels:
            self._infos = [ChunkInfo(info.sequences, info.sequences, info.bytes) for info in self._infos]
        self._file_keys: dict[int, tuple[Ints, NDArray[np.uint64]] | None] = {}

    def _equal_labels(self) -> int | None:
        """Return the number of labels that all records have, or None if they differ."""
        counts = set[int]()
        for file in self._files:
            if not file.index.equal:
                return None
            chunks = range(len(file.index.table))
            each = (int(file.read_index(lambda index, i=i: index.entries(i))["samples"].max()) for i in chunks)  # type: ignore[misc]
            counts |= {next((count for count in each if count), 0)}
        counts -= {0}  # of files with damaged records only
        return counts.pop() if len(counts) == 1 else None if counts else 1

    def _content_identity(self) -> tuple[str, ...]:
        return (f"recordio {sorted(self._fields.items())} {sorted(self._ragged)};",)

    def lengths(self, ordinals: Ints) -> Ints | None:
        """Return the number of labels of records if they differ, int64 (n,), or None if each counts as one sample."""
        return super().lengths(ordinals) if self._by_labels else None

    # ---- keys -------------------------------------------------------------------------------------

    def keys(self, ordinals: Ints) -> NDArray[np.uint64]:
        """Return the keys of records, uint64 (n,).

        Raises:
            DataError: an ``.idx`` file is damaged or lacks a record, or was not opened with its ``.rec`` file in an
                object store.
        """
        keys = np.empty(len(ordinals), np.uint64)
        for number, at, local in by_file(np.asarray(ordinals, np.int64), self._starts):
            file = self._files[number]
            if number not in self._file_keys:
                self._file_keys[number] = _read_idx(file)
            listed = self._file_keys[number]
            if listed is None:
                keys[at] = file.entries_at(local, "key")
                continue
            offsets, names = listed
            places = file.entries_at(local, "offset").astype(np.int64)
            if len(lacking := np.flatnonzero(np.isin(places, offsets, invert=True))):
                raise DataError(
                    f"expected a key for the record at byte {places[lacking[0]]} of {file.path.name}, got none",
                    path=str(file.path.with_suffix(".idx")),
                    sequence=int(np.asarray(ordinals)[at[lacking[0]]]),
                    hint="write the .idx file again, or move it away to have the numbers of records as keys",
                )
            keys[at] = names[np.searchsorted(offsets, places)]
        return keys

    # ---- reading ----------------------------------------------------------------------------------

    def _chunk(self, part: ArchivePart, seals: Sequence[NDArray[np.uint8]] = ()) -> Chunk:
        ragged, each = bool(self._ragged), part.entries["samples"].astype(np.int64)
        if self._labels is not None and not ragged:
            each = np.full(len(each), self._labels.size)
        bounds = offsets_of(each)
        check_memory(4 * int(bounds[-1]), self._memory_bytes, part.path)
        labels, spans, pictures, faults = _native.recordio_records(part.memory, part.begin, part.size, bounds)
        errors = {int(fault["record"]): self._fault_error(part, fault) for fault in faults.view(_FAULT)}
        values: dict[str, Value] = {}
        views = False
        for name, field in self._fields.items():
            if field == "label":
                rows = labels if ragged else labels.reshape(len(each), *self.schema[name].shape)
                values[name] = DenseValue(rows, bounds if ragged else None)
            elif pictures is None:
                values[name] = ScatteredBytes(spans.reshape(-1, 2), part.memory, text=False)
                views = True
            else:
                values[name] = BytesValue(spans, pictures, None, text=False)
        if not seals:  # private memory: a map has seals
            without_gaps(values, part.memory)
        return Chunk(self.schema, values, errors, seals=seals if views else ())

    def _fault_error(self, part: ArchivePart, fault: Any) -> DataError:
        kind, record = _NAMES[int(fault["code"])], int(fault["record"])
        what = _MESSAGES[kind].format(expected=int(fault["expected"]), got=int(fault["got"]))
        stream = None
        if kind == "labels":
            stream = next((name for name, field in self._fields.items() if field == "label"), None)
            what += "; declare its shape, or name the stream in sequences= if records have different numbers of labels"
        what += f", in record {int(part.entries['key'][record])}"
        return part.error(record, what, int(fault["byte"]), stream)


def _check_streams(streams: Mapping[str, Stream], fields: Mapping[str, str], ragged: frozenset[str]) -> None:
    """Check that records can fill the streams.

    Raises:
        SchemaError: they cannot.
    """
    for name, stream in streams.items():
        field = fields[name]
        if field not in ("label", "image"):
            raise SchemaError(
                f"expected streams `label` and `image`, or field= of one of these, got `{name}`: a record has no other"
            )
        if stream.may_miss:
            raise SchemaError(f"expected no `missing` or `mask` for stream `{name}`, as records have all, got {stream}")
        if field == "image" and (not stream.is_bytes or stream.is_text):
            raise SchemaError(f"expected `bytes` for stream `{name}` of pictures, got {stream}")
        if field == "label" and (stream.is_bytes or stream.sparse or stream.dtype != np.float32):
            raise SchemaError(
                f"expected dense float32 for stream `{name}` of labels, got {stream}; convert them in an fl.Map"
            )
    if len(set(fields.values())) < len(fields):
        raise SchemaError(f"expected one stream of labels and one of pictures, got {', '.join(fields)}")
    if wrong := [name for name in ragged if fields.get(name) != "label" or streams[name].shape]:
        raise SchemaError(f"expected a stream of scalar labels in `sequences`, got `{wrong[0]}`")


def _read_idx(file: IndexedFile) -> tuple[Ints, NDArray[np.uint64]] | None:
    """Return the offsets of an ``.idx`` file, ascending, and the keys at these, or None if there is no such file.

    Raises:
        DataError: a line is no key and offset, or the ``.rec`` file was opened in an object store by its own address.
    """
    path = file.path.with_suffix(".idx")
    if object_at(file.path) is not None and object_at(path) is None:
        raise DataError(
            "expected the .idx file of a RecordIO file in an object store for its keys, got the address of the .rec "
            "file alone",
            path=str(file.path),
            hint="open the folder that has both, copy them, or join by other keys",
        )
    if path == file.path or not path.exists():
        return None
    keys, offsets = list[bytes](), list[int]()
    with open_file(path) as text:
        lines = read_at(text, status_of(text).st_size, 0).splitlines()  # whole: one request to an object store
        for number, line in enumerate(lines, 1):
            key, _, offset = line.partition(b"\t")
            if not offset.isdigit() or len(offset) > 18:
                what = f"expected a key, a tab and an offset, got {line[:60]!r}"
                raise DataError(what, path=str(path), line=number, hint="write the .idx file again, or move it away")
            keys.append(key)
            offsets.append(int(offset))
    order = np.argsort(np.array(offsets, np.int64), kind="stable")
    return np.array(offsets, np.int64)[order], _as_numbers(keys)[order]


def _as_numbers(keys: Sequence[bytes]) -> NDArray[np.uint64]:
    """Return keys that are numbers of up to 19 digits as they are, and hashes of other keys."""
    bounds = offsets_of(map(len, keys))
    numbers = _native.name_keys(b"".join(keys), bounds[:-1], bounds[1:])
    for i, key in enumerate(keys):
        if key.isdigit() and len(key) <= 19:
            numbers[i] = int(key)
    return numbers
