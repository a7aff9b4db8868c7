"""HTK feature files, listed by a script (scp): a `Deserializer` whose sequences are utterances.

Guarantees: CNTK 2.7's rules for scripts, byte order, compression, neighbours and chunks. Nothing in a header is trusted
before it is compared with the size of the file. An utterance that cannot be read keeps its place and reports why. Cost:
opening reads the script and one header, and keeps 28 bytes an utterance. Reading a chunk takes one read for each run of
frames without a gap, and decodes each frame once, natively, without the GIL. Neighbours are copied by minibatches.
"""

from __future__ import annotations

import copy
import itertools
import logging
import os
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Chunk, Schema, Stream
from feedline.data.windowed import WindowedRows, WindowPlaces
from feedline.errors import DataError, SchemaError
from feedline.feed.files.digest import ContentDigest
from feedline.feed.files.lru import LruCache
from feedline.feed.files.paths import PathLike, open_file, read_at, status_of
from feedline.feed.files.read_into import read_exactly
from feedline.feed.files.remote import object_at
from feedline.feed.formats.indexed.indexed_corpus import check_memory
from feedline.feed.formats.pickled_by_arguments import PickledByArguments
from feedline.feed.protocol import (
    CHUNK_MEMORY,
    Broadcast,
    Capability,
    ChunkInfo,
    Deserializer,
    Growing,
    Ints,
    Keyed,
    declared_streams,
    whole_number,
)

CHUNK_FRAMES = 90_000
"""Frames at which a chunk is full: 15 minutes, CNTK's rule."""

_RANGE = re.compile(rb"^(.*)\[([0-9]{1,20}),([0-9]{1,20})\]$", re.DOTALL)
_HEAD = struct.Struct("<iiHh")
_IDX_HEAD = struct.Struct(">IIII")
_IDX_MAGIC = 2051
_BASE_KINDS = {6: "MFCC", 7: "FBANK", 9: "USER", 11: "PLP", 12: "FESTREAM"}
_COMPRESSED, _QUANTISED = 0o2000, 0o40000
_GUID_BYTES = 16
_MAX_HEADERS = 1024  # that are kept, some hundred bytes each
_SKIP = 'pass on_error="skip" to the source to skip such utterances and list them'

_log = logging.getLogger("feedline")


class _FrameHeader(NamedTuple):
    """The header of a feature file.

    Attributes:
        frames: frames in the file.
        period: period of a frame, in units of 100 ns.
        kind: parameter kind, with its qualifiers.
        dim: values of a frame.
        coding: 0 float32, 1 compressed, 2 bytes, as HtkKind in native/include/feedline/htk.h.
        swapped: whether its byte order is not this machine's.
        begin: first byte of frame 0.
        scale, offset: scale and offset of compressed values, float32 (dim,).
    """

    frames: int
    period: int
    kind: int
    dim: int
    coding: int
    swapped: bool
    begin: int
    scale: NDArray[np.float32] = np.empty(0, np.float32)
    offset: NDArray[np.float32] = np.empty(0, np.float32)

    @property
    def frame_bytes(self) -> int:
        return self.dim * (4, 2, 1)[self.coding]


class _Utterances(NamedTuple):
    """A selection of utterances that is being read.

    Attributes:
        ordinals: int64 (n,).
        offsets: bounds of the rows of each utterance, int64 (n + 1,).
        frames: float32 (samples, values of a frame).
        errors: errors of utterances that cannot be read, by index.
    """

    ordinals: Ints
    offsets: Ints
    frames: NDArray[np.float32]
    errors: dict[int, DataError]


