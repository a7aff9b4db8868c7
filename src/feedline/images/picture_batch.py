"""Decodes the pictures of one minibatch: headers, formats other than JPEG in Python, plans, native threads."""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline._native import recycled
from feedline.concurrency.shared_jobs import SharedJobs
from feedline.data import Value
from feedline.data.value import DenseValue
from feedline.errors import DataError
from feedline.feed.transforms import DrawKeys, Transformed
from feedline.images import boxes, decoders
from feedline.images.program import Program, plan_view
from feedline.images.step import PictureStep, Sizes

Pixels: TypeAlias = NDArray[np.uint8]
#: Whether to decode a mask, and the index of the picture.
Job: TypeAlias = tuple[bool, int]

GREY = decoders.COLORS.index("grey")

_log = logging.getLogger("feedline")
_reported_refused: list[int] = []  # not empty once the warning was logged in this process


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """The settings of `Decode`.

    Attributes:
        views: the steps of each view, each with the number that keys its draws.
        stacked: whether samples have an axis of views.
        width, height, channels: size of each view.
        normalized: mean and scale, float32 (channels,), for float32 pictures, or None for uint8 pictures.
        chw: whether channels come first.
    """

    stream: str
    mask: str | None
    boxes: str | None
    color: str
    upright: bool
    max_pixels: int
    shrink: bool
    threads: int
    device: str | None
    mask_fill: int
    views: list[list[tuple[int, PictureStep]]]
    stacked: bool
    width: int
    height: int
    normalized: tuple[NDArray[np.float32], NDArray[np.float32]] | None
    chw: bool

    @property
    def channels(self) -> int:
        """Channels of a picture."""
        return 1 if self.color == "grey" else 3

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of pictures."""
        return np.dtype(np.uint8 if self.normalized is None else np.float32)

    @property
    def view_shape(self) -> tuple[int, int, int]:
        """Shape of one view."""
        if self.chw:
            return self.channels, self.height, self.width
        return self.height, self.width, self.channels

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample."""
        return (len(self.views), *self.view_shape) if self.stacked else self.view_shape

    @property
    def mask_shape(self) -> tuple[int, ...]:
        """Shape of a sample of the mask."""
        return (len(self.views), self.height, self.width) if self.stacked else (self.height, self.width)


@dataclass(frozen=True)
class Encoded:
    """Encoded pictures. Picture i is ``data[bounds[i]:bounds[i + 1]]``."""

    data: NDArray[np.uint8]
    bounds: NDArray[np.int64]

    def at(self, i: int) -> NDArray[np.uint8]:
        """Return one picture, as a view."""
        return self.data[self.bounds[i] : self.bounds[i + 1]]

    def of(self, which: NDArray[np.int64]) -> Encoded:
        """Return the pictures at the ascending indices ``which``."""
        if len(which) == len(self.bounds) - 1:
            return self
        parts = [self.at(i) for i in which.tolist()]
        bounds = np.cumsum([0] + [len(part) for part in parts], dtype=np.int64)
        return Encoded(np.concatenate([np.empty(0, np.uint8), *parts]), bounds)


