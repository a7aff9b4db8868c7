"""Encoded pictures for tests, drawn here."""

import io

import numpy as np
from PIL import Image


def drawn(width, height, seed=0):
    """A picture of smooth areas, edges and a little noise, uint8 (height, width, 3)."""
    rng = np.random.default_rng([seed, width, height])
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x * a + y * b + c) for a, b, c in rng.uniform(0.02, 0.2, (3, 3))]
    pixels = 127 + 80 * np.stack(waves, axis=2)
    left, top = rng.integers(0, width), rng.integers(0, height)
    pixels[top : top + height // 3, left : left + width // 3] = rng.integers(0, 256, 3)
    return (pixels + rng.normal(0, 6, pixels.shape)).clip(0, 255).astype(np.uint8)


def encoded(picture, kind="JPEG", turned=None, **options):
    """Bytes of an array or a Pillow picture in a format, with an EXIF orientation."""
    if isinstance(picture, np.ndarray):
        picture = Image.fromarray(picture)
    if turned is not None:
        exif = Image.Exif()
        exif[0x0112] = turned
        options["exif"] = exif
    if kind == "JPEG":
        options.setdefault("quality", 90)
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()