class HTKFeatureDeserializer(Deserializer, Growing, Keyed, Broadcast, PickledByArguments):
    """Utterances of HTK feature files.

    A line of the script is ``name=file[first,last]``, frames counted from 0, the last one included, or ``name=file`` or
    ``file`` for all frames of a file. The key, by which `Join` and labels find an utterance, is the name up to its last
    dot. As in CNTK, all utterances with a repeated name are dropped, with a warning.

    Args:
        scp: path of the script.
        streams: the stream by name, also as a keyword argument. Its shape is the shape of a sample, of all ``left + 1 +
            right`` frames together, flat or ``(frames, values)``, its dtype float32 or float64. By default
            ``features``, float32, flat.
        context: numbers of neighbours to the (left, right) of each frame in a sample, oldest first. Neighbours beyond
            the ends of an utterance repeat its first or last frame. With None, as many neighbours on either side as the
            declared shape needs.
        prefix: prefix of the paths of the script. Without it, ``...`` in a path is the script's folder.
        broadcast: whether an utterance of one frame, such as a speaker's vector, is repeated for each sample of the
            sequence that it is joined to. Such a corpus cannot be the first of a `Join`.
        chunk_frames: frames at which a chunk is full. Part of the order.
        memory: bytes that a decoded chunk may take.
        stream_kwargs: the stream, as a keyword argument.

    Attributes:
        duplicates: number of utterances that were dropped because others have the same name.

    Raises:
        DataError: the script or the first file is missing or damaged, or has no utterance.
        SchemaError: there are several streams, or a shape does not fit a frame and its neighbours.
    """

    def __init__(
        self,
        scp: PathLike,
        streams: Mapping[str, Stream] | None = None,
        *,
        context: tuple[int, int] | None = (0, 0),
        prefix: str | None = None,
        broadcast: bool = False,
        chunk_frames: int = CHUNK_FRAMES,
        memory: int = CHUNK_MEMORY,
        **stream_kwargs: Stream,
    ) -> None:
        declared = declared_streams(streams, stream_kwargs)
        if len(declared) > 1:
            raise SchemaError(f"expected one stream, got {', '.join(declared)}: open a script for each, and join them")
        if context is not None:
            context = whole_number("context", context[0], 0), whole_number("context", context[1], 0)
        chunk_frames, self._memory = whole_number("chunk_frames", chunk_frames, 1), whole_number("memory", memory, 1)
        self.name, self._broadcast = os.fspath(scp), bool(broadcast)
        self._script = script = _Script(Path(scp), prefix)
        self._headers = LruCache(read_header, lambda _: 1, _MAX_HEADERS)
        for i in np.flatnonzero(script.count < 0).tolist():  # files without a range in the script
            script.start[i], script.count[i] = 0, self._headers.get(script.paths[script.file[i]]).frames
        self.duplicates = script.drop_duplicates()
        if not len(script):
            raise DataError("expected at least one utterance in the script, got none", path=self.name)
        self._first_header = self._headers.get(script.paths[script.file[0]])
        stream_name, stream = next(iter(declared.items()), ("features", None))
        self._context = _context(stream_name, stream, context, self._first_header.dim, self.name)
        width = sum(self._context) + 1
        self.schema = Schema({stream_name: stream or Stream(width * self._first_header.dim)})
        if self.schema[stream_name].sparse or self.schema[stream_name].dtype.kind != "f":
            raise SchemaError(f"expected a dense stream of floats for features, got {self.schema[stream_name]}")
        options = {"context": context, "prefix": prefix, "broadcast": broadcast, "chunk_frames": chunk_frames}
        self._set_arguments(scp, dict(self.schema.streams), memory=memory, **options)
        self._chunk_frames = chunk_frames
        self._set_chunks()

    def _set_chunks(self) -> None:
        """Cut the utterances into chunks."""
        self._starts = _chunk_starts(self._script.count, self._chunk_frames)
        frames = np.concatenate([[0], np.cumsum(self._script.count)])[self._starts]
        counts = zip(np.diff(self._starts).tolist(), np.diff(frames).tolist(), strict=True)
        self._infos = [ChunkInfo(n, samples, samples * self._first_header.frame_bytes) for n, samples in counts]

    # ---- description ------------------------------------------------------------------------------

    def chunks(self) -> list[ChunkInfo]:
        """Return the size of every chunk. ``bytes`` counts its frames in the files."""
        return self._infos

    def capability(self, kind: type[Capability]) -> Capability | None:
        """See `Deserializer.capability`. Utterances are repeated only with ``broadcast``."""
        return None if kind is Broadcast and not self._broadcast else super().capability(kind)

    def digest(self) -> str:
        """Return 32 hex digits over names, ranges and neighbours, and excerpts of the first file."""
        content = ContentDigest()
        content.numbers(*self._context)
        for column in (self._script.key, self._script.file, self._script.start, self._script.count):
            content.array(column)
        with open_file(self._script.paths[0]) as file:
            content.file(file, status_of(file).st_size)
        return content.hexdigest()

    def digests(self) -> Iterator[tuple[int, str]]:
        """Yield the digest of all. See `Growing.digests`."""
        yield len(self._infos), self.digest()

    def shorter(self, sequences: int) -> Iterator[HTKFeatureDeserializer]:
        """Yield the corpus of the first utterances. See `Growing.shorter`."""
        first = copy.copy(self)
        first._script = self._script.first(sequences)
        first._set_chunks()
        yield first

    def paths(self) -> list[str]:
        """Return the paths of the feature files."""
        return list(self._script.paths)

    def lengths(self, ordinals: Ints) -> Ints:
        """Return the frames of utterances, int64 (n,)."""
        return self._script.count[ordinals]

    def keys(self, ordinals: Ints) -> NDArray[np.uint64]:
        """Return hashes of the names of utterances, uint64 (n,)."""
        return self._script.key[ordinals]

    def utterance(self, ordinal: int) -> str:
        """Return the name of an utterance, as in the script."""
        return self._script.name(ordinal)

    # ---- reading ----------------------------------------------------------------------------------

    def read(self, chunk: int) -> Chunk:
        """Return the utterances of a chunk.

        Raises:
            DataError: decoded, the chunk would exceed ``memory``.
        """
        if not 0 <= chunk < len(self._infos):
            raise IndexError(f"expected a chunk from 0 to {len(self._infos) - 1}, got {chunk}")
        return self.select(np.arange(self._starts[chunk], self._starts[chunk + 1]))

    def select(self, ordinals: Ints) -> Chunk:
        """Return the utterances ``ordinals``, in that order, reading only their frames.

        Raises:
            IndexError: an ordinal is outside the corpus.
            DataError: decoded, they would exceed ``memory``.
        """
        script = self._script
        if len(ordinals) and not 0 <= ordinals.min() <= ordinals.max() < len(script):
            raise IndexError(f"expected 0 <= ordinal < {len(script)}, got {ordinals.min()} to {ordinals.max()}")
        lengths = script.count[ordinals]
        dim = self._first_header.dim
        needed = int(lengths.sum()) * dim * 4
        check_memory(needed, self._memory, self.name, "chunk_frames")
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        selection = _Utterances(ordinals, offsets, np.empty((int(offsets[-1]), dim), np.float32), {})
        for first, stop in _runs(script.file[ordinals]):
            self._read_from(selection, first, stop)
        (name, stream), *_ = self.schema.items()
        frames = selection.frames.astype(stream.dtype, copy=False)
        left, right = self._context
        bounds = np.repeat(offsets[:-1], lengths), np.repeat(offsets[1:], lengths)
        places = WindowPlaces(np.arange(len(frames)), *bounds, np.arange(-left, right + 1))
        value = WindowedRows(frames, places, stream.shape, zeros=False, offsets=offsets)
        return Chunk(self.schema, {name: value}, selection.errors)

    def _set_error(self, selection: _Utterances, i: int, error: DataError) -> None:
        """Set the error of an utterance that cannot be read."""
        ordinal = int(selection.ordinals[i])
        selection.frames[selection.offsets[i] : selection.offsets[i + 1]] = 0
        located = error.located(path=self._script.paths[int(self._script.file[ordinal])], sequence=ordinal)
        located.what = f"{located.what} (utterance {self.utterance(ordinal)})"
        selection.errors[i] = located

    def _read_from(self, selection: _Utterances, first: int, stop: int) -> None:
        """Read the utterances ``first:stop`` of a selection, all from one file, into their rows."""
        script, ordinals = self._script, selection.ordinals[first:stop]
        number = int(script.file[ordinals[0]])
        try:
            header = self._matching_header(number)
            file = open_file(script.paths[number])
        except DataError as error:
            for i in range(first, stop):
                self._set_error(selection, i, error)
            return
        with file:
            starts, counts = script.start[ordinals], script.count[ordinals]
            sound = (counts > 0) & (starts + counts <= header.frames)
            for i in np.flatnonzero(~sound).tolist():
                at, n = int(starts[i]), int(counts[i])
                if n == 0:
                    lost = DataError("expected at least one frame in the file, got none", hint=_SKIP)
                else:
                    what = f"expected frames {at} to {at + n - 1} in the file, got {header.frames} frames"
                    lost = DataError(what, hint=f"is the script of another version of the file? Or {_SKIP}")
                self._set_error(selection, first + i, lost)
            # Neighbours in the file are read together.
            joined = np.concatenate([starts[1:] == starts[:-1] + counts[:-1], [False]]) & sound
            joined[:-1] &= sound[1:]
            begin = 0
            for end in (np.flatnonzero(~joined) + 1).tolist():
                if sound[begin]:
                    self._read_run(file, header, selection, (first + begin, first + end), int(starts[begin]))
                begin = end

    def _read_run(
        self, file: BinaryIO, header: _FrameHeader, selection: _Utterances, run: tuple[int, int], start: int
    ) -> None:
        """Read the utterances ``run`` of a selection, which follow one another from frame ``start`` on."""
        first, stop = run
        offsets = selection.offsets[first : stop + 1]
        begin, end = int(offsets[0]), int(offsets[-1])
        data = np.empty((end - begin) * header.frame_bytes, np.uint8)
        try:
            read_exactly(file, data, header.begin + start * header.frame_bytes, Path(file.name))
        except DataError as error:
            if stop - first == 1:
                self._set_error(selection, first, error)
                return
            for i, at in enumerate((start + offsets[:-1] - begin).tolist(), first):  # the others may be readable
                self._read_run(file, header, selection, (i, i + 1), at)
            return
        _native.htk_decode(
            data,
            kind=header.coding,
            swapped=header.swapped,
            scale=header.scale,
            offset=header.offset,
            out=selection.frames[begin:end],
        )

    def _matching_header(self, number: int) -> _FrameHeader:
        """Return the header of a file, checked against the header of the first file.

        Raises:
            DataError: it cannot be read, or its frames are of another kind.
        """
        header, like = self._headers.get(self._script.paths[number]), self._first_header
        if (header.dim, header.kind, header.period) != (like.dim, like.kind, like.period):
            raise DataError(
                f"expected {like.dim} values a frame of kind {like.kind:o} every {like.period} units of 100 ns, as in "
                f"the first file, got {header.dim} of kind {header.kind:o} every {header.period}",
                hint=_SKIP,
            )
        return header

    # ---- other ------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        frames = int(self._script.count.sum())
        return f"HTKFeatureDeserializer({self.name}: {len(self._script)} utterances, {frames} frames)"


