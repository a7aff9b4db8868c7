"""The transform that turns encoded pictures into arrays of one shape, through steps, in native threads.

The pixels of a picture do not depend on the pictures that are decoded with it, on their order or on the number of
threads. Its random numbers are keyed by (seed, sweep, sequence, stage, step), never by its place in a minibatch. A
damaged picture is an unreadable sequence. Planning takes some microseconds a picture, and decodes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedline.data import Schema, Stream, Value
from feedline.errors import SchemaError
from feedline.feed.transforms import Begun, BegunWork, DrawKeys, Transform, Transformed
from feedline.images.color import Normalize
from feedline.images.decoders import COLORS
from feedline.images.picture_batch import Decoding, PictureWork, torch_pictures
from feedline.images.picture_sequences import PictureSequences
from feedline.images.step import FixedSize, PictureStep
from feedline.images.views import MultiView

#: Default limit for the pixels of a picture.
MAX_PIXELS = 1 << 27

# The number of a step is the key of its draws. It is its place, plus `_VIEW` for each view before its view, plus `_OWN`
# if only its view has the step.
_VIEW, _OWN = 1 << 16, 1 << 15


class Decode(Transform):
    """A transform for `MinibatchSource` and `DataLoader` that decodes a stream of pictures.

    It decodes JPEG, PNG, WebP, GIF, BMP, TIFF and all other formats that Pillow knows. `feedline.images.decoders`
    documents the decoders, and the treatment of alpha, palettes and 16 bits. The stream of bytes becomes a dense stream
    of as many samples: uint8 (height, width, channels), or float32 in the layout of `Normalize`. With `MultiView`
    the shape is (views, ...). The steps must lead to one size for all pictures.

    Args:
        stream: the stream of encoded pictures. Sequences of several, such as windows, stay so, and get the same random
            numbers for all of them. With masks, boxes or a device a sequence has one.
        steps: steps to apply to pictures, in this order. `Normalize` can only be the last.
        mask: a stream of encoded masks, of the sizes of their pictures (after the pictures were turned upright), which
            become uint8 (height, width). They are cut, mirrored and resized with their pictures, by nearest neighbours.
            Palette images keep their indices.
        boxes: a dense stream of float samples of shape (4,): x1, y1, x2, y2 in pixels of the picture (after it was
            turned upright), any number in a sequence. They are moved with their pictures and clipped to them. A box
            that is cut off entirely becomes zeros and keeps its place, so that labels still fit. Select the remaining
            boxes with ``x2 > x1``. With `MultiView` samples get the shape (views, 4).
        color: ``"RGB"``, ``"BGR"`` or ``"grey"`` (one channel).
        upright: whether to turn pictures by their EXIF orientation.
        max_pixels: maximum pixels of an encoded picture. Larger pictures are unreadable sequences. Pictures that Pillow
            decodes are also limited to twice ``Image.MAX_IMAGE_PIXELS``.
        shrink: whether a picture that will be resized to half or less is decoded at 1/2, 1/4 or 1/8 of its size first.
            This is faster, but changes pixels.
        threads: number of threads that decode.
        device: CUDA device, ``"cuda"`` or ``"cuda:1"``, on which JPEGs are decoded, by nvJPEG through torchcodec or
            torchvision, and the steps run. Streams of pictures then hold tensors on that device, as
            ``minibatch["x"].torch()`` returns them. Random numbers are the same as on the processor, but pixels differ.
            Pictures that nvJPEG refuses, and other formats, are decoded on the processor. Masks stay on the processor.
            By default all work is done on the processor.
        mask_fill: number with which masks are padded.

    Raises:
        SchemaError: the steps are in a wrong order, or do not lead to one size.
        TypeError: a step is not a `PictureStep`.
        ValueError: another argument out of range.
        RuntimeError, ModuleNotFoundError: with ``device``: torch has no such device, or no decoder for it is installed.
    """

    works_ahead = True

    def __init__(
        self,
        stream: str,
        *steps: PictureStep,
        mask: str | None = None,
        boxes: str | None = None,
        color: str = "RGB",
        upright: bool = True,
        max_pixels: int = MAX_PIXELS,
        shrink: bool = False,
        threads: int = 2,
        device: str | None = None,
        mask_fill: int = 0,
    ) -> None:
        for step in steps:
            if not isinstance(step, PictureStep):
                raise TypeError(f"expected steps such as images.CenterCrop(224) for Decode, got {step!r:.80}")
        if color not in COLORS:
            raise ValueError(f"expected one of {', '.join(map(repr, COLORS))} as color of Decode, got {color!r}")
        if max_pixels < 1 or threads < 1:
            raise ValueError(f"expected max_pixels and threads of Decode above 0, got {max_pixels!r} and {threads!r}")
        if not 0 <= mask_fill <= 255:
            raise ValueError(f"expected mask_fill of Decode from 0 to 255, got {mask_fill!r}")
        if device is not None:
            torch_pictures().jpeg_decoder(device)  # raise errors now, not in the first minibatch
        self.steps = steps
        views, stacked, normalize = views_of(steps)
        width, height = one_size(views)
        self._decoding = Decoding(
            stream=stream,
            mask=mask,
            boxes=boxes,
            color=color,
            upright=bool(upright),
            max_pixels=int(max_pixels),
            shrink=bool(shrink),
            threads=int(threads),
            device=None if device is None else str(device),
            mask_fill=int(mask_fill),
            views=views,
            stacked=stacked,
            width=width,
            height=height,
            normalized=None if normalize is None else normalize.numbers(1 if color == "grey" else 3),
            chw=normalize is not None and normalize.layout == "CHW",
        )

    @property
    def name(self) -> str:
        """Name in errors."""
        return f"images.Decode({self._decoding.stream!r})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a decoded sample."""
        return self._decoding.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of decoded samples: uint8, or float32 after `Normalize`."""
        return self._decoding.dtype

    def schema(self, before: Schema) -> Schema:
        """Return the streams with decoded pictures, masks and boxes.

        Raises:
            SchemaError: a stream is unknown or of another kind.
        """
        decoding = self._decoding
        named = [name for name in (decoding.stream, decoding.mask, decoding.boxes) if name is not None]
        if len(set(named)) < len(named):
            raise SchemaError(f"expected different streams as picture, mask and boxes, got {', '.join(named)}")
        for name in named:
            self._check(before, name)
        after = {decoding.stream: (decoding.shape, decoding.dtype)}
        if decoding.mask is not None:
            after[decoding.mask] = (decoding.mask_shape, np.dtype(np.uint8))
        if decoding.boxes is not None:
            shape = (len(decoding.views), 4) if decoding.stacked else (4,)
            after[decoding.boxes] = (shape, before[decoding.boxes].dtype)
        streams = {
            name: Stream(shape, dtype, defines_size=before[name].defines_size) for name, (shape, dtype) in after.items()
        }
        return Schema({**before, **streams})

    def _check(self, before: Schema, name: str) -> None:
        if name not in before:
            raise SchemaError(f"expected one of the streams {', '.join(before)} for {self.name}, got `{name}`")
        stream = before[name]
        if name == self._decoding.boxes:
            if stream.sparse or stream.shape != (4,) or stream.dtype.kind != "f":
                raise SchemaError(f"expected fl.Stream(4, 'float32') as boxes `{name}` of {self.name}, got {stream}")
        elif not stream.is_bytes or stream.is_text:
            raise SchemaError(
                f"expected encoded pictures as stream `{name}` for {self.name}, got {stream}; declare "
                f"{name}=fl.Stream(dtype='bytes')"
            )

    def run_all(self, before: Schema, values: dict[str, Value], keys: DrawKeys) -> Transformed:
        """See `Transform.run_all`."""
        after = self.schema(before)
        if len(keys.ordinals) == 0:
            decoding = self._decoding
            empty = {name: Value.empty(after[name]) for name in (decoding.stream, decoding.mask) if name is not None}
            if self._has_several(values):
                empty[decoding.stream] = Value.empty(after[decoding.stream], ragged=True)
            if decoding.boxes is not None:
                empty[decoding.boxes] = Value.empty(after[decoding.boxes], not values[decoding.boxes].one_sample_each)
            return Transformed({name: empty.get(name, values[name]) for name in after})
        return self._work(after, values, keys).result()

    def start(self, before: Schema, values: dict[str, Value], keys: DrawKeys) -> Begun:
        """Begin `run_all` in other threads, on at least one sequence. See `Transform.start`."""
        return BegunWork(self._work(self.schema(before), values, keys))

    def _work(self, after: Schema, values: dict[str, Value], keys: DrawKeys) -> PictureWork | PictureSequences:
        work = PictureSequences if self._has_several(values) else PictureWork
        return work(self._decoding, list(after), values, keys)

    def _has_several(self, values: dict[str, Value]) -> bool:
        """Return whether sequences may have several pictures, or none."""
        decoding = self._decoding
        alone = decoding.mask is None and decoding.boxes is None and decoding.device is None
        return alone and not values[decoding.stream].one_sample_each

    def result_bytes(self, before: Schema, sequences: int) -> int:
        """Return the bytes of the decoded pictures and masks of ``sequences`` sequences."""
        decoding = self._decoding
        each = math.prod(decoding.shape) * decoding.dtype.itemsize
        return sequences * (each + (0 if decoding.mask is None else math.prod(decoding.mask_shape)))

    def __repr__(self) -> str:
        return f"Decode({', '.join([repr(self._decoding.stream), *map(repr, self.steps)])})"


def views_of(steps: Sequence[PictureStep]) -> tuple[list[list[tuple[int, PictureStep]]], bool, Normalize | None]:
    """Return the steps of each view with the numbers that key their draws, whether there are views, and `Normalize`.

    Raises:
        SchemaError: a step is in a place where it cannot be.
    """
    normalize = steps[-1] if steps and isinstance(steps[-1], Normalize) else None
    pixels = list(enumerate(steps if normalize is None else steps[:-1]))
    at = [k for k, step in pixels if isinstance(step, MultiView)]
    own_steps = [view for _, step in pixels if isinstance(step, MultiView) for view in step.own]
    for step in (step for _, step in [*pixels, *((0, step) for view in own_steps for step in view)]):
        if isinstance(step, Normalize):
            raise SchemaError(f"expected images.Normalize as the last step, got {_list_steps(steps)}")
    if len(at) > 1 or any(isinstance(step, MultiView) for view in own_steps for step in view):
        raise SchemaError(f"expected one images.MultiView at most, got {_list_steps(steps)}")
    if not at:
        return [pixels], False, normalize
    shared, later = pixels[: at[0]], pixels[at[0] + 1 :]
    views = []
    for v, view in enumerate(own_steps):
        alone = [(v * _VIEW + _OWN + k, step) for k, step in enumerate(view)]
        views.append([*shared, *alone, *((v * _VIEW + k, step) for k, step in later)])
    return views, True, normalize


def one_size(views: list[list[tuple[int, PictureStep]]], before: FixedSize = None) -> tuple[int, int]:
    """Return the width and height that all pictures have after the last step, from what they have ``before``.

    Raises:
        SchemaError: sizes differ.
    """
    sizes = []
    for view in views:
        size = before
        for _, step in view:
            size = step.fixed_size(size)
        if size is None:
            raise SchemaError(
                f"expected steps that give all pictures one size, got {_list_steps([step for _, step in view])}; add "
                f"images.CenterCrop(224), or images.Resize((224, 224))"
            )
        sizes.append(size)
    if len(set(sizes)) > 1:
        listed = ", ".join(f"{width} x {height}" for width, height in sizes)
        raise SchemaError(f"expected views of one size from images.MultiView, got {listed}")
    return sizes[0]


def _list_steps(steps: Sequence[PictureStep]) -> str:
    return ", ".join(map(repr, steps)) or "none"
