"""What the ranks of a session decide together, so that nobody waits for one that has gone another way.

Whatever is collective (an update, a checkpoint, the end, where to begin) is decided from numbers of all ranks, by the
same rule on each of them; clocks, signals, files and callbacks are each rank's own. That holds whether the learners
learn together or the model exchanges its gradients by itself, as `DistributedDataParallel` does.

Costs: alone nothing. Otherwise an exchange of a few numbers behind each update, and where a model exchanges gradients
by itself another one before it and one in it.
"""

from __future__ import annotations

from typing import NamedTuple

from feedline.collective.ranks import Ranks
from feedline.errors import StateError, StoreError
from feedline.train.checkpoint import Checkpoint, Checkpoints, load


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