_ARRAYS = ("file", "start", "count", "key", "_begin", "_end")  # of a script, one entry for each utterance


class _Script:
    """The utterances of a script, as arrays.

    Attributes:
        paths: feature files, in the order of their first use.
        file: number of the file of each utterance.
        start, count: first frame and number of frames of each utterance, int64. A count of -1 means the whole file.
        key: hash of the name of each utterance.
    """

    def __init__(self, path: Path, prefix: str | None) -> None:
        self._path = path
        with open_file(path, -1) as file:
            text = file.read()
        folder, remote = str(path.parent), object_at(path) is not None
        numbers: dict[str, int] = {}
        begins, ends, rows = [], [], []
        at = 0
        for line_number, raw in enumerate(text.split(b"\n"), 1):
            line = raw.removesuffix(b"\r")
            if line.strip():
                where: Any = {"path": str(path), "byte": at, "line": line_number}
                if b"\0" in line:
                    raise DataError("expected text in the script, got a zero byte", **where)
                logical, equals, physical = line.partition(b"=")
                stored = physical if equals else logical
                frame_range = _RANGE.match(stored)
                if frame_range is None and b"[" in stored:
                    raise DataError(
                        "expected `[first,last]` at the end of a line of the script, got "
                        f"{stored[stored.rindex(b'[') :][:80].decode(errors='replace')!r}",
                        **where,
                    )
                first, count = 0, -1
                if frame_range is not None:
                    stored, first, last = frame_range[1], *(int(number) for number in frame_range.groups()[1:])
                    count = last - first + 1
                    if not 1 <= count < 2**31 or last >= 2**31:
                        what = f"expected frames in ascending order below {2**31}, got {first} to {last}"
                        raise DataError(what, **where)
                if not equals and frame_range is not None:
                    logical = stored
                name = _resolve_path(os.fsdecode(stored), prefix, folder, remote=remote)
                rows.append((numbers.setdefault(name, len(numbers)), first, count))
                begins.append(at)
                ends.append(at + len(logical))
            at += len(raw) + 1
        self.paths = list(numbers)
        table = np.array(rows, np.int64).reshape(-1, 3)
        self.file, self.start, self.count = (np.ascontiguousarray(column) for column in table.T)
        self._begin, self._end = np.array(begins, np.int64), np.array(ends, np.int64)
        self.key = _native.name_keys(text, self._begin, self._end)

    def __len__(self) -> int:
        return len(self.count)

    def first(self, utterances: int) -> _Script:
        """Return the first utterances."""
        first = copy.copy(self)
        for array in _ARRAYS:
            setattr(first, array, getattr(self, array)[:utterances])
        return first

    def drop_duplicates(self) -> int:
        """Drop all utterances whose name is not unique. Return their number."""
        _, inverse, counts = np.unique(self.key, return_inverse=True, return_counts=True)
        keep = counts[inverse] == 1
        dropped = int((~keep).sum())
        if dropped:
            example = self.name(int(np.flatnonzero(~keep)[0]))
            _log.warning("%s: %d utterances dropped, as several share a name, such as %s", self._path, dropped, example)
            for array in _ARRAYS:
                setattr(self, array, getattr(self, array)[keep])
        return dropped

    def name(self, ordinal: int) -> str:
        """Return the name of an utterance. Reads its line of the script again."""
        begin, end = int(self._begin[ordinal]), int(self._end[ordinal])
        try:
            with open_file(self._path) as file:
                return read_at(file, end - begin, begin).decode(errors="replace")
        except DataError:
            return f"on byte {begin} of the script"


