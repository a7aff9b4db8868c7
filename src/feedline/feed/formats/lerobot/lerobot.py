"""Datasets of robots as a corpus: a frame is a sequence.

Tables of frames are Parquet files, which `ParquetDeserializer` reads. Their metadata say where episodes begin, so that
nothing has to be read to make windows within episodes. Frames of video are delivered as addresses, for a transform to
decode: order and windows work on short texts.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.schema import encodable
from feedline.errors import DataError, SchemaError
from feedline.feed.files.digest import ContentDigest
from feedline.feed.files.media_address import MediaAddress
from feedline.feed.files.paths import PathLike, size_of
from feedline.feed.formats.arrow.parquet import ParquetDeserializer
from feedline.feed.formats.lerobot.robot_episodes import RobotEpisodes, read_episodes, read_tasks
from feedline.feed.formats.lerobot.robot_info import HINT, RobotFeature, RobotInfo
from feedline.feed.formats.lerobot.robot_statistics import read_statistics
from feedline.feed.formats.pickled_by_arguments import PickledByArguments
from feedline.feed.protocol import (
    CHUNK_MEMORY,
    CountsNulls,
    Deserializer,
    Fetchable,
    Growing,
    Ints,
    Piece,
    chunk_extents,
    chunk_starts,
    require,
    whole_number,
)
from feedline.feed.wrapper import Forwarding

_EPISODE, _TIME, _TASK_INDEX, _TASK = "episode_index", "timestamp", "task_index", "task"
#: Transforms that decode the pictures of a feature, imported when they are asked for, as their packages lie above.
_DECODERS = {"video": "feedline.video:Decode", "image": "feedline.images:Decode"}


class LeRobotDeserializer(Forwarding, Fetchable, PickledByArguments):
    """A folder in LeRobot's layout, of version 2.0, 2.1 or 3.0. A frame is a sequence.

    Chunks are row groups of a file, or several small ones. Streams have the names of features, and that of the text of
    a frame's task is ``task``.

    =================================  ====================================================
    feature                            stream
    =================================  ====================================================
    numbers, of shape ``[1]``          dense, shape ``()``, of their dtype
    numbers, of another shape          dense, of that shape
    ``string``                         text
    ``image`` (pictures in Parquet)    bytes, as they are encoded
    ``video``                          text: the address of the frame, ``/path/file.mp4#t=1.55``
    =================================  ====================================================

    The time in an address is the middle of the frame's time on display, as timestamps are rounded.

    Args:
        path: the folder.
        streams: names of streams, or declarations by name, `Stream.field` being the feature. By default all.
        memory: bytes that a decoded row group may take.

    Attributes:
        fps: frames per second.
        episode_lengths: frames of each episode, int64 (episodes,), as `TimeWindows` takes them as ``within``.
        tasks: text of each task by its ``task_index``.
        stats: statistics by feature and name, as ``stats["action"]["mean"]``. Empty if the dataset has none.

    Raises:
        DataError: metadata or files are missing or damaged, or metadata contradict each other or the numbers of rows.
        SchemaError: a stream is no feature, or a column is missing or not as the metadata describe it.
    """

    _lacks = (CountsNulls, Growing)

    def __init__(
        self,
        path: PathLike,
        streams: Sequence[str] | Mapping[str, Stream] | None = None,
        *,
        memory: int = CHUNK_MEMORY,
    ) -> None:
        whole_number("memory", memory, 1)
        info = RobotInfo(Path(os.path.abspath(path)))
        self._features = _chosen(info, streams)
        cameras = [feature for feature, described in self._features.values() if described.kind == "video"]
        self._episodes = read_episodes(info, dict.fromkeys(cameras))
        self.fps, self.episode_lengths = info.fps, self._episodes.lengths
        self.tasks = read_tasks(info) if _TASK_INDEX in info.features else {}
        self.stats = read_statistics(info.folder / "meta")
        table = _FrameTables(
            [str(file) for file in self._episodes.files],
            _columns(info, self._features),
            memory=memory,
        )
        super().__init__(table)
        self.name = str(info.folder)
        self.schema = Schema({name: described.stream for name, (_, described) in self._features.items()})
        _check_rows(table, self._episodes)
        self._video_sizes = _video_sizes(info.folder, self._episodes)
        self._starts = chunk_starts(table)
        self._bounds: Ints = np.cumsum([0, *self.episode_lengths], dtype=np.int64)
        self._folder = info.folder
        self._set_arguments(path, list(streams) if isinstance(streams, tuple) else streams, memory=memory)

    select = Deserializer.select  # by chunk

    def read(self, chunk: int) -> Chunk:
        """Return the frames of a chunk. Raises the errors of `ParquetDeserializer`."""
        return self._with_metadata(chunk, self._corpus.read(chunk))

    def extents(self, chunk: int) -> Any:
        """Return the pages of the columns in use."""
        return chunk_extents(self._corpus, chunk)

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """See `Fetchable.read_fetched`."""
        return self._with_metadata(chunk, require(self._corpus, Fetchable).read_fetched(chunk, pieces))

    def digest(self) -> str:
        """Return 32 hex digits over the tables' digest, the metadata that is read, and the sizes of videos."""
        content = ContentDigest()
        content.text(self._corpus.digest().encode())
        content.text(repr((self.fps, sorted(self.tasks.items()), sorted(self._video_sizes.items()))).encode())
        content.text(self._episodes.numbers.astype("<i8").tobytes() + self._bounds.astype("<i8").tobytes())
        for name, videos in sorted(self._episodes.videos.items()):
            content.text(name.encode() + videos.begins_s.astype("<f8").tobytes())
            content.text("\0".join(os.path.relpath(file, self._folder) for file in videos.files).encode())
        return content.hexdigest()

    def decoders(self) -> list[Any]:
        """Return a transform for each stream of pictures, with which they are pixels: uint8 (height, width, 3).

        Raises:
            SchemaError: the metadata do not say how large pictures are.
            ModuleNotFoundError: a decoder is not installed (``pip install 'feedline[robots]'``).
        """
        transforms: list[Any] = []
        for name, (feature, described) in self._features.items():
            if described.kind not in _DECODERS:
                continue
            if described.size is None:
                raise SchemaError(
                    f"expected a shape [height, width, channels] of feature {feature!r} in {self._folder}/meta/"
                    f"info.json, got another; pass the decoder of `{name}` as a transform"
                )
            transforms.append(_decoder(name, described, described.size))
        return transforms

    # ---- values from metadata ---------------------------------------------------------------------

    def _with_metadata(self, number: int, part: Chunk) -> Chunk:
        first, end = self._starts[number : number + 2].tolist()
        frames = np.arange(first, end)
        episodes: Ints = np.searchsorted(self._bounds, frames, side="right") - 1
        errors = dict(part.errors)

        def refuse(bad: NDArray[np.bool_], what: str, stream: str) -> None:
            for i in np.flatnonzero(bad).tolist():
                got = part[stream].rows[i]
                place = {"path": self.name, "sequence": first + i, "stream": stream}
                errors.setdefault(i, DataError(f"expected {what}, got {got}", hint=HINT, **place))

        expected = self._episodes.numbers[episodes]
        refuse(part[_EPISODE].rows != expected, "the episode_index that the metadata have for this frame", _EPISODE)
        values: dict[str, Value] = {}
        times = None
        for name, (feature, described) in self._features.items():
            if described.kind == "video":
                if times is None:
                    times = part[_TIME].rows.astype(np.float64)
                    bad = ~((times >= 0) & np.isfinite(times))
                    refuse(bad, "a time from 0 on", _TIME)
                    times[bad] = 0
                values[name] = self._addresses(feature, described.frame_s, episodes, times)
            elif described.kind == _TASK:
                values[name], bad = self._texts(part[_TASK_INDEX].rows)
                refuse(bad, "a task of the metadata", _TASK_INDEX)
            else:
                values[name] = part[feature]
        return Chunk(self.schema, values, errors, seals=part.seals)

    def _addresses(self, feature: str, frame_s: float, episodes: Ints, times: NDArray[np.float64]) -> Value:
        """Return the addresses of frames of video."""
        files, begins_s = self._episodes.videos[feature]
        # There is a text for each frame: paths are escaped once for each episode, and all are encoded as they are made.
        paths = {episode: str(MediaAddress(str(files[episode]))).encode() for episode in np.unique(episodes).tolist()}
        shown_s = begins_s[episodes] + times + frame_s / 2
        pairs = zip(episodes.tolist(), shown_s.tolist(), strict=True)
        texts = [b"%b#t=%a" % (paths[episode], time) for episode, time in pairs]
        bounds = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        return Value.from_buffer(b"".join(texts), bounds, "str")

    def _texts(self, indices: Ints) -> tuple[Value, NDArray[np.bool_]]:
        """Return the texts of tasks, and which are unknown."""
        distinct, places = np.unique(indices, return_inverse=True)
        known = np.array([index in self.tasks for index in distinct.tolist()], np.bool_)
        texts = Value.from_bytes([self.tasks.get(index, "") for index in distinct.tolist()], "str")
        return texts.select(places), ~known[places]


