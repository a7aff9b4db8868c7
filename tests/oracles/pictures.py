"""A slow, obvious twin of native pictures: Pillow decodes, Pillow and NumPy run one operation after the other."""

import io
import itertools
import math

import numpy as np
from PIL import Image

from tests.oracles.order import hash_key

NATIVE_JPEG = "reference"

FORMATS = {"JPEG": 1, "PNG": 2}
COMPONENTS = {"L": 1, "RGB": 3, "CMYK": 4}


def uniforms(seed, sweeps, ordinals, stage, step, count):
    keys = [
        [hash_key([seed, sweep, 2, ordinal, stage, step, j]) for j in range(count)]
        for sweep, ordinal in zip(sweeps.tolist(), ordinals.tolist(), strict=True)
    ]
    return np.array([[(key >> 11) * 2.0**-53 for key in row] for row in keys]).reshape(len(sweeps), count)


def picture_headers(data, bounds):
    rows = np.zeros((len(bounds) - 1, 5), np.int32)
    rows[:, 4] = 1
    for i, (a, b) in enumerate(itertools.pairwise(bounds.tolist())):
        try:
            with Image.open(io.BytesIO(data[a:b].tobytes())) as picture:
                kind, turned = FORMATS.get(picture.format, 3), picture.getexif().get(0x0112, 1)
                rows[i] = kind, *picture.size, COMPONENTS.get(picture.mode, 3), turned
        except Exception:
            pass
    return rows


class PictureBatch:
    """Does it all at the end."""

    seconds = 0.0

    def __init__(self, data, bounds, pixels, kinds, params, *, out, color, upright, **options):
        self.data, self.bounds, self.pixels, self.kinds, self.params = data, bounds, pixels, kinds, params
        self.out, self.color, self.upright, self.options = out, color, upright, options

    def result(self):
        bad = []
        for i in range(len(self.out)):
            try:
                pixels = self.pixels[i] if i in self.pixels else self._decoded(i)
            except OSError as error:
                bad.append((i, f"expected a whole picture: {error}"))
                self.out[i] = 0
                continue
            at = 0
            for kind in self.kinds.tolist():
                arity = {1: 4, 2: 3, 3: 2, 4: 6, 5: 5}[kind]
                swapped = kind == 5 and self.color == 1  # colors change as in RGB
                pixels = pixels[:, :, ::-1] if swapped else pixels
                pixels = OPS[kind](pixels, *self.params[i, at : at + arity].tolist())
                pixels = pixels[:, :, ::-1] if swapped else pixels
                at += arity
            self.out[i] = self._written(pixels)
        return bad

    def _decoded(self, i):
        picture = Image.open(io.BytesIO(self.data[self.bounds[i] : self.bounds[i + 1]].tobytes()))
        turned = picture.getexif().get(0x0112, 1)
        if self.color == 2:
            picture.draft("L", picture.size)
        pixels = np.asarray(picture.convert("L" if self.color == 2 else "RGB"))
        pixels = pixels.reshape(*pixels.shape[:2], -1)
        if self.upright:
            pixels = upright(pixels, turned)
        return pixels[:, :, ::-1] if self.color == 1 else pixels

    def _written(self, pixels):
        mean, scale = self.options.get("mean"), self.options.get("scale")
        if mean is None:
            return pixels
        numbers = (pixels.astype(np.float32) - mean) * scale
        return numbers.transpose(2, 0, 1) if self.options["chw"] else numbers


def upright(pixels, turned):
    """Rotate and mirror by the EXIF standard's place of the first row and column."""
    return {
        1: lambda p: p,
        2: np.fliplr,
        3: lambda p: np.rot90(p, 2),
        4: np.flipud,
        5: lambda p: np.fliplr(np.rot90(p, -1)),
        6: lambda p: np.rot90(p, -1),
        7: lambda p: np.fliplr(np.rot90(p, 1)),
        8: lambda p: np.rot90(p, 1),
    }[turned](pixels)


def crop(pixels, x, y, width, height):
    x, y, width, height = (int(v) for v in (x, y, width, height))
    assert 0 <= x <= x + width <= pixels.shape[1], "crops lie in the picture"
    assert 0 <= y <= y + height <= pixels.shape[0], "crops lie in the picture"
    assert width >= 1, "crops have pixels"
    assert height >= 1, "crops have pixels"
    return pixels[y : y + height, x : x + width]


def resize(pixels, width, height, filter):
    width, height, filter = int(width), int(height), int(filter)
    if filter >= 2:
        return as_opencv(pixels, width, height, filter)
    how = [Image.Resampling.NEAREST, Image.Resampling.BILINEAR][filter]
    planes = [
        np.asarray(Image.fromarray(np.ascontiguousarray(plane)).resize((width, height), how))
        for plane in np.moveaxis(pixels, 2, 0)
    ]
    return np.stack(planes, axis=2)


