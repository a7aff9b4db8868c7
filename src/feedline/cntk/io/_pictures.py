"""Decode pictures to float32 (channels, height, width), channels blue, green, red: a transform of a source.

Movements before the first transform that computes with floats run in native code, with the decoder, ahead of need. The
other steps run in Python, one picture after another. Random numbers are keyed by (seed, sweep, sequence, stage, step),
so they depend neither on the minibatch size nor on workers or restarts. CNTK drew them from a generator for each place
in a minibatch. As in CNTK, two streams with equal transforms get equal crops.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.cntk.io._picture_steps import STEPS, Mean, Movement, Planned, SameSize, Scale, Step
from feedline.data import Schema, Stream, Value
from feedline.data.value import BytesValue, DenseValue
from feedline.errors import DataError
from feedline.feed.transforms import Begun, BegunWork, DrawKeys, Transform, Transformed
from feedline.images import decoders
from feedline.images.decode import MAX_PIXELS
from feedline.images.picture_batch import Decoding, PictureWork, decode_pixels

_log = logging.getLogger("feedline")
_THREADS = 2


class PictureStream(NamedTuple):
    """A stream of pictures.

    Attributes:
        name: name of the stream, both encoded and decoded.
        steps: steps to run on a picture.
        grayscale: whether to decode to one channel.
        shape: shape of the result: channels, height, width.
        views: name of a stream with the number of each copy of a picture. None means that pictures have no copies.
        lenient: whether CNTK leaves out pictures that cannot be decoded.
    """

    name: str
    steps: Sequence[Step]
    grayscale: bool
    shape: tuple[int, int, int]
    views: str | None
    lenient: bool


def steps_of(transforms: Sequence[Mapping[str, Any]], grayscale: bool) -> list[Step]:
    """Return the steps that dictionaries of `cntk.io.transforms` describe.

    Raises:
        RuntimeError: a transform or an option that CNTK does not have.
    """
    steps: list[Step] = []
    for number, options in enumerate(transforms):
        kind = options.get("type")
        if kind == "Transpose" and number == len(transforms) - 1:
            continue  # delivered pictures are always transposed
        if kind not in STEPS:
            raise RuntimeError(f"Invalid transform: expected one of {', '.join(STEPS)}, got {kind!r}")
        steps.append(STEPS[kind](options))
    channels = 1 if grayscale else 3
    for step in steps:
        if isinstance(step, Scale) and step.channels != channels:
            raise RuntimeError(
                f"expected scale(channels={channels}), as pictures are decoded to {channels}, got {step.channels}: "
                + ("leave out 'grayscale'" if grayscale else "deserializer['grayscale'] = True decodes to one channel")
            )
    return steps


def size_of(data: bytes) -> tuple[int, int]:
    """Return width and height of a picture, after the rotation of its EXIF data, from its header.

    Raises:
        DataError: the data is no picture.
        ModuleNotFoundError: the format needs Pillow, which is missing.
    """
    encoded = np.frombuffer(data, np.uint8)
    _, width, height, _, orientation = _native.picture_headers(encoded, np.array([0, len(data)], np.int64))[0].tolist()
    if not width:
        return decoders.size(encoded, MAX_PIXELS)
    return (height, width) if orientation >= 5 else (width, height)


class Pictures(Transform):
    """Decodes ``streams`` of encoded pictures, and transforms them."""

    works_ahead = True

    def __init__(self, streams: Sequence[PictureStream]) -> None:
        self._streams = streams

    @property
    def lenient(self) -> bool:
        """Whether a source should leave out pictures that cannot be decoded, in all streams."""
        return all(stream.lenient for stream in self._streams)

    @property
    def name(self) -> str:
        """Name in errors."""
        return f"the transforms of {', '.join(stream.name for stream in self._streams)}"

    def schema(self, before: Schema) -> Schema:
        """Return the schema with dense pictures, without the numbers of copies."""
        decoded = {stream.name: Stream(stream.shape, "float32") for stream in self._streams}
        hidden = {stream.views for stream in self._streams}
        return Schema({name: decoded.get(name, stream) for name, stream in before.items() if name not in hidden})

    def run_all(self, before: Schema, values: dict[str, Value], keys: DrawKeys) -> Transformed:
        """See `Transform.run_all`."""
        return self._begin(before, values, keys, lambda work: work).result()

    def start(self, before: Schema, values: dict[str, Value], keys: DrawKeys) -> Begun:
        """Begin `run_all` in other threads. See `Transform.start`."""
        return self._begin(before, values, keys, BegunWork)

    def result_bytes(self, before: Schema, sequences: int) -> int:
        """Return the size of the pictures of all streams, in bytes."""
        return 4 * sequences * sum(math.prod(stream.shape) for stream in self._streams)

    def _begin(
        self, before: Schema, values: dict[str, Value], keys: DrawKeys, begin: Callable[[PictureWork], Begun]
    ) -> _Minibatch:
        works = []
        for stream in self._streams:
            views = np.zeros(len(keys.ordinals), np.int64)
            if stream.views is not None:
                numbers = values[stream.views]
                assert isinstance(numbers, DenseValue)
                views = numbers.rows.astype(np.int64)
            works.append(_stream_work(stream, values, views, keys, begin))
        return _Minibatch(list(self.schema(before)), values, keys, works)


class _StreamWork(NamedTuple):
    """The pictures of a stream while they are decoded.

    Attributes:
        stream: the stream.
        work: their decoding and movements. None means no pictures, or pictures that are decoded and transformed in
            Python.
        later: steps that run in Python, each with its number.
        views: number of the copy of each picture.
    """

    stream: PictureStream
    work: Begun | None
    later: list[tuple[int, Step]]
    views: NDArray[np.int64]


def _stream_work(
    stream: PictureStream,
    values: dict[str, Value],
    views: NDArray[np.int64],
    keys: DrawKeys,
    begin: Callable[[PictureWork], Begun],
) -> _StreamWork:
    """Begin to decode and move pictures in native code, if no movement follows a transform that computes."""
    numbered = list(enumerate(stream.steps))
    first = next((k for k, step in numbered if not isinstance(step, Movement)), len(numbered))
    if not len(views) or any(isinstance(step, Movement) for _, step in numbered[first:]):
        return _StreamWork(stream, None, numbered, views)
    moves = [(k, Planned(step, views)) for k, step in numbered[:first] if isinstance(step, Movement)]
    later = numbered[first:]
    channels, height, width = stream.shape
    as_floats = all(isinstance(step, Mean) for _, step in later)
    decoding = Decoding(
        stream=stream.name,
        mask=None,
        boxes=None,
        color="grey" if stream.grayscale else "BGR",
        upright=True,
        max_pixels=MAX_PIXELS,
        shrink=False,
        threads=_THREADS,
        device=None,
        mask_fill=0,
        views=[[*moves, (len(numbered), SameSize((width, height)))]],
        stacked=False,
        width=width,
        height=height,
        normalized=(np.zeros(channels, np.float32), np.ones(channels, np.float32)) if as_floats else None,
        chw=as_floats,
    )
    return _StreamWork(stream, begin(PictureWork(decoding, [stream.name], values, keys)), later, views)


class _Minibatch:
    """The pictures of a minibatch while they are decoded. See `Begun`."""

    def __init__(self, names: list[str], values: dict[str, Value], keys: DrawKeys, works: list[_StreamWork]) -> None:
        self._names, self._values, self._keys, self._works = names, values, keys, works

    def result(self) -> Transformed:
        """See `Begun`."""
        values, errors, seconds = dict(self._values), dict[int, DataError](), 0.0
        for part in self._works:
            stream = part.stream
            if part.work is None:
                rows, failures = _one_by_one(part, self._values[stream.name], self._keys)
            else:
                done = part.work.result()
                seconds += done.seconds
                rows, failures = _finish(part, done.values[stream.name].rows, self._keys), dict(done.errors)
            for i, error in failures.items():
                where = int(self._keys.ordinals[i])
                errors.setdefault(i, DataError(error.what, sequence=where, stream=stream.name))
            values[stream.name] = DenseValue(rows)
        return Transformed({name: values[name] for name in self._names}, errors, seconds)


def _finish(part: _StreamWork, rows: NDArray[Any], keys: DrawKeys) -> NDArray[np.float32]:
    """Return decoded pictures after the later steps, float32 (n, channels, height, width)."""
    channels, height, width = part.stream.shape
    for _, step in part.later:
        if isinstance(step, Mean) and step.picture is not None and step.picture.shape != (height, width, channels):
            _warn_of_mean(part.stream.name, step.path, len(rows), (width, height))
    if rows.dtype == np.float32:  # only means are subtracted
        for _, step in part.later:
            if isinstance(step, Mean) and step.picture is not None and step.picture.shape == (height, width, channels):
                np.subtract(rows, step.picture.transpose(2, 0, 1), out=rows, casting="same_kind")
        return rows
    draws = {number: keys.uniforms(number, step.draws) for number, step in part.later if step.draws}
    out = np.empty((len(rows), *part.stream.shape), np.float32)
    for i, pixels in enumerate(rows):
        picture: NDArray[Any] = pixels
        for number, step in part.later:
            picture = step.run(picture, draws[number][i].__getitem__ if step.draws else float, int(part.views[i]))
        out[i] = picture.transpose(2, 0, 1)
    return out


def _one_by_one(part: _StreamWork, value: Value, keys: DrawKeys) -> tuple[NDArray[np.float32], dict[int, DataError]]:
    """Decode pictures and run all steps, where a movement follows a transform that computes with floats."""
    stream = part.stream
    out, errors = np.zeros((len(part.views), *stream.shape), np.float32), dict[int, DataError]()
    if not len(part.views):
        return out, errors
    assert isinstance(value, BytesValue)
    headers = _native.picture_headers(value.data, value.bounds)
    draws = {number: keys.uniforms(number, step.draws) for number, step in part.later if step.draws}
    color = "grey" if stream.grayscale else "BGR"
    same, ignored = SameSize((stream.shape[2], stream.shape[1])), dict[str, tuple[int, tuple[int, ...]]]()
    for i, header in enumerate(headers):
        data = value.data[value.bounds[i] : value.bounds[i + 1]]
        try:
            picture: NDArray[Any] = decode_pixels(data, header, color=color, upright=True, max_pixels=MAX_PIXELS)
            for number, step in part.later:
                if isinstance(step, Mean) and not step.fits(picture):
                    ignored[step.path] = ignored.get(step.path, (0, ()))[0] + 1, picture.shape
                picture = step.run(picture, draws[number][i].__getitem__ if step.draws else float, int(part.views[i]))
            if picture.shape[:2] != stream.shape[1:]:
                raise DataError(same.refused(picture.shape[1], picture.shape[0]))
            out[i] = picture.transpose(2, 0, 1)
        except DataError as error:
            errors[i] = error
    for path, (count, shape) in ignored.items():
        _warn_of_mean(stream.name, path, count, (shape[1], shape[0]))
    return out, errors


def _warn_of_mean(stream: str, path: str, count: int, size: tuple[int, int]) -> None:
    _log.warning(
        "stream `%s`: the mean file %s is ignored for %d pictures of another size, such as %d x %d",
        stream,
        path,
        count,
        *size,
    )


def size_after(steps: Sequence[Step], size: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return width and height after all steps for a picture of a size (None means any), or None if they vary."""
    for step in steps:
        size = step.size(size)
    return size
