"""Encoded pictures into pixels: JPEG by simplejpeg where it is installed, everything else by Pillow.

These decoders take the pictures that native code does not: other formats than JPEG, JPEG with a header that native code
does not understand, and all pictures where it was built without libjpeg-turbo. `path` returns the decoders in use.

Alpha is dropped, and colours are kept as stored, even where they are transparent. Palettes become colours. Of 16 bits
the upper 8 are kept. One bit becomes 0 or 255. CMYK is converted without profiles, as Pillow does. Animations are
reduced to their first frame. A colour JPEG becomes grey by its stored luminance channel.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import io
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.errors import DataError, install_line

COLORS = ("RGB", "BGR", "grey")
JPEG = 1

# Formats that Pillow decodes itself or with a library. Others are not tried, as for EPS it runs a program, Ghostscript.
_FORMATS = (
    *("JPEG", "MPO", "PNG", "WEBP", "TIFF", "BMP", "DIB", "GIF", "PPM", "JPEG2000", "AVIF", "HEIF", "JXL", "ICO"),
    *("QOI", "TGA", "PCX", "SGI", "DDS", "PSD", "MSP", "SUN", "XBM", "XPM", "ICNS", "FLI"),
)
_ORIENTATION = 0x0112
_DEEP = ("I;16", "I;16B", "I;16L", "I;16N")
HINT = 'pass on_error="skip" to the source to skip such pictures and list them'


def path() -> str:
    """Return the decoders in use, with their versions: ``"JPEG: simplejpeg 1.9.0; others: Pillow 12.0.0"``."""
    native = getattr(_native, "NATIVE_JPEG", "")
    if native:
        jpeg = f"native, libjpeg-turbo {native}"
    else:
        jpeg = _version("simplejpeg") if _simplejpeg() is not None else _version("pillow")
    return f"JPEG: {jpeg}; others: {_version('pillow')}"


def decode(
    data: NDArray[np.uint8], header: NDArray[np.int32], *, color: str, upright: bool, max_pixels: int
) -> NDArray[np.uint8]:
    """Return the pixels of a picture, uint8 (height, width, channels).

    Args:
        data: the encoded picture, uint8 (bytes,).
        header: format, width, height, components and orientation, as `_native.picture_headers` returns them.
        color: one of `COLORS`.
        upright: whether to turn it by its EXIF orientation. Pillow always turns TIFF.
        max_pixels: limit of pixels. Larger pictures are not decoded.

    Raises:
        DataError: the picture is damaged, cut, too large, or of no known format.
        ModuleNotFoundError: Pillow is not installed.
    """
    kind, width, height, components, orientation = header.tolist()
    _check_pixels(width, height, max_pixels)
    if kind == JPEG and width and components in (1, 3):
        fast = _simplejpeg()
        if fast is not None:
            try:
                pixels = fast.decode_jpeg(data.tobytes(), "GRAY" if color == "grey" else color)
            except ValueError as error:
                raise _damage_error(error) from error
            return _turn(pixels, orientation if upright else 1)
    with _open(data, max_pixels) as picture:
        if color == "grey" and picture.format == "JPEG":
            picture.draft("L", picture.size)
        try:
            picture.load()
            pixels = _colors(picture, color)
        except (MemoryError, DataError):
            raise
        except Exception as error:  # every format raises other exceptions
            raise _damage_error(error) from error
        return _turn(pixels, _orientation(picture) if upright else 1)


def decode_mask(data: NDArray[np.uint8], max_pixels: int) -> NDArray[np.uint8]:
    """Return the numbers in a mask, uint8 (height, width, 1): palette indices, grey levels, or 0 and 1 of one bit.

    Raises:
        DataError: the mask is damaged, too large, has colours or alpha, or numbers above 255.
        ModuleNotFoundError: Pillow is not installed.
    """
    with _open(data, max_pixels) as picture:
        try:
            picture.load()
            numbers = np.asarray(picture)
        except MemoryError:
            raise
        except Exception as error:
            raise _damage_error(error) from error
        mode = picture.mode
    if numbers.ndim != 2 or mode == "F":
        raise DataError(f"expected a mask of one number a pixel (grey, palette or 1 bit), got {mode}", hint=HINT)
    if numbers.size and not 0 <= numbers.min() <= numbers.max() <= 255:
        raise DataError(f"expected numbers from 0 to 255 in a mask, got {numbers.min()} to {numbers.max()}", hint=HINT)
    return np.ascontiguousarray(numbers, np.uint8)[:, :, None]


def size(data: NDArray[np.uint8], max_pixels: int) -> tuple[int, int]:
    """Return the width and height of a picture after it is turned upright. Pillow reads them from its header.

    Raises:
        DataError: the data is no picture, or the picture is too large.
        ModuleNotFoundError: Pillow is not installed.
    """
    with _open(data, max_pixels) as picture:
        width, height = picture.size
        return (height, width) if _orientation(picture) >= 5 else (width, height)


def open_with_pillow(data: bytes) -> Any:
    """Return a picture with its header read, as `PIL.Image.open` does, but try only the formats above.

    Raises:
        ModuleNotFoundError: Pillow is not installed.
    """
    return pillow().open(io.BytesIO(data), formats=_known_formats())


def too_large_error(width: int, height: int, max_pixels: int) -> DataError:
    """Return the error for a picture of too many pixels."""
    return DataError(
        f"expected a picture of at most {max_pixels} pixels, got {width} x {height}",
        hint=f"pass a larger max_pixels to images.Decode, or {HINT}",
    )


def _check_pixels(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise too_large_error(width, height, max_pixels)


def _damage_error(error: Exception) -> DataError:
    return DataError(f"expected a whole picture: {str(error) or type(error).__name__}", hint=HINT)


def _colors(picture: Any, color: str) -> NDArray[np.uint8]:
    mode = picture.mode
    if mode in _DEEP or (mode == "I" and picture.format == "PNG"):
        grey = (np.asarray(picture).astype(np.int64) >> 8).astype(np.uint8)[:, :, None]
        return grey if color == "grey" else np.repeat(grey, 3, axis=2)
    if mode in ("I", "F"):
        raise DataError(f"expected pixels of 8 or 16 bits, got {mode!r} of 32", hint=HINT)
    if mode == "P" or mode == "PA":  # palettes with transparent entries are converted only with alpha
        picture = picture.convert("RGBA")
    if color == "grey":
        flat = picture if picture.mode in ("L", "LA", "1") else picture.convert("RGB")
        return np.asarray(flat.convert("L"))[:, :, None]
    pixels = np.asarray(picture.convert("RGB"))
    return pixels[:, :, ::-1] if color == "BGR" else pixels


def _turn(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Return pixels turned and mirrored by an EXIF orientation, contiguous."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def _orientation(picture: Any) -> int:
    try:
        orientation = picture.getexif().get(_ORIENTATION, 1)
    except Exception:  # a damaged block counts as upright, as in the native parser
        return 1
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1


# ---- Pillow ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _open(data: NDArray[np.uint8], max_pixels: int) -> Iterator[Any]:
    """Return a context with a picture whose header Pillow has read. In it, Pillow's warnings are hidden."""
    image = pillow()
    _hide_warnings()
    _decoding.depth = getattr(_decoding, "depth", 0) + 1
    try:
        if not len(data):
            raise DataError("expected a picture, got no bytes", hint=HINT)
        try:
            picture = open_with_pillow(data.tobytes())
        except image.UnidentifiedImageError as error:
            start = data[:8].tobytes()
            raise DataError(f"expected a picture that Pillow knows, got bytes {start!r}...", hint=HINT) from error
        except MemoryError:
            raise
        except Exception as error:
            raise _damage_error(error) from error
        width, height = picture.size
        _check_pixels(width, height, max_pixels)
        yield picture
    finally:
        _decoding.depth -= 1


