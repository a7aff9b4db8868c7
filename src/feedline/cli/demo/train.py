"""Count syllables: a small LSTM reads the letters of a word. The training program of ``feedline demo``.

A plain PyTorch loop that may be killed at any time and started again, with another minibatch size and another number of
processes; it goes on with exactly the sequences that were still to come. All it takes is marked (1) to (3).

    python -m feedline.cli.demo.train '{"train": "train.ctf", ...}'        # see Job

With ``rank`` and ``world`` set, it is one of several workers that average their gradients through torch.distributed.
Prints a JSON object a line: progress, and at last the result.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import feedline as fl
from feedline.cli.demo.ledger import LedgerWriter
from feedline.cli.demo.processes import end_with_parent
from feedline.cli.demo.words import ALPHABET, CLASSES, STREAMS, open_source


@dataclass(frozen=True)
class Job:
    """What to train on and how.

    Attributes:
        train, held_out: CTF files; see `words`.
        checkpoint: where to save, and to go on from if it is there.
        ledger: where to write down what was delivered.
        size: minibatch size in letters, over all workers.
        sweeps: passes over the data.
        every: minibatches from one checkpoint to the next.
        seed: of the order and of the first weights.
        hidden: units of the LSTM.
        rank, world: which worker of how many.
        rendezvous: a file by which workers find each other.
    """

    train: str
    held_out: str
    checkpoint: str
    ledger: str
    size: int
    sweeps: int
    every: int
    seed: int
    hidden: int
    rank: int = 0
    world: int = 1
    rendezvous: str = ""

    def to_json(self) -> str:
        """What the program takes as its argument."""
        return json.dumps(asdict(self))


class SyllableCounter(nn.Module):
    """Letters to the logits of the number of syllables."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(ALPHABET), 16)
        self.lstm = nn.LSTM(16, hidden, batch_first=True)
        self.output = nn.Linear(hidden, CLASSES)

    def forward(self, letters: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """``letters`` int (words, longest), ``last`` int (words,): place of each last letter; (words, CLASSES)."""
        states, _ = self.lstm(self.embedding(letters))
        return self.output(states[torch.arange(len(last)), last])


def tensors(minibatch: fl.Minibatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Letters (words, longest), places of the last letters (words,), numbers of syllables (words,)."""
    # One-hot samples: the indices of the sparse stream are the letters themselves.
    value: Any = minibatch["letters"]
    letters = fl.Value.from_dense(value.indices, value.offsets).torch(layout="padded")
    last = torch.from_numpy(value.lengths - 1)
    return letters, last, torch.from_numpy(minibatch["syllables"].indices).long()


def train(job: Job) -> dict[str, Any]:
    """Train to the end of the data; returns figures."""
    torch.manual_seed(job.seed)
    model = SyllableCounter(job.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    source = open_source(job.train, job.seed, job.sweeps)  # (1) takes its part: asks torch.distributed who it is
    ledger = LedgerWriter(Path(job.ledger))

    if os.path.exists(job.checkpoint):
        saved = torch.load(job.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        source.load_state_dict(json.loads(saved["feed"]))  # (2) a few numbers; nothing is read to get there
        if job.rank == 0:
            tell(resumed=source.position.samples)

    steps = words = 0
    data_seconds, began = 0.0, time.perf_counter()
    while True:
        asked = time.perf_counter()
        minibatch = source.next_minibatch(job.size)
        data_seconds += time.perf_counter() - asked
        if not minibatch:
            break
        loss, count = step(model, optimizer, minibatch)
        ledger.write(minibatch)
        steps, words = steps + 1, words + count
        if job.rank == 0:
            if steps % job.every == 0:
                save(job.checkpoint, model, optimizer, source)
            tell(
                step=steps,
                samples=source.position.samples,
                loss=loss,
                words=words,
                seconds=time.perf_counter() - began,
                data_seconds=data_seconds,
                stats=source.stats().to_json(),
            )
    return {
        "stats": source.stats().to_json(),
        "state": source.state_dict(),
        "accuracy": accuracy(model, job.held_out) if job.rank == 0 else None,
    }


def step(model: nn.Module, optimizer: torch.optim.Optimizer, minibatch: fl.Minibatch) -> tuple[float, int]:
    """One update by the mean loss over the words of all workers; returns that loss and the number of words."""
    optimizer.zero_grad()
    total = torch.zeros(())
    if minibatch.num_sequences:  # a worker's part may be empty, and yet it takes part in the step
        letters, last, syllables = tensors(minibatch)
        total = nn.functional.cross_entropy(model(letters, last), syllables, reduction="sum")
        total.backward()
    parameters = list(model.parameters())
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    everything = torch.cat([*(g.ravel() for g in gradients), torch.stack([total.detach()]), count_of(minibatch)])
    if dist.is_initialized():
        dist.all_reduce(everything)
    *sums, loss, count = everything.split([*(p.numel() for p in parameters), 1, 1])
    for parameter, gradient in zip(parameters, sums, strict=True):
        parameter.grad = (gradient / count).view_as(parameter)
    optimizer.step()
    return float(loss / count), int(count)


def count_of(minibatch: fl.Minibatch) -> torch.Tensor:
    """Number of words as a tensor (1,)."""
    return torch.tensor([float(minibatch.num_sequences)])


def save(path: str, model: nn.Module, optimizer: torch.optim.Optimizer, source: fl.MinibatchSource) -> None:
    """(3) Model, optimizer and feed in one file, which is there whole or not at all."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "feed": json.dumps(source.state_dict()),
    }
    torch.save(state, path + ".new")
    os.replace(path + ".new", path)


def accuracy(model: nn.Module, path: str) -> float:
    """Share of held-out words whose syllables are counted right."""
    held_out = fl.MinibatchSource(fl.CTFDeserializer(path, STREAMS), shuffle=False, max_sweeps=1, partition=(0, 1))
    right = total = 0
    with torch.no_grad():
        for minibatch in held_out.minibatches(8192):
            letters, last, syllables = tensors(minibatch)
            right += int((model(letters, last).argmax(dim=1) == syllables).sum())
            total += len(syllables)
    return right / total


def tell(**what: Any) -> None:
    """A line for the parent."""
    print(json.dumps(what), flush=True)


def main() -> None:
    """The program."""
    end_with_parent()
    job = Job(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    if job.world > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{job.rendezvous}",
            rank=job.rank,
            world_size=job.world,
            timeout=datetime.timedelta(seconds=60),
        )
    result = train(job)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    tell(result=result)


if __name__ == "__main__":
    main()