class _FrameTables(ParquetDeserializer):
    """The tables of frames. Each episode is a row group, which is small."""

    _joined_rows = 1 << 12


_Features = dict[str, tuple[str, RobotFeature]]


def _chosen(info: RobotInfo, streams: Sequence[str] | Mapping[str, Stream] | None) -> _Features:
    """Return the feature of each stream, and what is known of it.

    Raises:
        SchemaError: there is no such feature, or it is of another kind than declared.
        TypeError: streams are a string.
    """
    if isinstance(streams, str):
        raise TypeError(f"expected a list of streams, got the string {streams!r}; write [{streams!r}]")
    features = dict(info.features)
    if _TASK_INDEX in features:
        features.setdefault(_TASK, RobotFeature(Stream(dtype="str"), _TASK))
    chosen: _Features = {}
    for name in features if streams is None else streams:
        declared = streams[name] if isinstance(streams, Mapping) else None
        feature = (declared.field if declared is not None else None) or name
        if feature not in features:
            raise SchemaError(f"expected a feature of {info.path}, one of {', '.join(features)}, got {feature!r}")
        described = features[feature]
        if declared is not None:
            if replace(declared, field=None, defines_size=False) != described.stream:
                raise SchemaError(f"expected {described.stream} for stream `{name}`, as metadata say, got {declared}")
            described = described._replace(stream=replace(declared, field=None))
        chosen[name] = feature, described
    return chosen


