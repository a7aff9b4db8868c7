"""What the ranks of a session decide together, so that nobody waits for one that has gone another way.

Whatever is collective (an update, a checkpoint, the end, where to begin) is decided from numbers of all ranks, by the
same rule on each of them; clocks, signals, files and callbacks are each rank's own. That holds whether the learners
learn together or the model exchanges its gradients by itself, as `DistributedDataParallel` does.

Costs: alone nothing. Otherwise an exchange of a few numbers behind each update, and where a model exchanges gradients
by itself another one before it and one in it.
"""

from __future__ import annotations

import contextlib
import enum
import logging
from collections.abc import Iterator
from typing import NamedTuple

import torch

from feedline.data import Minibatch
from feedline.errors import StateError, StoreError
from feedline.train.checkpoint import Checkpoint, Checkpoints, load
from feedline.train.ranks import Ranks

_log = logging.getLogger("feedline")


class Wishes(NamedTuple):
    """What a rank would do behind an update.

    Attributes:
        stop: end the training, as its callback, controller or program said.
        interrupt: end the run, as a signal said.
        save: write a checkpoint.
        size: of its next minibatch; 0: none, -1: none, as all rates are 0.
    """

    stop: bool
    interrupt: bool
    save: bool
    size: int


def agreed(ranks: Ranks, own: Wishes) -> Wishes:
    """What all do: what any of them wishes, with minibatches of one size.

    Raises:
        StoreError: they would read minibatches of different sizes; says which.
    """
    if ranks.alone:
        return own
    rows = ranks.gather([float(wish) for wish in own])
    stop, interrupt, save, sizes = zip(*rows, strict=True)
    if any(stop):
        return Wishes(True, any(interrupt), any(save), own.size)
    if len(set(sizes)) > 1:
        found = ", ".join(f"rank {r}: {size:.0f}" for r, size in enumerate(sizes))
        raise StoreError(
            f"expected all ranks to go on with minibatches of one size, got {found} samples (0: the end, -1: a rate of "
            "0)\n  change run.scale, max_samples and learning rates on all ranks alike"
        )
    return Wishes(False, any(interrupt), any(save), own.size)


class Turn(enum.Enum):
    """What becomes of the minibatches that the ranks have read, one each."""

    LEARN = enum.auto()
    PASS = enum.auto()
    END = enum.auto()


def turn(ranks: Ranks, minibatch: Minibatch, joins: bool) -> Turn:
    """What all ranks do next; those of a model that exchanges gradients by itself have to learn equally often.

    Args:
        ranks: all of them.
        minibatch: what this rank has read.
        joins: whether a rank with nothing to learn from can take part all the same. Otherwise the run ends with the
            data of the first that has none, and where a rank's part is empty nobody learns.
    """
    if ranks.alone:
        return Turn.LEARN if minibatch else Turn.END
    rows = ranks.gather([float(not minibatch), float(minibatch.num_sequences), float(minibatch.num_samples)])
    ended = [r for r, row in enumerate(rows) if row[0]]
    empty = [r for r, row in enumerate(rows) if not row[1]]
    if len(ended) == len(rows):
        return Turn.END
    if len(empty) == len(rows):
        return Turn.PASS
    if joins or not empty:
        return Turn.LEARN
    if ranks.rank == 0:
        _log.warning(
            "nobody learns from %d samples: ranks %s have %s at %s, and what exchanges gradients is not known; wrap "
            "the model in DistributedDataParallel, or let learners learn together: data_parallel(learner)",
            sum(row[2] for row in rows),
            ended or empty,
            "no more data" if ended else "no part in the minibatch",
            minibatch.position,
        )
    return Turn.END if ended else Turn.PASS


@contextlib.contextmanager
def by_itself(model: torch.nn.Module, ranks: Ranks) -> Iterator[None]:
    """Within the block a `DistributedDataParallel` model runs without the other ranks, from rank 0's buffers.

    Ranks may then evaluate different numbers of minibatches.
    """
    if not ranks.beside:
        yield
        return
    wrapped = [m for m in model.modules() if isinstance(m, torch.nn.parallel.DistributedDataParallel)]
    shared = [module for module in wrapped if module.broadcast_buffers]
    ranks.equalise([buffer for module in shared for buffer in module.buffers() if buffer.numel()])
    before = [module.require_forward_param_sync for module in wrapped]
    try:
        for module in wrapped:
            module.require_forward_param_sync = False
        yield
    finally:
        for module, synced in zip(wrapped, before, strict=True):
            module.require_forward_param_sync = synced


def latest(checkpoints: Checkpoints, ranks: Ranks) -> Checkpoint | None:
    """The newest checkpoint that every rank can read, or None where there are none; rank 0 says which are tried.

    Raises:
        StateError: there are some, and none that every rank can read.
    """
    if ranks.alone:
        return checkpoints.latest()
    paths = checkpoints.paths()
    seen = ranks.tell(len(paths))
    if not seen[0] and any(seen):
        raise StateError(
            f"expected all ranks to find the checkpoints in {checkpoints.folder}, rank 0 finds none where others do: "
            "the folder has to be one that all machines share"
        )
    candidates = checkpoints.newest_first() if ranks.rank == 0 else iter(())
    refused = 0
    while True:
        found = ranks.first(lambda: next(candidates, None))
        name, seal = ranks.tell(None if found is None else [found.path.name, found.seal])[0] or (None, None)
        if name is None:
            if refused:
                raise StateError(
                    f"expected a checkpoint in {checkpoints.folder} that every rank can read, got {refused} that some "
                    "cannot: the folder has to be one that all machines share"
                )
            return None
        path, why = checkpoints.folder / name, None
        if found is None:
            try:
                found = load(path)
                why = None if found.seal == seal else f"it is another one than rank 0's {name}"
            except StateError as error:
                why = str(error)
        trouble = [f"rank {r}: {told}" for r, told in enumerate(ranks.tell(why)) if told is not None]
        if not trouble:
            return found
        refused += 1
        checkpoints.pass_over(path, "; ".join(trouble))
