"""Slot tagging: one label for each word of a sentence, learned with rates per sample.

    python examples/tagging.py atis.train.ctf

The file is CTF: a line is a word, ``S0`` the word and ``S2`` its label, both one-hot. A minibatch takes as many whole
sentences as fit into 1,000 words; sentences are packed, so there is no padding and every word has the same weight.
Three sweeps over the 66,000 words of the ATIS corpus end with less than 3 % of the words labelled wrongly.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

import feedline as fl
from feedline.train import Adam, Console, Schedule, Trainer, TrainingSession

WORDS, LABELS = 943, 129


class Tagger(torch.nn.Module):
    """Embedding, LSTM over both directions, a dense layer: a score for each label, for each word."""

    def __init__(self, words: int = WORDS, labels: int = LABELS, width: int = 80) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(words, width)
        self.lstm = torch.nn.LSTM(width, width, bidirectional=True)
        self.dense = torch.nn.Linear(2 * width, labels)

    def forward(self, minibatch: fl.Minibatch) -> torch.Tensor:
        """Scores (words of the minibatch, labels), sentence after sentence."""
        words = minibatch["words"]
        indices = words.class_indices().torch(layout="packed")
        embedded = self.embedding(indices)
        packed: PackedSequence = pack_sequence(embedded.split(words.lengths.tolist()), enforce_sorted=False)
        states, _ = self.lstm(packed)
        return self.dense(torch.cat(unpack_sequence(states)))


def labels_of(minibatch: fl.Minibatch) -> torch.Tensor:
    """The label of each word, in the order of the scores."""
    return minibatch["labels"].class_indices().torch(layout="packed")


def loss(scores: torch.Tensor, minibatch: fl.Minibatch) -> torch.Tensor:
    """One number for each word."""
    return cross_entropy(scores, labels_of(minibatch), reduction="none")


def error(scores: torch.Tensor, minibatch: fl.Minibatch) -> torch.Tensor:
    """1 for each word labelled wrongly."""
    return scores.argmax(1) != labels_of(minibatch)


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, and return the share of words labelled wrongly over the training data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", help="a CTF file with S0, words, and S2, labels")
    parser.add_argument("--words", type=int, default=WORDS, help="size of the vocabulary")
    parser.add_argument("--labels", type=int, default=LABELS, help="number of labels")
    parser.add_argument("--sweeps", type=int, default=3, help="passes over the data")
    options = parser.parse_args(arguments)

    def open_corpus(**more: object) -> fl.MinibatchSource:
        corpus = fl.CTFDeserializer(
            options.path,
            words=fl.Stream(options.words, sparse=True, field="S0"),
            labels=fl.Stream(options.labels, sparse=True, field="S2"),
        )
        return fl.MinibatchSource(corpus, **more)

    torch.manual_seed(0)
    model = Tagger(options.words, options.labels)
    # A rate per sample: the step that one word causes, whatever the size of the minibatch. 66,000 words are a sweep.
    rate = Schedule.per_sample([3e-5, 1e-5], epoch_size=66_000)
    momentum = Schedule.time_constant(700)
    learner = Adam(model.named_parameters(), rate, momentum=momentum)
    trainer = Trainer(model, loss, error, learner)
    session = TrainingSession(
        trainer,
        open_corpus(seed=1, max_sweeps=options.sweeps),
        size=500,
        progress=fl.sweeps(1),
        reporters=[Console()],
    )
    session.run()

    result = trainer.test(open_corpus(shuffle=False, max_sweeps=1).minibatches(1000))
    print(f"{result.metric:.2%} of {result.samples:,} words wrong after {session.sweeps} sweeps")
    assert result.metric is not None
    return result.metric


if __name__ == "__main__":
    main()