def _columns(info: RobotInfo, features: _Features) -> dict[str, Stream]:
    """Return the streams of the tables: those of features, and those that metadata are looked up by.

    Raises:
        DataError: metadata are looked up by something else than numbers.
    """
    columns = {
        feature: replace(described.stream, defines_size=False)
        for feature, described in features.values()
        if described.kind not in ("video", _TASK)
    }
    kinds = {described.kind for _, described in features.values()}
    lookups = {_EPISODE: True, _TIME: "video" in kinds, _TASK_INDEX: _TASK in kinds}
    for name in (name for name, needed in lookups.items() if needed):
        stream = info.features[name].stream if name in info.features else Stream((), "int64")
        if stream.shape or stream.is_bytes or stream.dtype.kind not in ("iuf" if name == _TIME else "iu"):
            raise info.error(f"one number a frame as feature {name!r}", stream)
        columns[name] = stream
    return columns


def _check_rows(table: ParquetDeserializer, episodes: RobotEpisodes) -> None:
    """Check that tables have the rows that the metadata say.

    Raises:
        DataError: a file has another number of rows.
        SchemaError: a column has lists of any length.
    """
    lengths = iter(episodes.lengths.tolist())
    for path, count, rows in zip(table.paths(), episodes.counts, table.rows_of_files(), strict=True):
        expected = sum(next(lengths) for _ in range(count))
        if rows != expected:
            raise DataError(
                f"expected {expected} rows, the frames of {count} episodes in the metadata, got {rows}",
                path=path,
                hint=HINT,
            )
    if table.lengths(np.arange(0)) is not None:
        raise SchemaError(f"expected the shapes of the metadata in {table.paths()[0]}, got lists of any length")


def _video_sizes(folder: Path, episodes: RobotEpisodes) -> dict[str, int]:
    """Return the sizes of the videos by their paths in the folder.

    Raises:
        DataError: a file is missing, or addresses cannot name it.
    """
    sizes: dict[str, int] = {}
    if episodes.videos and not encodable(str(folder)):
        raise DataError("expected a folder named in UTF-8, as addresses of frames are texts", path=str(folder))
    for name, videos in episodes.videos.items():
        for file in dict.fromkeys(videos.files):
            try:
                sizes[os.path.relpath(file, folder)] = size_of(file)
            except OSError as error:
                number = int(episodes.numbers[videos.files.index(file)])
                raise DataError(
                    f"expected a video of {name!r} from episode {number} on: {error.strerror}",
                    path=str(file),
                    hint="download the videos of the dataset, or choose streams without them",
                ) from error
    return sizes


def _decoder(stream: str, described: RobotFeature, size: tuple[int, int]) -> Any:
    """Return the transform that decodes the pictures of a stream."""
    module, _, name = _DECODERS[described.kind].partition(":")
    package = importlib.import_module(module)
    decode = getattr(package, name)
    return decode(stream, size=size) if described.kind == "video" else decode(stream, package.CenterCrop(size))