def _resolve_path(path: str, prefix: str | None, folder: str, *, remote: bool) -> str:
    if prefix:
        return f"{prefix}/{path}" if not prefix.endswith("/") else prefix + path
    located = path.replace("...", folder, 1)
    # A store has no working directory.
    return os.path.join(folder, located) if remote else located


def read_header(path: str) -> _FrameHeader:
    """Return the header of a feature file, checked against the size of the file.

    Raises:
        DataError: the file cannot be opened, or is no feature file that can be read.
    """

    def header_error(what: str, byte: int) -> DataError:
        return DataError(what, path=path, byte=byte)

    with open_file(path) as file:
        size = status_of(file).st_size
        if path.endswith("-ubyte"):
            raw = read_at(file, _IDX_HEAD.size, 0)
            if len(raw) < _IDX_HEAD.size or (head := _IDX_HEAD.unpack(raw))[0] != _IDX_MAGIC:
                raise header_error(f"expected an IDX file of images, which begins with {_IDX_MAGIC}", 0)
            values = head[2] * head[3]
            header = _FrameHeader(head[1], 0, 9, values, coding=2, swapped=False, begin=_IDX_HEAD.size)
        else:
            header = _htk_header(file, path)
        if header.frames < 0 or not 1 <= header.dim < 2**31:
            raise header_error(f"expected frames of at least one value, got {header.frames} of {header.dim}", 0)
        if header.begin + header.frames * header.frame_bytes > size:
            raise header_error(
                f"expected {header.frames} frames of {header.frame_bytes} bytes from byte {header.begin} on, as the "
                f"header says, got a file of {size}",
                size,
            )
    return header


