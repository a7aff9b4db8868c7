"""A corpus of video files: a row for each frame, known from the packets alone.

Opening reads the tables of each file, or its index from the user's cache folder, and keeps 8 bytes for each frame. A
chunk has whole groups of pictures of one file, so that a window does not decode from key frames that it does not show.
Reading a chunk reads no file.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.concurrency.thread_pool import call_each
from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.value import BytesValue, DenseValue, strings_from_list
from feedline.errors import DataError, SchemaError
from feedline.feed.files.digest import ContentDigest
from feedline.feed.files.media_address import MediaAddress
from feedline.feed.files.paths import PathLike, list_files, looking
from feedline.feed.formats.pickled_by_arguments import PickledByArguments
from feedline.feed.protocol import ChunkInfo, Deserializer, Ints, Selective, declared_streams
from feedline.video.packet_cache import packets_of, version_of
from feedline.video.packet_index import PacketIndex

CHUNK_FRAMES = 128
"""Frames in a chunk, unless a single group of pictures has more: part of the order."""

SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".webm")
"""Suffixes of the video files of a folder."""

_FIELDS = {"frame": "str", "video": "an integer or str", "time": "a floating-point number"}
_AT_ONCE = 8  # files that are opened for their packets


class _Rows(NamedTuple):
    """The frames of one file.

    Attributes:
        begins: float64 (frames,), see `PacketIndex`.
        chunks: int64 (chunks, 2), frames and bytes of each chunk.
    """

    begins: NDArray[np.float64]
    chunks: Ints


class VideoDeserializer(Deserializer, Selective, PickledByArguments):
    """Video files, a sequence for each frame, in the order of the files and of their display.

    Fields of streams: ``frame``, the address of the frame, which `feedline.video.Decode` decodes; ``video``, the number
    of the file from 0 or, for a text, its path; ``time``, seconds at which the frame is displayed. By default there
    are all three, as str, int64 and float64.

    MP4, QuickTime, Matroska and WebM files are read. The frames of all other files that FFmpeg reads are known, too,
    if their packets have times.

    Args:
        path: a folder, whose videos at any depth are sorted by the bytes of their paths, a file, a pattern, or a list
            of files.
        streams: stream name to `Stream`, also as keyword arguments.
        stream_kwargs: more streams.

    Attributes:
        files: the paths of the files, in order.

    Raises:
        DataError: there is no file, or one is no video.
        ModuleNotFoundError: PyAV is not installed.
        SchemaError: a stream has another field, or a type that the field cannot fill.
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        streams: Mapping[str, Stream] | None = None,
        **stream_kwargs: Stream,
    ) -> None:
        declared = declared_streams(streams, stream_kwargs)
        default = {"frame": Stream(dtype="str"), "video": Stream((), "int64"), "time": Stream((), "float64")}
        self.schema = Schema(declared or default)
        self._fields = {name: _field(name, stream) for name, stream in self.schema.items()}
        self.files = [os.path.abspath(file) for file in _list_videos(path)]
        self._set_arguments(path, dict(self.schema.streams))
        self.name = self.files[0] if len(self.files) == 1 else f"{self.files[0]} and {len(self.files) - 1} more"
        parts = call_each(_rows_of, self.files, _AT_ONCE)
        self._times = np.concatenate([part.begins for part in parts])
        self._starts: Ints = np.concatenate([[0], np.cumsum([len(part.begins) for part in parts])]).astype(np.int64)
        self._table: Ints = np.concatenate([part.chunks for part in parts])
        self._chunk_starts: Ints = np.concatenate([[0], np.cumsum(self._table[:, 0])])
        self._infos = [ChunkInfo(frames, frames, size) for frames, size in self._table.tolist()]

    def chunks(self) -> list[ChunkInfo]:
        """Return the size of every chunk. ``bytes`` counts its packets."""
        return self._infos

    def digest(self) -> str:
        """Return 32 hex digits over the times of the frames, and the sizes of the packets of chunks."""
        content = ContentDigest()
        content.numbers(len(self.files), CHUNK_FRAMES)
        for array in (self._starts, self._times, self._table):
            content.array(array)
        return content.hexdigest()

    def paths(self) -> list[str]:
        """Return the paths of the files."""
        return self.files

    def read(self, chunk: int) -> Chunk:
        """Return the frames of a chunk."""
        if not 0 <= chunk < len(self._infos):
            raise IndexError(f"expected a chunk from 0 to {len(self._infos) - 1}, got {chunk}")
        return self.select(np.arange(self._chunk_starts[chunk], self._chunk_starts[chunk + 1]))

    def select(self, ordinals: Ints) -> Chunk:
        """Return the frames ``ordinals``, in that order.

        Raises:
            IndexError: an ordinal is outside the corpus.
        """
        if len(ordinals) and not 0 <= ordinals.min() <= ordinals.max() < len(self._times):
            raise IndexError(f"expected 0 <= ordinal < {len(self._times)}, got {ordinals.min()} to {ordinals.max()}")
        videos, times = np.searchsorted(self._starts, ordinals, side="right") - 1, self._times[ordinals]
        return Chunk(self.schema, {name: self._value(name, videos, times) for name in self.schema})

    def _value(self, name: str, videos: Ints, times: NDArray[np.float64]) -> Value:
        field, stream = self._fields[name], self.schema[name]
        if field == "time":
            return DenseValue(times.astype(stream.dtype))
        if field == "video" and not stream.is_text:
            return DenseValue(videos.astype(stream.dtype))
        if field == "video":
            return _texts([self.files[video] for video in videos.tolist()])
        names = {video: str(MediaAddress(self.files[video])) for video in np.unique(videos).tolist()}
        pairs = zip(videos.tolist(), times.tolist(), strict=True)
        return _texts([f"{names[video]}#t={time!r}" for video, time in pairs])


