"""Decodes the frames of one minibatch, in threads: each file once, its frames in the order in which they are displayed.

Frames of a file are decoded group of pictures by group of pictures, and equal frames once. A group that cannot be
decoded is decoded again from an earlier key frame, then frame by frame, each with a decoder of its own, as a decoder is
of no use after an error. So a frame is the same, or unreadable, whatever else its minibatch has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from feedline._native import recycled
from feedline.concurrency.shared_jobs import SharedJobs
from feedline.data import Value
from feedline.data.value import BytesValue, DenseValue
from feedline.errors import DataError
from feedline.feed.formats.unreadable import reraise_if_transient
from feedline.feed.protocol import Ints
from feedline.feed.transforms import DrawKeys, Transformed
from feedline.video.decoded_frames import DecodedFrames, decoded_frames
from feedline.video.device_frames import device_value
from feedline.video.frame_requests import FileRequest, requests_by_number, requests_by_time
from feedline.video.frame_steps import FrameSteps
from feedline.video.open_decoders import FrameDecoder, WrongFrameError, give_back, take_decoder
from feedline.video.packet_cache import FileVersion, packets_of, version_of
from feedline.video.packet_index import PacketIndex
from feedline.video.packets import list_packets_of_clip

HINT = 'pass on_error="skip" to the source to skip such sequences and list them'

_AT_ONCE_BYTES = 64 << 20  # of frames that are decoded for later
_PLACE = re.compile(r"^\w+, \S+:\d+, ")  # in the code of torchcodec
_FAILURES = (RuntimeError, ValueError, IndexError, WrongFrameError)  # of torchcodec, and ours


@dataclass(frozen=True, kw_only=True)
class FrameDecoding:
    """The settings of `feedline.video.Decode`.

    Attributes:
        stream: the stream of addresses or clips.
        frames: numbers of the frames of each clip. None: the stream has addresses of frames.
        size: (width, height) that frames must have. None: any.
        steps: what is done with frames.
        threads: number of threads.
        device: device that decodes.
    """

    stream: str
    frames: tuple[int, ...] | None
    size: tuple[int, int] | None
    steps: FrameSteps
    threads: int
    device: str | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample."""
        return self.steps.shape if self.frames is None else (len(self.frames), *self.steps.shape)