def _htk_header(file: BinaryIO, path: str) -> _FrameHeader:
    raw = read_at(file, _HEAD.size, 0)
    if len(raw) < _HEAD.size:
        raise DataError(f"expected a header of {_HEAD.size} bytes, got {len(raw)}", path=path, byte=len(raw))
    period = int.from_bytes(raw[4:8], "little")
    # The smaller period is the plausible one.
    swapped = int.from_bytes(raw[4:8], "big") < period
    frames, period, sample_bytes, kind = struct.unpack((">" if swapped else "<") + "iiHh", raw)
    kind &= 0xFFFF
    if (kind & 0o77) not in _BASE_KINDS or kind & _QUANTISED:
        names = ", ".join(f"{number} ({name})" for number, name in _BASE_KINDS.items())
        raise DataError(
            f"expected features of kind {names}, not vector-quantised, got kind {kind & 0o77} (with qualifiers, octal "
            f"{kind:o})",
            path=path,
            byte=10,
            hint="is this an HTK feature file?",
        )
    begin = _HEAD.size + (_GUID_BYTES if kind == 12 else 0)
    width = 2 if kind & _COMPRESSED else 4
    if sample_bytes == 0 or sample_bytes % width:
        raise DataError(f"expected frames of a multiple of {width} bytes, got {sample_bytes}", path=path, byte=8)
    dim = sample_bytes // width
    tables = np.empty((2, 0), np.float32)
    if kind & _COMPRESSED:
        frames -= 4  # the header counts the two tables as frames
        stored = read_at(file, 8 * dim, begin)
        if len(stored) < 8 * dim:
            raise DataError(f"expected two tables of {dim} numbers, got {len(stored)} bytes", path=path, byte=begin)
        tables = np.frombuffer(stored, ">f4" if swapped else "<f4").astype(np.float32).reshape(2, dim)
        begin += 8 * dim
    return _FrameHeader(
        frames=frames,
        period=period,
        kind=kind,
        dim=dim,
        coding=1 if width == 2 else 0,
        swapped=swapped,
        begin=begin,
        scale=tables[0],
        offset=tables[1],
    )


