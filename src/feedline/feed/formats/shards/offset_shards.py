"""Shards that begin with a table of offsets, as MosaicML Streaming and LitData write them, described by an index.json.

A shard is ``u32 count, u32 offsets[count + 1]``, and between two offsets a sample: the size, u32, of every field whose
size is not in the index, then the fields. Guarantees: no bytes outside a shard are read, even if it is damaged. A
sample whose sizes do not add up keeps its place and reports why. Cost: opening reads index.json and looks up the size
of every file, and if arrays are sequences of any length, the sizes of all samples. An uncompressed shard becomes one or
several chunks. These are views of the mapped file, or of bytes that were fetched ahead. Byte strings, and numbers in
samples of one size, are copied once, into the minibatch. Other numbers are copied once more when their chunk is read. A
compressed shard is one chunk, or several if its samples are compressed in runs (see `shard_compression`). It is
unpacked into memory whenever it is read.
"""

from __future__ import annotations

import abc
import hashlib
import itertools
import mmap
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import system
from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.faults import check_seals
from feedline.data.scattered import ScatteredBytes, without_gaps
from feedline.data.schema import PRESENT
from feedline.errors import DataError, SchemaError
from feedline.feed.files.cache_files import user_cache
from feedline.feed.files.digest import ContentDigest
from feedline.feed.files.lru import LruCache
from feedline.feed.files.paths import PathLike, open_file, read_at, reading, status_of
from feedline.feed.files.read_into import read_exactly, read_most
from feedline.feed.files.remote import by_ranges
from feedline.feed.files.streaming import blocks
from feedline.feed.files.truncation_guard import map_whole
from feedline.feed.formats import number_files
from feedline.feed.formats.detect_shards import INDEX
from feedline.feed.formats.missing import equal_to, fill, filling_of, identity_of, mask_of, remedy, with_masks
from feedline.feed.formats.pickled_by_arguments import PickledByArguments
from feedline.feed.formats.shards.index_json import DAMAGED, ShardFile, folders_of
from feedline.feed.formats.shards.sample_fields import (
    ShardField,
    counts_of,
    first_stream,
    names_of,
    numbers_of,
    texts_of,
)
from feedline.feed.formats.shards.shard_compression import (
    PackedRuns,
    TooMuchError,
    read_runs,
    unpack,
    unpack_each,
    unpack_runs,
    words,
)
from feedline.feed.formats.shards.shard_lengths import SUFFIX, cached_lengths
from feedline.feed.formats.unreadable import mark_gaps
from feedline.feed.protocol import (
    CHUNK_MEMORY,
    ChunkInfo,
    Deserializer,
    Extent,
    Fetchable,
    Growing,
    Ints,
    Piece,
    Unread,
    Verifiable,
    whole_number,
)
from feedline.feed.unique import distinct

MEMORY_BYTES = CHUNK_MEMORY
CHUNK_BYTES = 32 << 20  # of a chunk of a shard that can be read in parts
_MAX_MAPS = 256  # that are kept, in addition to maps of chunks in use
_SKIP = 'pass on_error="skip" to the source to skip such samples and list them'
_PEEKED_SAMPLES = 256  # first samples, from which the shape of an array is inferred


class _ShardPlace(NamedTuple):
    """The bytes of a chunk in its file, and the places of samples in them.

    Attributes:
        low, high: first byte and end.
        bounds: bytes of the file at which samples begin and end, or None if unpacking determines them.
        runs: compressed runs of samples, if any.
    """

    low: int
    high: int
    bounds: Ints | None = None
    runs: PackedRuns | None = None


class _ShardPart(NamedTuple):
    """Samples in memory. ``bounds`` are offsets in the shard, and ``base`` is the offset at which the memory begins.

    ``wrong`` has the reasons why samples could not be unpacked.
    """

    memory: NDArray[np.uint8]
    base: int
    bounds: Ints
    first: int
    path: str
    wrong: Mapping[int, str] = {}


