"""A class for each sentence, learned by several ranks together, each from its share of every minibatch.

    python -m torch.distributed.run --standalone --nproc-per-node 2 examples/data_parallel_lstm.py

The class is the kind of word that comes first, as in sequence_classifier.py. Gradients are summed in a key-value
store that the learner uses; all ranks end with the same parameters, bit for bit. With ``--folder`` it can be
killed at any time; restarted, with any number of ranks, it resumes.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_sequence

import feedline as fl
from feedline.train import Adam, Console, Saving, Trainer, TrainingSession, through_store

WORDS, CLASSES = 200, 5


class Classifier(torch.nn.Module):
    """Scores (sentences, classes)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, width)
        self.lstm = torch.nn.LSTM(width, width)
        self.dense = torch.nn.Linear(width, CLASSES)

    def forward(self, minibatch: fl.Minibatch) -> torch.Tensor:
        words = minibatch["words"]
        embedded = self.embedding(words.torch(layout="packed"))
        _, (last, _) = self.lstm(pack_sequence(embedded.split(words.lengths.tolist()), enforce_sorted=False))
        return self.dense(last[0])


def loss(scores: torch.Tensor, minibatch: fl.Minibatch) -> torch.Tensor:
    """One number for each sentence."""
    return cross_entropy(scores, minibatch["kind"].torch(layout="packed"), reduction="none")


def error(scores: torch.Tensor, minibatch: fl.Minibatch) -> torch.Tensor:
    """1 for each sentence classified wrongly."""
    return scores.argmax(1) != minibatch["kind"].torch(layout="packed")


def sentences(count: int = 600) -> fl.ArrayDeserializer:
    """Sentences of 2 to 12 words, of which the first decides."""
    rng = np.random.default_rng(0)
    words = [rng.integers(0, WORDS, size=rng.integers(2, 13)) for _ in range(count)]
    return fl.ArrayDeserializer(words=words, kind=np.array([sentence[0] * CLASSES // WORDS for sentence in words]))


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, and return the share of sentences classified wrongly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=8, help="passes over the data")
    parser.add_argument("--folder", help="for checkpoints; shared by all machines")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds that a rank waits for others")
    parser.add_argument("--compress", choices=["2bit", "1bit", "fp16", "bf16"], help="send gradients in fewer bits")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()

    model = Classifier()
    with fl.kvstore.create("dist_sync", timeout=options.timeout) as store:
        if options.compress is not None:
            store.set_gradient_compression({"type": options.compress})
        run = TrainingSession(
            Trainer(model, loss, error, through_store(Adam(model.named_parameters(), 0.01), store)),
            fl.MinibatchSource(sentences(), seed=1, max_sweeps=options.sweeps),  # finds this rank's share
            size=200,  # words, over all ranks
            progress=fl.sweeps(2),
            reporters=[Console()] if rank == 0 else [],
            saving=None if options.folder is None else Saving(options.folder, every="1min"),
        ).run()

    with torch.no_grad():
        wrong = run.trainer.test(fl.MinibatchSource(sentences(), max_sweeps=1, partition=(0, 1)).minibatches(500))
    bits = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    print(
        f"rank {rank} of {world}: {wrong.metric:.1%} wrong, parameters {hashlib.sha256(bits).hexdigest()[:12]}\n",
        end="",
    )
    torch.distributed.destroy_process_group()
    return float(wrong.metric or 0.0)


if __name__ == "__main__":
    main()
