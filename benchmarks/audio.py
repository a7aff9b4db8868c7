"""How fast are recordings decoded and turned into log-mel spectra, compared with decoding alone and with Lhotse?

Peers: soundfile's ``read`` of each file in a loop, which makes no spectra, and Lhotse's loader, a ``CutSet`` with its
``DynamicBucketingSampler`` and ``OnTheFlyFeatures`` in torch's loader without workers. Unit: seconds of sound a second
of the clock on the wall, as decoding and spectra use both cores. Measured: 15 s of 16 kHz in FLAC, in the page cache,
minibatches of 16, torch with one thread.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from benchmarks.harness import Answer, Contender, Stage, compare, race

SECONDS, RATE, BATCH = 15, 16000, 16


def run(stage: Stage) -> list[Answer]:
    """Measure decoding, and decoding with spectra."""
    if importlib.util.find_spec("soundfile") is None or importlib.util.find_spec("soxr") is None:
        return []  # needs feedline[audio]
    import torch

    from feedline import audio

    folder = stage.data / "bench-audio"
    shutil.rmtree(folder, ignore_errors=True)
    manifest = write(folder, stage.size(200, 20))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    contenders: dict[str, Contender] = {
        "decoding alone": bare(manifest),
        "feedline, decoded": feeding(manifest, [audio.Decode("audio")]),
        "feedline": feeding(manifest, [audio.Decode("audio"), audio.LogMel("audio")]),
    }
    if importlib.util.find_spec("lhotse") is not None:
        contenders["Lhotse"] = lhotse(manifest)
    try:
        ran = race(contenders, stage.rounds(7), "wall")
    finally:
        torch.set_num_threads(threads)
        shutil.rmtree(folder)
    what, unit = f"log-mel spectra of {SECONDS} s of FLAC", "s of sound/s"
    answers = [
        compare(ran, "feedline", "decoding alone", what, unit, at_least=0.85),
        compare(ran, "feedline", "feedline, decoded", f"{what}, over decoding in two threads", unit),
    ]
    if "Lhotse" in contenders:
        answers.append(compare(ran, "feedline", "Lhotse", what, unit, at_least=2))
    return answers


def write(folder: Path, count: int) -> Path:
    """Write tones that glide, with noise, and a manifest of them."""
    import soundfile  # type: ignore[import-not-found,unused-ignore]

    folder.mkdir(parents=True)
    rng, rows = np.random.default_rng(0), []
    t = np.arange(SECONDS * RATE) / RATE
    for k in range(count):
        noise = 0.05 * rng.standard_normal(len(t)) * np.abs(np.sin(3 * t))
        sound = 0.3 * np.sin(2 * np.pi * (200 + k + 50 * np.sin(t)) * t) + noise
        soundfile.write(folder / f"{k}.flac", sound.astype(np.float32), RATE)
        rows.append({"audio_filepath": str(folder / f"{k}.flac"), "duration": float(SECONDS), "text": "a tone"})
    manifest = folder / "train.json"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return manifest


def bare(manifest: Path) -> Contender:
    """Return a contender that reads each file."""
    import soundfile

    paths = [json.loads(line)["audio_filepath"] for line in manifest.read_text().splitlines()]

    def read() -> float:
        return sum(len(soundfile.read(path, dtype="float32")[0]) for path in paths) / RATE

    return read


def feeding(manifest: Path, transforms: list[Any]) -> Contender:
    """Return a contender: a sweep from a fresh source."""

    def feed() -> float:
        seconds = 0.0
        corpus = fl.NeMoDeserializer(manifest)
        with fl.MinibatchSource(corpus, seed=1, partition=(0, 1), max_sweeps=1, transforms=transforms) as source:
            for minibatch in source.minibatches(BATCH * SECONDS * RATE):
                minibatch["audio"].torch()
                seconds += len(minibatch["audio"]) * SECONDS
        return seconds

    return feed


def lhotse(manifest: Path) -> Callable[[], float]:
    """Return a contender: a sweep of Lhotse's loader."""
    import torch
    from lhotse import CutSet, Fbank, FbankConfig, Recording  # type: ignore[import-not-found,unused-ignore]
    from lhotse.dataset import (  # type: ignore[import-not-found,unused-ignore]
        DynamicBucketingSampler,
        OnTheFlyFeatures,
    )

    paths = [json.loads(line)["audio_filepath"] for line in manifest.read_text().splitlines()]
    cuts = CutSet.from_cuts(Recording.from_file(path).to_cut() for path in paths)

    class Features(torch.utils.data.Dataset):  # type: ignore[type-arg]
        extract = OnTheFlyFeatures(Fbank(FbankConfig(num_filters=80)))

        def __getitem__(self, batch: Any) -> Any:
            return self.extract(batch)[0]

    def feed() -> float:
        sampler = DynamicBucketingSampler(
            cuts, max_duration=float(BATCH * SECONDS), num_buckets=2, shuffle=True, buffer_size=64
        )
        loader = torch.utils.data.DataLoader(Features(), sampler=sampler, batch_size=None)
        return float(sum(len(batch) * SECONDS for batch in loader))

    return feed
