"""The transform that turns encoded recordings, or addresses of them, into samples, in threads.

The samples of a recording do not depend on the recordings that are decoded with it, nor on the number of threads. A
damaged recording is an unreadable sequence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from feedline import system
from feedline.audio.resample import resampled, soxr
from feedline.audio.sound_files import HINT, SoundSegment, read_recording, soundfile
from feedline.audio.sound_streams import Samples, sound_value
from feedline.concurrency.shared_jobs import SharedJobs
from feedline.data import Schema, Stream, Value
from feedline.errors import DataError, SchemaError
from feedline.feed.files.media_address import parse
from feedline.feed.files.paths import open_regular
from feedline.feed.protocol import whole_number
from feedline.feed.transforms import Begun, BegunWork, DrawKeys, Transform, Transformed

_USUAL_SECONDS = 16  # of a recording, before one has been decoded
_SAMPLE_BYTES = 4
_MOST_TIMES = 1000  # between two rates: the filter grows with it, and a damaged header may have any rate


@dataclass(frozen=True, kw_only=True)
class AudioDecoding:
    """The settings of `Decode`.

    Attributes:
        channels: channels of a sample, or None for scalars.
    """

    stream: str
    rate: int
    channels: int | None
    max_seconds: float
    threads: int


class Decode(Transform):
    """A transform for `MinibatchSource` and `DataLoader` that decodes a stream of recordings.

    A stream of bytes has whole recordings. A stream of text has addresses: the path of a file, or of a segment in it,
    ``talk.flac#t=1.5,4.25`` in seconds. The stream becomes a ragged one of float32 samples, between -1 and 1.

    soundfile decodes WAV, FLAC, Ogg, MP3 and all else that libsndfile knows, torchcodec other formats. Segments are
    sought, not read from the beginning. A recording of another rate is resampled by soxr in its high quality, as
    librosa does by default.

    Args:
        stream: the stream of recordings, one for each sequence.
        rate: samples per second after decoding.
        mono: whether the channels of a recording are averaged, so that samples are scalars. Otherwise samples have the
            shape (channels,).
        channels: with ``mono=False``, the channels that every recording has. Others are unreadable sequences.
        max_seconds: limit of the length of a recording or segment. Longer ones are unreadable sequences.
        threads: number of threads that decode.

    Raises:
        ValueError: an argument out of range.
        ModuleNotFoundError: soundfile or soxr is not installed.
    """

    works_ahead = True

    def __init__(
        self,
        stream: str,
        rate: int = 16000,
        mono: bool = True,
        *,
        channels: int = 2,
        max_seconds: float = 7200.0,
        threads: int = 2,
    ) -> None:
        if not max_seconds > 0:
            raise ValueError(f"expected max_seconds above 0 for audio.Decode, got {max_seconds!r}")
        soundfile(), soxr()  # raise errors now, not in the first minibatch
        self._decoding = AudioDecoding(
            stream=stream,
            rate=whole_number("rate", rate, 1),
            channels=None if mono else whole_number("channels", channels, 1),
            max_seconds=float(max_seconds),
            threads=whole_number("threads", threads, 1),
        )
        self._mean_samples = float(_USUAL_SECONDS * self._decoding.rate)

    @property
    def name(self) -> str:
        """Name in errors."""
        return f"audio.Decode({self._decoding.stream!r})"

    def schema(self, before: Schema) -> Schema:
        """Return the streams with decoded recordings.

        Raises:
            SchemaError: the stream is unknown, or has neither bytes nor text.
        """
        decoding, name = self._decoding, self._decoding.stream
        if name not in before:
            raise SchemaError(f"expected one of the streams {', '.join(before)} for {self.name}, got `{name}`")
        if not before[name].is_bytes:
            raise SchemaError(
                f"expected encoded recordings, or their addresses, as stream `{name}` for {self.name}, got "
                f"{before[name]}; declare {name}=fl.Stream(dtype='bytes'), or 'str' for addresses"
            )
        shape = () if decoding.channels is None else (decoding.channels,)
        decoded = Stream(shape, "float32", defines_size=before[name].defines_size)
        return Schema({**before, name: decoded})

    def run_all(self, before: Schema, values: dict[str, Value], keys: DrawKeys) -> Transformed:
        """See `Transform.run_all`."""
        return self._work(before, values).result()

    def start(self, before: Schema, values: dict[str, Value], keys: DrawKeys) -> Begun:
        """Begin `run_all` in other threads. See `Transform.start`."""
        return BegunWork(self._work(before, values))

    def result_bytes(self, before: Schema, sequences: int) -> int:
        """Return about how many bytes ``sequences`` decoded sequences take, by those of the last minibatch."""
        return int(sequences * self._mean_samples * (self._decoding.channels or 1) * _SAMPLE_BYTES)

    def _work(self, before: Schema, values: dict[str, Value]) -> SoundWork:
        return SoundWork(self._decoding, self.schema(before), values, self._count)

    def _count(self, samples: int, sequences: int) -> None:
        if sequences:
            self._mean_samples = samples / sequences

    def __repr__(self) -> str:
        return f"Decode({self._decoding!r})"


class SoundWork:
    """The work on one minibatch of recordings: `begin` it, wait for its `result`, or `cancel` it.

    Attributes:
        jobs: the recordings that are decoded.
    """

    def __init__(
        self, decoding: AudioDecoding, after: Schema, values: dict[str, Value], count: Callable[[int, int], None]
    ) -> None:
        self._decoding, self._after, self._values, self._count = decoding, after, values, count
        self._sources = values[decoding.stream].sequences()
        self._errors: dict[int, DataError] = {}
        self._decoded: dict[int, Samples] = {}
        self.jobs = SharedJobs("sound", range(len(self._sources)), self._decode)

    def begin(self) -> None:
        """Begin in other threads."""
        self.jobs.begin(self._decoding.threads)

    def result(self) -> Transformed:
        """Return the result of `Transform.run_all`. If the work has not begun, the calling thread begins it and takes
        part."""
        if self.jobs.is_lost:
            return SoundWork(self._decoding, self._after, self._values, self._count).result()
        self.jobs.wait(self._decoding.threads)
        stream = self._after[self._decoding.stream]
        nothing = np.empty((0, *stream.shape), np.float32)
        value = sound_value([self._decoded.get(i, nothing) for i in range(len(self._sources))], stream)
        self._count(value.num_samples, len(self._decoded))
        values = {**self._values, self._decoding.stream: value}
        return Transformed({name: values[name] for name in self._after}, self._errors, self.jobs.seconds)

    def cancel(self) -> None:
        """End the work after the recordings that are being decoded."""
        self.jobs.cancel()

    def _decode(self, i: int) -> None:
        try:
            self._decoded[i] = decode_sound(self._sources[i], self._decoding)
        except DataError as error:
            self._errors[i] = error


def decode_sound(sources: list[bytes] | list[str], decoding: AudioDecoding) -> Samples:
    """Return the samples of a sequence's only recording.

    Raises:
        DataError: it cannot be decoded, or there is not exactly one.
    """
    if len(sources) != 1:
        what = f"expected one recording in a sequence of stream `{decoding.stream}`, got {len(sources)}"
        raise DataError(what, stream=decoding.stream, hint=HINT)
    path: str | None = None
    try:
        with _opened(sources[0]) as (file, path, segment):
            recording = read_recording(file, segment, decoding.max_seconds)
        samples = recording.samples
        if decoding.channels is None:
            samples = samples[:, 0] if samples.shape[1] == 1 else samples.mean(axis=1, dtype=np.float32)
        elif samples.shape[1] != decoding.channels:
            what = f"expected {decoding.channels} channels, got {samples.shape[1]}"
            raise DataError(what, hint=f"pass channels={samples.shape[1]}, or mono=True, to audio.Decode; or {HINT}")
        if not recording.rate / _MOST_TIMES <= decoding.rate <= recording.rate * _MOST_TIMES:
            what = f"expected a rate within a factor of {_MOST_TIMES} of {decoding.rate}, got {recording.rate}"
            raise DataError(what, hint=HINT)
        return resampled(np.ascontiguousarray(samples), recording.rate, decoding.rate)
    except DataError as error:
        raise DataError(
            error.what, path=error.path or path, stream=decoding.stream, hint=error.hint
        ) from error.__cause__


@contextlib.contextmanager
def _opened(source: bytes | str) -> Iterator[tuple[BinaryIO, str | None, SoundSegment | None]]:
    """A context with a recording as an open file, its path and its segment.

    Raises:
        DataError: an address is malformed, or its file cannot be opened or read.
    """
    if isinstance(source, bytes):
        # A file in memory, from which libsndfile reads without Python.
        with open(system.anonymous_file("feedline-sound"), "r+b", 0) as file:
            file.write(source)
            file.seek(0)
            yield file, None, None
        return
    address = parse(source)
    if "\0" in address.path:
        raise DataError(f"expected the path of a recording, got {address.path!r:.200}", hint=HINT)
    segment = None
    if address.begin_s is not None:
        if address.end_s is None:
            what = f"expected a segment with an end, such as #t=1.5,4.25, got {source!r:.200}"
            raise DataError(what, path=address.path, hint=HINT)
        segment = SoundSegment(address.begin_s, address.end_s)
    try:
        with open_regular(address.path, 0) as file:
            yield file, address.path, segment
    except OSError as error:
        what = f"expected a readable recording: {error.strerror or error}"
        raise DataError(what, path=address.path, hint=HINT) from error