class PictureWork:
    """The work on one minibatch of pictures: `begin` it, wait for its `result`, or `cancel` it.

    Of pictures that native code decodes, only the headers are read before planning. Other pictures are decoded in
    Python threads first, as the sizes of some are not known before. The last of these threads plans, and starts the
    native threads.

    Attributes:
        jobs: what is decoded in Python.
    """

    def __init__(self, decoding: Decoding, names: list[str], values: dict[str, Value], keys: DrawKeys) -> None:
        self._decoding, self._names, self._values, self._keys = decoding, names, values, keys
        self._count = len(keys.ordinals)
        self._errors: dict[int, DataError] = {}
        self._mask_errors: dict[int, DataError] = {}
        self._pixels: dict[int, Pixels] = {}
        self._mask_pixels: dict[int, Pixels] = {}
        self._pictures = self._byte_strings(decoding.stream)
        self._masks = None if decoding.mask is None else self._byte_strings(decoding.mask)
        self._headers = _native.picture_headers(self._pictures.data, self._pictures.bounds)
        self.jobs = SharedJobs("pictures", self._python_jobs(), self._run_job, self._plan)

    def begin(self) -> None:
        """Begin in other threads."""
        self.jobs.begin(self._decoding.threads)

    def result(self) -> Transformed:
        """Return the result of `Transform.run_all`. If the work has not begun, the calling thread begins it and takes
        part."""
        if self.jobs.is_lost:
            return PictureWork(self._decoding, self._names, self._values, self._keys).result()
        self.jobs.wait(self._decoding.threads)
        return self._gather()

    def cancel(self) -> None:
        """End the work after the pictures that are being decoded."""
        self.jobs.cancel()

    # ---- pictures for Python's decoders --------------------------------------------------------------

    def _byte_strings(self, name: str) -> Encoded:
        """Return the byte string of each sequence. A sequence that does not have exactly one is an error."""
        value = self._values[name]
        if not value.one_sample_each:
            lengths, samples = value.lengths.tolist(), value.sequences()
            for i, length in enumerate(lengths):
                if length != 1:
                    what = f"expected one picture in a sequence of stream `{name}`, got {length}"
                    self._errors.setdefault(i, DataError(what, stream=name, hint=decoders.HINT))
            value = Value.from_bytes([sequence[0] if len(sequence) == 1 else b"" for sequence in samples], "bytes")
        return Encoded(np.ascontiguousarray(value.data), np.ascontiguousarray(value.bounds))

    def _python_jobs(self) -> list[Job]:
        """Return the pictures and masks to decode in Python, and record an error for each picture that is too large."""
        kind, width, height = (self._headers[:, i].astype(np.int64) for i in range(3))
        limit = self._decoding.max_pixels
        for i in np.flatnonzero(width * height > limit).tolist():
            self._errors.setdefault(i, decoders.too_large_error(int(width[i]), int(height[i]), limit))
        native = (kind == decoders.JPEG) & (width > 0) & bool(_native.NATIVE_JPEG)
        jobs: list[Job] = [(False, i) for i in np.flatnonzero(~native).tolist() if i not in self._errors]
        if self._masks is not None:
            jobs += [(True, i) for i in range(self._count) if i not in self._errors]
        return jobs

    def _decode(self, i: int) -> None:
        decoding = self._decoding
        try:
            self._pixels[i] = decoders.decode(
                self._pictures.at(i),
                self._headers[i],
                color=decoding.color,
                upright=decoding.upright,
                max_pixels=decoding.max_pixels,
            )
        except DataError as error:
            self._errors[i] = error

    def _decode_mask(self, i: int) -> None:
        assert self._masks is not None
        try:
            self._mask_pixels[i] = decoders.decode_mask(self._masks.at(i), self._decoding.max_pixels)
        except DataError as error:
            self._mask_errors[i] = error

    def _run_job(self, job: Job) -> None:
        is_mask, i = job
        if is_mask:
            self._decode_mask(i)
        else:
            self._decode(i)

    # ---- plans and native threads --------------------------------------------------------------------

    def _plan(self) -> None:
        """Plan all views, and start native threads on pictures that can be decoded."""
        decoding, sizes = self._decoding, self._sizes()
        programs = [plan_view(v, sizes, self._keys.uniforms, (decoding.width, decoding.height)) for v in decoding.views]
        for program in programs:
            for i, reason in program.refused.items():
                self._errors.setdefault(i, DataError(reason, stream=decoding.stream, hint=decoders.HINT))
        self._decodable = np.array([i for i in range(self._count) if i not in self._errors], np.int64)
        pictures, pixels = self._pictures.of(self._decodable), self._by_place(self._pixels)
        color = decoders.COLORS.index(decoding.color)
        shape = decoding.view_shape
        started = self._start_batch if decoding.device is None else self._start_on_device
        mean, scale = (None, None) if decoding.normalized is None else decoding.normalized
        self._batches = [
            started(pictures, pixels, program, shape, color=color, mean=mean, scale=scale, chw=decoding.chw)
            for program in programs
        ]
        self._mask_batches = []
        if self._masks is not None:
            masks, pixels = self._masks.of(self._decodable), self._by_place(self._mask_pixels)
            shape = (decoding.height, decoding.width, 1)
            self._mask_batches = [
                self._start_batch(masks, pixels, program.for_masks(decoding.mask_fill), shape, color=GREY)
                for program in programs
            ]
        self._boxes = None if decoding.boxes is None else self._move_boxes(sizes, programs)

    def _sizes(self) -> Sizes:
        """Return width and height of each picture, and 1 for undecodable ones. A mask of another size is an error."""
        sizes: Sizes = self._headers[:, 1:3].astype(np.int64)
        if self._decoding.upright:
            turned = self._headers[:, 4] >= 5
            sizes[turned] = sizes[turned, ::-1]
        for i, pixels in self._pixels.items():
            sizes[i] = pixels.shape[1], pixels.shape[0]
        for i, pixels in self._mask_pixels.items():
            (width, height), shape = sizes[i].tolist(), pixels.shape
            if i not in self._errors and (height, width) != shape[:2]:
                what = f"expected a mask of the size of its picture, {width} x {height}, got {shape[1]} x {shape[0]}"
                self._mask_errors[i] = DataError(what, stream=self._decoding.mask, hint=decoders.HINT)
        for i, error in self._mask_errors.items():
            self._errors.setdefault(i, error)
        sizes[list(self._errors)] = 1
        return sizes

    def _by_place(self, pixels: dict[int, Pixels]) -> dict[int, Pixels]:
        """Return pixels by the place of their picture among the decodable ones."""
        if len(self._decodable) == self._count:
            return pixels
        return {place: pixels[i] for place, i in enumerate(self._decodable.tolist()) if i in pixels}

    def _start_batch(
        self, encoded: Encoded, pixels: dict[int, Pixels], program: Program, shape: tuple[int, ...], **output: Any
    ) -> tuple[NDArray[Any], Any]:
        decoding = self._decoding
        out = recycled.empty((len(self._decodable), *shape), np.uint8 if output.get("mean") is None else np.float32)
        if not len(out):
            return out, None
        batch = _native.PictureBatch(
            encoded.data,
            encoded.bounds,
            pixels,
            program.kinds,
            program.params(self._decodable),
            out=out,
            upright=decoding.upright,
            shrink=decoding.shrink,
            threads=decoding.threads,
            max_pixels=decoding.max_pixels,
            **output,
        )
        return out, batch

    def _start_on_device(
        self, encoded: Encoded, pixels: dict[int, Pixels], program: Program, shape: tuple[int, ...], **output: Any
    ) -> tuple[Any, Any]:
        decoding, headers, good = self._decoding, self._headers, self._decodable

        def decode_on_cpu(place: int) -> Pixels:
            """Decode on the processor, natively where native code was built with libjpeg-turbo."""
            data, header, color = encoded.at(place), headers[good[place]], "grey" if decoding.color == "grey" else "RGB"
            return decode_pixels(data, header, color=color, upright=decoding.upright, max_pixels=decoding.max_pixels)

        swapped = {i: array[:, :, ::-1] if decoding.color == "BGR" else array for i, array in pixels.items()}
        job = torch_pictures().PictureJob(
            encoded.data,
            encoded.bounds,
            swapped,
            program.kinds,
            program.params(good),
            device=decoding.device,
            jpeg=torch_pictures().jpeg_decoder(decoding.device),
            otherwise=decode_on_cpu,
            shape=shape,
            upright=decoding.upright,
            **output,
        )
        return None, torch_pictures().DevicePictures(job)

    def _move_boxes(self, sizes: Sizes, programs: list[Program]) -> Value:
        assert self._decoding.boxes is not None
        value = self._values[self._decoding.boxes]
        views = [boxes.move_boxes(value.rows, value.lengths, sizes, program.ops) for program in programs]
        rows = np.stack(views, axis=1) if self._decoding.stacked else views[0]
        return DenseValue(rows, None if value.one_sample_each else value.offsets)

    # ---- the end -------------------------------------------------------------------------------------

    def _gather(self) -> Transformed:
        decoding, values = self._decoding, dict(self._values)
        values[decoding.stream] = self._wait_for_pixels(self._batches, decoding.stream)
        if decoding.mask is not None:
            masks = self._wait_for_pixels(self._mask_batches, decoding.mask)
            values[decoding.mask] = DenseValue(masks.rows[..., 0])
        if decoding.boxes is not None:
            assert self._boxes is not None
            values[decoding.boxes] = self._boxes
        native = [batch.seconds for _, batch in (*self._batches, *self._mask_batches) if batch is not None]
        seconds = self.jobs.seconds + sum(native)
        return Transformed({name: values[name] for name in self._names}, self._errors, seconds)

    def _wait_for_pixels(self, batches: list[tuple[Any, Any]], stream: str) -> DenseValue:
        """Wait for native threads or a device. Return the pictures of all sequences, with zeros for undecodable
        ones."""
        for _, batch in batches:
            for place, what in [] if batch is None else batch.result():
                i = int(self._decodable[place])
                self._errors.setdefault(i, DataError(what, stream=stream, hint=decoders.HINT))
        if batches[0][0] is None:
            refused = sum(batch.job.fallen_back for _, batch in batches)
            if refused and not _reported_refused:
                _reported_refused.append(refused)
                _log.warning(
                    "%s refused %d pictures of a minibatch, which the processor decoded; this is logged once",
                    self._decoding.device,
                    refused,
                )
            return self._on_device([batch.out for _, batch in batches])
        outs = [out for out, _ in batches]
        rows = np.stack(outs, axis=1) if self._decoding.stacked else outs[0]
        if len(self._decodable) == self._count:
            return DenseValue(rows)
        all_rows = np.zeros((self._count, *rows.shape[1:]), rows.dtype)
        all_rows[self._decodable] = rows
        return DenseValue(all_rows)

    def _on_device(self, outs: list[Any]) -> DenseValue:
        """Return pictures on the device. Undecodable ones are missing, as the caller drops their sequences."""
        rows = torch_pictures().stack_views(outs) if self._decoding.stacked else outs[0]
        if len(self._decodable) < self._count:
            rows = torch_pictures().spread(rows, self._decodable, self._count)
        value: DenseValue = importlib.import_module("feedline.interop.device_value").DeviceValue(rows)
        return value


