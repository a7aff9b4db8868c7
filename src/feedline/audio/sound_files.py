"""Encoded recordings into samples: what libsndfile knows by soundfile, everything else by torchcodec.

A segment is read by seeking, not by decoding what is before it, where the format allows. The numbers are those of the
libraries: integers become float32 in [-1, 1). Damage that a library does not report is found where the file shows it:
less data than its header says, a hole in an Ogg stream, or a file that ends before its segment.
"""

from __future__ import annotations

import functools
import importlib
import io
import re
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.audio.sound_streams import Samples
from feedline.errors import DataError, install_line

HINT = 'pass on_error="skip" to the source to skip such recordings and list them'
SHORTFALL_S = 0.025
"""By how much a file may end before its segment: manifests round durations. Lhotse tolerates as much."""

_UNRECOGNISED = 1  # libsndfile's error for a format that it does not know
_BLOCK_SAMPLES = 1 << 22  # read at once, as a damaged header may claim any length
_UNKNOWN_SIZE = 0x7FFFF000  # programs that write to a pipe put such sizes, or larger ones, into headers
_MPEG = "MP3"  # soundfile's name for all layers of MPEG audio
_MPEG_LEAD = 16 * 1152  # samples that a decoder needs after a seek: a frame refers to data in the frames before it
_CUT = re.compile(r"^\s*(?:data|SSND|riff)\s*: (\d+) \(should be (\d+)\)", re.MULTILINE)
_PLACE = re.compile(r"^\w+, \S+:\d+, ")  # in the code of torchcodec
_HOLES = ("reports a hole", "Hole found", "Corrupted bitstream")


class Recording(NamedTuple):
    """A decoded recording.

    Attributes:
        samples: float32 (samples, channels).
        rate: samples per second.
    """

    samples: Samples
    rate: int


class SoundSegment(NamedTuple):
    """A part of a recording, in seconds. The end is excluded."""

    begin_s: float
    end_s: float


def read_recording(file: BinaryIO, segment: SoundSegment | None, max_seconds: float) -> Recording:
    """Return a recording, or a segment of it.

    Args:
        file: an open file, or bytes as one.
        segment: the segment. None: all of it.
        max_seconds: limit of its length.

    Raises:
        DataError: the recording is damaged, too long, shorter than the segment, or of no known format.
        ModuleNotFoundError: soundfile is not installed.
    """
    library = soundfile()
    try:
        with library.SoundFile(_source(file), closefd=False) as sound:
            return _read_sound(sound, segment, max_seconds)
    except library.LibsndfileError as error:
        if error.code != _UNRECOGNISED:
            raise _damaged(error.error_string) from error
    except RuntimeError as error:  # of soundfile itself
        raise _damaged(str(error)) from error
    return _read_by_torchcodec(file, segment, max_seconds)


def samples_of(seconds: float, rate: int) -> int:
    """Return a time in samples, with halves rounded up. A millionth of a sample is an error of the arithmetic."""
    exact = Decimal(round(seconds * rate, ndigits=6))
    return int(exact.quantize(Decimal(0), rounding=ROUND_HALF_UP))


def _source(file: BinaryIO) -> Any:
    """Return what libsndfile reads fastest: a descriptor of a file, without Python in between."""
    if type(file) is io.FileIO:  # not the file of an object, whose descriptor lacks what was not fetched
        return file.fileno()
    return file


def _read_sound(sound: Any, segment: SoundSegment | None, max_seconds: float) -> Recording:
    rate, begin, count = sound.samplerate, 0, sound.frames
    if segment is not None:
        _check_end(segment, sound.frames / rate)
        begin = min(samples_of(segment.begin_s, rate), sound.frames)
        count = min(samples_of(segment.end_s - segment.begin_s, rate), sound.frames - begin)
    _check_length(count / rate, max_seconds)
    if segment is None and (cut := _CUT.search(sound.extra_info)):
        expected, got = int(cut[1]), int(cut[2])
        if got < expected < _UNKNOWN_SIZE:
            raise _damaged(f"expected {expected} bytes of data, got {got}: truncated")
    samples = _read_blocks(sound, begin, count)
    if len(samples) < count:
        raise _damaged(f"expected {count} samples, got {len(samples)}")
    if sound.format == "OGG" and any(hole in sound.extra_info for hole in _HOLES):
        raise _damaged("expected a stream without holes")
    return Recording(samples, rate)


