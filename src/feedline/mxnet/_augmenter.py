"""The parameters of `mxnet.io.ImageRecordIter` as steps of `feedline.images.Decode`."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from feedline import images
from feedline.errors import CompatError
from feedline.images.step import CROP, Draws, FixedSize, PictureOp, PictureStep, Sizes
from feedline.images.step import numbers as crops

_INSTEAD = "use `fl.DataLoader` over the `.rec` file, with the steps of `fl.images.Decode`"
# They concern how MXNet reads. Batches do not depend on them.
_WITHOUT_EFFECT = (
    *("ctx", "device_id", "path_imgidx", "prefetch_buffer", "shuffle_chunk_seed", "shuffle_chunk_size", "verbose"),
)
_DEFAULTS: dict[str, Any] = {
    "brightness": 0.0,
    "contrast": 0.0,
    "fill_value": 255,
    "max_aspect_ratio": 0.0,
    "max_random_area": 1.0,
    "mean_b": 0.0,
    "mean_g": 0.0,
    "mean_r": 0.0,
    "min_aspect_ratio": None,
    "min_random_area": 1.0,
    "mirror": False,
    "pad": 0,
    "preprocess_threads": 4,
    "rand_crop": False,
    "rand_mirror": False,
    "random_resized_crop": False,
    "resize": -1,
    "saturation": 0.0,
    "scale": 1.0,
    "std_b": 1.0,
    "std_g": 1.0,
    "std_r": 1.0,
}
_OF_RESIZED_CROP = ("max_aspect_ratio", "max_random_area", "min_aspect_ratio", "min_random_area")
# Of these only MXNet's default is accepted, which does nothing.
_ALONE: dict[str, Any] = {
    "aug_seq": "aug_default",
    "dtype": "float32",
    "inter_method": 1,
    "max_crop_size": -1,
    "max_img_size": 1e10,
    "max_random_contrast": 0,
    "max_random_illumination": 0,
    "max_random_scale": 1,
    "max_rotate_angle": 0,
    "max_shear_ratio": 0,
    "mean_a": 0,
    "mean_img": "",
    "min_crop_size": -1,
    "min_img_size": 0,
    "min_random_scale": 1,
    "path_imglist": "",
    "pca_noise": 0,
    "random_h": 0,
    "random_l": 0,
    "random_s": 0,
    "rotate": -1,
    "seed_aug": None,
    "std_a": 1,
}


class _Middle(PictureStep):
    """The middle of a picture that is large enough. Half of an odd number of pixels is rounded down, as in MXNet."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height

    def plan(self, sizes: Sizes, u: Draws) -> tuple[list[PictureOp], Sizes]:
        """See `PictureStep.plan`."""
        to = np.array([self.width, self.height])
        fits = np.logical_and.reduce(sizes >= to, axis=1)
        crop = crops(len(sizes), *(np.maximum(sizes - to, 0) // 2).T, self.width, self.height)
        return [PictureOp(CROP, crop)], np.where(fits[:, None], to, 0)

    def fixed_size(self, before: FixedSize) -> FixedSize:
        """Return the size of the crop."""
        return self.width, self.height

    def refused(self, width: int, height: int) -> str:
        """Return an error message with the size that is needed."""
        return f"expected a picture of at least {self.width} x {self.height}, got {width} x {height}; pass resize="


def decoder(data_shape: Sequence[int], options: Mapping[str, Any]) -> images.Decode:
    """Return the transform that makes float32 ``data_shape`` of the stream ``image``.

    Raises:
        CompatError: a parameter is unknown or not provided.
        ValueError: ``data_shape`` is not (1 or 3, height, width), or a parameter is out of range.
    """
    if len(data_shape) != 3 or data_shape[0] not in (1, 3) or not all(length > 0 for length in data_shape):
        raise ValueError(f"expected data_shape as (1 or 3, height, width), got {data_shape!r}")
    _check(options)
    get = {**_DEFAULTS, **options}.__getitem__
    channels, height, width = data_shape
    steps: list[PictureStep] = []
    if get("resize") > 0:
        steps.append(images.Resize(get("resize")))
    if get("random_resized_crop"):
        most = get("max_aspect_ratio")
        ratio = (1 - most, 1 + most) if get("min_aspect_ratio") is None else (get("min_aspect_ratio"), most)
        area = get("min_random_area"), get("max_random_area")
        steps.append(images.RandomResizedCrop((height, width), scale=area, ratio=ratio))
    else:
        if get("pad"):
            steps.append(images.Pad(get("pad"), fill=get("fill_value")))
        steps.append(images.RandomCrop((height, width)) if get("rand_crop") else _Middle(width, height))
    if any(map(get, ("brightness", "contrast", "saturation"))):
        steps.append(images.ColorJitter(*map(get, ("brightness", "contrast", "saturation"))))
    if get("mirror") or get("rand_mirror"):
        steps.append(images.Flip(1.0 if get("mirror") else 0.5))
    colors, scale = "rgb"[:channels], get("scale")
    mean, std = [get(f"mean_{color}") * scale for color in colors], [get(f"std_{color}") for color in colors]
    steps.append(images.Normalize(mean, std, layout="CHW", scale=scale))
    color = "RGB" if channels == 3 else "grey"
    return images.Decode("image", *steps, color=color, upright=False, threads=get("preprocess_threads"))


def check_numbers(options: Mapping[str, Any]) -> None:
    """Check that parameters are numbers or bools. MXNet also reads texts, of which ours would take "False" for true.

    Raises:
        ValueError: one is not.
    """
    for name, value in options.items():
        if not isinstance(value, (numbers.Real, np.bool_)):
            raise ValueError(f"expected a number for {name}, got {value!r}")


def _check(options: Mapping[str, Any]) -> None:
    """Check the names of parameters, their types, and the values of those that are not provided."""
    check_numbers({name: value for name, value in options.items() if name in _DEFAULTS and value is not None})
    for name, value in options.items():
        if name in _ALONE and value is not None and value != _ALONE[name]:
            raise CompatError(f"expected {name}={_ALONE[name]!r} of ImageRecordIter, got {value!r}: {_INSTEAD}")
        if name not in _ALONE and name not in _DEFAULTS and name not in _WITHOUT_EFFECT:
            raise CompatError(f"expected parameters of MXNet's ImageRecordIter, got {name!r}: leave it out")
        if name in _OF_RESIZED_CROP and value != _DEFAULTS[name] and not options.get("random_resized_crop"):
            raise CompatError(f"expected {name} only with random_resized_crop=True, got {value!r}: {_INSTEAD}")
