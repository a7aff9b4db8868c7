"""Count syllables: a small LSTM reads the letters of a word. The training program of ``feedline demo``.

A training session that may be killed at any time and started again, with another minibatch size and another number of
processes; it resumes with exactly the sequences that were still to come. What that takes is marked (1) to (3).

    python -m feedline_demo.train '{"train": "train.ctf", ...}'        # see Job

With ``rank`` and ``world`` set, it is one of several ranks that sum their gradients in a key-value store.
Prints one JSON object per line: progress, and finally the result.
"""

from __future__ import annotations

import datetime
import json
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import feedline as fl
from feedline.kvstore import KVStore
from feedline.train import Adam, Evaluation, Learner, Saving, Schedule, Trainer, TrainingSession, through_store
from feedline.train.evaluation import Evaluated
from feedline.train.progress import Progress
from feedline.train.report import JsonLines, Silent

from .ledger import LedgerWriter
from .processes import end_with_parent
from .words import ALPHABET, CLASSES, STREAMS, open_source


@dataclass(frozen=True)
class Job:
    """The data and settings of a training.

    Attributes:
        train, held_out: CTF files; see `words`.
        checkpoints: folder to save in, and to resume from if it holds a checkpoint.
        ledger: file that records what was delivered.
        size: minibatch size in letters, over all ranks.
        other_size, other_size_from: another size, and the number of words from which on it holds; 0: never.
        sweeps: passes over the data.
        every: minibatches from one checkpoint to the next.
        seed: of the order and of the initial weights.
        hidden: units of the LSTM.
        rank, world: which rank of how many.
        rendezvous: file through which ranks find each other.
        parameters: file (``.npz``) for the parameters at the end; empty: none.
    """

    train: str
    held_out: str
    checkpoints: str
    ledger: str
    size: int
    sweeps: int
    every: int
    seed: int
    hidden: int
    rank: int = 0
    world: int = 1
    rendezvous: str = ""
    parameters: str = ""
    other_size: int = 0
    other_size_from: int = 0

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

    def forward(self, letters: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Logits (words, CLASSES) of letters (words, longest) and the lengths of the words (words,)."""
        states, _ = self.lstm(self.embedding(letters))
        return self.output(states[torch.arange(len(lengths)), lengths - 1])


def read(model: nn.Module, minibatch: fl.Minibatch) -> torch.Tensor:
    """The model's logits for a minibatch."""
    # One-hot samples: the indices of the sparse stream are the letters themselves.
    value: Any = minibatch["letters"]
    letters = fl.Value.from_dense(value.indices, value.offsets).torch(layout="padded")
    return model(letters, torch.from_numpy(value.lengths))


def draw(model: nn.Module, path: Path) -> None:
    """Return the model's picture for the report, if Graphviz' dot is installed."""
    if shutil.which("dot") is not None:
        words = (torch.zeros(2, 9, dtype=torch.int32), torch.tensor([9, 5]))
        fl.plot_network(model, words, title="syllables of words").render(outfile=path, cleanup=True)


def losses(logits: torch.Tensor, minibatch: fl.Minibatch) -> torch.Tensor:
    """One number for each word."""
    return nn.functional.cross_entropy(logits, syllables(minibatch), reduction="none")


def wrong(logits: torch.Tensor, minibatch: fl.Minibatch) -> torch.Tensor:
    """1 for each word whose syllables are counted wrong."""
    return logits.argmax(dim=1) != syllables(minibatch)


def syllables(minibatch: fl.Minibatch) -> torch.Tensor:
    """Numbers of syllables (words,)."""
    value: Any = minibatch["syllables"]
    return torch.from_numpy(value.indices).long()


class Recorded:
    """A source that records what it delivers."""

    def __init__(self, source: fl.MinibatchSource, ledger: LedgerWriter) -> None:
        self._source, self._ledger = source, ledger

    def next_minibatch(self, size: int, partition: tuple[int, int] | None = None) -> fl.Minibatch:
        """The next minibatch, false at the end."""
        minibatch = self._source.next_minibatch(size, partition)
        if minibatch:
            self._ledger.write(minibatch)
        return minibatch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


class Teller(Silent):
    """Reports events to the parent."""

    def __init__(self, source: fl.MinibatchSource) -> None:
        self._source = source
        self._steps = self._words = 0
        self._seconds = self._waited = 0.0

    def on_start(self, run: TrainingSession) -> None:
        """Report where training starts."""
        if run.samples:
            tell(resumed=self._source.position.samples, words=run.samples)

    def on_progress(self, run: TrainingSession, progress: Progress) -> None:
        """One minibatch."""
        self._steps += 1
        self._words += progress.summary.samples
        self._seconds += progress.seconds
        self._waited += progress.seconds * progress.waiting
        tell(
            step=self._steps,
            samples=self._source.position.samples,
            loss=progress.summary.loss,
            words=self._words,
            seconds=self._seconds,
            data_seconds=self._waited,
            stats=self._source.stats().to_json(),
        )

    def on_test(self, run: TrainingSession, what: str, result: Evaluated) -> None:
        """Report the result on the held-out words."""
        tell(accuracy=1.0 - (result.summary.metric or 0.0))


def train(job: Job, store: KVStore | None) -> dict[str, Any]:
    """Train to the end of the data, with the other ranks of the store; returns figures."""
    torch.manual_seed(job.seed)
    model = SyllableCounter(job.hidden)
    learner: Learner = Adam(model.named_parameters(), 3e-3, variance_momentum=0.999)
    if store is not None:
        learner = through_store(learner, store)  # (1) all learn from one global minibatch, whatever their share
    source = open_source(job.train, job.seed, job.sweeps)  # (2) takes its part: asks torch.distributed who it is
    held_out = fl.MinibatchSource(fl.CTFDeserializer(job.held_out, STREAMS), shuffle=False, max_sweeps=1)
    picture = Path(job.checkpoints) / "network.svg"
    if job.rank == 0 and not picture.exists():
        picture.parent.mkdir(exist_ok=True)
        draw(model, picture)
    TrainingSession(
        Trainer(model, losses, wrong, learner, forward=read),
        Recorded(source, LedgerWriter(Path(job.ledger))),
        sizes(job),
        progress=fl.minibatches(1),
        reporters=[Teller(source), JsonLines(Path(job.checkpoints) / "run.jsonl")] if job.rank == 0 else [],
        # (3) resumes from the newest checkpoint, if there is one; nothing is read to get to its place
        saving=Saving(job.checkpoints, every=fl.minibatches(job.every)),
        test=Evaluation(held_out, size=8192),
    ).run()
    if job.parameters:
        np.savez(job.parameters, **{name: tensor.detach().numpy() for name, tensor in model.named_parameters()})
    return {"stats": source.stats().to_json(), "state": source.state_dict()}


def sizes(job: Job) -> int | Schedule:
    """The size of minibatches, or the two that follow each other."""
    if not job.other_size_from:
        return job.size
    return Schedule.sizes([(job.other_size_from, job.size), job.other_size], epoch_size=1)


def tell(**what: Any) -> None:
    """Print a line for the parent."""
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
        with fl.kvstore.create("dist_sync") as store:
            result = train(job, store)
            store.barrier()
        dist.destroy_process_group()
    else:
        result = train(job, None)
    tell(result=result)


if __name__ == "__main__":
    main()