def _read_blocks(sound: Any, begin: int, count: int) -> Samples:
    """Return ``count`` samples from ``begin`` on, or fewer if the data ends before.

    soundfile seeks after each read. So in MPEG audio each block but the first is read with what is before it, at once.
    """
    most = max(1, _BLOCK_SAMPLES // sound.channels)
    blocks: list[NDArray[np.float32]] = []
    while True:
        size = min(most, count)
        lead = min(begin, _MPEG_LEAD) if sound.format == _MPEG else 0
        if begin and (lead or not blocks):
            sound.seek(begin - lead)
        block = sound.read(out=np.empty((lead + size, sound.channels), np.float32), always_2d=True)[lead:]
        blocks.append(block)
        begin, count = begin + size, count - size
        if not count or len(block) < size:
            return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def _read_by_torchcodec(file: BinaryIO, segment: SoundSegment | None, max_seconds: float) -> Recording:
    file.seek(0)
    head = file.read(8)
    file.seek(0)
    decoders = _torchcodec()
    if isinstance(decoders, Exception):
        what = f"expected a recording that soundfile reads, got bytes {head!r}..."
        raise DataError(what, hint=f"other formats need torchcodec: {install_line('video')}; or {HINT}") from decoders
    try:
        decoder = decoders.AudioDecoder(file)
        if segment is None:
            begin_s, end_s = None, None
            _check_length(decoder.metadata.duration_seconds_from_header or 0, max_seconds)
        else:
            begin_s, end_s = segment
            _check_length(end_s - begin_s, max_seconds)
        decoded = decoder.get_samples_played_in_range(begin_s or 0.0, end_s)
    except DataError:
        raise
    except Exception as error:  # of FFmpeg, by many classes
        reason = _PLACE.sub("", str(error).strip().partition("\n")[0])
        raise _damaged(reason or type(error).__name__) from error
    samples = decoded.data.numpy().T
    _check_length(len(samples) / decoded.sample_rate, max_seconds)
    if segment is not None:
        _check_end(segment, segment.begin_s + len(samples) / decoded.sample_rate)
    return Recording(samples, decoded.sample_rate)


def _check_length(seconds: float, max_seconds: float) -> None:
    if seconds > max_seconds:
        raise DataError(
            f"expected a recording of at most {max_seconds:g} s, got one of {seconds:.3f} s",
            hint=f"pass a larger max_seconds to audio.Decode, read segments, or {HINT}",
        )


def _check_end(segment: SoundSegment, seconds: float) -> None:
    if segment.end_s > seconds + SHORTFALL_S:
        raise DataError(
            f"expected a recording up to {segment.end_s:g} s, got one that ends at {seconds:.3f} s", hint=HINT
        )


def _damaged(what: str) -> DataError:
    return DataError(what if what.startswith("expected") else f"expected a whole recording: {what}", hint=HINT)


@functools.cache
def soundfile() -> Any:
    """Return the module `soundfile`, or raise a ModuleNotFoundError with the command that installs it."""
    try:
        return importlib.import_module("soundfile")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"soundfile is not installed; run: {install_line('audio')}") from error


@functools.cache
def _torchcodec() -> Any:
    """Return the decoders of torchcodec, or the error of importing them, which takes seconds."""
    try:
        return importlib.import_module("torchcodec.decoders")
    except (ImportError, OSError, RuntimeError) as error:  # it does not load without FFmpeg, or a torch that fits
        return error
