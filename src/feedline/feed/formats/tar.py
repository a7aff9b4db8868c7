"""Tar archives of samples, as WebDataset writes them: a `Deserializer` of their members, without extracting them.

Guarantees: members are grouped as in WebDataset. An archive is read in place, by its headers, which are checked. An
incomplete sample keeps its place and reports why. Nothing is unpickled. Cost: see `mapped_corpus`. Bytes and texts are
copied once, into the minibatch. Numbers are decoded in Python, chunk by chunk (see `number_files`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.scattered import ScatteredBytes, without_gaps
from feedline.data.value import BytesValue
from feedline.errors import DataError, SchemaError
from feedline.feed.files.paths import TAR_SUFFIXES, PathLike, read_at
from feedline.feed.formats import number_files
from feedline.feed.formats.indexed.file_index import Cache, IndexKind
from feedline.feed.formats.indexed.indexed_corpus import check_memory
from feedline.feed.formats.indexed.indexed_file import UNPACK_BYTES, packing_of_text
from feedline.feed.formats.indexed.mapped_corpus import (
    ArchivePart,
    HeaderScan,
    MappedCorpus,
    archives_at,
    scan_headers,
)
from feedline.feed.progress_bar import Progress
from feedline.feed.protocol import (
    CHUNK_MEMORY,
    Ints,
    Keyed,
    declared_streams,
)

KEY = "__key__"
"""Field of a stream that delivers the keys of samples."""

_ANY = "*"

_FAULT = np.dtype([("byte", "<i8"), ("sample", "<i4"), ("field", "<i4"), ("code", "<i4"), ("zero", "<i4")])
_NAMES = {code: name for name, code in _native.TAR_ERRORS.items()}
_MESSAGES = {
    "cut": "expected a whole member, got the end of the file",
    "bad_header": "expected a tar header, got bytes with another checksum, or numbers that cannot be read",
    "bad_extended": "expected a pax header or a long name that can be read, got a damaged one",
    "link": "expected members with data of their own, got a link",
    "sparse": "expected plain members, got a sparse one",
    "volume": "expected a whole archive, got a part of one of several volumes",
    "global": "expected a pax header to name one member, got one that sets path or size of all that follow",
    "too_long": "expected samples of at most 4294967295 bytes, got a longer one",
}
_HINTS = {
    "link": "write the archive again with what the link points to: tar --dereference --hard-dereference",
    "sparse": "write the archive again without --sparse",
    "volume": "join the volumes first",
    "too_long": "split the sample",
}


def _index_error(path: Path, archive: BinaryIO, code: int, byte: int) -> DataError:
    kind = _NAMES[code]
    what = _MESSAGES[kind]
    if packing_of_text(archive) is not None:
        what += ", in the decompressed archive"
    elif kind in ("link", "sparse", "volume"):
        name = read_at(archive, 100, byte).split(b"\0")[0].decode("utf-8", "replace")
        what += f": {name!r}"
    hint = _HINTS.get(kind, "the file is damaged, or not a tar archive: restore it, or write it again")
    return DataError(what, path=str(path), byte=byte, hint=hint)


class TarDeserializer(MappedCorpus, Keyed):
    """Samples of WebDataset shards: consecutive members of a tar archive with one key.

    The key of ``train/0017.seg.png`` is ``train/0017``, its suffix ``seg.png``: everything up to the first dot of the
    base name, and the rest in lower case. Members without a dot are skipped. A sample is unreadable if it lacks a
    stream's suffix, has it twice, or is cut off.

    A suffix with ``*``, such as ``*.jpg``, is a pattern: its stream has all members of a sample that match, any number
    of byte strings, in the order of the archive. Another stream, one without a pattern, then defines the size.

    Args:
        path: an archive, also compressed by gzip or Zstandard, a list of them (read one after the other), a folder, or
            a pattern such as ``train-{000..099}.tar``.
        streams: stream name to `Stream`, also as keyword arguments. ``field`` is the suffix, by default the stream's
            name, or ``__key__`` for the sample's key. ``"bytes"`` and ``"str"`` deliver the member as it is, and
            numbers are decoded from ``.npy``, ``.json``, ``.cls`` and other text. By default the suffixes of the first
            sample are streams: ``.npy`` by its header, ``.cls`` and the like as int64, ``.txt`` and ``.json`` as text,
            all others as bytes.
        chunk_size: bytes of the archive, decompressed, in a chunk. Part of the order.
        cache: where to keep the index, as for `CTFDeserializer`.
        memory: bytes that the decoded numbers of a chunk may take, and the decompressed bytes of one.
        unpack: bytes of disk that an archive may take in the cache, as for `JSONLinesDeserializer`.
        progress: function that is called with (bytes done, bytes in total) while indexing. An exception from it
            aborts. With True, a bar is shown on stderr.
        stream_kwargs: more streams.

    Raises:
        SchemaError: a stream is declared twice, or no member can fill it.
        DataError: a file is missing, no tar archive, or compressed and damaged, or has links or sparse members, there
            is no sample, or an index cannot be written.
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        streams: Mapping[str, Stream] | None = None,
        *,
        chunk_size: int = 32 << 20,
        cache: Cache = True,
        memory: int = CHUNK_MEMORY,
        unpack: int = UNPACK_BYTES,
        progress: Progress = None,
        **stream_kwargs: Stream,
    ) -> None:
        archives = archives_at(path, *TAR_SUFFIXES)
        super().__init__(archives, chunk_size=chunk_size, cache=cache, memory_bytes=memory, unpack=unpack)
        scan = scan_headers(_native.TarIndexer)
        self._index(
            IndexKind(self._chunk_size, "tar", HeaderScan, _index_error, scan, packing=packing_of_text), progress
        )
        schema = Schema(declared_streams(streams, stream_kwargs) or self._infer_streams())
        self._fields = _fields(schema)
        self.schema = _sized_by_one_sample(schema, self._fields)

    # ---- description ------------------------------------------------------------------------------

    def _empty_error(self) -> DataError:
        return DataError(
            "expected at least one sample, got none: members are named key.suffix",
            path=self.name,
            hint="an archive without such names cannot be read as samples; extract it",
        )

    def _content_identity(self) -> tuple[str, ...]:
        return ("tar;",)

    def keys(self, ordinals: Ints) -> NDArray[np.uint64]:
        """Return numeric keys as they are, and hashes of other keys, uint64 (n,)."""
        return self._entries(ordinals, "key")

    # ---- reading ----------------------------------------------------------------------------------

    def _chunk(self, part: ArchivePart, seals: Sequence[NDArray[np.uint8]] = ()) -> Chunk:
        count = len(part.begin)
        needed = count * sum(s.size * s.dtype.itemsize for s in self.schema.values() if not s.is_bytes)
        check_memory(needed, self._memory_bytes, part.path)
        fields = [field for field in self._fields.values() if field != KEY and _ANY not in field]
        spans, faults, bounds, keys = _native.tar_members(
            part.memory, part.begin, part.size, [field.encode() for field in fields], KEY in self._fields.values()
        )
        errors = {int(fault["sample"]): self._fault_error(part, fault, fields) for fault in faults.view(_FAULT)}
        pairs = dict(zip(fields, spans.reshape(len(fields), count, 2), strict=True))
        values: dict[str, Value] = {}
        mapped = False
        for name, stream in self.schema.items():
            field = self._fields[name]
            if _ANY in field:
                values[name] = self._matching(part, name, errors)
            elif field == KEY:
                assert bounds is not None
                assert keys is not None
                values[name] = BytesValue(bounds, keys, None, text=stream.is_text)
            elif stream.is_bytes:
                values[name] = ScatteredBytes(pairs[field], part.memory, text=stream.is_text)
                mapped = True
            else:
                members = ScatteredBytes(pairs[field], part.memory, text=False).packed()
                rows, wrong = number_files.numbers(members, stream, number_files.kind_of(field), skip=errors)
                values[name] = rows
                errors |= {i: self._decode_error(part, i, name, field, reason) for i, reason in wrong.items()}
        if not seals:  # private memory: a map has seals
            without_gaps(values, part.memory)
        return Chunk(self.schema, values, errors, seals=seals if mapped else ())

    def _matching(self, part: ArchivePart, name: str, errors: dict[int, DataError]) -> BytesValue:
        """Return the members of a stream with a pattern. Samples with one of them twice are added to ``errors``."""
        spans: list[tuple[int, int]] = []
        counts = [0]
        for i, (begin, size) in enumerate(zip(part.begin.tolist(), part.size.tolist(), strict=True)):
            members = [] if i in errors else _native.tar_suffixes(part.memory[begin : begin + size])
            matching = [
                (suffix, begin + first, begin + stop)
                for suffix, first, stop in members
                if fnmatchcase(suffix.decode("utf-8", "replace"), self._fields[name])
            ]
            suffixes = [suffix for suffix, _, _ in matching]
            if len(set(suffixes)) < len(suffixes):
                key, _ = self._members(part, i)
                what = f"expected members `.{self._fields[name]}` of different names in sample `{key}`, got one twice"
                errors[i] = part.error(i, what, begin, name)
                matching = []
            spans += [(first, stop) for _, first, stop in matching]
            counts.append(len(matching))
        one_each = ScatteredBytes(np.array(spans, np.int64).reshape(-1, 2), part.memory, text=False)
        return BytesValue(one_each.bounds, one_each.data, np.cumsum(counts), text=self.schema[name].is_text)

    def _fault_error(self, part: ArchivePart, fault: Any, fields: list[str]) -> DataError:
        kind, sample = _NAMES[int(fault["code"])], int(fault["sample"])
        if kind == "missing":
            (key, had) = self._members(part, sample)
            what = f"expected a member `.{fields[fault['field']]}` in sample `{key}`, got {had}"
        elif kind == "repeated":
            key, _ = self._members(part, sample)
            what = f"expected one member `.{fields[fault['field']]}` in sample `{key}`, got two"
        else:
            what = _MESSAGES[kind]
        named = (n for n, f in self._fields.items() if fault["field"] >= 0 and f == fields[fault["field"]])
        return part.error(sample, what, int(fault["byte"]), next(named, None))

    def _members(self, part: ArchivePart, sample: int) -> tuple[str, str]:
        """Return the key of a sample, and its suffixes, for an error."""
        begin, size = part.begin[sample : sample + 1], part.size[sample : sample + 1]
        keys = _native.tar_members(part.memory, begin, size, [], True)[3]
        suffixes = _native.tar_suffixes(part.memory[begin[0] : begin[0] + size[0]])
        listed = ", ".join("." + suffix.decode("utf-8", "replace") for suffix, _, _ in suffixes[:8])
        return "" if keys is None else keys.tobytes().decode("utf-8", "replace"), listed or "none"

    def _decode_error(self, part: ArchivePart, sample: int, stream: str, field: str, reason: str) -> DataError:
        key, _ = self._members(part, sample)
        what = f"{reason} (member .{field} of sample `{key}`)"
        return part.error(sample, what, int(part.begin[sample]), stream)

    # ---- other ------------------------------------------------------------------------------------

    def _infer_streams(self) -> dict[str, Stream]:
        """Return the streams of the first sample, by suffix."""
        number = next(i for i, file in enumerate(self._files) if file.index.header.sequences)
        file = self._files[number]
        entry = file.entries_at(np.zeros(1, np.int64))[0]
        begin, size = int(entry["offset"]), int(entry["size"])
        sample = self._memory_for(size, file)
        with file.open() as archive:
            holes = file.fill(archive, sample, begin)  # the map of a remote archive may lack it
            file.compare(archive)
        if holes:
            raise file.hole_error(holes[0][0], holes[0][2], int(self._starts[number]), None)
        streams = {}
        for suffix, a, b in _native.tar_suffixes(sample):
            field = suffix.decode("utf-8", "replace")
            if field:
                streams[field] = number_files.stream_of(field, sample[a:b].tobytes(), str(file.source))
        if not streams:
            raise DataError(
                "expected a whole first sample to infer streams from, got a truncated one",
                path=str(file.source),
                byte=begin,
                hint="declare the streams: image=fl.Stream(dtype='bytes', field='jpg')",
            )
        return streams


