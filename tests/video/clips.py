"""Small videos, made by PyAV, and what torchcodec makes of them as a whole."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SIDE = 48  # width and height of a frame


@dataclass(frozen=True)
class Kind:
    """How a video is encoded.

    Attributes:
        suffix: suffix of its file.
        codec: name of the encoder.
        options: options of the encoder.
        container: options of the container.
        lengths: durations of the frames in ticks of 1/30 s, repeated. None: equal ones.
    """

    suffix: str
    codec: str
    options: dict[str, str]
    container: Mapping[str, str] = field(default_factory=dict)
    lengths: tuple[int, ...] | None = None


H264 = {"preset": "veryfast", "bf": "3", "b-pyramid": "normal"}
KINDS = {
    "h264": Kind(".mp4", "libx264", {**H264, "g": "12"}),
    "h264 odd groups": Kind(".mp4", "libx264", {**H264, "g": "7", "keyint_min": "3"}),
    "h264 open groups": Kind(".mp4", "libx264", {**H264, "g": "9", "x264-params": "open-gop=1"}),
    "h264 intra refresh": Kind(".mp4", "libx264", {**H264, "g": "12", "x264-params": "intra-refresh=1"}),
    "h264 variable rate": Kind(".mp4", "libx264", {**H264, "g": "10"}, lengths=(1, 3, 1, 2, 7)),
    "h264 Matroska": Kind(".mkv", "libx264", {**H264, "g": "12"}),
    "h264 fragments": Kind(".mp4", "libx264", {**H264, "g": "12"}, {"movflags": "frag_keyframe+empty_moov"}),
    "h264 tables first": Kind(".mp4", "libx264", {**H264, "g": "12"}, {"movflags": "faststart"}),
    "h264 key frames": Kind(".mp4", "libx264", {**H264, "g": "1"}),
    "mpeg4": Kind(".mp4", "mpeg4", {"g": "11", "bf": "2"}),
    "vp9": Kind(".webm", "libvpx-vp9", {"g": "10", "deadline": "realtime", "cpu-used": "8"}),
    "mpeg2": Kind(".mp4", "mpeg2video", {"g": "8", "bf": "2"}),
}


def picture(number: int, side: int = SIDE) -> Any:
    """Return uint8 (side, side, 3), another picture for each number."""
    y, x = np.mgrid[:side, :side]
    if side > 100:  # more bytes: noise is hard to encode
        return np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8)
    planes = [(x * 5 + number * 11) % 256, (y * 5 + number * 3) % 256, np.full_like(x, number * 7 % 256)]
    return np.stack(planes, -1).astype(np.uint8)


def make_video(path: Path, kind: str = "h264", frames: int = 40, side: int = SIDE, first: int = 0) -> Path:
    """Encode frames into a file with the suffix of the kind, and return its path."""
    import av

    encoding = KINDS[kind]
    suffix, codec, options = encoding.suffix, encoding.codec, encoding.options
    container, lengths = encoding.container, encoding.lengths
    path = path.with_suffix(suffix)
    with av.open(str(path), "w", options=dict(container)) as output:
        stream = output.add_stream(codec, rate=30, options=options)
        stream.width = stream.height = side
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        at = 0
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(picture(first + number, side), format="rgb24")
            if lengths is not None:
                frame.pts = at
                at += lengths[number % len(lengths)]
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


class Decoded(NamedTuple):
    """All frames of a video, decoded one after the other.

    Attributes:
        frames: uint8 (n, height, width, 3).
        times: seconds at which they are displayed.
    """

    frames: Any
    times: list[float]


@functools.lru_cache(maxsize=64)
def decode_all(path: Path) -> Decoded:
    """Return all frames of a video, by torchcodec with its own scan of the file."""
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(str(path), dimension_order="NHWC", seek_mode="exact")
    frames = decoder.get_frames_in_range(0, len(decoder))
    return Decoded(frames.data.numpy(), frames.pts_seconds.tolist())


def packets(path: Path) -> list[Any]:
    """Return (presentation time, duration, offset, size, whether it is a key frame) of each packet, as PyAV reads
    them, in the order of their display."""
    import av

    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        rows = [(p.pts, p.duration, p.pos, p.size, int(p.is_keyframe)) for p in container.demux(stream) if p.size]
    return sorted(rows)