def decode_pixels(
    data: NDArray[np.uint8], header: NDArray[np.int32], *, color: str, upright: bool, max_pixels: int
) -> Pixels:
    """Return the pixels of one picture, decoded as in minibatches. See `decoders.decode`."""
    kind, width, height, _, orientation = header.tolist()
    if not _native.NATIVE_JPEG or kind != decoders.JPEG or not width:
        return decoders.decode(data, header, color=color, upright=upright, max_pixels=max_pixels)
    if width * height > max_pixels:
        raise decoders.too_large_error(width, height, max_pixels)
    rows, columns = (width, height) if upright and orientation >= 5 else (height, width)
    out = np.empty((1, rows, columns, 1 if color == "grey" else 3), np.uint8)
    batch = _native.PictureBatch(
        data,
        np.array([0, len(data)], np.int64),
        {},
        np.empty(0, np.uint8),
        np.empty((1, 0)),
        out=out,
        color=decoders.COLORS.index(color),
        upright=upright,
        threads=1,
        max_pixels=max_pixels,
    )
    for _, what in batch.result():
        raise DataError(what, hint=decoders.HINT)
    pixels: Pixels = out[0]
    return pixels


def torch_pictures() -> Any:
    """Return the module that decodes with torch. It is imported only if there is a device."""
    return importlib.import_module("feedline.interop.torch_pictures")
