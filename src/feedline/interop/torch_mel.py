"""Logarithms of mel spectra of many recordings at once, by torch.

All recordings of a minibatch are laid one after the other, each from a multiple of the hop on, with zeros around it, so
that the frames of all are rows of one array, without padding to the longest. Frames that reach from one
recording into the next are left out.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.data.value import DenseValue
from feedline.interop.device_value import DeviceValue

Tensor: TypeAlias = Any  # torch.Tensor: torch's types are not checked

# Frames whose spectra fit in a cache, so that each takes 2.1 ms of a core for 15 s of sound, and not 5.6 ms.
_BLOCK_FRAMES = 512

# Slaney's scale, of his Auditory Toolbox (1998): 200/3 Hz for each mel up to 1000 Hz, then 27 mels for a factor of 6.4.
_SLANEY_HZ, _SLANEY_BREAK_HZ, _SLANEY_STEP = 200 / 3, 1000.0, math.log(6.4) / 27


class MelSpectra:
    """Logarithms of mel spectra. See `audio.LogMel` for the settings."""

    def __init__(
        self, *, rate: int, window: int, hop: int, mels: int, scale: str, floor: float, device: str | None
    ) -> None:
        self._window_samples, self._hop, self._floor = window, hop, floor
        self._device = torch.device("cpu" if device is None else device)
        self._window = torch.hann_window(window, device=self._device)
        bands = mel_bands(rate, window, mels, scale)
        self._bands = torch.from_numpy(bands.astype(np.float32)).to(self._device)

    def value(self, sound: DenseValue) -> DenseValue:
        """Return the frames of recordings, (frames, mels) for each."""
        lengths = sound.lengths
        frames = 1 + lengths // self._hop
        offsets = np.concatenate([[0], np.cumsum(frames)]).astype(np.int64)
        if not len(lengths):
            return DenseValue(np.empty((0, self._bands.shape[1]), np.float32), offsets)
        laid, first = self._lay(sound.rows, lengths)
        which = torch.from_numpy(np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], frames)).to(self._device)
        with torch.no_grad():
            rows = self._log_mel(torch.from_numpy(laid).to(self._device), which)
        return DenseValue(rows.numpy(), offsets) if self._device.type == "cpu" else DeviceValue(rows, offsets)

    def _lay(
        self, rows: NDArray[np.float32], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return all recordings in one array with zeros around each, and the number of the first frame of each."""
        around = self._window_samples // 2
        spans = -(-(lengths + around) // self._hop)  # in hops: the zeros before a recording are those after another
        first = np.concatenate([[0], np.cumsum(spans)])
        laid = np.zeros(int(first[-1]) * self._hop + self._window_samples, np.float32)
        ends = np.cumsum(lengths)
        for begin, end, at in zip((ends - lengths).tolist(), ends.tolist(), first.tolist(), strict=False):
            at = at * self._hop + around
            laid[at : at + end - begin] = rows[begin:end]
        return laid, first[:-1]

    def _log_mel(self, laid: Tensor, which: Tensor) -> Tensor:
        """Return the frames ``which`` of laid recordings."""
        frames = laid.unfold(0, self._window_samples, self._hop)
        rows = laid.new_empty((len(frames), self._bands.shape[1]))
        step = _BLOCK_FRAMES if laid.device.type == "cpu" else len(frames)
        for first in range(0, len(frames), step):
            spectra = torch.fft.rfft(frames[first : first + step] * self._window)
            power = spectra.real.square().add_(spectra.imag.square())
            torch.mm(power, self._bands, out=rows[first : first + step])
        return rows[which].clamp_(min=self._floor).log_()


def mel_bands(rate: int, window: int, mels: int, scale: str) -> NDArray[np.float64]:
    """Return the weights of the bands, float64 (window // 2 + 1, mels).

    Band k is a triangle over the frequency, from edge k to edge k + 2, with its top at edge k + 1. The edges are at
    equal steps of the mel scale. Slaney's bands have an area of 1 / Hz each, the others a height of 1.
    """
    to_mel, to_hz = (_slaney_mel, _slaney_hz) if scale == "slaney" else (_htk_mel, _htk_hz)
    edges = to_hz(np.linspace(0.0, to_mel(np.array(rate / 2)), mels + 2))
    frequencies = np.arange(window // 2 + 1) * rate / window
    rising = (frequencies[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequencies[:, None]) / (edges[2:] - edges[1:-1])
    weights: NDArray[np.float64] = np.maximum(0.0, np.minimum(rising, falling))
    return weights * (2.0 / (edges[2:] - edges[:-2])) if scale == "slaney" else weights


def _htk_mel(hz: NDArray[np.float64]) -> NDArray[np.float64]:
    return 2595.0 * np.log10(1.0 + hz / 700.0)


def _htk_hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)


def _slaney_mel(hz: NDArray[np.float64]) -> NDArray[np.float64]:
    linear = hz / _SLANEY_HZ
    above = _SLANEY_BREAK_HZ / _SLANEY_HZ + np.log(np.maximum(hz, _SLANEY_BREAK_HZ) / _SLANEY_BREAK_HZ) / _SLANEY_STEP
    return np.where(hz < _SLANEY_BREAK_HZ, linear, above)


def _slaney_hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    first = _SLANEY_BREAK_HZ / _SLANEY_HZ
    above = _SLANEY_BREAK_HZ * np.exp(_SLANEY_STEP * (np.maximum(mel, first) - first))
    return np.where(mel < first, mel * _SLANEY_HZ, above)
