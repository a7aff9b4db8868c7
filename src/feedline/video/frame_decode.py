"""The transform that turns addresses of frames, or encoded clips, into frames of one size, in threads.

A frame does not depend on the frames that are decoded with it, on their order or on the number of threads. It equals
what torchcodec returns for it when it decodes the whole file. A frame that cannot be decoded makes its sequence
unreadable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from feedline.data import Schema, Stream, Value
from feedline.errors import SchemaError
from feedline.feed.protocol import whole_number
from feedline.feed.transforms import Begun, BegunWork, DrawKeys, Transform, Transformed
from feedline.images.step import PictureStep, width_height
from feedline.video.device_frames import check_device
from feedline.video.frame_steps import FrameSteps
from feedline.video.frame_work import FrameDecoding, FrameWork


class Decode(Transform):
    """A transform for `MinibatchSource` and `DataLoader` that decodes frames of videos.

    The stream is one of texts or one of bytes. A text is the address of a frame, ``clip.mp4#t=1.5``: the frame that is
    displayed at that time, as torchcodec's ``get_frames_played_at`` returns it. A time that is up to 0.1 ms before a
    frame is a time of that frame, as rounding makes such times. Samples become uint8 (height, width, 3), RGB, or what
    ``steps`` make of that. Sequences may have several samples, such as windows. With ``frames``, a sample is a whole
    clip, as bytes or as the path of its file, and becomes (frames, height, width, 3).

    torchcodec decodes, and needs FFmpeg's shared libraries. A file is opened with the index of its packets, which is
    made once and kept in the user's cache folder, so that a frame costs the frames from its key frame on. All frames
    of a minibatch that are in the same group of pictures are decoded together, and equal frames once. Files stay open,
    up to 128, and decoded frames are kept for later minibatches, up to 256 MiB.

    A packet that cannot be decoded costs the frames from there to the next key frame, and sometimes some before it.
    Their sequences are unreadable.

    Args:
        stream: the stream of texts or bytes.
        steps: steps of `feedline.images` to apply to frames. The frames of a sequence get the same random numbers.
        frames: numbers of the frames of each clip, such as ``range(0, 64, 4)``. None: the stream has addresses of
            frames.
        size: (height, width) that decoded frames must have. It may be left out if steps lead to one size.
        threads: number of threads that decode.
        device: CUDA device, ``"cuda"`` or ``"cuda:1"``, which decodes. The stream then holds tensors on that device,
            as ``minibatch["x"].torch()`` returns them. There are no steps then. Pixels differ from those of the
            processor by some levels.

    Raises:
        SchemaError: neither size nor steps lead to one size, or steps are in a wrong order.
        TypeError: a step is not a `feedline.images.PictureStep`.
        ValueError: another argument out of range.
        RuntimeError: torch has no such device.
    """

    works_ahead = True

    def __init__(
        self,
        stream: str,
        *steps: PictureStep,
        frames: Sequence[int] | None = None,
        size: Sequence[int] | None = None,
        threads: int = 2,
        device: str | None = None,
    ) -> None:
        for step in steps:
            if not isinstance(step, PictureStep):
                raise TypeError(f"expected steps such as images.CenterCrop(224) for video.Decode, got {step!r:.80}")
        if frames is not None:
            frames = tuple(whole_number("a number in frames", number, 0) for number in frames)
            if not frames:
                raise ValueError("expected at least one number in frames, got none")
        before = None if size is None else width_height("size", size)
        if before is None and not steps:
            raise SchemaError("expected size=(height, width) of frames, or steps that lead to one size, got neither")
        if device is not None:
            if steps:
                raise ValueError(f"expected no steps with device={device!r}, got {len(steps)}: run them on the tensors")
            check_device(device)
        self.steps = steps
        self._decoding = FrameDecoding(
            stream=stream,
            frames=frames,
            size=before,
            steps=FrameSteps(steps, before),
            threads=whole_number("threads", threads, 1),
            device=device,
        )

    @property
    def name(self) -> str:
        """Name in errors."""
        return f"video.Decode({self._decoding.stream!r})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a decoded sample."""
        return self._decoding.shape

    def schema(self, before: Schema) -> Schema:
        """Return the streams with decoded frames.

        Raises:
            SchemaError: the stream is unknown or of another kind.
        """
        decoding = self._decoding
        if decoding.stream not in before:
            raise SchemaError(f"expected one of the streams {', '.join(before)} for {self.name}, got {decoding.stream}")
        stream = before[decoding.stream]
        if not stream.is_bytes:
            raise SchemaError(f"expected addresses of frames, or encoded clips, for {self.name}, got {stream}")
        if decoding.frames is None and not stream.is_text:
            raise SchemaError(f"expected frames= for the encoded clips of {self.name}, such as range(16), got none")
        after = Stream(decoding.shape, decoding.steps.dtype, defines_size=stream.defines_size)
        return Schema({**before, decoding.stream: after})

    def run_all(self, before: Schema, values: dict[str, Value], keys: DrawKeys) -> Transformed:
        """See `Transform.run_all`."""
        after, stream = self.schema(before), self._decoding.stream
        if len(keys.ordinals) == 0:
            empty = Value.empty(after[stream], not values[stream].one_sample_each)
            return Transformed({name: empty if name == stream else values[name] for name in after})
        return self._work(after, values, keys).result()

    def start(self, before: Schema, values: dict[str, Value], keys: DrawKeys) -> Begun:
        """Begin `run_all` in other threads, on at least one sequence. See `Transform.start`."""
        return BegunWork(self._work(self.schema(before), values, keys))

    def _work(self, after: Schema, values: dict[str, Value], keys: DrawKeys) -> FrameWork:
        return FrameWork(self._decoding, list(after), values, keys)

    def result_bytes(self, before: Schema, sequences: int) -> int:
        """Return the bytes of the decoded frames of ``sequences`` sequences of one sample."""
        return sequences * math.prod(self.shape) * np.dtype(self._decoding.steps.dtype).itemsize

    def __repr__(self) -> str:
        return f"video.Decode({', '.join([repr(self._decoding.stream), *map(repr, self.steps)])})"