def _fields(schema: Schema) -> dict[str, str]:
    """Return the suffix of each stream.

    Raises:
        SchemaError: no member can fill a stream.
    """
    fields = {}
    for name, stream in schema.items():
        field = (name if stream.field is None else stream.field).encode().lower().decode()  # ASCII, as members' are
        if field == KEY and not stream.is_bytes:
            raise SchemaError(f"expected `str` or `bytes` for stream `{name}` of keys, got {stream}")
        if _ANY in field and not stream.is_bytes:
            raise SchemaError(f"expected `bytes` or `str` for stream `{name}` of all members `.{field}`, got {stream}")
        if field != KEY and not stream.is_bytes:
            number_files.check_stream(name, stream, field)
        fields[name] = field
    return fields


def _sized_by_one_sample(schema: Schema, fields: Mapping[str, str]) -> Schema:
    """Return the schema, in which a stream of one sample a sequence defines the size if others have any number.

    Raises:
        SchemaError: there is no such stream, or another one defines the size.
    """
    several = [name for name, field in fields.items() if _ANY in field]
    if not several:
        return schema
    sizing = schema.size_stream or next((name for name in schema if name not in several), None)
    if sizing is None or sizing in several:
        raise SchemaError(
            f"expected a stream of one member a sample to define the size, beside `{several[0]}` of all members "
            f"`.{fields[several[0]]}`, got {schema.size_stream or 'none'}; declare one, such as "
            f"key=fl.Stream(dtype='str', field='{KEY}')"
        )
    return Schema({**schema, sizing: replace(schema[sizing], defines_size=True)})