class FrameWork:
    """The work on one minibatch of frames: `begin` it, wait for its `result`, or `cancel` it."""

    def __init__(self, decoding: FrameDecoding, names: list[str], values: dict[str, Value], keys: DrawKeys) -> None:
        self._decoding, self._names, self._values, self._keys = decoding, names, values, keys
        value = values[decoding.stream]
        assert isinstance(value, BytesValue)
        count = value.num_samples
        if decoding.frames is None:
            requests, self._errors = requests_by_time(value, decoding.threads)
        else:
            requests, self._errors = requests_by_number(value, decoding.frames, decoding.threads)
            count *= len(decoding.frames)
        owners = np.repeat(np.arange(value.num_sequences), value.lengths)
        self._owners = np.repeat(owners, count // max(1, len(owners)))
        self._rows: Any = self._empty_rows(count)
        self._jobs = SharedJobs("video", requests, self._run)

    def _empty_rows(self, count: int) -> Any:
        steps = self._decoding.steps
        if self._decoding.device is None:
            return recycled.empty((count, *steps.shape), steps.dtype)
        return [None] * count

    def begin(self) -> None:
        """Begin in other threads."""
        self._jobs.begin(self._decoding.threads)

    def result(self) -> Transformed:
        """Return the result of `Transform.run_all`. If the work has not begun, the calling thread begins it and takes
        part."""
        if self._jobs.is_lost:
            return FrameWork(self._decoding, self._names, self._values, self._keys).result()
        self._jobs.wait(self._decoding.threads)
        decoding, value = self._decoding, self._values[self._decoding.stream]
        failed: dict[int, DataError] = {}
        for row in sorted(self._errors):
            failed.setdefault(int(self._owners[row]), self._errors[row])
        values = {name: self._values[name] for name in self._names}
        values[decoding.stream] = self._decoded(value)
        return Transformed(values, failed, self._jobs.seconds)

    def cancel(self) -> None:
        """End the work after the files that are being decoded."""
        self._jobs.cancel()

    # ---- one file ------------------------------------------------------------------------------------

    def _run(self, request: FileRequest) -> None:
        if isinstance(request.source, bytes):
            self._run_clip(request.source, request)
            return
        try:
            version = version_of(request.source)
            packets = packets_of(version)
        except DataError as error:
            reraise_if_transient(error)
            self._fail(request.rows, error)
            return
        numbers = packets.frames_at(request.times) if request.times is not None else request.numbers
        assert numbers is not None
        for at in np.flatnonzero((numbers < 0) | (numbers >= len(packets))).tolist():
            if request.part == 0:
                self._errors[int(request.rows[at])] = self._no_such_frame(request, packets, at)
        inside = (numbers >= 0) & (numbers < len(packets))
        for wanted, rows, frame_of in _by_group(packets, numbers[inside], request.rows[inside], request):
            self._decode_group(version, packets, wanted, rows, frame_of)

    def _no_such_frame(self, request: FileRequest, packets: PacketIndex, at: int) -> DataError:
        if request.times is not None:
            what = (
                f"expected a time from {packets.begins[0]!s} s up to {packets.end!r} s, when the video ends, "
                f"got {request.times[at]!s} s"
            )
        else:
            assert request.numbers is not None
            what = f"expected the number of one of {len(packets)} frames, got {request.numbers[at]}"
        return DataError(what, path=str(request.source), stream=self._decoding.stream, hint=HINT)

    def _decode_group(
        self, version: FileVersion, packets: PacketIndex, wanted: Ints, rows: Ints, frame_of: Ints
    ) -> None:
        """Decode frames of one group of pictures, and fill rows with them."""
        numbers = wanted.tolist()
        if self._decoding.device is not None:
            frames = self._decode_now(version, packets, wanted, wanted)
        else:
            store = decoded_frames()
            with store.group_lock(version.identity, int(packets.group_of(wanted[:1])[0])):
                frames = store.get(version.identity, numbers)
                if len(frames) < len(numbers):
                    frames |= self._decode_and_keep(store, version, packets, wanted, frames)
        if len(frames) == len(numbers):
            self._fill([frames[number] for number in numbers], rows, frame_of, version.path)
        else:
            self._decode_again(version, packets, wanted, rows, frame_of)

    def _decode_and_keep(
        self, store: DecodedFrames, version: FileVersion, packets: PacketIndex, wanted: Ints, kept: dict[int, Any]
    ) -> dict[int, Any]:
        """Return the frames ``wanted`` that are not kept, by number, or none if they cannot be decoded. Keep them, and
        perhaps the frames of their group before them."""
        missing = np.array([number for number in wanted.tolist() if number not in kept], np.int64)
        numbers = missing
        if store.are_worth():
            before = packets.frames_before(int(missing[-1]))
            numbers = np.array([number for number in before if number not in kept], np.int64)
        decoded = self._decode_now(version, packets, missing, numbers)
        frames = {number: frame.copy() for number, frame in decoded.items()}
        store.put(version.identity, frames, set(missing.tolist()))
        return {number: frames[number] for number in missing.tolist() if number in frames}

    def _decode_now(self, version: FileVersion, packets: PacketIndex, wanted: Ints, numbers: Ints) -> dict[int, Any]:
        """Return frames of one group of pictures by number, or none if they cannot be decoded: ``numbers``, which
        include the frames ``wanted``, or only these if the others would take too much memory at a time."""
        device, decoder = self._decoding.device, None
        try:
            decoder = take_decoder(version, packets, device)
            decoder.fetch(*packets.extent(int(wanted[0]), int(wanted[-1])))
            numbers = numbers if len(numbers) * decoder.frame_bytes <= _AT_ONCE_BYTES else wanted
            frames = decoder.decode(numbers)
        except _FAILURES:
            return {}  # the state of the decoder is undefined
        give_back(version, device, decoder)
        return dict(zip(numbers.tolist(), self._each(frames), strict=True))

    def _decode_again(
        self, source: FileVersion | bytes, packets: PacketIndex, wanted: Ints, rows: Ints, frame_of: Ints
    ) -> None:
        """Decode frames of a group of pictures that could not be decoded from its key frame.

        In some files FFmpeg finds no key frame that is close to another one, or loses frames of a short group. Then an
        earlier key frame leads to them. If the group is damaged, frames are decoded one by one.
        """
        device, group = self._decoding.device, int(packets.group_of(wanted[:1])[0])
        path = None if isinstance(source, bytes) else source.path
        try:
            frames = FrameDecoder(source, packets, device, group).decode(wanted)
        except _FAILURES:
            pass
        else:
            self._fill(self._each(frames), rows, frame_of, path)
            return
        for i in range(len(wanted)):
            at, number = frame_of == i, wanted[i : i + 1]
            try:
                frames = _decode_frame(source, packets, device, number)
            except _FAILURES as error:
                self._fail(rows[at], self._undecodable(path, packets, int(number[0]), error))
                continue
            self._fill(self._each(frames), rows[at], np.zeros(int(at.sum()), np.int64), path)

    def _undecodable(self, path: str | None, packets: PacketIndex, number: int, error: BaseException) -> DataError:
        return DataError(
            f"expected a frame at {float(packets.begins[number])!r} s that can be decoded, got: {_reason(error)}",
            path=path,
            byte=int(packets.frames["offset"][number]),
            stream=self._decoding.stream,
            hint=HINT,
        )

    def _run_clip(self, clip: bytes, request: FileRequest) -> None:
        """Decode frames of an encoded clip, and fill rows with them."""
        assert request.numbers is not None
        wanted, frame_of = np.unique(request.numbers, return_inverse=True)
        try:
            packets = list_packets_of_clip(clip)
        except DataError as error:
            self._fail(request.rows, DataError(error.what, stream=self._decoding.stream, hint=HINT))
            return
        if wanted[-1] >= len(packets):
            what = f"expected a clip of more than {wanted[-1]} frames, got one of {len(packets)}"
            self._fail(request.rows, DataError(what, stream=self._decoding.stream, hint=HINT))
            return
        try:
            frames = FrameDecoder(clip, packets, self._decoding.device).decode(wanted)
        except _FAILURES:
            whole = replace(request, part=0, parts=1)
            for group in _by_group(packets, request.numbers, request.rows, whole):
                self._decode_again(clip, packets, *group)
            return
        self._fill(self._each(frames), request.rows, frame_of.astype(np.int64), None)

    # ---- rows ----------------------------------------------------------------------------------------

    def _fail(self, rows: Ints, error: DataError) -> None:
        for row in rows.tolist():
            self._errors[row] = error

    def _each(self, frames: Any) -> Sequence[Any]:
        """Return a tensor of frames one by one: as arrays or, on a device, as tensors."""
        return list(frames if self._decoding.device is not None else frames.numpy())

    def _fill(self, frames: Sequence[Any], rows: Ints, frame_of: Ints, path: str | None) -> None:
        """Fill ``rows`` with frames, after the steps."""
        decoding = self._decoding
        height, width = frames[0].shape[:2]
        if decoding.size is not None and (width, height) != decoding.size:
            what = f"expected frames of {decoding.size[0]} x {decoding.size[1]}, got {width} x {height}"
            hint = "pass the true size= as (height, width), or a step such as images.Resize((height, width))"
            self._fail(rows, DataError(what, path=path, stream=decoding.stream, hint=hint))
            return
        if decoding.device is not None:
            for row, at in zip(rows.tolist(), frame_of.tolist(), strict=True):
                self._rows[row] = frames[at]
            return
        owners, keys = self._owners[rows], self._keys
        own = DrawKeys(keys.seed, keys.sweeps[owners], keys.ordinals[owners], keys.stage)
        refused = decoding.steps.apply(frames, frame_of, own, self._rows, rows)
        for i, reason in refused.items():
            self._errors[int(rows[i])] = DataError(reason, path=path, stream=decoding.stream, hint=HINT)

    def _decoded(self, value: Value) -> DenseValue:
        """Return the decoded stream, with zeros for unreadable frames."""
        decoding, failed = self._decoding, sorted(self._errors)
        shape = (value.num_samples, *decoding.shape)
        offsets = None if value.one_sample_each else value.offsets
        if decoding.device is not None:
            return device_value(self._rows, shape, offsets)
        if failed:
            self._rows[failed] = 0
        return DenseValue(self._rows.reshape(shape), offsets)


def _by_group(
    packets: PacketIndex, numbers: Ints, rows: Ints, request: FileRequest
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield frames of each group of pictures in a part of a file, ascending, the rows that need one of them, and which
    one each row needs."""
    groups = packets.group_of(numbers)
    distinct = np.unique(groups)
    bounds = [len(distinct) * part // request.parts for part in (request.part, request.part + 1)]
    for group in distinct[bounds[0] : bounds[1]].tolist():
        at = groups == group
        wanted, frame_of = np.unique(numbers[at], return_inverse=True)
        yield wanted, rows[at], frame_of.astype(np.int64)


def _decode_frame(source: FileVersion | bytes, packets: PacketIndex, device: str | None, number: Ints) -> Any:
    """Return one frame, decoded from its key frame or, if that fails, from an earlier one."""
    try:
        return FrameDecoder(source, packets, device).decode(number)
    except _FAILURES:
        group = int(packets.group_of(number)[0])
        return FrameDecoder(source, packets, device, group).decode(number)


def _reason(error: BaseException) -> str:
    """Return the reason of an error of torchcodec, without the place in its code."""
    lines = str(error).strip().splitlines()
    return _PLACE.sub("", lines[0]) if lines else type(error).__name__