def as_opencv(pixels, width, height, filter):
    """Resize by OpenCV's rules: 2 linear, 3 nearest, 4 cubic, 5 Lanczos."""
    if (height, width) == pixels.shape[:2]:
        return pixels
    return np.rint(unrounded(pixels, width, height, filter)).clip(0, 255).astype(np.uint8)


def unrounded(pixels, width, height, filter):
    """Resize in float64, by a matrix for either axis."""
    down, across = (shares(old, new, filter) for old, new in zip(pixels.shape, (height, width), strict=False))
    return np.einsum("yj,jic,xi->yxc", down, pixels.astype(float), across, optimize=True)


def shares(old, new, filter):
    """How much of each of the old pixels is in each of the new ones, (new, old)."""
    found = np.zeros((new, old))
    for x in range(new):
        if filter == 1:  # a triangle as wide as the new pixels, if these are larger, with nothing beyond the border
            distance = abs(np.arange(old) + 0.5 - (x + 0.5) * old / new) / max(old / new, 1)
            found[x] = np.maximum(1 - distance, 0)
            found[x] /= found[x].sum()
            continue
        if filter == 3:
            found[x, min(int(x * (1 / (new / old))), old - 1)] = 1
            continue
        center = (x + 0.5) * old / new - 0.5
        taps = {2: 2, 4: 4, 5: 8}[filter]
        near = [math.floor(center) - taps // 2 + 1 + k for k in range(taps)]
        weights = np.array([KERNELS[filter](abs(center - at)) for at in near])
        for at, weight in zip(near, weights / weights.sum(), strict=True):
            found[x, min(max(at, 0), old - 1)] += weight  # beyond the border its pixels are repeated
    return found


def cubic(d, a=-0.75):
    return (a + 2) * d**3 - (a + 3) * d**2 + 1 if d <= 1 else a * (d**3 - 5 * d**2 + 8 * d - 4)


KERNELS = {2: lambda d: 1 - d, 4: cubic, 5: lambda d: np.sinc(d) * np.sinc(d / 4)}


def flip(pixels, horizontally, vertically):
    if horizontally:
        pixels = pixels[:, ::-1]
    return pixels[::-1] if vertically else pixels


def pad(pixels, left, top, right, bottom, mode, value):
    widths = ((int(top), int(bottom)), (int(left), int(right)), (0, 0))
    if mode == 0:
        return np.pad(pixels, widths, constant_values=int(value))
    return np.pad(pixels, widths, mode={1: "edge", 2: "reflect", 3: "symmetric"}[int(mode)])


def jitter(pixels, brightness, contrast, saturation, hue, order):
    changes = [
        lambda p: blended(p, 0, brightness),
        lambda p: blended(p, grey(p).astype(np.float32).mean(), contrast),
        lambda p: blended(p, grey(p)[:, :, None], saturation) if p.shape[2] == 3 else p,
        lambda p: hue_shifted(p, hue) if p.shape[2] == 3 else p,
    ]
    neutral = [brightness == 1, contrast == 1, saturation == 1, hue == 0]
    for k in list(itertools.permutations(range(4)))[int(order)]:
        if not neutral[k]:
            pixels = changes[k](pixels)
    return pixels


def grey(pixels):
    if pixels.shape[2] == 1:
        return pixels[:, :, 0]
    return (pixels.astype(np.float32) @ np.array([0.2989, 0.587, 0.114], np.float32)).astype(np.uint8)


def blended(pixels, other, factor):
    return np.clip(factor * pixels.astype(np.float32) + (1 - factor) * other, 0, 255).astype(np.uint8)


def hue_shifted(pixels, shift):
    rgb = pixels.astype(np.float64) / 255
    value, low = rgb.max(axis=2), rgb.min(axis=2)
    chroma = value - low
    safe = np.where(chroma == 0, 1, chroma)
    r, g, b = np.moveaxis(rgb, 2, 0)
    sector = np.where(value == r, (g - b) / safe, np.where(value == g, 2 + (b - r) / safe, 4 + (r - g) / safe))
    turned = (np.where(chroma == 0, 0, sector) / 6 + shift) % 1.0 * 6
    channels = []
    for n in (5, 3, 1):
        k = (n + turned) % 6
        channels.append(value - chroma * np.clip(np.minimum(k, 4 - k), 0, 1))
    return np.floor(np.stack(channels, axis=2) * 255 + 0.999).clip(0, 255).astype(np.uint8)


OPS = {1: crop, 2: resize, 3: flip, 4: pad, 5: jitter}
