"""Logarithms of mel spectra, by torch."""

from __future__ import annotations

import importlib
import time
from typing import Any

from feedline.audio.sound_streams import check_sound
from feedline.data import Schema, Stream, Value
from feedline.errors import install_line
from feedline.feed.protocol import whole_number
from feedline.feed.transforms import DrawKeys, Transform, Transformed

_SCALES = ("slaney", "htk")


class LogMel(Transform):
    """Replace sound by the natural logarithms of its mel spectra: frames of shape (mels,), any number in a sequence.

    A frame is the power spectrum of ``window`` samples under a periodic Hann window, in triangular bands. Frame k is
    centred at sample k * ``hop``, with zeros beyond the ends, so n samples give 1 + n // hop frames. This is
    ``librosa.feature.melspectrogram(n_fft=window, hop_length=hop, n_mels=mels, htk=scale == "htk")``, and torchaudio's
    ``MelSpectrogram`` with ``pad_mode="constant"``.

    Args:
        stream: a dense float32 stream of samples of shape ().
        rate: samples per second.
        window: samples in a frame, even.
        hop: samples from one frame to the next.
        mels: number of bands, equally wide on the mel scale from 0 Hz to half the rate.
        scale: ``"slaney"``, Slaney's scale, linear up to 1000 Hz, with bands of equal area, or ``"htk"``, the formula
            of the HTK book, 2595 log10(1 + f / 700), with bands of equal height.
        floor: least power, as silence has no logarithm.
        device: device that computes, such as ``"cuda"``. The stream then holds tensors there, as
            ``minibatch["x"].torch()`` returns them.

    Raises:
        ValueError: an argument out of range.
        ModuleNotFoundError: torch is not installed.
    """

    def __init__(
        self,
        stream: str,
        *,
        rate: int = 16000,
        window: int = 400,
        hop: int = 160,
        mels: int = 80,
        scale: str = "slaney",
        floor: float = 1e-10,
        device: str | None = None,
    ) -> None:
        if scale not in _SCALES:
            raise ValueError(f"expected scale 'slaney' or 'htk' for audio.LogMel, got {scale!r}")
        if not 0 < floor < float("inf"):
            raise ValueError(f"expected floor above 0 for audio.LogMel, got {floor!r}")
        if whole_number("window", window, 2) % 2:
            raise ValueError(f"expected an even window for audio.LogMel, got {window}")
        self._stream, self._mels = stream, whole_number("mels", mels, 1)
        self._settings = {
            "rate": whole_number("rate", rate, 1),
            "window": int(window),
            "hop": whole_number("hop", hop, 1),
            "mels": self._mels,
            "scale": scale,
            "floor": float(floor),
            "device": None if device is None else str(device),
        }
        self._spectra: Any = None
        self._spectra = self._make()  # raises errors now, not in the first minibatch

    @property
    def name(self) -> str:
        """Name in errors."""
        return f"audio.LogMel({self._stream!r})"

    def schema(self, before: Schema) -> Schema:
        """Return the streams with frames in place of samples.

        Raises:
            SchemaError: the stream is unknown or of another kind.
        """
        check_sound(before, self._stream, self.name, mono=True)
        frames = Stream(self._mels, "float32", defines_size=before[self._stream].defines_size)
        return Schema({**before, self._stream: frames})

    def run_all(self, before: Schema, values: dict[str, Value], keys: DrawKeys) -> Transformed:
        """See `Transform.run_all`."""
        began = time.perf_counter()
        after = self.schema(before)
        if self._spectra is None:
            self._spectra = self._make()
        changed = {**values, self._stream: self._spectra.value(values[self._stream])}
        return Transformed({name: changed[name] for name in after}, seconds=time.perf_counter() - began)

    def _make(self) -> Any:
        try:
            return importlib.import_module("feedline.interop.torch_mel").MelSpectra(**self._settings)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ModuleNotFoundError(f"torch is not installed; run: {install_line('torch')}") from error

    def __getstate__(self) -> dict[str, Any]:
        """Return what can be pickled: all but tensors."""
        return {**vars(self), "_spectra": None}

    def __repr__(self) -> str:
        return f"LogMel({self._stream!r}, {', '.join(f'{name}={value!r}' for name, value in self._settings.items())})"
