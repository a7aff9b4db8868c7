"""The file meta/info.json of a robot dataset: version, rate, features, and where files are."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from feedline.data import Stream
from feedline.data.schema import encodable
from feedline.errors import DataError, shown
from feedline.feed.formats.arrow.hugging_face import read_json

HINT = "restore the metadata, or download the dataset again"
"""Hint of errors about metadata."""

_NUMBERS = re.compile("bool|u?int(8|16|32|64)|float(16|32|64)")
_FIELD = re.compile(r"\{(\w+)(?::0?([1-9])d)?\}", re.ASCII)
_VERSION = re.compile(r"v(2\.[01]|3\.0)")
_MAX_DIMENSION = 1 << 31


class RobotFeature(NamedTuple):
    """A feature as meta/info.json describes it.

    Attributes:
        stream: its stream. Frames of video are texts, their addresses.
        kind: ``"video"``, ``"image"``, ``"task"`` for the texts of tasks, or ``""``.
        size: height and width of pictures, if they are known.
        frame_s: seconds that a frame of video is displayed.
    """

    stream: Stream
    kind: str = ""
    size: tuple[int, int] | None = None
    frame_s: float = 0.0


class RobotInfo:
    """The content of meta/info.json.

    Args:
        folder: folder of the dataset.

    Attributes:
        folder: the same.
        path: path of the file.
        is_v3: whether files hold several episodes, as of version 3.
        fps: frames per second.
        features: features by name.
        episodes, frames: how many there are.

    Raises:
        DataError: the file is missing or damaged, or is of another version.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "meta" / "info.json"
        self._document = read_json(self.path)
        version = self._document.get("codebase_version")
        if not isinstance(version, str) or _VERSION.fullmatch(version) is None:
            raise self.error("codebase_version 'v2.0', 'v2.1' or 'v3.0'", version)
        self.is_v3 = version.startswith("v3")
        fps = self._document.get("fps")
        if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0 < fps < math.inf:
            raise self.error("a number above 0 as fps", fps)
        self.fps: float = fps
        self.episodes, self.frames = self._count("total_episodes"), self._count("total_frames")
        self.chunks_size = 1 if self.is_v3 else self._count("chunks_size")
        features = self._document.get("features")
        if not isinstance(features, dict) or not features:
            raise self.error("features, by name", features)
        self.features = {name: self._feature(name, feature) for name, feature in features.items()}

    def error(self, expected: str, got: Any) -> DataError:
        """Return the error for a value that is not as expected."""
        return DataError(f"expected {expected}, got {shown(got, 80)}", path=str(self.path), hint=HINT)

    def file(self, key: str, numbers: Mapping[str, int | str]) -> Path:
        """Return the path of a file.

        Args:
            key: ``"data_path"`` or ``"video_path"``.
            numbers: values of the fields in that text, such as ``chunk_index``.

        Raises:
            DataError: the text has other fields, or leads out of the folder.
        """
        template = self._document.get(key)
        if not isinstance(template, str):
            raise self.error(f"a text as {key}", template)

        def fill(match: re.Match[str]) -> str:
            value = numbers.get(match[1])
            if value is None:
                raise self.error(f"the fields {', '.join(numbers)} in {key}", match[0])
            return str(value) if isinstance(value, str) or match[2] is None else f"{value:0{match[2]}d}"

        path = _FIELD.sub(fill, template)
        parts = PurePosixPath(path)
        if parts.is_absolute() or ".." in parts.parts or not parts.parts or "\0" in path or not encodable(path):
            raise self.error(f"a path within the folder as {key}", path)
        return self.folder / parts

    def _count(self, key: str) -> int:
        count = self._document.get(key)
        if type(count) is not int or count < 1:
            raise self.error(f"an integer above 0 as {key}", count)
        return count

    def _feature(self, name: str, feature: Any) -> RobotFeature:
        if not isinstance(feature, dict):
            raise self.error(f"an object as feature {name!r}", feature)
        dtype, shape = feature.get("dtype"), feature.get("shape")
        if not isinstance(shape, list) or any(type(n) is not int or not 0 < n < _MAX_DIMENSION for n in shape):
            raise self.error(f"a list of integers as shape of {name!r}", shape)
        if dtype == "video":
            frame_s = 1 / self._video_fps(name, feature)
            return RobotFeature(Stream(dtype="str"), "video", _picture_size(shape, feature.get("names")), frame_s)
        if dtype == "image":
            return RobotFeature(Stream(dtype="bytes"), "image", _picture_size(shape, feature.get("names")))
        if dtype == "string":
            return RobotFeature(Stream(dtype="str"))
        if not isinstance(dtype, str) or _NUMBERS.fullmatch(dtype) is None:
            raise self.error(f"a type of numbers, 'string', 'image' or 'video' as dtype of {name!r}", dtype)
        # One number a frame is written as a column of numbers, not of lists.
        return RobotFeature(Stream(() if shape == [1] else tuple(shape), np.dtype(dtype)))

    def _video_fps(self, name: str, feature: Mapping[str, Any]) -> float:
        """Return the frames per second of a feature's videos, which are the dataset's if nothing says otherwise."""
        described = feature.get("info") or feature.get("video_info")
        fps = described.get("video.fps") if isinstance(described, dict) else None
        if fps is None:
            return self.fps
        if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0 < fps < math.inf:
            raise self.error(f"a number above 0 as video.fps of {name!r}", fps)
        return fps


def _picture_size(shape: list[int], names: Any) -> tuple[int, int] | None:
    """Return height and width. The names of the axes say whether channels come first, as in old datasets."""
    if len(shape) != 3:
        return None
    axes = [str(name) for name in names] if isinstance(names, list) else []
    first = axes[0] in ("c", "channel", "channels") if axes else shape[0] in (1, 3) and shape[2] not in (1, 3)
    return (shape[1], shape[2]) if first else (shape[0], shape[1])