class OffsetShards(Deserializer, Fetchable, Growing, Verifiable, PickledByArguments):
    """A folder, or several, of shards. Subclasses read their index.json.

    Args:
        path: the folder, its index.json, or a list of these, which are read one after the other.
        streams: declarations. If there are none, every field is a stream.
        chunk_size: bytes of a chunk of a shard that can be read in parts. Part of the order.
        memory_bytes: bytes that an unpacked shard, or the numbers of a chunk, may take.
        verify: whether to compare each shard with its digests when it is first read.

    Raises:
        DataError: an index or a shard is missing or damaged.
        SchemaError: no field fills a stream, or a field is refused.
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        streams: Mapping[str, Stream],
        *,
        chunk_size: int,
        memory_bytes: int,
        verify: bool,
    ) -> None:
        chunk_size, self._memory = whole_number("chunk_size", chunk_size, 1), whole_number("memory", memory_bytes, 1)
        self._folders = folders_of(path)
        self.name = str(self._folders[0]) + (f" and {len(self._folders) - 1} more" if len(self._folders) > 1 else "")
        self._shards: list[ShardFile] = []
        self._fields: list[ShardField] = []
        for folder in self._folders:
            shards, fields = self._describe_folder(folder)
            self._shards += shards
            if not self._fields:
                self._fields = fields
            elif _encodings(fields) != _encodings(self._fields):
                raise DataError(
                    f"expected folders with the same fields, got {names_of(self._fields)} and {names_of(fields)}",
                    path=str(folder),
                )
        self._shards = [shard for shard in self._shards if shard.samples]
        if not self._shards:
            raise DataError("expected at least one sample, got none", path=self.name)
        self._chunks: list[tuple[int, int, int]] = []
        self._infos: list[ChunkInfo] = []
        for number, shard in enumerate(self._shards):
            steps = -(-shard.samples // shard.step)
            pieces = max(1, min(steps, -(-shard.size // chunk_size)))
            ends = [min(steps * k // pieces * shard.step, shard.samples) for k in range(pieces + 1)]
            for k, (a, b) in enumerate(itertools.pairwise(ends)):
                self._chunks.append((number, a, b))
                size = shard.size * (k + 1) // pieces - shard.size * k // pieces
                self._infos.append(ChunkInfo(b - a, b - a, size))
        self._starts = np.cumsum([0, *(shard.samples for shard in self._shards)])
        self._maps = LruCache(self._map, lambda _: 1, _MAX_MAPS)
        self._verify, self._verified = verify, set[int]()
        self._times: dict[int, int] = {}  # modification time of each shard when it was first read
        if verify:
            for shard in self._shards:
                _hasher(shard)
        self._any_length: set[str] = set()  # streams whose samples are sequences
        self._counts: NDArray[np.int32] | None = None
        self._peeked: tuple[_ShardPart, dict[int, Ints], dict[int, str]] | None = None
        declared = dict(streams or self._default_streams())
        self._fillings = {name: filling for name, s in declared.items() if (filling := filling_of(s)) is not None}
        self._streams = Schema({name: stream.delivered() for name, stream in declared.items()})
        self.schema = with_masks(self._streams, self._fillings)
        self._columns = self._match_fields()
        self._peeked = None
        self._set_arguments(path, declared, chunk_size=chunk_size, memory=memory_bytes, verify=bool(verify))
        if self._counted_streams():
            self._count()

    @abc.abstractmethod
    def _describe_folder(self, folder: Path) -> tuple[list[ShardFile], list[ShardField]]:
        """Return the shards and fields of a folder.

        Raises:
            DataError: the index is missing, damaged, or has another version.
        """

    # ---- description ------------------------------------------------------------------------------

    def chunks(self) -> list[ChunkInfo]:
        """Return the size of every chunk. ``bytes`` counts its share of the file."""
        return self._infos

    def lengths(self, ordinals: Ints) -> Ints | None:
        """Return the samples of the sequences ``ordinals``, int64 (n,), or None if every sequence has one. O(n)."""
        return None if self._counts is None else self._counts[ordinals].astype(np.int64)

    def digest(self) -> str:
        """Return 32 hex digits over counts, and three blocks of each shard."""
        return list(self.digests())[-1][1]

    def digests(self) -> Iterator[tuple[int, str]]:
        """Yield the digest after each shard. See `Growing.digests`."""
        content = ContentDigest()
        ends = np.cumsum(np.bincount([number for number, _, _ in self._chunks])).tolist()
        for shard, end in zip(self._shards, ends, strict=True):
            content.numbers(shard.samples, shard.size)
            with open_file(shard.path) as file, reading(shard.path):
                content.file(file, shard.size)
            yield end, content.hexdigest(identity_of(self._fillings))

    def paths(self) -> list[str]:
        """Return the paths of the shards."""
        return [str(shard.path) for shard in self._shards]

    def _default_streams(self) -> dict[str, Stream]:
        streams = {}
        for number, field in enumerate(self._fields):
            if field.kind == "refused":
                self._refuse(field)
            if field.kind == "array":
                assert field.array is not None
                streams[field.name] = field.array.stream or self._infer_stream(number)
            else:
                streams[field.name] = Stream(dtype="bytes" if field.kind == "bytes" else "str")
        return streams

    def _infer_stream(self, number: int) -> Stream:
        """Return the stream of an array by its first samples. Samples of different sizes are sequences."""
        field = self._fields[number]
        declared, sizes = self._peek_array(number)
        if field.array is not None and field.array.any_length and declared.shape and len(distinct(sizes)) > 1:
            return Stream(declared.shape[1:], declared.dtype)
        return declared

    def _peek_array(self, number: int) -> tuple[Stream, Ints]:
        """Return the stream that the first sound sample declares for an array, and the sizes of the sound first
        samples."""
        field, path = self._fields[number], str(self._shards[0].path)
        try:
            if self._peeked is None:
                shard = self._shards[0]
                part, _ = self._part(0, 0, min(shard.samples, -(-_PEEKED_SAMPLES // shard.step) * shard.step))
                self._peeked = part, *self._spans(part, range(len(self._fields)))
            part, spans, wrong = self._peeked
            sizes = np.diff(spans[number])[:, 0]
            sound = np.array([i for i in range(len(sizes)) if i not in wrong], np.int64)
            return first_stream(spans[number], part.memory, wrong, field), sizes[sound]
        except (ValueError, OSError) as error:
            raise DataError(
                f"expected a sample that says the shape of `{field.name}`, {error}",
                path=path,
                hint=f"declare the streams: {field.name}=fl.Stream(shape, dtype), or fl.Stream(dtype='bytes')",
            ) from error

    def _refuse(self, field: ShardField) -> None:
        readable = ", ".join(candidate.name for candidate in self._fields if candidate.kind != "refused") or "none"
        raise SchemaError(
            f"expected fields that can be read, got `{field.name}` of encoding `{field.encoding}` in {self.name}: "
            f"{field.reason}; declare streams of other fields ({readable}), or write the data again"
        )

    def _match_fields(self) -> dict[str, int]:
        """Return the number of the field that fills each stream."""
        numbers = {field.name: number for number, field in enumerate(self._fields)}
        filled = {}
        for name, stream in self._streams.items():
            field_name = stream.field or name
            if field_name not in numbers:
                raise SchemaError(f"expected a field `{field_name}` in {self.name}, which has {names_of(self._fields)}")
            field = self._fields[numbers[field_name]]
            if field.kind == "refused":
                self._refuse(field)
            if not stream.is_bytes:
                field.check(name, stream)
                if self._is_any_length(numbers[field_name], stream):
                    self._any_length.add(name)
            elif field.size is not None or (stream.is_text and field.kind not in ("text", "json")):
                raise SchemaError(f"expected stream `{name}` as the field is, `{field.encoding}`, got {stream}")
            if name in self._fillings and not field.may_be_null(stream):
                raise SchemaError(
                    f"expected a field of JSON, or numbers written as text, for stream `{name}` with missing= or "
                    f"mask=, got `{field.encoding}`, of which no sample can be missing"
                )
            filled[name] = numbers[field_name]
        return filled

    def _is_any_length(self, number: int, stream: Stream) -> bool:
        """Return whether an array is a sequence of samples, with one dimension more than its stream declares."""
        array = self._fields[number].array
        if array is None or not array.any_length or not stream.size:
            return False
        if array.vector is not None:
            return stream.shape == ()
        try:
            return len(self._peek_array(number)[0].shape) == len(stream.shape) + 1
        except DataError:
            return False  # no sample can be read, and reading reports why

    # ---- lengths ----------------------------------------------------------------------------------

    def _counted_streams(self) -> list[str]:
        """Return the streams of arrays of any length that count towards the minibatch budget."""
        size = self._streams.size_stream
        return [name for name in self._streams if name in self._any_length and size in (None, name)]

    def _count(self) -> None:
        """Look up the lengths of all sequences."""
        identity = f"{self.digest()} {self._streams.digest} {_encodings(self._fields)} {self._columns}"
        lengths = cached_lengths(self._shards, identity, int(self._starts[-1]), self._count_lengths)
        firsts = np.cumsum([0, *(info.sequences for info in self._infos[:-1])])
        samples = np.add.reduceat(lengths, firsts, dtype=np.int64).tolist()
        self._infos = [info._replace(samples=n) for info, n in zip(self._infos, samples, strict=True)]
        self._counts = lengths

    def _count_lengths(self) -> NDArray[np.int32]:
        """Return the lengths of all sequences, from the sizes of their arrays."""
        counted = []
        columns = {self._columns[name] for name in self._counted_streams()}
        for place in self._chunks:
            try:
                part, seals = self._part(*place)
                spans, wrong = self._spans(part, columns)
            except OSError as error:
                raise DataError(f"expected readable bytes: {error.strerror}", path=self.name) from error
            counted.append(self._lengths_of(part, spans, wrong))
            check_seals(seals)
        return np.concatenate(counted)

    def _lengths_of(self, part: _ShardPart, spans: Mapping[int, Ints], wrong: Mapping[int, str]) -> NDArray[np.int32]:
        """Return the lengths of the sequences of a part, as for `lengths`."""
        names = self._counted_streams()
        plain = self._streams.size_stream is None and len(names) < len(self._streams)
        longest = np.full(len(part.bounds) - 1, int(plain), np.int64)
        for name in names:
            number = self._columns[name]
            lengths = counts_of(spans[number], wrong, self._streams[name], self._fields[number])
            np.maximum(longest, lengths, out=longest)
        return np.minimum(longest, np.iinfo(np.int32).max).astype(np.int32)

    def _check_lengths(self, part: _ShardPart, spans: Mapping[int, Ints], wrong: Mapping[int, str]) -> None:
        """Check that sequences have the lengths that were counted. A file may change and keep its size."""
        if self._counts is None:
            return
        got = self._lengths_of(part, spans, wrong)
        expected = self._counts[part.first : part.first + len(got)]
        differing = np.flatnonzero(got != expected)
        if len(differing):
            i = int(differing[0])
            raise DataError(
                f"expected a sequence of {expected[i]} samples, as counted before, got {got[i]}: the file has changed",
                path=part.path,
                sequence=part.first + i,
                hint=f"open the folder again; if that does not help, remove {user_cache()}/*{SUFFIX}",
            )

    # ---- reading ----------------------------------------------------------------------------------

    def read(self, chunk: int) -> Chunk:
        """Return the samples of a chunk. Byte strings are views of the mapped file, unless it is compressed.

        Raises:
            DataError: the shard is missing, cut or differs from its index, or takes more than ``memory``.
        """
        if not 0 <= chunk < len(self._infos):
            raise IndexError(f"expected a chunk from 0 to {len(self._infos) - 1}, got {chunk}")
        try:
            part, seals = self._part(*self._chunks[chunk])
        except OSError:
            return self._read_around(chunk)
        return self._chunk(part, seals)

    def extents(self, chunk: int) -> list[Extent]:
        """Return the part of the shard with the samples of the chunk, or the whole file."""
        shard = self._shards[self._chunks[chunk][0]]
        try:
            low, high, *_ = self._place(*self._chunks[chunk])
        except DataError:
            return []  # reading reports the error
        return [Extent(str(shard.path), low, high - low)] if high > low else []

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """See `Fetchable.read_fetched`."""
        (piece,) = pieces
        if isinstance(piece, Unread):
            return self._read_around(chunk)
        number, a, b = self._chunks[chunk]
        self._compare(number)
        memory, place = np.frombuffer(piece, np.uint8), self._place(number, a, b)
        if len(memory) != place.high - place.low:
            return self.read(chunk)  # the offsets have changed since they were read
        return self._chunk(self._make_part(number, a, place, memory))

    def _read_around(self, chunk: int) -> Chunk:
        """Return the samples of a chunk, with errors for samples that the disk cannot read."""
        number, a, b = self._chunks[chunk]
        shard, place = self._shards[number], self._place(number, a, b)
        if shard.codec:
            return self._chunk(self._make_part(number, a, place, self._read_packed(shard, place)))
        memory = np.empty(place.high - place.low, np.uint8)
        with open_file(shard.path) as file:
            gaps = read_most(file, memory, place.low, shard.path)
        part = self._make_part(number, a, place, memory)
        incomplete, bounds = self._chunk(part, complete=False), part.bounds
        return mark_gaps(incomplete, gaps, bounds[:-1], bounds[1:], path=part.path, first=part.first)

    def _part(self, number: int, a: int, b: int) -> tuple[_ShardPart, Sequence[NDArray[np.uint8]]]:
        """Return the samples ``a:b`` of a shard and the seals of its file.

        Raises:
            OSError: a page of the map cannot be read.
        """
        shard = self._shards[number]
        self._compare(number)
        place = self._place(number, a, b)
        if shard.codec or by_ranges(shard.path):
            return self._make_part(number, a, place, self._read_packed(shard, place)), ()
        low, high = place.low, place.high
        mapped, seals = self._maps.get(number)
        system.populate(mapped, low, high)
        return self._make_part(number, a, place, np.frombuffer(mapped, np.uint8, high - low, low)), seals

    def _read_packed(self, shard: ShardFile, place: _ShardPlace) -> NDArray[np.uint8]:
        """Read the bytes of a place."""
        packed = np.empty(place.high - place.low, np.uint8)
        with open_file(shard.path) as file:
            read_exactly(file, packed, place.low, shard.path)
        return packed

    def _place(self, number: int, a: int, b: int) -> _ShardPlace:
        """Return the place of the samples ``a:b`` of a shard.

        Raises:
            DataError: the shard differs from its index.
        """
        shard = self._shards[number]
        if shard.codec and not shard.run:
            return _ShardPlace(0, shard.size)
        if shard.run > 0:
            with open_file(shard.path) as file, reading(shard.path):
                try:
                    runs = read_runs(file, shard.size, samples=shard.samples, per_run=shard.run, start=a, stop=b)
                except ValueError as error:
                    raise _shard_error(shard, str(error), 0) from error
            return _ShardPlace(runs.low, runs.high, runs=runs)
        bounds = self._bounds(number, a, b)
        return _ShardPlace(*_range(bounds, shard.size), bounds)

    def _make_part(self, number: int, a: int, place: _ShardPlace, memory: NDArray[np.uint8]) -> _ShardPart:
        """Return the samples of a shard from number ``a`` on. ``memory`` has the bytes of their place."""
        shard, first = self._shards[number], int(self._starts[number]) + a
        if shard.codec is None:
            assert place.bounds is not None
            return _ShardPart(memory, place.low, place.bounds, first, str(shard.path))
        try:
            return self._unpack_part(shard, place, memory, first)
        except TooMuchError as error:
            raise DataError(
                f"expected a chunk that takes at most {self._memory} bytes when unpacked (memory), got {error}",
                path=str(shard.path),
                hint="raise memory=, or " + ("lower chunk_size=" if shard.run else "unpack the shards"),
            ) from None
        except ValueError as error:
            raise _shard_error(shard, f"expected a shard compressed by {shard.codec}: {error}") from error

    def _compare(self, number: int) -> None:
        """Check that a shard has not changed. With ``verify``, also compare it with its digest, once."""
        shard = self._shards[number]
        with open_file(shard.path) as file:
            status = status_of(file)
            size = status.st_size
            if size != shard.size:
                raise _shard_error(shard, f"expected a shard of {shard.size} bytes, got {size}")
            if self._times.setdefault(number, status.st_mtime_ns) != status.st_mtime_ns:
                # The map is of the earlier file, and its offsets are read again now.
                raise DataError(
                    "expected the shard as it was when it was opened, got one that has changed since",
                    path=str(shard.path),
                    hint="open the folder again; its samples may have changed",
                )
            if self._verify and number not in self._verified:
                hasher = _hasher(shard)
                if hasher is not None:
                    name, digest = hasher
                    for block in blocks(file, shard.path, size, 1 << 20):
                        digest.update(block)
                    if digest.hexdigest() != shard.hashes[name]:
                        what = f"expected a shard with {name} {shard.hashes[name]}, got {digest.hexdigest()}"
                        raise _shard_error(shard, what)
                self._verified.add(number)

    def _bounds(self, number: int, a: int, b: int) -> Ints:
        """Return the offsets of the samples ``a:b``, and the end of the last one, in an uncompressed shard."""
        shard = self._shards[number]
        with open_file(shard.path) as file:
            count = words(read_at(file, 4, 0))
            raw = words(read_at(file, 4 * (b - a + 1), 4 + 4 * a))
        if len(count) != 1 or count[0] != shard.samples or len(raw) != b - a + 1:
            raise _count_error(shard, count.tolist())
        return raw.astype(np.int64)

    def _unpack_part(self, shard: ShardFile, place: _ShardPlace, packed: NDArray[np.uint8], first: int) -> _ShardPart:
        """Return the samples of a compressed shard.

        Raises:
            TooMuchError: they take more than ``memory``.
            ValueError: it is damaged.
        """
        assert shard.codec is not None
        path = str(shard.path)
        if place.runs is not None:
            samples, bounds = unpack_runs(place.runs, packed, shard.codec, self._memory), place.runs.bounds
            return _ShardPart(samples, 0, bounds, first, path=path)
        if place.bounds is not None:
            ends, samples, wrong = unpack_each(place.bounds - place.low, packed, shard.codec, self._memory)
            return _ShardPart(samples, 0, ends, first, path=path, wrong=wrong)
        if max(shard.unpacked, default=0) > self._memory:
            raise TooMuchError(max(shard.unpacked))
        memory = unpack(packed, shard.codec, shard.unpacked or None, self._memory)
        count, table = words(memory[:4]), words(memory[4 : 4 + 4 * (shard.samples + 1)])
        if len(count) != 1 or count[0] != shard.samples or len(table) != shard.samples + 1:
            raise _count_error(shard, count.tolist())
        return _ShardPart(memory, 0, table.astype(np.int64), first, path)

    def _map(self, number: int) -> tuple[mmap.mmap, list[NDArray[np.uint8]]]:
        shard = self._shards[number]
        with open_file(shard.path) as file:
            return map_whole(file, shard.path, shard.size)

    def _spans(self, part: _ShardPart, numbers: Collection[int]) -> tuple[dict[int, Ints], dict[int, str]]:
        """Return begin and end in memory of the fields ``numbers`` of each sample, (samples, 2), and faults by
        sample."""
        begin, end = part.bounds[:-1] - part.base, part.bounds[1:] - part.base
        head = 4 * sum(field.size is None for field in self._fields)
        wrong = dict(part.wrong)
        inside = (begin >= 0) & (begin <= end) & (end <= len(part.memory))
        for i in np.flatnonzero(~inside).tolist():
            a, b = part.bounds[i : i + 2].tolist()
            wrong.setdefault(i, f"expected offsets of a sample within the shard, got {a} and {b}")
        if int((end - begin)[inside].sum()) > 2 * len(part.memory):
            raise DataError("expected samples in a row, got offsets that overlap", path=part.path, byte=4, hint=DAMAGED)
        has_head = inside & (end - begin >= head)
        at = np.flatnonzero(has_head)
        sizes = np.zeros((len(begin), head // 4), "<u4")
        if head and len(at):
            heads = np.stack([begin[at], begin[at] + head], axis=1)
            raw = ScatteredBytes(heads, part.memory, text=False).packed().data
            sizes[at] = np.ascontiguousarray(raw).view("<u4").reshape(len(at), -1)
        spans, place, varying = {}, begin + head, iter(sizes.T)
        for number, field in enumerate(self._fields):
            after = place + (next(varying) if field.size is None else field.size)
            if number in numbers:
                spans[number] = np.stack([place, after], axis=1)
            place = after
        good = has_head & (place == end)
        for i in np.flatnonzero(inside & ~good).tolist():
            size = int(end[i] - begin[i])
            what = f"expected fields of {size - head} bytes in all, as offsets say, got {place[i] - begin[i] - head}"
            if not has_head[i]:
                what = f"expected a sample of at least {head} bytes, for the sizes of its fields, got {size}"
            wrong.setdefault(i, what)
        if not good.all():
            for span in spans.values():
                span[~good] = 0
        return spans, wrong

    def _chunk(self, part: _ShardPart, seals: Sequence[NDArray[np.uint8]] = (), *, complete: bool = True) -> Chunk:
        count = len(part.bounds) - 1
        needed = count * sum(s.size * s.dtype.itemsize for s in self._streams.values() if not s.is_bytes)
        if needed > self._memory:
            raise DataError(
                f"expected at most {self._memory} bytes of numbers at a time (memory), got {needed}",
                path=part.path,
                hint="raise memory=, or lower chunk_size=",
            )
        spans, wrong = self._spans(part, set(self._columns.values()))
        if complete:
            self._check_lengths(part, spans, wrong)
        errors = {i: self._error(part, i, what, None) for i, what in wrong.items()}
        values: dict[str, Value] = {}
        for name, stream in self._streams.items():
            number = self._columns[name]
            field, of = self._fields[number], spans[number]
            texts, bad = None, dict[int, str]()
            if field.text_of is not None and not (stream.is_bytes and not stream.is_text):
                texts, bad = texts_of(of, part.memory, field.text_of, wrong=wrong)
                errors.update((i, self._error(part, i, what, name)) for i, what in bad.items() if i not in errors)
            filling, missing = self._fillings.get(name), None
            null = b"null" if field.kind == "json" else b""
            if filling is not None:
                texts = texts or ScatteredBytes(of, part.memory, text=stream.is_text).packed()
                missing = equal_to(texts, null)
            if stream.is_bytes and texts is not None:
                values[name] = texts
            elif stream.is_bytes:
                values[name] = ScatteredBytes(of, part.memory, text=stream.is_text)
            elif field.kind == "array":
                ragged = name in self._any_length
                values[name], bad = numbers_of(of, part.memory, stream, field, ragged=ragged, wrong=wrong)
            else:
                texts = texts or ScatteredBytes(of, part.memory, text=False).packed()
                form = "json" if field.kind == "json" else "text"
                absent = () if missing is None else np.flatnonzero(missing).tolist()
                values[name], bad = number_files.numbers(texts, stream, form, skip={*errors, *absent})
                for i in np.flatnonzero(equal_to(texts, null)).tolist() if bad else ():
                    errors.setdefault(i, self._null_error(part, i, name))
            if filling is not None:
                values[name] = fill(values[name], missing, filling)
                if filling.mask:
                    values[name + PRESENT] = mask_of(values[name], missing)
            for i, what in bad.items():
                errors.setdefault(i, self._error(part, i, what, name))
        # Numbers have been copied by now. If the file was truncated, they are zeros, which later checks would not
        # notice.
        check_seals(seals)
        if not seals:  # private memory: a map has seals
            without_gaps(values, part.memory)
        return Chunk(self.schema, values, errors, seals=seals)

    def _error(
        self, part: _ShardPart, index: int, what: str, stream: str | None, *, remedies: str = _SKIP
    ) -> DataError:
        byte, sequence = max(0, int(part.bounds[index])), part.first + index
        return DataError(what, path=part.path, byte=byte, sequence=sequence, stream=stream, hint=remedies)

    def _null_error(self, part: _ShardPart, index: int, name: str) -> DataError:
        what = f"expected numbers, got a null in column {self._streams[name].field or name!r}"
        return self._error(part, index, what, name, remedies=f"{remedy(name, self._streams[name])}; {_SKIP}")

    # ---- other ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the maps. Chunks that were returned keep theirs."""
        self._maps.clear()

    def verified(self) -> OffsetShards:
        """Return the same shards with ``verify=True``, or itself if Python lacks the algorithm of a digest."""
        hashed = [shard for shard in self._shards if shard.hashes]
        if self._verify or not hashed or any(_algorithm(shard) is None for shard in hashed):
            return self
        verified: OffsetShards = self._reopen(verify=True)
        return verified