def open_videos(paths: list[str], streams: Mapping[str, Stream], memory_bytes: int) -> VideoDeserializer:
    """Open files or placeholders. See `open_corpus`."""
    return VideoDeserializer(paths if len(paths) > 1 else paths[0], streams or None)


def _texts(texts: list[str]) -> BytesValue:
    return strings_from_list(texts, text=True)


def _field(name: str, stream: Stream) -> str:
    """Return the field of a stream.

    Raises:
        SchemaError: there is no such field, or the stream cannot hold it.
    """
    field = stream.field or name
    if field not in _FIELDS:
        raise SchemaError(
            f"expected `frame`, `video` or `time` as field of stream `{name}`, got `{field}`; write "
            f"{name}=fl.Stream(..., field='frame')"
        )
    is_scalar = not stream.is_bytes and not stream.sparse and stream.shape == ()
    fits = {
        "frame": stream.is_text,
        "video": stream.is_text or (is_scalar and stream.dtype.kind in "iu"),
        "time": is_scalar and stream.dtype.kind == "f",
    }
    if not fits[field]:
        raise SchemaError(f"expected {_FIELDS[field]} for stream `{name}` of `{field}`, got {stream}")
    return field


def _list_videos(path: PathLike | Sequence[PathLike]) -> list[Path]:
    if isinstance(path, (str, os.PathLike)) and os.path.isdir(path):
        with looking(path):
            files = [
                os.path.join(place, name)
                for place, _, names in os.walk(path, onerror=_raise_walk_error, followlinks=True)
                for name in names
                if name.lower().endswith(SUFFIXES) and not name.startswith(".")
            ]
        if not files:
            raise DataError(f"expected files such as *.mp4, *.mkv or *.webm in {path}, got none")
        return [Path(file) for file in sorted(files, key=os.fsencode)]
    return list_files(path)


def _raise_walk_error(error: OSError) -> None:
    """Raise an error that `os.walk` would ignore: videos must not be missing silently."""
    raise error


def _rows_of(path: str) -> _Rows:
    packets = packets_of(version_of(path))
    first = _chunk_firsts(packets)
    sizes = np.add.reduceat(packets.frames["size"].astype(np.int64), first)
    counts = np.diff(np.append(first, len(packets)))
    return _Rows(packets.begins, np.stack([counts, sizes], 1).astype(np.int64))


def _chunk_firsts(packets: PacketIndex) -> list[int]:
    """Return the first frame of each chunk: as many groups of pictures as have `CHUNK_FRAMES` frames, or one."""
    bounds = packets.groups.tolist()
    first = [0]
    for begin, end in itertools.pairwise(bounds):
        if end - first[-1] > CHUNK_FRAMES and begin > first[-1]:
            first.append(begin)
    return first
