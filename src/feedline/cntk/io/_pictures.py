"""Encoded pictures to float32 (channels, height, width), channels blue, green, red: a transform of a source.

Random numbers are keyed by (seed, sweep, sequence, stage, step), so that they depend neither on the minibatch size nor
on workers or restarts. CNTK drew them from a generator for each place in a minibatch. As there, two streams with equal
transforms are cropped alike.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.cntk.io._picture_steps import STEPS, VIEWS, Draw, Mean, Scale, Step
from feedline.data import Schema, Stream, Value
from feedline.data.value import BytesValue, DenseValue
from feedline.errors import DataError
from feedline.feed.transforms import DrawKeys, Transform, Transformed
from feedline.feed.transforms.transform import TRANSFORM

_log = logging.getLogger("feedline")


class PictureStream(NamedTuple):
    """A stream of pictures.

    Attributes:
        name: its name, both encoded and decoded.
        steps: what to do with a picture.
        grayscale: whether to decode to one channel.
        shape: shape of the result: channels, height, width.
        views: name of a stream with the number of each copy of a picture; None: there is one of each.
        lenient: whether CNTK leaves out what cannot be decoded.
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
            continue  # what is delivered is transposed anyway
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


def decoded(data: bytes, grayscale: bool) -> NDArray[np.uint8]:
    """Decode a picture: uint8 (height, width, channels), channels blue, green, red; turned as EXIF says.

    Raises:
        DataError: it cannot be decoded.
        ImportError: Pillow is missing.
    """
    with _opened(data) as picture:
        try:
            if grayscale:
                picture.draft("L", None)  # the luminance of a JPEG file as it is
            found = _upright(picture)
            if found.mode.startswith("I;16"):
                found = _pillow().fromarray((np.asarray(found) >> 8).astype(np.uint8))
            pixels = np.asarray(found.convert("L" if grayscale else "RGB"))
        except (OSError, ValueError, SyntaxError, EOFError) as error:
            raise DataError(f"expected a picture that can be decoded: {error}") from error
    return pixels[:, :, None] if grayscale else pixels[:, :, ::-1]


def size_of(data: bytes) -> tuple[int, int]:
    """Return width and height of a picture, turned as EXIF says, from its header.

    Raises:
        DataError: it is no picture.
        ImportError: Pillow is missing.
    """
    with _opened(data) as picture:
        width, height = picture.size
        return (height, width) if picture.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8) else (width, height)


_ORIENTATION = 0x112


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("Pillow is not installed; run: pip install 'feedline[images]'") from error
    return Image


def _opened(data: bytes) -> Any:
    pillow = _pillow()
    try:
        return pillow.open(io.BytesIO(data))
    except pillow.DecompressionBombError as error:
        raise DataError(f"expected a picture of a size that Pillow decodes: {error}") from error
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise DataError("expected a picture, got bytes of no format that Pillow knows") from error


def _upright(picture: Any) -> Any:
    from PIL import ImageOps

    return ImageOps.exif_transpose(picture)


class Pictures(Transform):
    """Decodes streams of encoded pictures and transforms them; ``streams`` are those."""

    def __init__(self, streams: Sequence[PictureStream]) -> None:
        self._streams = streams

    @property
    def lenient(self) -> bool:
        """Whether a source should leave out what cannot be decoded, in any of the streams."""
        return all(stream.lenient for stream in self._streams)

    @property
    def name(self) -> str:
        """Name in errors."""
        return f"the transforms of {', '.join(stream.name for stream in self._streams)}"

    def schema(self, before: Schema) -> Schema:
        """Return the schema with dense pictures, without the numbers of copies."""
        made = {stream.name: Stream(stream.shape, "float32") for stream in self._streams}
        hidden = {stream.views for stream in self._streams}
        return Schema({name: made.get(name, stream) for name, stream in before.items() if name not in hidden})

    def run_all(self, before: Schema, values: dict[str, Value], keys: DrawKeys) -> Transformed:
        """See `Transform.run_all`."""
        began = time.perf_counter()
        errors: dict[int, DataError] = {}
        made: dict[str, Value] = {}
        for stream in self._streams:
            views = np.zeros(len(keys.ordinals), np.int64)
            if stream.views is not None:
                numbers = values[stream.views]
                assert isinstance(numbers, DenseValue)
                views = numbers.rows.astype(np.int64)
            pictures = values[stream.name]
            assert isinstance(pictures, BytesValue)
            made[stream.name] = _all(stream, pictures, keys, views.tolist(), errors)
        after = self.schema(before)
        return Transformed(
            {name: made[name] if name in made else values[name] for name in after},
            errors,
            time.perf_counter() - began,
        )


def _all(
    stream: PictureStream,
    pictures: BytesValue,
    keys: DrawKeys,
    views: list[int],
    errors: dict[int, DataError],
) -> DenseValue:
    """Return the pictures of one stream; adds what is wrong with them to ``errors``."""
    out = np.zeros((len(keys.ordinals), *stream.shape), np.float32)
    ignored: dict[str, tuple[int, tuple[int, ...]]] = {}
    for i, data in enumerate(pictures.samples()):
        try:
            assert isinstance(data, bytes)
            picture: NDArray[Any] = decoded(data, stream.grayscale)
            for number, step in enumerate(stream.steps):
                if isinstance(step, Mean) and not step.fits(picture):
                    ignored[step.path] = (ignored.get(step.path, (0, ()))[0] + 1, picture.shape)
                picture = step.run(picture, _draws(keys, i, number), views[i] % VIEWS)
            channels, height, width = stream.shape
            if picture.shape != (height, width, channels):
                raise DataError(
                    f"expected pictures of {width} x {height} after the transforms, got one of {picture.shape[1]} x "
                    f"{picture.shape[0]}",
                    hint="end them with a scale, so that all have one size",
                )
            out[i] = picture.transpose(2, 0, 1)
        except DataError as error:
            errors.setdefault(
                i, DataError(error.what, sequence=int(keys.ordinals[i]), stream=stream.name, hint=error.hint)
            )
    for path, (count, shape) in ignored.items():
        _log.warning(
            "stream `%s`: the mean file %s is ignored for %d pictures of another size, such as %d x %d",
            stream.name,
            path,
            count,
            shape[1],
            shape[0],
        )
    return DenseValue(out)


def _draws(keys: DrawKeys, i: int, step: int) -> Draw:
    """Return the uniform numbers of one step for one picture, by their number."""
    key = [keys.seed, int(keys.sweeps[i]), TRANSFORM, int(keys.ordinals[i]), keys.stage]
    return lambda j: (_native.hash_key([*key, step, j]) >> 11) * 2.0**-53


def require_decoder() -> None:
    """Raise ImportError if pictures cannot be decoded."""
    _pillow()


def size_after(steps: Sequence[Step], size: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return width and height after all steps for a picture of a size (None: any); None if they differ."""
    for step in steps:
        size = step.size(size)
    return size
