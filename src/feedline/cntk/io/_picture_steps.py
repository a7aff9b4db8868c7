"""CNTK's transforms of pictures: crop, scale, mean, color, intensity, a class for each.

A picture is (height, width, channels), with the channels blue, green, red. It is uint8 until a step computes with it,
then float32. Crop and scale of uint8 are planned, and run in native code (`Planned`). Steps that compute with floats
run in Python. ``draw(j)`` returns the j-th random number of a step for a picture, uniform in [0, 1).
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.cntk.io._resize import FILTERS, resize
from feedline.errors import DataError
from feedline.images.step import CROP, FLIP, PAD, RESIZE, Draws, FixedSize, PictureOp, PictureStep, Sizes

Picture = NDArray[Any]
Draw = Callable[[int], float]
Size = tuple[int, int]  # width, height

VIEWS = 10
"""Crops of a picture under ``multiview10``, and copies of it under ``multiViewCrop``."""

_ATTEMPTS = 10
# Numbers that a crop draws: three for each attempt, then one for each of these.
_X, _Y, _FLIP = 3 * _ATTEMPTS, 3 * _ATTEMPTS + 1, 3 * _ATTEMPTS + 2


class Step(ABC):
    """A transform of a picture, with the options of its dictionary.

    Attributes:
        draws: largest number of random numbers for a picture.

    Raises:
        RuntimeError: an option that CNTK does not have.
    """

    draws = 0

    @abstractmethod
    def __init__(self, options: Mapping[str, Any]) -> None:
        pass

    @abstractmethod
    def run(self, picture: Picture, draw: Draw, view: int) -> Picture:
        """Return the transformed picture; ``view``: the number of this copy of the picture.

        Raises:
            DataError: the picture cannot be transformed.
        """

    def size(self, before: Size | None) -> Size | None:
        """Return the size after this step, or None if it varies among pictures of the size ``before``. There None means
        any size."""
        return before


class Moved(NamedTuple):
    """Native operations for one picture: crop, resize, flip and pad, in this order.

    Attributes:
        ops: arguments of the operations, by kind.
        size: width and height after the operations.
    """

    ops: dict[int, tuple[float, ...]]
    size: Size


class Movement(Step):
    """A transform that native code can run on uint8.

    Attributes:
        kinds: kinds of the operations, in order.
    """

    kinds: tuple[int, ...]

    @abstractmethod
    def move(self, size: Size, draw: Draw, view: int) -> Moved:
        """Return the operations of all `kinds` for a picture of this size.

        Raises:
            DataError: the picture cannot be transformed.
        """


class Crop(Movement):
    """Cut out a part of a fixed size, or of a share of the shorter side or of the area."""

    draws = 3 * _ATTEMPTS + 3
    kinds = (CROP, FLIP)

    def __init__(self, options: Mapping[str, Any]) -> None:
        kinds = ("center", "randomside", "randomarea", "multiview10")
        self._kind = _choice("cropType", options.get("cropType") or "center", kinds)
        width, height = _pair(options, "cropSize", 0)
        if width < 0 or height < 0:
            raise RuntimeError(f"Invalid cropSize value, must be >= 0; got {options['cropSize']}")
        self._fixed = (int(width), int(height)) if width >= 1 and height >= 1 else None
        side, area = (_ratios(options, name, unset=0) for name in ("sideRatio", "areaRatio"))
        if side and area:
            raise RuntimeError("sideRatio and areaRatio cannot be specified simultaneously")
        self._ratios, self._by_area = side or area, area is not None
        self._aspects = _ratios(options, "aspectRatio", unset=1, most=math.inf)
        jitter = _choice("jitterType", options.get("jitterType") or "none", ("none", "uniratio"))
        self._jitters = jitter == "uniratio"
        random = self._kind.startswith("random")
        self._places, self._flips = random, _flag(options.get("hflip", random))

    def size(self, before: Size | None) -> Size | None:
        """See `Step.size`. It varies if ratios are random."""
        if before is None:
            return None
        if self._fixed is None:
            varies = self._jitters and self._ratios is not None and self._ratios[0] < self._ratios[1]
            if varies or self._aspects is not None:
                return None
        return self._window(*before, lambda _: 0.0)

    def run(self, picture: Picture, draw: Draw, view: int) -> Picture:
        """See `Step.run`."""
        height, width = picture.shape[:2]
        moved = self.move((width, height), draw, view).ops
        x, y, w, h = map(int, moved[CROP])
        part = picture[y : y + h, x : x + w]
        return part[:, ::-1] if moved[FLIP][0] else part

    def move(self, size: Size, draw: Draw, view: int) -> Moved:
        """See `Movement.move`."""
        width, height = size
        w, h = self._window(width, height, draw)
        right, below = width - w, height - h
        if self._places:
            x, y = int(draw(_X) * (right + 1)), int(draw(_Y) * (below + 1))
        elif self._kind == "multiview10" and view % 5 < 4:
            x, y = right * (view % 5 % 2), below * (view % 5 // 2)
        else:
            x, y = right // 2, below // 2
        flipped = (self._kind == "multiview10" and view >= VIEWS // 2) or (self._flips and draw(_FLIP) < 0.5)
        return Moved({CROP: (x, y, w, h), FLIP: (flipped, 0)}, (w, h))

    def _window(self, width: int, height: int, draw: Draw) -> Size:
        """Return width and height to cut out."""
        if self._fixed is not None:
            return min(self._fixed[0], width), min(self._fixed[1], height)
        for number in range(0, 3 * _ATTEMPTS, 3):
            w, h = width, height
            if self._ratios is not None:
                ratio = self._draw(self._ratios, draw(number))
                w = h = _round(math.sqrt(width * height * ratio) if self._by_area else min(width, height) * ratio)
            if self._aspects is not None:
                aspect = self._draw(self._aspects, draw(number + 1))
                sides = int(math.sqrt(w * h * aspect)), int(math.sqrt(w * h / aspect))
                w, h = sides if draw(number + 2) < 0.5 else sides[::-1]
            if 0 < w <= width and 0 < h <= height:
                return w, h
        return width, height

    def _draw(self, bounds: tuple[float, float], uniform: float) -> float:
        low, high = bounds
        return low + (high - low) * uniform if self._jitters else low


class Scale(Movement):
    """Scale to a size: fill it, or keep the proportions and crop or pad the rest."""

    kinds = (RESIZE, CROP, PAD)

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._width, self._height = (_whole(options, name) for name in ("width", "height"))
        self.channels = _whole(options, "channels")
        self._interpolation = _choice("interpolations", options.get("interpolations") or "linear", (*FILTERS,))
        self._mode = options.get("scaleMode", "fill")
        if self._mode not in ("fill", "crop", "pad"):
            raise RuntimeError(f"Invalid scaleMode value: expected fill, crop or pad, in lower case, got {self._mode}")
        self._pad = int(options.get("padValue", -1))

    def size(self, before: Size | None) -> Size | None:
        """See `Step.size`. It is fixed."""
        return self._width, self._height

    def run(self, picture: Picture, draw: Draw, view: int) -> Picture:
        """See `Step.run`."""
        height, width = picture.shape[:2]
        ops = self.move((width, height), draw, view).ops
        w, h, _ = map(int, ops[RESIZE])
        scaled = resize(picture, w, h, self._interpolation)
        x, y, w, h = map(int, ops[CROP])
        scaled = scaled[y : y + h, x : x + w]
        left, top, right, bottom = map(int, ops[PAD][:4])
        margins = ((top, bottom), (left, right), (0, 0))
        if self._pad == -1:
            return np.pad(scaled, margins, mode="edge")
        return np.pad(scaled, margins, constant_values=ops[PAD][5] if scaled.dtype == np.uint8 else self._pad)

    def move(self, size: Size, draw: Draw, view: int) -> Moved:
        """See `Movement.move`."""
        filter = FILTERS[self._interpolation]
        to = self._width, self._height
        border = (0 if self._pad != -1 else 1, min(max(self._pad, 0), 255))  # constant, or the outermost pixels
        if self._mode == "fill":
            return Moved({RESIZE: (*to, filter), CROP: (0, 0, *to), PAD: (0, 0, 0, 0, *border)}, to)
        width, height = size
        cut = self._mode == "crop"
        # The shorter side determines the scale for a crop, the longer side for padding.
        if width < height if cut else width > height:
            w, h = self._width, _round(height * self._width / width)
        else:
            w, h = _round(width * self._height / height), self._height
        x, y = (w - self._width, h - self._height) if cut else (self._width - w, self._height - h)
        if min(x, y) < 0 or min(w, h) < 1:
            raise DataError(
                f"expected a picture that scaleMode={self._mode} fits to {self._width} x {self._height}, got one of "
                f"{width} x {height}, which becomes {w} x {h}"
            )
        left, top = x // 2, y // 2
        if cut:
            return Moved({RESIZE: (w, h, filter), CROP: (left, top, *to), PAD: (0, 0, 0, 0, *border)}, to)
        margins = (left, top, x - left, y - top)
        return Moved({RESIZE: (w, h, filter), CROP: (0, 0, w, h), PAD: (*margins, *border)}, to)


class Mean(Step):
    """Subtract a mean picture, read from an OpenCV XML file.

    Attributes:
        path: path of the file.
        picture: the mean picture. None means that the transform does nothing.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        path = str(options.get("meanFile") or "")
        self.path, self.picture = path, mean_picture(path) if path else None

    def fits(self, picture: Picture) -> bool:
        """Return whether the mean picture is subtracted. It is ignored for pictures of another size."""
        return self.picture is None or self.picture.shape == picture.shape

    def run(self, picture: Picture, draw: Draw, view: int) -> Picture:
        """See `Step.run`."""
        if self.picture is None or not self.fits(picture):
            return picture
        difference: Picture = picture.astype(self.picture.dtype) - self.picture
        return difference


