"""The frames that a minibatch needs, grouped by file, so that each file is opened once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feedline.data.value import BytesValue
from feedline.errors import DataError
from feedline.feed.files.media_address import MediaAddress, parse
from feedline.feed.protocol import Ints


@dataclass(frozen=True)
class FileRequest:
    """Frames of one file, or of one encoded clip.

    Attributes:
        source: path of the file, or the bytes of a clip.
        rows: int64 (n,), the row of the minibatch that each frame fills.
        times: float64 (n,), the time of each frame in seconds. None: ``numbers`` has the frames.
        numbers: int64 (n,), the number of each frame. None: ``times`` has the frames.
        part, parts: which part of the file's groups of pictures to decode, of how many.
    """

    source: str | bytes
    rows: Ints
    times: NDArray[np.float64] | None
    numbers: Ints | None
    part: int = 0
    parts: int = 1


def requests_by_time(value: BytesValue, threads: int) -> tuple[list[FileRequest], dict[int, DataError]]:
    """Return the frames of a text value of addresses, and by sample why an address denotes none."""
    by_path: dict[str, tuple[list[int], list[float]]] = {}
    errors: dict[int, DataError] = {}
    for i, text in enumerate(value.samples()):
        try:
            path, time = _frame_address(str(text))
        except DataError as error:
            errors[i] = error
            continue
        rows, times = by_path.setdefault(path, ([], []))
        rows.append(i)
        times.append(time)
    parts = _parts(len(by_path), threads)
    return [
        FileRequest(path, np.array(rows, np.int64), np.array(times), None, part, parts)
        for path, (rows, times) in by_path.items()
        for part in range(parts)
    ], errors


def requests_by_number(
    value: BytesValue, frames: tuple[int, ...], threads: int
) -> tuple[list[FileRequest], dict[int, DataError]]:
    """Return the same ``frames`` of each clip of a value, whose rows follow each other, and errors by row."""
    count = len(frames)
    clips: dict[str | bytes, list[int]] = {}
    errors: dict[int, DataError] = {}
    samples_of_clips: Sequence[str | bytes] = value.samples()
    for i, sample in enumerate(samples_of_clips):
        try:
            source = sample if isinstance(sample, bytes) else _file_address(str(sample))
        except DataError as error:
            errors.update(dict.fromkeys(range(i * count, (i + 1) * count), error))
            continue
        clips.setdefault(source, []).append(i)
    parts = 1 if not value.text else _parts(len(clips), threads)
    requests = []
    for source, samples in clips.items():
        rows = (np.array(samples, np.int64)[:, None] * count + np.arange(count)).reshape(-1)
        numbers = np.tile(np.array(frames, np.int64), len(samples))
        requests += [FileRequest(source, rows, None, numbers, part, parts) for part in range(parts)]
    return requests, errors


def _parts(files: int, threads: int) -> int:
    """Return into how many parts files are split, so that all threads have work."""
    return 1 if files >= 2 * threads else -(-2 * threads // max(1, files)) if threads > 1 else 1


def _frame_address(text: str) -> tuple[str, float]:
    address = parse(text)
    if address.begin_s is None or address.end_s is not None:
        raise DataError(
            f"expected the address of a frame, such as clip.mp4#t=1.5, got {text!r:.200}",
            path=address.path,
            hint="pass frames= to video.Decode to decode frames of whole clips by number",
        )
    return address.path, address.begin_s


def _file_address(text: str) -> str:
    address: MediaAddress = parse(text)
    if address.begin_s is not None:
        raise DataError(
            f"expected the address of a whole clip, as frames= has their numbers, got {text!r:.200}",
            path=address.path,
            hint="leave out frames= to decode the frames at times",
        )
    return address.path
