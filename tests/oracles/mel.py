"""Logarithms of mel spectra by definition: one frame, one frequency and one band at a time, in double precision."""

import cmath
import math


def slaney(hz):
    """Return the mel of a frequency on Slaney's scale."""
    return hz * 3 / 200 if hz < 1000 else 15 + 27 * math.log(hz / 1000, 6.4)


def htk(hz):
    """Return the mel of a frequency by the HTK book."""
    return 2595 * math.log10(1 + hz / 700)


def frequency(mel, to_mel, top):
    """Return the frequency of a mel, found by halving."""
    low, high = 0.0, top
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if to_mel(middle) < mel else (low, middle)
    return low


def weights(rate, window, mels, scale):
    """Return the weight of each frequency in each band, a list for each band."""
    to_mel = slaney if scale == "slaney" else htk
    top = to_mel(rate / 2)
    edges = [frequency(top * k / (mels + 1), to_mel, rate) for k in range(mels + 2)]
    bands = []
    for left, middle, right in zip(edges, edges[1:], edges[2:], strict=False):
        height = 2 / (right - left) if scale == "slaney" else 1
        band = []
        for hz in (k * rate / window for k in range(window // 2 + 1)):
            share = (hz - left) / (middle - left) if hz <= middle else (right - hz) / (right - middle)
            band.append(height * max(0.0, share))
        bands.append(band)
    return bands


def log_mel(sound, rate, window, hop, mels, scale, floor):
    """Return the frames of one recording, each a list of logarithms."""
    hann = [0.5 - 0.5 * math.cos(2 * math.pi * k / window) for k in range(window)]
    bands, frames = weights(rate, window, mels, scale), []
    for centre in range(0, len(sound) + 1, hop):
        places = range(centre - window // 2, centre + window // 2)
        part = [w * (sound[i] if 0 <= i < len(sound) else 0.0) for w, i in zip(hann, places, strict=True)]
        power = []
        for k in range(window // 2 + 1):
            turn = [cmath.exp(-2j * math.pi * (k * n % window) / window) for n in range(window)]
            power.append(abs(sum(x * t for x, t in zip(part, turn, strict=True))) ** 2)
        frames.append([math.log(max(floor, sum(w * p for w, p in zip(b, power, strict=True)))) for b in bands])
    return frames
