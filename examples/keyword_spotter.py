"""Is a word said in a recording? Log-mel spectra, two convolutions, the largest score over time.

    python examples/keyword_spotter.py [train_manifest.json --keyword REPEAT]

The manifest is NeMo's or Lhotse's, such as those that NeMo makes of AN4, whose speakers spell words and give commands.
Without one, it makes recordings of three "words", gliding tones in noise, of which the rising one is the keyword. The
durations in the manifest put recordings of like length into one minibatch, before any is decoded.

It needs soundfile and soxr: pip install '.[audio]'.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import feedline as fl
from feedline import audio
from feedline.train import Adam, Console, Trainer, TrainingSession

RATE, MELS = 16000, 40


class Spotter(torch.nn.Module):
    """Scores (recordings,): above 0 where the word is said."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.first = torch.nn.Conv1d(MELS, width, 5, stride=2, padding=2)
        self.second = torch.nn.Conv1d(width, width, 9, stride=2, padding=4)
        self.score = torch.nn.Conv1d(width, 1, 9, padding=4)

    def forward(self, minibatch: fl.Minibatch) -> torch.Tensor:
        frames = minibatch["audio"].torch().transpose(1, 2)  # (recordings, MELS, longest)
        hidden = torch.relu(self.first(frames / 5 + 1))
        scores = self.score(torch.relu(self.second(hidden))).squeeze(1)
        lengths = -(-torch.from_numpy(minibatch["audio"].lengths) // 4)
        padding = torch.arange(scores.shape[1]) >= lengths[:, None]
        return scores.masked_fill(padding, -torch.inf).amax(1)


def loss(scores: torch.Tensor, minibatch: fl.Minibatch) -> torch.Tensor:
    """One number for each recording."""
    return binary_cross_entropy_with_logits(scores, minibatch["said"].torch(), reduction="none")


def error(scores: torch.Tensor, minibatch: fl.Minibatch) -> torch.Tensor:
    """1 for each recording that is classified wrongly."""
    return (scores > 0) != (minibatch["said"].torch() > 0)


def write_recordings(folder: Path, count: int = 240) -> Path:
    """Recordings of 2 to 5 gliding tones, half of which have a rising one, and their manifest."""
    import soundfile

    rng = np.random.default_rng(0)
    t = np.arange(RATE // 4) / RATE
    glides = {"up": 4000, "flat": 0, "down": -4000}
    rows = []
    for k in range(count):
        words = rng.choice(["flat", "down"], size=rng.integers(2, 6)).tolist()
        if k % 2:
            words[rng.integers(len(words))] = "up"
        tones = [np.sin(2 * np.pi * (rng.uniform(1200, 1800) + glides[word] / 2 * t) * t) for word in words]
        sound = 0.2 * np.concatenate(tones) + 0.02 * rng.standard_normal(len(t) * len(words))
        soundfile.write(folder / f"{k}.flac", sound.astype(np.float32), RATE)
        rows.append({"audio_filepath": f"{k}.flac", "duration": len(sound) / RATE, "text": " ".join(words)})
    manifest = folder / "manifest.json"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return manifest


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, and return the share of recordings that are classified wrongly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", nargs="?", type=Path, help="a manifest; without one, made up recordings")
    parser.add_argument("--keyword", default="up", help="the word, as the manifest writes it")
    parser.add_argument("--sweeps", type=int, default=8, help="passes over the data")
    options = parser.parse_args(arguments)

    def spot(sequence: dict[str, Any]) -> dict[str, Any]:
        (text,) = sequence["text"]
        return {"said": [float(options.keyword in text.split())]}

    with tempfile.TemporaryDirectory() as folder:
        manifest = options.manifest or write_recordings(Path(folder))
        transforms = [
            audio.Decode("audio", RATE),
            audio.LogMel("audio", rate=RATE, mels=MELS),
            fl.Map(spot, said=fl.Stream((), "float32")),
        ]

        def open_source(part: fl.Deserializer, **more: Any) -> fl.MinibatchSource:
            buckets = fl.Bucketed(part, 4, budget=RATE * 20)
            return fl.MinibatchSource(buckets, transforms=transforms, **more)

        corpus = fl.open_corpus(manifest)
        count = sum(info.sequences for info in corpus.chunks())
        fold = fl.folds(corpus.select(np.arange(count))["id"].tolist(), 5)
        train, held_out = fl.Filtered(corpus, fold != 0), fl.Filtered(corpus, fold == 0)
        torch.manual_seed(0)
        model = Spotter()
        trainer = Trainer(model, loss, error, Adam(model.named_parameters(), 0.003))
        TrainingSession(
            trainer,
            open_source(train, seed=1, max_sweeps=options.sweeps),
            size=RATE * 20,  # samples of sound
            progress=fl.sweeps(1),
            reporters=[Console()],
        ).run()
        result = trainer.test(open_source(held_out, shuffle=False, max_sweeps=1).minibatches(RATE * 20))
    print(f"{result.metric:.1%} of {result.samples:,} recordings wrong")
    assert result.metric is not None
    return result.metric


if __name__ == "__main__":
    main()