# ---- checks -------------------------------------------------------------------------------------------


def _hasher(shard: ShardFile) -> tuple[str, Any] | None:
    """Return the name and the algorithm of a digest of a shard that can be compared, or None if the shard has no
    digest.

    Raises:
        DataError: Python lacks the algorithms of all digests.
    """
    name = _algorithm(shard)
    if name is not None:
        return name, hashlib.new(name)
    if shard.hashes:
        raise DataError(
            f"expected a digest that Python can compute, such as sha1, got {', '.join(shard.hashes)}",
            path=str(shard.path),
            hint="pass verify=False",
        )
    return None


def _algorithm(shard: ShardFile) -> str | None:
    """Return the first of the shard's digests that Python can compute."""
    available = (name for name in sorted(shard.hashes) if name in hashlib.algorithms_available)
    return next((name for name in available if not name.startswith("shake_")), None)


def _shard_error(shard: ShardFile, what: str, byte: int | None = None) -> DataError:
    return DataError(what, path=str(shard.path), byte=byte, hint=DAMAGED)


def _count_error(shard: ShardFile, count: list[int]) -> DataError:
    got = "another size" if count[:1] == [shard.samples] else f"{count[0]}" if count else "nothing"
    return _shard_error(shard, f"expected the offsets of {shard.samples} samples, as {INDEX} says, got {got}", 0)


def _range(bounds: Ints, size: int) -> tuple[int, int]:
    """Return the first byte and the end of the samples of a shard that have valid offsets."""
    valid = (bounds[:-1] <= bounds[1:]) & (bounds[1:] <= size)
    if not valid.any():
        return 0, 0
    return int(bounds[:-1][valid].min()), int(bounds[1:][valid].max())


def _encodings(fields: Sequence[ShardField]) -> list[tuple[str, str]]:
    return [(field.name, field.encoding) for field in fields]
