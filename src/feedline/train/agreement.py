"""Collective decisions of a session's ranks, so that no rank waits for one that has decided differently.

Clocks, signals, files and callbacks differ between ranks. So every collective decision (an update, a checkpoint, the
end, where to begin) follows from numbers of all ranks, by the same rule on each rank. This holds whether the learners
are distributed or the model exchanges gradients itself, as `DistributedDataParallel` does.

Costs: nothing with one rank. Otherwise an exchange of a few numbers after each update. If the model exchanges gradients
itself, another one before it and one in it.
"""

from __future__ import annotations

from typing import NamedTuple

from feedline.collective.ranks import Ranks
from feedline.errors import StateError, StoreError
from feedline.train.checkpoint import Checkpoint, Checkpoints, load


class RankRequests(NamedTuple):
    """Requests of a rank after an update.

    Attributes:
        stop: end the training, at the request of a callback, a controller or the program.
        interrupt: end the run, because of a signal.
        save: write a checkpoint.
        size: size of its next minibatch. 0 means that the training ends, -1 that it ends because all rates are 0.
    """

    stop: bool
    interrupt: bool
    save: bool
    size: int


def combine_requests(ranks: Ranks, requests: RankRequests) -> RankRequests:
    """Combine the requests of all ranks: do what any rank asks for, with minibatches of one size.

    Raises:
        StoreError: the sizes of the next minibatches differ. The message lists them.
    """
    if ranks.alone:
        return requests
    rows = ranks.gather([float(request) for request in requests])
    stop, interrupt, save, sizes = zip(*rows, strict=True)
    if any(stop):
        return RankRequests(True, any(interrupt), any(save), requests.size)
    if len(set(sizes)) > 1:
        got = ", ".join(f"rank {r}: {size:.0f}" for r, size in enumerate(sizes))
        raise StoreError(
            f"expected all ranks to continue with minibatches of one size, got {got} samples (0: the end, -1: a rate "
            "of 0)\n  change run.scale, max_samples and learning rates equally on all ranks"
        )
    return RankRequests(False, any(interrupt), any(save), requests.size)


def latest_checkpoint(checkpoints: Checkpoints, ranks: Ranks) -> Checkpoint | None:
    """Return the newest checkpoint that every rank can read, or None if there are none. Rank 0 decides which are tried.

    Raises:
        StateError: there are checkpoints, but none that every rank can read.
    """
    if ranks.alone:
        return checkpoints.latest()
    paths = checkpoints.paths()
    counts = ranks.gather_json(len(paths))
    if not counts[0] and any(counts):
        raise StateError(
            f"expected all ranks to find the checkpoints in {checkpoints.folder}, but rank 0 finds none: use a folder "
            "that all machines share"
        )
    candidates = checkpoints.newest_first() if ranks.rank == 0 else iter(())
    refused = 0
    while True:
        saved = ranks.on_rank_0(lambda: next(candidates, None))
        name, seal = ranks.gather_json(None if saved is None else [saved.path.name, saved.seal])[0] or (None, None)
        if name is None:
            if refused:
                raise StateError(
                    f"expected a checkpoint in {checkpoints.folder} that every rank can read, got {refused} that some "
                    "cannot: use a folder that all machines share"
                )
            return None
        path, reason = checkpoints.folder / name, None
        if saved is None:
            try:
                saved = load(path)
                reason = None if saved.seal == seal else f"it differs from rank 0's {name}"
            except StateError as error:
                reason = str(error)
        reasons = [f"rank {r}: {text}" for r, text in enumerate(ranks.gather_json(reason)) if text is not None]
        if not reasons:
            return saved
        refused += 1
        checkpoints.skip(path, "; ".join(reasons))