class _WhileDecoding:
    """The pattern of a warning filter, which matches in threads that decode. `warnings` calls only ``match``."""

    def match(self, text: str) -> bool:
        """Return whether the calling thread decodes."""
        return getattr(_decoding, "depth", 0) > 0


_decoding = threading.local()
_FILTER: Any = ("ignore", _WhileDecoding(), Warning, None, 0)


def _hide_warnings() -> None:
    """Hide Pillow's warnings in threads that decode, and leave the program's warnings as they are.

    `warnings.catch_warnings` would change the filters of all threads, and restore the filters of another thread.
    """
    filters: Any = warnings.filters
    if not filters or filters[0] is not _FILTER:
        if _FILTER in filters:
            filters.remove(_FILTER)
        filters.insert(0, _FILTER)


@functools.cache
def pillow() -> Any:
    """Return the module `PIL.Image`, or raise a ModuleNotFoundError with the command that installs it."""
    try:
        return importlib.import_module("PIL.Image")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"Pillow is not installed; run: {install_line('images')}") from error


@functools.cache
def _known_formats() -> list[str]:
    """Return the `_FORMATS` that this Pillow and its plugins can open."""
    image = pillow()
    image.init()
    return [name for name in _FORMATS if name in image.OPEN]


@functools.cache
def _simplejpeg() -> Any:
    try:
        return importlib.import_module("simplejpeg")
    except ModuleNotFoundError:
        return None


def _version(package: str) -> str:
    try:
        return f"{'Pillow' if package == 'pillow' else package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"none: run {install_line('images')}"
