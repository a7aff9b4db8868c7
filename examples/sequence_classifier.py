"""A class for each sentence: embedding, LSTM, the last state, a dense layer.

    python examples/sequence_classifier.py [seqclass.train.ctf]

The file is CTF with ``x``, words (one-hot of 2,000), and ``y``, one of five classes, dense: the data of CNTK's example
of that name. Without a file it makes one, in which the class is the kind of word that comes first. A sentence has many
words and one label: minibatches are cut by words, everything else counts labels.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_sequence

import feedline as fl
from feedline.train import Adam, Console, Trainer, TrainingSession

WORDS, CLASSES = 2000, 5


class Classifier(torch.nn.Module):
    """Scores (sentences, classes)."""

    def __init__(self, width: int = 50) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, width)
        self.lstm = torch.nn.LSTM(width, width)
        self.dense = torch.nn.Linear(width, CLASSES)

    def forward(self, minibatch: fl.Minibatch) -> torch.Tensor:
        words = minibatch["x"]
        embedded = self.embedding(words.class_indices().torch(layout="packed"))
        _, (last, _) = self.lstm(pack_sequence(embedded.split(words.lengths.tolist()), enforce_sorted=False))
        return self.dense(last[0])


def labels_of(minibatch: fl.Minibatch) -> torch.Tensor:
    """One label for each sentence."""
    return minibatch["y"].torch(layout="packed").argmax(1)


def loss(scores: torch.Tensor, minibatch: fl.Minibatch) -> torch.Tensor:
    """One number for each sentence."""
    return cross_entropy(scores, labels_of(minibatch), reduction="none")


def error(scores: torch.Tensor, minibatch: fl.Minibatch) -> torch.Tensor:
    """1 for each sentence classified wrongly."""
    return scores.argmax(1) != labels_of(minibatch)


def write_sentences(path: Path, count: int = 600) -> None:
    """Sentences of 2 to 20 words, of which the first decides."""
    rng = np.random.default_rng(0)
    sentences = [rng.integers(0, WORDS, size=rng.integers(2, 21)) for _ in range(count)]
    classes = np.eye(CLASSES, dtype="float32")[[sentence[0] * CLASSES // WORDS for sentence in sentences]]
    fl.write_ctf(path, x=fl.Value.one_hot(sentences, WORDS), y=classes)


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, and return the share of sentences classified wrongly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="?", type=Path, help="a CTF file; without one, made up sentences")
    parser.add_argument("--sweeps", type=int, default=8, help="passes over the data")
    options = parser.parse_args(arguments)

    with tempfile.TemporaryDirectory() as folder:
        path = options.path
        if path is None:
            path = Path(folder, "sentences.ctf")
            write_sentences(path)

        def open_source(**more: object) -> fl.MinibatchSource:
            corpus = fl.CTFDeserializer(path, x=fl.Stream(WORDS, sparse=True), y=fl.Stream(CLASSES))
            return fl.MinibatchSource(corpus, **more)

        torch.manual_seed(0)
        model = Classifier()
        trainer = Trainer(model, loss, error, Adam(model.named_parameters(), 0.005))
        TrainingSession(
            trainer,
            open_source(seed=1, max_sweeps=options.sweeps),
            size=400,  # words
            progress=fl.sweeps(1),
            reporters=[Console()],
        ).run()
        result = trainer.test(open_source(shuffle=False, max_sweeps=1).minibatches(2000))
    print(f"{result.metric:.1%} of {result.samples:,} sentences wrong")
    assert result.metric is not None
    return result.metric


if __name__ == "__main__":
    main()
