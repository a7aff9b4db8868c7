"""Pictures decoded and transformed by torch on a device, as native code does on the processor.

JPEG is decoded by nvJPEG, through torchcodec or torchvision. Refused pictures, and every other format, are decoded on
the processor and copied to the device. Operations and their numbers are as in native code. Pixels differ by some
levels, as nvJPEG rounds and upsamples colours in another way. One thread a minibatch queues the work, on a separate
stream.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # its usual name
from numpy.typing import NDArray

from feedline import _native
from feedline.concurrency.named_threads import begin
from feedline.concurrency.thread_pool import Job
from feedline.errors import DataError

Tensor: TypeAlias = Any  # torch.Tensor: torch's types are not checked
#: Decodes a list of encoded JPEGs, uint8 (bytes,) on the processor, into uint8 (channels, height, width) on a device.
JpegDecoder = Callable[[list[Tensor], bool], list[Tensor]]

_CROP, _RESIZE, _FLIP, _PAD, _JITTER = 1, 2, 3, 4, 5
_ARITIES = {_CROP: 4, _RESIZE: 3, _FLIP: 2, _PAD: 6, _JITTER: 5}
_BGR, _GREY = 1, 2
_JPEG = 1
_ORDERS = list(itertools.permutations(range(4)))


def jpeg_decoder(device: Any) -> JpegDecoder:
    """Return a function that decodes JPEGs on a CUDA device.

    Raises:
        ValueError: it is no CUDA device.
        RuntimeError: torch finds no such device.
        ModuleNotFoundError: neither torchcodec nor torchvision can be imported.
    """
    where = torch.device(device)
    if where.type != "cuda":
        raise ValueError(f"expected a CUDA device to decode pictures on, such as 'cuda', got {str(device)!r}")
    if not torch.cuda.is_available() or (where.index or 0) >= torch.cuda.device_count():
        raise RuntimeError(
            f"expected {str(where)!r} to decode pictures on, torch {torch.__version__} finds "
            f"{torch.cuda.device_count() if torch.cuda.is_available() else 'no'} CUDA devices; leave out device= to "
            "decode on the processor"
        )
    reasons = []
    for package, decode in (("torchcodec.decoders", _by_torchcodec), ("torchvision.io", _by_torchvision)):
        try:
            module = importlib.import_module(package)
        except Exception as error:  # not installed, or built for another torch: of many kinds
            reasons.append(f"{package}: {error}")
            continue
        if hasattr(module, "decode_jpeg"):
            return functools.partial(decode, module, where)
        reasons.append(f"{package}: it has no decode_jpeg")
    raise ModuleNotFoundError(
        "neither torchcodec (0.16 or later) nor torchvision decodes pictures on a device; run: pip install torchcodec "
        f"({'; '.join(reasons)})"
    )


def _by_torchcodec(module: Any, device: torch.device, encoded: list[Tensor], grey: bool) -> list[Tensor]:
    decoded: list[Tensor] = module.decode_jpeg(encoded, mode="GRAY" if grey else "RGB", device=device)
    return decoded


def _by_torchvision(module: Any, device: torch.device, encoded: list[Tensor], grey: bool) -> list[Tensor]:
    mode = module.ImageReadMode.GRAY if grey else module.ImageReadMode.RGB
    decoded: list[Tensor] = module.decode_jpeg(encoded, mode=mode, device=device)
    return decoded


def stack_views(views: list[Tensor]) -> Tensor:
    """Return (n, views, ...) of views (n, ...)."""
    return torch.stack(views, dim=1)


def spread(rows: Tensor, places: NDArray[np.int64], count: int) -> Tensor:
    """Return ``count`` rows: ``rows`` at ``places``, and zeros elsewhere."""
    everything = torch.zeros((count, *rows.shape[1:]), dtype=rows.dtype, device=rows.device)
    everything[torch.from_numpy(places).to(rows.device)] = rows
    return everything


@dataclass(eq=False)
class PictureJob:
    """The pictures of a minibatch, the operations on them, and the results.

    Attributes:
        data, bounds: encoded pictures: number i is ``data[bounds[i]:bounds[i + 1]]``, uint8.
        pixels: by number, pixels that were decoded already, uint8 (height, width, channels) in RGB or grey.
        kinds, params: operations, and the numbers of each for each picture.
        device: device that decodes.
        jpeg: function that decodes on that device.
        otherwise: ``otherwise(i)`` decodes picture i on the processor: uint8 (height, width, channels), upright if set,
            in RGB or grey.
        shape: shape of a finished picture.
        color: 0: RGB, 1: BGR, 2: grey.
        upright: whether to turn pictures by their EXIF orientation.
        mean, scale: float32 (channels,), for float32 pictures. None means uint8.
        chw: whether channels come first.
        bad: pictures that could not be decoded, by number, and the reasons.
        seconds: time spent.
        fallen_back: JPEGs that the device's decoder refused.
        cancelled: whether nobody waits for it any more.
    """

    data: NDArray[np.uint8]
    bounds: NDArray[np.int64]
    pixels: dict[int, NDArray[np.uint8]]
    kinds: NDArray[np.uint8]
    params: NDArray[np.float64]
    device: Any
    jpeg: JpegDecoder
    otherwise: Callable[[int], NDArray[np.uint8]]
    shape: tuple[int, ...]
    color: int
    upright: bool
    mean: NDArray[np.float32] | None = None
    scale: NDArray[np.float32] | None = None
    chw: bool = False
    bad: list[tuple[int, str]] = field(default_factory=list, init=False)
    seconds: float = field(default=0.0, init=False)
    fallen_back: int = field(default=0, init=False)
    cancelled: bool = field(default=False, init=False)
    _out: Tensor | None = field(default=None, init=False)
    _event: Any = field(default=None, init=False)

    def run(self) -> None:
        """Do the job."""
        began = time.perf_counter()
        device = torch.device(self.device)
        with torch.no_grad():
            if device.type == "cuda":
                stream = torch.cuda.Stream(device)
                with torch.cuda.device(device), torch.cuda.stream(stream):
                    self._out = self._all()
                    self._event = torch.cuda.Event()
                    self._event.record(stream)
            else:
                self._out = self._all()
        self.seconds = time.perf_counter() - began

    def finish(self) -> Tensor:
        """Return the pictures, safe to use on the current stream."""
        assert self._out is not None
        if self._event is not None:
            current = torch.cuda.current_stream(self._out.device)
            current.wait_event(self._event)
            self._out.record_stream(current)
        return self._out

    def _all(self) -> Tensor:
        headers = _native.picture_headers(self.data, self.bounds)
        dtype = torch.uint8 if self.mean is None else torch.float32
        out = torch.zeros((len(headers), *self.shape), dtype=dtype, device=self.device)
        if self.mean is not None:
            mean, scale = (torch.from_numpy(of).to(self.device)[:, None, None] for of in (self.mean, self.scale))
        kinds, params = self.kinds.tolist(), self.params.tolist()
        for i, pixels in enumerate(self._decode(headers)):
            if pixels is None or self.cancelled:
                continue
            picture = _change(pixels, kinds, params[i])
            if self.color == _BGR:
                picture = picture.flip(0)
            if self.mean is not None:
                picture = (picture.float() - mean) * scale
            out[i] = picture if self.chw else picture.permute(1, 2, 0)
        return out

    def _decode(self, headers: NDArray[np.int32]) -> list[Tensor | None]:
        """Return each picture upright on the device, uint8 (channels, height, width) in RGB or grey."""
        pictures: list[Tensor | None] = [None] * len(headers)
        # nvJPEG would decode four components in other colours.
        jpegs = [i for i, (kind, width, _, components, _) in enumerate(headers.tolist())
                if i not in self.pixels and kind == _JPEG and width and components in (1, 3)]  # fmt: skip
        encoded = [torch.from_numpy(self.data[self.bounds[i] : self.bounds[i + 1]].copy()) for i in jpegs]
        for i, picture in zip(jpegs, self._by_device(encoded), strict=True):
            if picture is not None:
                pictures[i] = _turn(picture, int(headers[i, 4]) if self.upright else 1)
        for i in range(len(headers)):
            if pictures[i] is not None or self.cancelled:
                continue
            pixels = self.pixels.get(i)
            if pixels is None:
                try:
                    pixels = self.otherwise(i)
                except DataError as error:
                    self.bad.append((i, error.what))
                    continue
            pictures[i] = torch.tensor(np.ascontiguousarray(pixels), device=self.device).permute(2, 0, 1)
        return pictures

    def _by_device(self, encoded: list[Tensor]) -> list[Tensor | None]:
        """Decode on the device all at once or, if that fails, one by one. None if they are refused."""
        if not encoded:
            return []
        grey = self.color == _GREY
        try:
            return list(self.jpeg(encoded, grey))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # it then returns nothing, even of pictures that it can decode
            decoded: list[Tensor | None] = []
            for jpeg in encoded:
                if self.cancelled:
                    return [None] * len(encoded)
                try:
                    decoded += self.jpeg([jpeg], grey)
                except torch.OutOfMemoryError:
                    raise
                except RuntimeError:
                    decoded.append(None)
                    self.fallen_back += 1
            return decoded


class DevicePictures:
    """The pictures of a minibatch in progress, with the interface of `_native.PictureBatch`.

    The job does not refer to this object, so it is cancelled when the object is no longer used.

    Args:
        job: job to run.

    Attributes:
        job: see above.
    """

    def __init__(self, job: PictureJob) -> None:
        self.job, self._work = job, Job(job.run)
        begin("pictures", self._work.run)

    @property
    def seconds(self) -> float:
        """Time spent."""
        return self.job.seconds

    def result(self) -> list[tuple[int, str]]:
        """Wait, and return pictures that could not be decoded, by number, with the reasons. `out` has zeros there."""
        self._work.result()
        return self.job.bad

    @property
    def out(self) -> Tensor:
        """The pictures, safe to use on the current stream, once `result` has returned."""
        return self.job.finish()

    def __del__(self) -> None:
        self.job.cancelled = True


def _change(picture: Tensor, kinds: list[int], params: list[float]) -> Tensor:
    """Run the operations, one after the other."""
    at = 0
    for kind in kinds:
        numbers = params[at : at + _ARITIES[kind]]
        picture = _OPERATIONS[kind](picture, *numbers)
        at += _ARITIES[kind]
    return picture


def _turn(picture: Tensor, orientation: int) -> Tensor:
    if orientation >= 5:
        picture = picture.transpose(1, 2)
    if orientation in (2, 3, 6, 7):
        picture = picture.flip(2)
    return picture.flip(1) if orientation in (3, 4, 7, 8) else picture


def _crop(picture: Tensor, x: float, y: float, width: float, height: float) -> Tensor:
    return picture[:, int(y) : int(y) + int(height), int(x) : int(x) + int(width)]


def _resize(picture: Tensor, width: float, height: float, filter: float) -> Tensor:
    _, rows, columns = picture.shape
    size = int(height), int(width)
    if size == (rows, columns):
        return picture
    if filter == 0:  # the pixel at the centre, as Pillow takes it
        y, x = (_nearest(n, of).to(picture.device) for n, of in zip(size, (rows, columns), strict=True))
        return picture[:, y[:, None], x]
    numbers = F.interpolate(picture[None].float(), size, mode="bilinear", align_corners=False, antialias=True)[0]
    return numbers.round().clamp(0, 255).to(torch.uint8)


def _nearest(count: int, size: int) -> Tensor:
    """Return which of ``size`` pixels each of ``count`` shows. Centres are summed up, as in Pillow."""
    steps = np.full(count, size / count)
    steps[0] *= 0.5
    return torch.from_numpy(np.floor(np.add.accumulate(steps)).astype(np.int64).clip(0, size - 1))


def _flip(picture: Tensor, horizontally: float, vertically: float) -> Tensor:
    axes = [axis for axis, flipped in ((2, horizontally), (1, vertically)) if flipped]
    return picture.flip(axes) if axes else picture


def _pad(picture: Tensor, left: float, top: float, right: float, bottom: float, mode: float, value: float) -> Tensor:
    sides = [int(side) for side in (left, right, top, bottom)]
    if mode == 0:
        return F.pad(picture, sides, value=int(value))
    _, rows, columns = picture.shape
    y = _beyond(torch.arange(-sides[2], rows + sides[3], device=picture.device), rows, int(mode))
    x = _beyond(torch.arange(-sides[0], columns + sides[1], device=picture.device), columns, int(mode))
    return picture[:, y[:, None], x]


def _beyond(at: Tensor, n: int, mode: int) -> Tensor:
    """Return which of n pixels appear at places outside: the outermost (1), or mirrored without (2) or with it (3)."""
    if mode == 1 or n == 1:
        return at.clamp(0, n - 1)
    last = 2 * n - 2 if mode == 2 else 2 * n - 1
    within = at % (last if mode == 2 else last + 1)
    return torch.where(within < n, within, last - within)


def _jitter(picture: Tensor, brightness: float, contrast: float, saturation: float, hue: float, order: float) -> Tensor:
    colors = len(picture) == 3
    for change in _ORDERS[int(order)]:
        if change == 0 and brightness != 1:
            picture = _blend(picture, 0.0, brightness)
        elif change == 1 and contrast != 1:
            picture = _blend(picture, _grey(picture).float().mean(), contrast)
        elif change == 2 and saturation != 1 and colors:
            picture = _blend(picture, _grey(picture).float(), saturation)
        elif change == 3 and hue != 0 and colors:
            picture = _shift_hue(picture, hue)
    return picture


def _grey(picture: Tensor) -> Tensor:
    """Return the luma of ITU-R BT.601, in whole levels."""
    if len(picture) == 1:
        return picture
    red, green, blue = picture.float()
    return (0.2989 * red + 0.587 * green + 0.114 * blue).to(torch.uint8)[None]


def _blend(picture: Tensor, base: Tensor | float, factor: float) -> Tensor:
    return (factor * picture.float() + (1 - factor) * base).clamp(0, 255).to(torch.uint8)


def _shift_hue(picture: Tensor, shift: float) -> Tensor:
    """Turn the hue of HSV, and convert back."""
    rgb = picture.double() / 255
    value, low = rgb.amax(0), rgb.amin(0)
    chroma = value - low
    safe = torch.where(chroma == 0, 1.0, chroma)
    r, g, b = rgb
    sector = torch.where(value == r, (g - b) / safe, torch.where(value == g, 2 + (b - r) / safe, 4 + (r - g) / safe))
    turned = (torch.where(chroma == 0, 0.0, sector) / 6 + shift) % 1.0 * 6
    channels = []
    for n in (5, 3, 1):
        k = (n + turned) % 6
        channels.append(value - chroma * torch.minimum(k, 4 - k).clamp(0, 1))
    return (torch.stack(channels) * 255 + 0.999).floor().clamp(0, 255).to(torch.uint8)


_OPERATIONS: dict[int, Callable[..., Tensor]] = {
    _CROP: _crop, _RESIZE: _resize, _FLIP: _flip, _PAD: _pad, _JITTER: _jitter,
}  # fmt: skip