def _context(name: str, stream: Stream | None, context: tuple[int, int] | None, dim: int, path: str) -> tuple[int, int]:
    """Return the numbers of neighbours on both sides. Compares the declared shape with the file."""
    if context is None:
        size = dim if stream is None else stream.size
        frames, remainder = divmod(size, dim)
        if remainder or frames % 2 == 0:
            raise SchemaError(
                f"expected an odd multiple of the {dim} values of a frame in {path} as shape of stream `{name}`, got "
                f"{size}"
            )
        return frames // 2, frames // 2
    frames = sum(context) + 1
    if stream is not None and (stream.size != frames * dim or stream.shape not in ((frames * dim,), (frames, dim))):
        raise SchemaError(
            f"expected shape ({frames * dim},) or ({frames}, {dim}) for stream `{name}`, {frames} frames of the {dim} "
            f"values in {path}, got {stream.shape}"
        )
    return context


def _chunk_starts(counts: Ints, chunk_frames: int) -> Ints:
    """Return the first utterance of each chunk, and the number of utterances.

    An utterance begins a chunk if the chunk before is full, with more than ``chunk_frames`` frames.
    """
    ends = np.cumsum(counts)
    starts = [0]
    while starts[-1] < len(counts):
        before = int(ends[starts[-1] - 1]) if starts[-1] else 0
        starts.append(min(len(counts), int(np.searchsorted(ends, before + chunk_frames, side="right")) + 1))
    return np.array(starts)


def _runs(numbers: Ints) -> list[tuple[int, int]]:
    """Return the (first, stop) of each run of equal numbers."""
    if not len(numbers):
        return []
    bounds = np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1], [True]])).tolist()
    return list(itertools.pairwise(bounds))


def files_in_script(path: str) -> list[str]:
    """Return the paths of the feature files in a script."""
    return _Script(Path(path), None).paths
