"""Two workers train one LSTM without waiting for each other: `dist_async` on Ray, two servers, Adam in the servers.

    pip install '.[async]'    (in a clone)
    python examples/async_lstm.py

This process starts a private Ray on loopback, and two workers: the same file again with `--worker`. Each computes
gradients on its share of the minibatches, pushes them, and pulls the current weights. A worker may be killed, or run
slower than the other; they wait for each other only at the barrier at the end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_sequence

import feedline as fl

WORDS, CLASSES, WORKERS, SERVERS = 200, 5, 2, 2


class Classifier(torch.nn.Module):
    """Scores (sentences, classes), from the last state of an LSTM."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, width)
        self.lstm = torch.nn.LSTM(width, width)
        self.dense = torch.nn.Linear(width, CLASSES)

    def forward(self, minibatch: fl.Minibatch) -> torch.Tensor:
        words = minibatch["x"]
        embedded = self.embedding(words.torch(layout="packed").long())
        _, (last, _) = self.lstm(pack_sequence(embedded.split(words.lengths.tolist()), enforce_sorted=False))
        return self.dense(last[0])


def open_source(**options: object) -> fl.MinibatchSource:
    """Sentences of 2 to 12 words, of which the first decides the class."""
    rng = np.random.default_rng(0)
    sentences = [rng.integers(0, WORDS, size=rng.integers(2, 13)) for _ in range(1000)]
    classes = np.array([sentence[0] * CLASSES // WORDS for sentence in sentences])
    # Minibatches are cut by words; labels come one a sentence.
    return fl.MinibatchSource(fl.ArrayDeserializer(x=sentences, y=classes), **options)


def labels_of(minibatch: fl.Minibatch) -> torch.Tensor:
    """One label for each sentence."""
    return minibatch["y"].torch(layout="packed").reshape(-1).long()


def train(sweeps: int) -> float:
    """Run one worker; return the share of sentences that the final weights in the store get wrong."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Classifier()
    names, weights = zip(*model.named_parameters(), strict=True)
    with fl.kvstore.create("dist_async") as store:
        store.broadcast(list(names), list(weights), out=list(weights))
        store.set_optimizer("adam", learning_rate=0.005)
        share = (store.rank, store.num_workers)
        for minibatch in open_source(seed=1, max_sweeps=sweeps, partition=share).minibatches(400):
            if minibatch.num_sequences == 0:
                continue  # this worker's share of a small last minibatch
            model.zero_grad()
            cross_entropy(model(minibatch), labels_of(minibatch)).backward()
            store.pushpull(list(names), [weight.grad for weight in weights], out=list(weights))
        store.barrier()
        store.pull(list(names), list(weights))
        with torch.no_grad():
            wrong = [
                model(minibatch).argmax(1) != labels_of(minibatch)
                for minibatch in open_source(shuffle=False, max_sweeps=1).minibatches(2000)
            ]
        error = torch.cat(wrong).float().mean().item()
        print(f"worker {store.rank} of {store.num_workers}: {error:.1%} of the sentences wrong", flush=True)
        return error


def main(arguments: Sequence[str] | None = None) -> None:
    """Start Ray and the workers, and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=10, help="passes over the data")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        train(options.sweeps)
        return

    with fl.kvstore.AsyncCluster(WORKERS, SERVERS) as cluster:
        command = [sys.executable, __file__, "--worker", "--sweeps", str(options.sweeps)]
        environment = {**os.environ, **cluster.environment()}
        workers = [subprocess.Popen(command, env=environment) for _ in range(WORKERS)]
        failed = [code for code in [worker.wait() for worker in workers] if code]
    if failed:
        sys.exit(f"{len(failed)} of {WORKERS} workers failed")


if __name__ == "__main__":
    main()
