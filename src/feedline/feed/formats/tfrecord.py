"""TFRecord: a `Deserializer` for files of tf.train.Example and tf.train.SequenceExample, without TensorFlow.

Guarantees and cost are as for `rows`, with records for rows. Files may be compressed, see `files.compressed_text`. The
checksums of every record are compared whenever it is read. Messages are parsed natively, by protobuf's rules, into
columns.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from feedline import _native
from feedline.data import Stream
from feedline.errors import DataError, SchemaError
from feedline.feed.files.compressed_text import head_of
from feedline.feed.files.paths import PathLike, open_file, read_at, status_of
from feedline.feed.formats.detect_tfrecord import RECORD_HEAD, begins_record, masked_crc32c, packing_of_records
from feedline.feed.formats.hive_folders import warn_of_unread_columns
from feedline.feed.formats.indexed.file_index import Cache, IndexKind
from feedline.feed.formats.indexed.indexed_file import UNPACK_BYTES, IndexedFile
from feedline.feed.formats.indexed.rows import CHUNK_TEXT, HEAD_BYTES, RowsDeserializer
from feedline.feed.progress_bar import Progress
from feedline.feed.protocol import CHUNK_MEMORY, declared_streams

_FIRST_RECORDS = 100
_FRAME = RECORD_HEAD + 4  # bytes of a record around its message
_MAX_PACKED = 1032  # bytes that one byte of deflate can expand to
_KINDS = {0: "nothing", 1: "bytes", 2: "floats", 3: "integers"}
_DTYPES = {1: "bytes", 2: "float32", 3: "int64"}
_FITTING = {"S": {1}, "U": {1}, "f": {2, 3}}  # kinds of features that can fill a kind of dtype, others need integers

_log = logging.getLogger("feedline")

_FeatureKey = tuple[str, bool]
"""The name of a feature, and whether it is in the feature lists."""


class _Feature(NamedTuple):
    """A feature of a record.

    Attributes:
        kind: see `_KINDS`. -1: steps differ.
        steps: number of steps of a feature list, else 1.
        min_count, max_count: smallest and largest number of values of a step.
    """

    kind: int
    steps: int
    min_count: int
    max_count: int


class TFRecordDeserializer(RowsDeserializer):
    """Records of TFRecord files, also packed by gzip or zlib. Each Example or SequenceExample is a sequence.

    A feature with as many values as its stream's shape is one sample. In a stream named in ``sequences`` it is a list
    of samples, of any length. A feature list is a list of samples, too, one sample for each step. Integers fill streams
    of integers, floats and bools, floats fill streams of floats, and byte strings streams of ``dtype="bytes"`` or
    ``"str"``. A record with a damaged message, or with features that do not fill the streams, is unreadable. After a
    damaged length no record can be found, so the file ends there with an unreadable record.

    Args:
        path: a file, a list of files (read as their concatenation), a folder or a glob pattern (sorted by path).
        streams: stream name to `Stream`, also as keyword arguments. ``field`` is the name of the feature, by
            default the stream's name. Other features are skipped. By default streams are inferred from the first 100
            records, see `infer_tfrecord_streams`.
        sequences: names of the streams with several samples in a feature, other than feature lists. By default these
            are the streams whose feature has more or less than one sample in one of the first 100 records.
        lists: names of the streams that are feature lists. By default these are the streams that the first 100 records
            have among their feature lists, and not in the context.
        defaults: stream name to the sample that replaces a missing feature, or ``[]`` for a list of samples. Without
            it a record that lacks the feature is unreadable.
        chunk_size: bytes of records per chunk. Part of the order.
        cache: where to keep the index, as for `CTFDeserializer`.
        memory: bytes that the records of a chunk, and the decoded chunk, may take.
        unpack: bytes of disk that the records of a file may take in the cache, as for `JSONLinesDeserializer`.
        progress: function that is called with (bytes done, bytes in total) while indexing. An exception from it
            aborts. With True, a bar is shown on stderr.
        stream_kwargs: more streams.

    Raises:
        SchemaError: two streams have the same feature, none of the first records has it and nothing fills it, or its
            values cannot fill the stream.
        DataError: a file is missing, no TFRecord file, or packed and damaged, there is no record, the first records
            show no streams, or the index cannot be written.
    """

    _unit, _content, _numbers_lines = "record", "records", False

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        streams: Mapping[str, Stream] | None = None,
        *,
        sequences: Sequence[str] | None = None,
        lists: Sequence[str] | None = None,
        defaults: Mapping[str, Any] | None = None,
        chunk_size: int = CHUNK_TEXT,
        cache: Cache = True,
        memory: int = CHUNK_MEMORY,
        unpack: int = UNPACK_BYTES,
        progress: Progress = None,
        **stream_kwargs: Stream,
    ) -> None:
        super().__init__(path, chunk_size=chunk_size, cache=cache, memory_bytes=memory, unpack=unpack)
        defaults = dict(defaults or {})
        first = _FirstRecords(self._paths, memory)
        declared = declared_streams(streams, stream_kwargs)
        if declared:
            sequence_names, list_names = first.classify(declared, sequences, lists, defaults)
        else:
            declared, sequence_names, list_names = first.infer()
            features = {name for record in first.records for name, _ in record}
            warn_of_unread_columns(self._paths, path, self.name, features)
            sequence_names = sequence_names if sequences is None else set(sequences)
            if lists is not None and set(lists) != list_names:
                had, got = (", ".join(sorted(names)) or "none" for names in (list_names, lists))
                raise SchemaError(
                    f"expected declared streams with `lists`, or `lists` of {had}, as the first records of "
                    f"{first.path} have, got {got}"
                )
        self._take_streams(declared)
        for what, names in (("sequences", sequence_names), ("lists", list_names), ("defaults", defaults)):
            if unknown := set(names) - declared.keys():
                raise SchemaError(f"expected names of streams in `{what}`, got {', '.join(sorted(unknown))}")
        self._ragged = frozenset(sequence_names | list_names)
        fields = self._fields("TFRecord")
        sources = [
            (_key(stream.field or name), name in list_names, _default_bytes(name, stream, self._ragged, defaults))
            for name, stream in declared.items()
        ]
        _check_duplicates(dict(zip(declared, sources, strict=True)))
        self._parser = _native.ExampleParser(fields, sources, memory)
        copied = self._ragged | defaults.keys() | self._fillings.keys()
        self._views = any(stream.is_bytes and name not in copied for name, stream in declared.items())
        size_at = self._streams.size_at
        # Only sequences make the index depend on the declarations.
        counter = _native.ExampleParser(fields, sources, CHUNK_MEMORY) if self._ragged else None
        read = [[key.hex(), in_lists, None if default is None else default.hex()] for key, in_lists, default in sources]
        kind = IndexKind(
            self._chunk_size,
            ["tfrecord", *([[read, fields, size_at]] if self._ragged else [])],
            lambda: _native.RecordIndexer(counter, size_at),
            _index_error,
            packing=packing_of_records,
            counts_gaps=True,  # a message that is too long is left out of its record, and of chunks
        )
        self._identity = f"tfrecord {read} {sorted(self._ragged)};"
        self._arguments |= {"sequences": sorted(sequence_names), "lists": sorted(list_names), "defaults": defaults}
        self._index(kind, progress)

    def _describe(
        self, file: IndexedFile, record: Any, code: str, stream: str | None, *, shown: str, byte: bytes
    ) -> tuple[str, str | None]:
        expected, got = int(record["expected"]), int(record["got"])
        where = "" if stream is None else f" for stream `{stream}`"
        restore = "restore the file, or write it again"
        if code == "record_cut":
            return f"expected a whole record, of {expected} bytes or more, got the end of the file", restore
        if code == "length_crc":
            what = f"expected a length with the checksum {expected:#010x}, got one with {got:#010x}"
            return f"{what}; the records after it cannot be found", restore
        if code == "message_crc":
            return f"expected a message with the checksum {expected:#010x}, got one with {got:#010x}", restore
        if code == "record_too_long":
            return f"expected a message of at most {expected} bytes, got one of {got % 2**64}", None
        if code == "missing":
            field = self.schema[stream or ""].field or stream
            return f"expected the feature `{field}`{where}, got none", self._remedy(stream)
        if code == "feature_kind":
            return f"expected {_KINDS[expected]}{where}, got {_KINDS[got]}", None
        if code == "out_of_range":
            return f"expected an integer of {self.schema[stream or ''].dtype.name}{where}, got {got}", None
        if code in ("too_many_values", "too_few_values"):
            hint = None if stream in self._ragged else "if it holds several samples, name the stream in sequences="
            return f"expected {expected} values{where}, got {got}", hint
        if code == "uneven_values":
            return f"expected a multiple of {expected} values{where}, got {got}", None
        if code == "bad_text":
            return f"expected text in UTF-8{where}, got the byte 0x{got:02x}", None
        return f"expected an Example or a SequenceExample{where}, got bytes that are not a protobuf message", None


def infer_tfrecord_streams(path: PathLike) -> dict[str, Stream]:
    """Infer the streams of a TFRecord file, sorted by name, from its first 100 records (at most 4 MiB, at least one).

    Features that all of these records have, of one kind, are streams: of bytes, float32 or int64. Features with the
    same number of values in all records are scalars or vectors, the others are sequences of scalars, and feature lists
    are sequences of their steps. A feature list with the name of a feature is called ``feature_lists/`` and that name.

    Raises:
        DataError: it is no TFRecord file, none of these records can be read, or no feature is in all of them.
    """
    return _FirstRecords([Path(path)], CHUNK_MEMORY).infer()[0]


class _FirstRecords:
    """The features of the first records.

    Attributes:
        path: the first file that has a record.
        records: the features of each of its first records.
    """

    def __init__(self, paths: Sequence[Path], memory_bytes: int) -> None:
        self.path, self.records = paths[0], list[dict[_FeatureKey, _Feature]]()
        for path in paths:
            if records := _features(path, memory_bytes):
                self.path, self.records = path, records
                break

    def occurrences(self, feature_key: _FeatureKey) -> list[_Feature]:
        """Return the feature of each record that has it, without empty ones."""
        features = [record[feature_key] for record in self.records if feature_key in record]
        return [feature for feature in features if feature.kind or feature_key[1]]

    def classify(
        self,
        streams: Mapping[str, Stream],
        sequences: Collection[str] | None,
        lists: Collection[str] | None,
        defaults: Collection[str],
    ) -> tuple[set[str], set[str]]:
        """Return the streams with several samples in a feature, and the streams that are feature lists.

        Raises:
            SchemaError: the records lack the feature of a stream, or have values that cannot fill it.
        """
        sequence_names, list_names = set(sequences or ()), set(lists or ())
        for name, stream in streams.items():
            field = stream.field or name
            if lists is None and self.occurrences((field, True)) and not self.occurrences((field, False)):
                list_names.add(name)
            features = self.occurrences((field, name in list_names))
            if self.records and not features and name not in defaults and not stream.may_miss:
                had = sorted({key for record in self.records for key, _ in record})
                raise SchemaError(
                    f"expected the feature `{field}` for stream `{name}` in one of the first {len(self.records)} "
                    f"records of {self.path}, which have {', '.join(had) or 'none'}; set field=, or missing= for one "
                    "that few records have"
                )
            kinds = {feature.kind for feature in features if feature.steps} - {0, -1}
            if kinds and not kinds & _FITTING.get(stream.dtype.kind, {3}):
                raise SchemaError(
                    f"expected {_KINDS[kinds.pop()]} for stream `{name}`, as the feature `{field}` of {self.path} has, "
                    f"got {stream}"
                )
            counts = {count for feature in features for count in (feature.min_count, feature.max_count)}
            if sequences is None and name not in list_names and stream.size and counts - {stream.size}:
                # Values that are no multiple of a sample are no sequence of samples.
                sequence_names |= {name} if all(count % stream.size == 0 for count in counts) else set()
        return sequence_names - list_names, list_names

    def infer(self) -> tuple[dict[str, Stream], set[str], set[str]]:
        """Return the streams, the names with several samples in a feature, and the names of feature lists.

        See `infer_tfrecord_streams`.
        """
        streams, sequence_names, list_names, left_out = dict[str, Stream](), set[str](), set[str](), list[str]()
        for feature_key in sorted({feature_key for record in self.records for feature_key in record}):
            field, in_lists = feature_key
            features = self.occurrences(feature_key)
            with_steps = [feature for feature in features if feature.steps]
            kinds = {feature.kind for feature in with_steps}
            counts = {count for feature in with_steps for count in (feature.min_count, feature.max_count)}
            kind = kinds.pop() if len(kinds) == 1 else 0
            uneven = in_lists and (len(counts) > 1 or (kind == 1 and counts != {1}))
            if len(features) < len(self.records) or kind not in _DTYPES or uneven or not field:
                left_out.append(field)
                continue
            vector = kind != 1 and len(counts) == 1 and min(counts) > 1
            name = f"feature_lists/{field}" if in_lists and self.occurrences((field, False)) else field
            streams[name] = Stream(min(counts) if vector else (), _DTYPES[kind], field=None if name == field else field)
            if in_lists:
                list_names.add(name)
            elif not vector and counts != {1}:
                sequence_names.add(name)
        if not streams:
            what = "expected a record that can be read at the beginning of the file, got none"
            if self.records:
                got = f"features that are not: {', '.join(left_out[:5])}" if left_out else "none"
                what = f"expected features that are alike in all of the first {_FIRST_RECORDS} records, got {got}"
            raise DataError(what, path=str(self.path), hint="declare the streams: x=fl.Stream(shape=...)")
        if left_out:
            listed = ", ".join(left_out)
            _log.warning("%s: no streams, as some of the first records lack them or differ: %s", self.path, listed)
        return streams, sequence_names, list_names


def _features(path: Path, memory_bytes: int) -> list[dict[_FeatureKey, _Feature]]:
    """Return the features of the first records of a file, without records that cannot be read.

    A first record longer than ``memory_bytes`` is not read. Names that are not UTF-8, which protobuf refuses, are left
    out.

    Raises:
        DataError: the file cannot be read, or is no TFRecord file.
    """
    with open_file(path) as file:
        packing = packing_of_records(file)

        def first(size: int) -> bytes:
            return read_at(file, size, 0) if packing is None else head_of(file, size, packing)

        data = first(HEAD_BYTES)
        if not begins_record(data):
            if len(data) >= RECORD_HEAD or (data and packing is None):
                raise _index_error(path, file, 0, 0)
            return []  # an empty file, or a damaged one for which the indexer raises the error
        if len(data) == HEAD_BYTES and (size := int.from_bytes(data[:8], "little") + _FRAME) > HEAD_BYTES:
            room = status_of(file).st_size * (1 if packing is None else _MAX_PACKED)
            data = first(size) if size <= min(memory_bytes, room) else b""
    records, at = list[dict[_FeatureKey, _Feature]](), 0
    for _ in range(_FIRST_RECORDS):
        if not begins_record(data[at : at + RECORD_HEAD]):
            break
        begin, end = at + RECORD_HEAD, at + RECORD_HEAD + int.from_bytes(data[at : at + 8], "little")
        at = end + 4
        message = data[begin:end]
        if at > len(data) or masked_crc32c(message) != int.from_bytes(data[end:at], "little"):
            continue
        features = _native.example_features(np.frombuffer(message, np.uint8))
        if features is not None:
            record = dict[_FeatureKey, _Feature]()
            for name, in_lists, *summary in features:
                field = name.decode("utf-8", "ignore")
                if _key(field) == name:
                    record[field, in_lists] = _Feature(*summary)
            records.append(record)
    return records


def _key(field: str) -> bytes:
    """Return the name of a feature as messages encode it."""
    return field.encode("utf-8", "surrogatepass")


def _index_error(path: Path, file: BinaryIO, code: int, byte: int) -> DataError:
    """Return the error for a file that cannot be indexed. The only cause is that it does not begin with a record."""
    packing = packing_of_records(file)
    head = read_at(file, RECORD_HEAD, 0) if packing is None else head_of(file, RECORD_HEAD, packing)
    what = "expected a TFRecord file, whose first 12 bytes are a length and its checksum"
    return DataError(f"{what}, got one that begins with {head!r}", path=str(path), byte=byte)


def _default_bytes(name: str, stream: Stream, ragged: Collection[str], defaults: Mapping[str, Any]) -> bytes | None:
    """Return the bytes of the default of a stream, or None if it has no default.

    Raises:
        SchemaError: the default is no sample of the stream.
    """
    if name not in defaults:
        return None
    value, expected = defaults[name], f"a sample of {stream}"
    if name in ragged:
        expected = "[]"
        if isinstance(value, (list, tuple)) and not value:
            return b""
    elif stream.is_bytes:
        if isinstance(value, bytes) and not stream.is_text:
            return value
        if isinstance(value, str) and stream.is_text:
            with contextlib.suppress(UnicodeEncodeError):  # half of a surrogate pair
                return value.encode()
    else:
        with contextlib.suppress(ValueError, TypeError, ArithmeticError), np.errstate(over="raise"):
            original = np.asarray(value)
            array = original.astype(stream.dtype) if stream.dtype.kind == "f" else np.asarray(value, stream.dtype)
            same = original.dtype.kind in "biuf" and (stream.dtype.kind == "f" or np.array_equal(array, original))
            if same and array.shape in ((), stream.shape):
                return np.broadcast_to(array, stream.shape).tobytes()
    raise SchemaError(f"expected {expected} in `defaults` for stream `{name}`, got {value!r}")


def _check_duplicates(sources: Mapping[str, tuple[bytes, bool, bytes | None]]) -> None:
    readers: dict[tuple[bytes, bool], str] = {}
    for name, (field, in_lists, _) in sources.items():
        reader = readers.setdefault((field, in_lists), name)
        if reader != name:
            shown = field.decode(errors="replace")
            raise SchemaError(
                f"expected streams of separate features, got `{reader}` and `{name}` of `{shown}`; make one of them "
                "in an fl.Map"
            )
