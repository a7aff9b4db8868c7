"""Lists the packets of a video file. Of an MP4 file, only its tables are read; of other files, all of it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DataError
from feedline.feed.formats.unreadable import reraise_if_transient
from feedline.video.libraries import pyav
from feedline.video.packet_index import FRAME, DamagedPacketsError, PacketIndex
from feedline.video.ranged_file import RangedFile, TablesOfFile

# Codecs whose frames are all key frames.
_INTRA = {"mjpeg", "prores", "dnxhd", "ffv1", "rawvideo", "png", "huffyuv", "jpeg2000"}


def list_packets(path: str) -> PacketIndex:
    """Return the packets of the best video stream of a file.

    Raises:
        DataError: the file cannot be read, or is no video.
        ModuleNotFoundError: PyAV is not installed.
    """
    av = pyav()
    try:
        index = _from_tables(av, path)
        return _from_packets(av, path) if index is None else index
    except DamagedPacketsError as error:
        raise DataError(f"expected the packets of a video, got a file that is damaged: {error}", path=path) from error
    except (OSError, av.FFmpegError, ValueError) as error:
        reraise_if_transient(error)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"expected a video file, got: {reason}", path=path) from error


def list_packets_of_clip(clip: bytes) -> PacketIndex:
    """Return the packets of the best video stream of an encoded clip.

    Raises:
        DataError: it is no video.
        ModuleNotFoundError: PyAV is not installed.
    """
    av = pyav()
    try:
        with av.open(io.BytesIO(clip)) as container:
            stream = _best(container, None)
            rows = _rows(container, stream)
            number, base = stream.index, stream.time_base
        return PacketIndex(_table(rows), number, (base.numerator, base.denominator), len(clip))
    except (DamagedPacketsError, OSError, av.FFmpegError, ValueError) as error:
        raise DataError(f"expected an encoded clip, got: {error}") from error


def _from_tables(av: Any, path: str) -> PacketIndex | None:
    """Return the packets of an MP4 file, or None if its tables do not suffice."""
    file = TablesOfFile(path)
    try:
        if not file.is_mp4:
            return None
        with av.open(file) as container:
            stream = _best(container, path)
            rows = _rows(container, stream)
            keys = {entry.pos: (entry.size, entry.is_keyframe) for entry in stream.index_entries}
            codec, number, base = stream.codec_context.name, stream.index, stream.time_base
    finally:
        file.close()
    # Parsers may look into the media, and split or mark packets by what they see there: zeros.
    if any(keys.get(offset, (0, 0))[0] != size for _, _, offset, size, _ in rows):
        return None
    rows = [(pts, duration, offset, size, keys[offset][1]) for pts, duration, offset, size, _ in rows]
    if len(rows) > 1 and all(row[4] for row in rows) and codec not in _INTRA:
        return None  # perhaps without a table of key frames
    return PacketIndex(_table(rows), number, (base.numerator, base.denominator), file.size)


def _from_packets(av: Any, path: str) -> PacketIndex:
    file = RangedFile(path)
    try:
        with av.open(file) as container:
            stream = _best(container, path)
            rows = _rows(container, stream)
            number, base = stream.index, stream.time_base
    finally:
        file.close()
    return PacketIndex(_table(rows), number, (base.numerator, base.denominator), file.size)


def _best(container: Any, path: str | None) -> Any:
    stream = container.streams.best("video")
    if stream is None or stream.codec_context is None:
        raise DataError("expected a file with a stream of video, got none that can be read", path=path)
    return stream


def _rows(container: Any, stream: Any) -> list[tuple[int, int, int, int, bool]]:
    """Return presentation time, duration, offset, size, and whether it is a key frame, of each packet."""
    rows = []
    for packet in container.demux(stream):
        if not packet.size or packet.is_discard:  # the end, or cut away by an edit list
            continue
        pts = packet.dts if packet.pts is None else packet.pts
        if pts is None or packet.pos is None or packet.pos < 0:
            raise DamagedPacketsError("a packet has no time or no offset")
        rows.append((pts, packet.duration or 0, packet.pos, packet.size, packet.is_keyframe))
    return rows


def _table(rows: list[tuple[int, int, int, int, bool]]) -> NDArray[Any]:
    try:
        table = np.array(rows, FRAME)
    except OverflowError:
        raise DamagedPacketsError("its numbers are out of range") from None
    return np.sort(table, order="pts", kind="stable")
