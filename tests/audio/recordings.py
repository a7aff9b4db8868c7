"""Recordings made for tests, and corpora of them."""

import io

import numpy as np

import feedline as fl
from feedline.feed.transforms import DrawKeys

RATE = 16000


def noise(samples, channels=None, seed=0):
    """Return white noise, float32 (samples,) or (samples, channels)."""
    shape = samples if channels is None else (samples, channels)
    return (np.random.default_rng([seed, samples]).standard_normal(shape) * 0.1).astype(np.float32)


def encoded(sound, rate=RATE, form="FLAC", **options):
    """Return sound as the bytes of a file."""
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, sound, rate, format=form, **options)
    return file.getvalue()


def expected(data, **options):
    """Return what soundfile reads."""
    import soundfile

    return soundfile.read(io.BytesIO(data), dtype="float32", **options)[0]


def keys(count, seed=1, sweep=0, first=0):
    """Return the keys of the draws of some sequences."""
    return DrawKeys(seed, np.full(count, sweep), np.arange(first, first + count), stage=0)


def run(transform, stream, samples, **options):
    """Return what a transform makes of a stream ``x`` of sequences."""
    if stream.is_bytes:
        value = fl.Value.from_bytes(samples, "str" if stream.is_text else "bytes")
    else:
        value = fl.Value.from_sequences(samples)
    return transform.run_all(fl.data.Schema({"x": stream}), {"x": value}, keys(len(samples), **options))