class Color(Step):
    """Change brightness, contrast and saturation at random. Values stay within 0 to 255."""

    draws = 3

    def __init__(self, options: Mapping[str, Any]) -> None:
        names = ("brightnessRadius", "contrastRadius", "saturationRadius")
        self._brightness, self._contrast, self._saturation = (_radius(options, name) for name in names)

    def run(self, picture: Picture, draw: Draw, view: int) -> Picture:
        """See `Step.run`."""
        pixels = picture.astype(np.float32)
        brightness, contrast, saturation = (2 * draw(j) - 1 for j in range(3))
        if self._brightness or self._contrast:
            beta = brightness * self._brightness * float(pixels.mean(dtype=np.float64))
            alpha = 1 + contrast * self._contrast
            pixels = np.clip(pixels * np.float32(alpha) + np.float32(beta), 0, 255)
        if self._saturation and pixels.shape[2] == 3:
            pixels = _saturate(pixels, 1 + saturation * self._saturation)
        return pixels


def _saturate(picture: Picture, factor: float) -> Picture:
    """Multiply the saturation in HSV, (largest - smallest) / largest, by ``factor``, to at most 1.

    Hue and value stay. So each channel's distance from the largest channel is proportional to the saturation.
    """
    largest = picture.max(2, keepdims=True)
    spread = largest - picture.min(2, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        most = np.where(spread > 0, largest / spread, 1)  # the factor that makes the saturation 1
    scaled: Picture = largest - (largest - picture) * np.minimum(np.float32(factor), most)
    return scaled.astype(np.float32)


class Intensity(Step):
    """Add noise along the principal components of colours (Krizhevsky et al. 2012, section 4.1)."""

    draws = 6

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._deviation = float(options.get("intensityStdDev", 0.0))
        path = str(options.get("intensityFile") or "")
        self._values, self._vectors = None, None
        if path:
            matrices = _matrices(path)
            self._values, self._vectors = (_matrix(matrices, name, path) for name in ("EigVal", "EigVec"))
            if self._values.size != 3 or self._vectors.shape != (3, 3):
                raise RuntimeError(f"Invalid intensity file {path}: expected EigVal of 1 x 3 and EigVec of 3 x 3")

    def run(self, picture: Picture, draw: Draw, view: int) -> Picture:
        """See `Step.run`."""
        if self._values is None or self._vectors is None or self._deviation == 0 or picture.shape[2] != 3:
            return picture
        # Normal numbers by Box and Muller (1958).
        normal = [
            math.sqrt(-2 * math.log(1 - draw(j))) * math.cos(2 * math.pi * draw(j + 1)) * self._deviation
            for j in (0, 2, 4)
        ]
        shift = self._vectors @ (np.array(normal) * self._values.ravel())  # of red, green, blue
        noisy: Picture = np.clip(picture.astype(np.float32) + shift[::-1].astype(np.float32), 0, 255)
        return noisy


# ---- native ------------------------------------------------------------------------------------------


class Planned(PictureStep):
    """A movement of pictures, planned for native code.

    Args:
        step: the movement.
        views: number of the copy of each picture of the minibatch.
    """

    def __init__(self, step: Movement, views: NDArray[np.int64]) -> None:
        self._step, self._views = step, views
        self.draws = step.draws
        self._refused: dict[tuple[int, int], str] = {}

    def plan(self, sizes: Sizes, u: Draws) -> tuple[list[PictureOp], Sizes]:
        """See `PictureStep.plan`."""
        kinds, after = self._step.kinds, np.zeros_like(sizes)
        rows: dict[int, list[tuple[float, ...]]] = {kind: [] for kind in kinds}
        for i, (size, view) in enumerate(zip(sizes.tolist(), self._views.tolist(), strict=True)):
            try:
                moved = self._step.move((size[0], size[1]), u[i].__getitem__, view % VIEWS)
                after[i] = moved.size
            except DataError as error:
                self._refused[size[0], size[1]] = error.what
                moved = Moved({CROP: (0, 0, 1, 1), FLIP: (0, 0), RESIZE: (1, 1, 0), PAD: (0, 0, 0, 0, 0, 0)}, (0, 0))
            for kind in kinds:
                rows[kind].append(moved.ops[kind])
        return [PictureOp(kind, np.array(row, np.float64).reshape(len(sizes), -1)) for kind, row in rows.items()], after

    def fixed_size(self, before: FixedSize) -> FixedSize:
        """See `PictureStep.fixed_size`."""
        return self._step.size(before)

    def refused(self, width: int, height: int) -> str:
        """See `PictureStep.refused`."""
        return self._refused[width, height]


class SameSize(PictureStep):
    """Refuses pictures of any other size."""

    def __init__(self, size: Size) -> None:
        self._size = size

    def plan(self, sizes: Sizes, u: Draws) -> tuple[list[PictureOp], Sizes]:
        """See `PictureStep.plan`."""
        return [], np.where((sizes == np.array(self._size)).all(1)[:, None], sizes, 0)

    def fixed_size(self, before: FixedSize) -> FixedSize:
        """Return the size."""
        return self._size

    def refused(self, width: int, height: int) -> str:
        """See `PictureStep.refused`."""
        return (
            f"expected pictures of {self._size[0]} x {self._size[1]} after the transforms, got one of {width} x "
            f"{height}; end them with a scale, so that all have one size"
        )


# ---- OpenCV's XML files -----------------------------------------------------------------------------

_DTYPES = {"u": "u1", "c": "i1", "w": "u2", "s": "i2", "i": "i4", "f": "f4", "d": "f8"}


def mean_picture(path: str) -> Picture:
    """Return the mean picture of a file: (Row, Col, Channel), channels blue, green, red.

    Raises:
        RuntimeError: the file cannot be read, or is no mean picture.
    """
    matrices = _matrices(path)
    try:
        shape = tuple(int(matrices[name].text or "") for name in ("Row", "Col", "Channel"))
    except (KeyError, ValueError):
        raise RuntimeError(f"Invalid mean file {path}: expected the whole numbers Channel, Row and Col") from None
    mean = _matrix(matrices, "MeanImg", path)
    if math.prod(shape) != mean.size:
        raise RuntimeError(
            f"Invalid mean file {path}: expected Row * Col * Channel = {math.prod(shape)} numbers, got {mean.size}"
        )
    return mean.astype(np.float64 if mean.dtype == np.float64 else np.float32).reshape(shape)


def _matrices(path: str) -> dict[str, ET.Element]:
    try:
        return {element.tag: element for element in ET.parse(path).getroot()}
    except OSError as error:
        raise RuntimeError(f"Could not open file: {path}: {error.strerror}") from error
    except ET.ParseError as error:
        raise RuntimeError(f"Could not open file: {path} is not XML: {error}") from error


def _matrix(matrices: Mapping[str, ET.Element], name: str, path: str) -> Picture:
    try:
        rows, columns, kind, data = (matrices[name].findtext(tag, "") for tag in ("rows", "cols", "dt", "data"))
        kind = kind.strip().strip('"')
        flat = np.array(data.split(), _DTYPES[kind[-1:]])
        return flat.reshape(int(rows), int(columns) * int(kind[:-1] or 1))
    except (KeyError, ValueError) as error:
        raise RuntimeError(f"Could not open file: expected an OpenCV matrix {name} in {path}: {error}") from error


# ---- options ------------------------------------------------------------------------------------------


def _round(number: float) -> int:
    return math.floor(number + 0.5)


def _choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    choice = str(value).lower()
    if choice not in choices:
        raise RuntimeError(f"Invalid {name}: expected one of {', '.join(choices)}, got {value}")
    return choice


def _flag(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).lower() in ("true", "1", "t", "yes")


def _pair(options: Mapping[str, Any], name: str, unset: float) -> tuple[float, float]:
    """Return the two numbers of ``a:b``, or a single number twice."""
    text = str(options.get(name, unset))
    try:
        first, _, second = text.partition(":")
        numbers = float(first), float(second or first)
        if all(map(math.isfinite, numbers)):
            return numbers
    except ValueError:
        pass
    raise RuntimeError(f"Invalid {name} value: expected a number, or two as a:b, got {text}")


def _ratios(options: Mapping[str, Any], name: str, unset: float, most: float = 1) -> tuple[float, float] | None:
    low, high = _pair(options, name, unset)
    if low == high == unset:
        return None
    if not 0 < low <= high <= most:
        limit = "" if math.isinf(most) else f" and <= {most:g}"
        raise RuntimeError(f"Invalid {name} value, must be > 0{limit}, the lower one first; got {low:g}:{high:g}")
    return low, high


def _radius(options: Mapping[str, Any], name: str) -> float:
    radius = float(options.get(name, 0.0))
    if not 0 <= radius <= 1:
        raise RuntimeError(f"Invalid {name}: must be >= 0.0 and <= 1.0, got {radius:g}")
    return radius


def _whole(options: Mapping[str, Any], name: str) -> int:
    try:
        number = int(options[name])
    except (KeyError, TypeError, ValueError):
        number = 0
    if number < 1:
        raise RuntimeError(f"Invalid {name} of a scale transform: expected at least 1, got {options.get(name)}")
    return number


STEPS: dict[str, type[Step]] = {"Crop": Crop, "Scale": Scale, "Mean": Mean, "Color": Color, "Intensity": Intensity}
"""Classes by the type in a transform's dictionary."""
