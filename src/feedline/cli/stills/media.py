"""Decodes the sound and video of a corpus for a page: encoded bytes, and addresses of files."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from feedline.cli.stills.drawn import FRAME_SIDE
from feedline.data import Schema, Value
from feedline.data.value import BytesValue
from feedline.errors import DataError
from feedline.feed.files.media_address import MediaAddress, parse
from feedline.feed.transforms import DrawKeys, Transform

_SOUND = re.compile(r"\.(aac|aiff?|flac|m4a|mp3|oga|ogg|opus|wav|wv)$", re.IGNORECASE)
_VIDEO = re.compile(r"\.(avi|m4v|mkv|mov|mp4|mpe?g|ts|webm)$", re.IGNORECASE)
_SOUND_MAGIC = re.compile(rb"RIFF....WAVE|fLaC|OggS|ID3|\xff\xfb", re.DOTALL)
_RATE = 16_000
_LONGEST_S = 600.0


class Decoded(NamedTuple):
    """Streams with decoded media.

    Attributes:
        values: the streams.
        errors: why sequences cannot be decoded, by index.
        segments: by stream, what part of its recording each sequence is. The stream has whole recordings.
    """

    values: dict[str, Value]
    errors: dict[int, DataError]
    segments: dict[str, list[MediaAddress]]


def decoded(schema: Schema, values: Mapping[str, Value], count: int) -> Decoded:
    """Return the streams of some sequences, with sounds as samples and frames as pixels.

    Raises:
        ModuleNotFoundError: the libraries for a stream of media are not installed.
    """
    result, segments = dict(values), {}
    errors: dict[int, DataError] = {}
    keys = DrawKeys(0, np.zeros(count, np.int64), np.arange(count), 0)
    for name, value in values.items():
        transform, addresses = _transform(name, value)
        if transform is None:
            continue
        if addresses:
            segments[name] = addresses
            wholes = [str(MediaAddress(address.path)) for address in addresses]
            result[name] = Value.from_bytes(wholes)
        done = transform.run_all(schema, result, keys)
        result, schema = done.values, transform.schema(schema)
        errors |= done.errors
    return Decoded(result, errors, segments)


def _transform(name: str, value: Value) -> tuple[Transform | None, list[MediaAddress]]:
    """Return the transform that decodes a stream, and the segments that it has. None: it is no stream of media."""
    samples: list[Any] = value.samples() if isinstance(value, BytesValue) else []
    if not samples:
        return None, []
    if isinstance(samples[0], bytes):
        is_sound = all(_SOUND_MAGIC.match(sample) for sample in samples) and value.one_sample_each
        return (_sound(name), []) if is_sound else (None, [])
    addresses = [address for sample in samples if (address := _address(sample)) is not None]
    if len(addresses) < len(samples):
        return None, []
    if all(_VIDEO.search(address.path) and address.begin_s is not None for address in addresses):
        images, video = (importlib.import_module(f"feedline.{layer}") for layer in ("images", "video"))
        return video.Decode(name, images.Resize((FRAME_SIDE * 3 // 4, FRAME_SIDE))), []
    if value.one_sample_each and all(_SOUND.search(address.path) for address in addresses):
        return _sound(name), addresses
    return None, []


def _sound(name: str) -> Transform:
    audio = importlib.import_module("feedline.audio")
    transform: Transform = audio.Decode(name, rate=_RATE, max_seconds=_LONGEST_S)
    return transform


def _address(text: str) -> MediaAddress | None:
    try:
        return parse(text)
    except DataError:
        return None


def share(address: MediaAddress, samples: int) -> tuple[float, float] | None:
    """Return the part of a recording that a segment is, as shares of its length. None if it is all of it."""
    if address.begin_s is None or not samples:
        return None
    seconds = samples / _RATE
    end = seconds if address.end_s is None else min(address.end_s, seconds)
    return min(address.begin_s / seconds, 1.0), end / seconds
