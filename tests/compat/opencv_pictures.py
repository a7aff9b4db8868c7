"""OpenCV's results for small pictures. `python -m tests.compat.opencv_pictures` writes them, with OpenCV."""

from __future__ import annotations

import importlib
import io
import sys
import zipfile
from pathlib import Path

import numpy as np

PATH = Path(__file__).parents[1] / "fixtures" / "opencv_pictures.npz"
FLAGS = {"nearest": "NEAREST", "linear": "LINEAR", "cubic": "CUBIC", "lanczos": "LANCZOS4"}
# (height, width, channels) to (height, width).
SIZES = [((23, 17, 3), (10, 13)), ((23, 17, 3), (31, 20)), ((12, 18, 1), (6, 9)), ((3, 2, 3), (16, 16))]
SIZES += [((64, 48, 3), (8, 12)), ((1, 1, 3), (2, 5))]
SIZES += [((98, 6, 1), (2, 34))]  # quotients that are rounded to below whole numbers
SATURATIONS = (0.25, 0.9, 1.3, 2.0)


def picture(shape, dtype, seed=5):
    pixels = np.random.default_rng(seed).integers(0, 256, shape)
    return pixels.astype(np.uint8) if dtype == "uint8" else (pixels - 99.5).astype(np.float32)


def cases():
    for interpolation in FLAGS:
        for before, after in SIZES:
            for dtype in ("uint8", "float32"):
                yield f"{interpolation} {before} {after} {dtype}", interpolation, picture(before, dtype), after


def colours():
    """Pictures of all kinds of colours: grey, pure, dark, bright."""
    pixels = picture((6, 7, 3), "uint8").astype(np.float32)
    pixels[0], pixels[1, :3] = np.arange(7)[:, None] * 40, np.eye(3) * 255
    return pixels


def main():
    cv = importlib.import_module("cv2")
    made = {}
    for name, interpolation, pixels, (height, width) in cases():
        flag = getattr(cv, f"INTER_{FLAGS[interpolation]}")
        made[name] = cv.resize(pixels, (width, height), interpolation=flag).reshape(height, width, -1)
    for factor in SATURATIONS:
        hsv = cv.cvtColor(colours(), cv.COLOR_BGR2HSV)
        hsv[..., 1] = np.minimum(hsv[..., 1] * np.float32(factor), 1)
        made[f"saturation {factor}"] = cv.cvtColor(hsv, cv.COLOR_HSV2BGR)
    with zipfile.ZipFile(PATH, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in sorted(made.items()):
            buffer = io.BytesIO()
            np.save(buffer, array)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), buffer.getvalue(), zipfile.ZIP_DEFLATED)
    sys.stdout.write(f"{PATH}: {len(made)} arrays of OpenCV {cv.__version__}\n")


if __name__ == "__main__":
    main()
