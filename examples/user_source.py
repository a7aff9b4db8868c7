"""Your own source, correct on several ranks: generated sequences, each learned once.

    python examples/user_source.py

`Echo` generates bits, and asks for the previous bit. All ranks walk through the same sequences, so that they agree
where a minibatch ends; each delivers its own. Nothing is stored: sequence i is a function of the seed and i, so a state
is one number, valid for any number of ranks.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import feedline as fl
from feedline.testing import assert_resumes
from feedline.train import Adam, Console, Trainer, TrainingSession


class Echo(fl.UserMinibatchSource):
    """Bits (length, 1), and for each the previous one; lengths 3 to 12."""

    schema = fl.Schema({"bit": fl.Stream(1), "before": fl.Stream(1)})

    def __init__(self, count: int, seed: int = 0) -> None:
        self.next, self.count, self.seed = 0, count, seed

    def sequence(self, i: int) -> np.ndarray[Any, Any]:
        """The bits of sequence ``i``: a function of (seed, i)."""
        rng = np.random.default_rng([self.seed, i])
        return rng.integers(0, 2, size=(rng.integers(3, 13), 1)).astype("float32")

    def make_minibatch(
        self, num_samples: int, number_of_workers: int, worker_rank: int, device: Any
    ) -> fl.UserMinibatch | None:
        first, samples, bits = self.next, 0, []
        while self.next < self.count:
            sequence = self.sequence(self.next)
            if bits and samples + len(sequence) > num_samples:
                break
            bits.append(sequence)
            samples, self.next = samples + len(sequence), self.next + 1
        if not bits:
            return None
        mine = [i for i in range(first, self.next) if i % number_of_workers == worker_rank]
        given = [bits[i - first] for i in mine]
        before = [np.concatenate([np.zeros((1, 1), "float32"), sequence[:-1]]) for sequence in given]
        streams = {"bit": given, "before": before}
        # Counts are those of all ranks; a rank with an empty share still takes the step.
        return fl.UserMinibatch(streams, self.next == self.count, samples, self.next - first, ids=mine)

    def get_checkpoint_state(self) -> dict[str, Any]:
        return {"next": self.next}

    def restore_from_checkpoint(self, state: Mapping[str, Any]) -> None:
        self.next = int(state["next"])


class Memory(torch.nn.Module):
    """A score (samples, 1) for each bit of each sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = torch.nn.GRU(1, 8, batch_first=True)
        self.dense = torch.nn.Linear(8, 1)

    def forward(self, minibatch: fl.Minibatch) -> torch.Tensor:
        bits = minibatch["bit"]
        states, _ = self.gru(bits.torch(layout="padded"))
        return self.dense(states)[torch.from_numpy(bits.mask)]


def targets(minibatch: fl.Minibatch) -> torch.Tensor:
    """The previous bit, in the order of the scores."""
    return minibatch["before"].torch(layout="packed")


def loss(scores: torch.Tensor, minibatch: fl.Minibatch) -> torch.Tensor:
    """One number for each bit."""
    return binary_cross_entropy_with_logits(scores, targets(minibatch), reduction="none")


def error(scores: torch.Tensor, minibatch: fl.Minibatch) -> torch.Tensor:
    """1 for each bit remembered wrongly."""
    return (scores > 0) != (targets(minibatch) > 0.5)


def main(arguments: Sequence[str] | None = None) -> float:
    """Check the source, train from it, and return the share of bits remembered wrongly at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=6000, help="sequences")
    options = parser.parse_args(arguments)

    # Three ranks get what a single one gets, each sequence once, in the same number of steps.
    alone = list(Echo(100).minibatches(50))
    shares = [list(Echo(100).minibatches(50, partition=(rank, 3))) for rank in range(3)]
    assert all(len(share) == len(alone) for share in shares)
    assert sorted(i for share in shares for minibatch in share for i in minibatch.ids) == list(range(100))
    assert_resumes(lambda: Echo(100))
    print(f"{len(alone)} steps on each of 3 ranks, 100 sequences, each once; resumes exactly")

    torch.manual_seed(0)
    model = Memory()
    trainer = Trainer(model, loss, error, Adam(model.named_parameters(), 0.01))
    TrainingSession(trainer, Echo(options.count), size=128, progress=fl.samples(10_000), reporters=[Console()]).run()
    result = trainer.test(Echo(200, seed=1).minibatches(500))
    print(f"{result.metric:.2%} of {result.samples:,} new bits wrong")
    assert result.metric is not None
    return result.metric


if __name__ == "__main__":
    main()
