"""The matrix: ways to use frameworks, the trainings of each, and the verdict on their samples.

A cell is a row, a number of processes, fresh or resumed, and a number of workers. ``fresh`` is a training of two
epochs, in which a checkpoint is saved after the first batch of the second (or of the first, see `Row.saved`), or of
three, in which one is saved at the end of the second (`Row.ended`). ``resumed`` is another process that goes on from
it.
Fresh, a cell is

- "equal": over all ranks each sample came as often as in the same program on torch's loader, every rank had as many
  steps, evaluations saw the same samples, no two epochs had one order unless torch's have, and where feedline's loader
  reads, random numbers drawn in ``__getitem__`` are the same for any number of workers.

Resumed, it is

- "bits": the rest of the training was fed the same samples in the same order with the same random numbers, and ended
  with the same parameters;
- "order": the same samples in the same order.

Anything else is a sentence about the fault.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from tests.frameworks.run import Training, run

WORLDS, WORKERS = (1, 2, 3), (0, 2)
ITEMS, BATCH, EPOCHS, SEED = 50, 4, 2, 3

Told = list[dict[str, Any]]  # of each rank


class Row(NamedTuple):
    """A way to use a framework.

    Attributes:
        framework: function of `programs`.
        mode: the used part of the framework.
        loader: "feedline": the program imports feedline's; "patched": feedline's takes the place of torch's.
        what: ``mode`` for readers.
        resumes: "bits" or "order".
        reads: whether feedline's loader reads the items, or a loader that the framework makes over its samplers.
        steps: steps of an epoch, of the possible ones.
        twin: whether there is the same program on torch's loader. If not, each sample of whole minibatches comes once.
        saved: epoch of the checkpoint, 0 or 1.
        ended: whether it is of the end of that epoch.
        core: whether `make test` tries it with any number of processes and workers.
    """

    framework: str
    mode: str
    loader: str
    what: str
    resumes: str
    reads: bool = True
    steps: Any = None
    twin: bool = True
    saved: int = 1
    ended: bool = False
    core: bool = False

    @property
    def name(self) -> str:
        """Of tests."""
        return f"{self.framework}-{self.mode}-{self.loader}"

    @property
    def epochs(self) -> int:
        """Of the training."""
        return EPOCHS + self.ended

    @property
    def reader(self) -> str:
        """Whose loader reads, for readers."""
        return "feedline" if self.reads else "torch"


def _three(steps: int) -> int:
    return 3


def _half(steps: int) -> int:
    return steps // 2


ROWS = (
    Row("accelerate", "prepare", "feedline", "`prepare`, `skip_first_batches`", "order", reads=False, core=True),
    Row("accelerate", "seedable", "feedline", "`use_seedable_sampler`", "order", reads=False),
    Row("accelerate", "stateful", "feedline", "`use_stateful_dataloader`", "order", reads=False),
    Row("accelerate", "dispatch", "feedline", "`dispatch_batches`", "order", reads=False),
    Row("accelerate", "uneven", "feedline", "`even_batches=False`", "order", reads=False),
    Row("accelerate", "stream", "feedline", "an `IterableDataset`", "order", reads=False),
    Row("accelerate", "unprepared", "feedline", '`partition="auto"`, unprepared', "bits", twin=False, core=True),
    Row("accelerate", "prepare", "patched", "`prepare`, `skip_first_batches`", "order", core=True),
    Row("accelerate", "seedable", "patched", "`use_seedable_sampler`", "order"),
    Row("accelerate", "stateful", "patched", "`use_stateful_dataloader`", "bits"),
    Row("accelerate", "dispatch", "patched", "`dispatch_batches`", "order"),
    Row("accelerate", "uneven", "patched", "`even_batches=False`", "order"),
    Row("accelerate", "stream", "patched", "an `IterableDataset`", "order"),
    Row("lightning", "fit", "feedline", "`fit`, `ddp`", "bits", core=True),
    Row("lightning", "overfit", "feedline", "`overfit_batches`", "bits", steps=_three),
    Row("lightning", "limit", "feedline", "`limit_train_batches`", "bits", steps=_half),
    Row("lightning", "last", "feedline", "`fit`, last batch", "bits", ended=True),
    Row("lightning", "epoch", "feedline", "`fit`, epoch end", "bits", ended=True),
    Row("lightning", "validated", "feedline", "`fit`, validation end", "bits", ended=True),
    Row("lightning", "limit-last", "feedline", "`limit_train_batches`, last batch", "bits", steps=_half, ended=True),
    Row("lightning", "limit-epoch", "feedline", "`limit_train_batches`, epoch end", "bits", steps=_half, ended=True),
    Row("lightning", "partition-last", "feedline", '`partition="auto"`, last batch', "bits", twin=False, ended=True),
    Row("lightning", "reload", "feedline", "`reload_dataloaders_every_n_epochs`", "bits"),
    Row("lightning", "partition", "feedline", '`partition="auto"`', "bits", twin=False),
    Row("lightning", "fit", "patched", "`fit`, `ddp`", "bits"),
    Row("transformers", "prepare", "feedline", "`get_train_dataloader`, prepared", "order", reads=False, core=True),
    Row("transformers", "partition", "feedline", '`partition="auto"`, unprepared', "order", twin=False),
    Row("transformers", "random", "patched", "`train`, `resume_from_checkpoint`", "order", core=True),
    Row("transformers", "lengths", "patched", "`group_by_length`", "order", saved=0),
)


def training(row: Row, loader: str, world: int, workers: int, folder: Path, **more: Any) -> Training:
    """The program of a row on a loader."""
    steps = -(-ITEMS // (BATCH * world)) if row.twin else ITEMS // (BATCH * world)  # without a twin, drop_last
    epoch = steps if row.steps is None else row.steps(steps)
    own = folder / f"{row.framework}-{row.mode}-{loader}-{world}-{workers}"
    options = {
        "mode": row.mode,
        "loader": loader,
        "workers": workers,
        "folder": str(own),
        "stop": (row.saved + 1) * epoch if row.ended else row.saved * epoch + 1,
    }
    return row.framework, {**options, "items": ITEMS, "batch": BATCH, "epochs": row.epochs, "seed": SEED, **more}


def judged(rows: list[Row], world: int, workers: tuple[int, ...], folder: Path) -> dict[tuple[str, int, int, str], str]:
    """What each cell is, by (name of the row, processes, workers, "fresh" or "resumed")."""
    found: dict[tuple[str, int, int, str], str] = {}
    # Worker processes take turns at a stream, so that their number decides its batches.
    twins = {_twin(row, count): (row, count) for row in rows if row.twin for count in workers}
    given = [training(row, "torch", world, count, folder, stop=None) for row, count in twins.values()]
    expected = dict(zip(twins, run(world, given), strict=True))
    for loader in ("feedline", "patched"):
        cells = [(row, count) for row in rows if row.loader == loader for count in workers]
        fresh = [training(row, loader, world, count, folder) for row, count in cells]
        whole = run(world, fresh, loader == "patched")
        rest = run(world, [(name, {**how, "resume": True}) for name, how in fresh], loader == "patched")
        first = {row: told for (row, _), told in reversed(list(zip(cells, whole, strict=True)))}
        for (row, count), told, after in zip(cells, whole, rest, strict=True):
            cell = row.name, world, count
            found[*cell, "fresh"] = of_fresh(row, told, first[row], expected.get(_twin(row, count)))
            found[*cell, "resumed"] = of_resumed(row, told, after)
    return found


def _twin(row: Row, workers: int) -> tuple[str, str, int]:
    return row.framework, row.mode, workers if row.mode == "stream" else 0


def of_fresh(row: Row, told: Told, other: Told, expected: Told | None) -> str:
    """Judge a training from the beginning.

    Args:
        row: row of the cell.
        told: the samples that each rank was fed.
        other: the same with another number of workers.
        expected: the same on torch's loader. None: samples of whole minibatches come once, in equally many steps.
    """
    often, steps = _counted(told)
    if expected is None:
        size = BATCH * len(told)
        if any(each != [1] * (ITEMS // size * size) for each in often):
            return f"samples came {often} times"
        if len({tuple(each) for each in steps}) > 1:
            return f"ranks had {steps} steps"
    elif (often, steps) != _counted(expected):
        return f"samples and steps are {often, steps}, over torch's loader {_counted(expected)}"
    elif [rank.get("metrics") for rank in told] != [rank.get("metrics") for rank in expected]:
        return "evaluations saw other samples than over torch's loader"
    elif [rank.get("length") for rank in told] != [rank.get("length") for rank in expected]:
        return "the length is another than of torch's loader"
    if _same_epochs(told) and not (expected is not None and _same_epochs(expected)):
        return "epochs have one order"
    if row.mode != "stream" and _fed(told, 0) != _fed(other, 0):  # worker processes take turns at a stream
        return "the order depends on the number of workers"
    if row.mode != "stream" and row.reads and told != other:
        return "random numbers depend on the number of workers"
    if any(rank["said"] for rank in told):
        return told[0]["said"][0]
    return "equal"


def of_resumed(row: Row, whole: Told, rest: Told) -> str:
    """Judge a training that goes on after the first batch of an epoch, or after its last one."""
    taken = len(whole[0]["fed"][row.saved]) if row.ended else 1
    left = [{"fed": [rank["fed"][row.saved][taken:], *rank["fed"][row.saved + 1 :]]} for rank in whole]
    order, noise = _fed(left, 0), _fed(left, 1)
    fed = _fed(rest, 0)
    if row.mode == "dispatch":  # accelerate fills the last step up from the first one dispatched since resuming
        before = {item for rank in whole for batch in rank["fed"][row.saved][:-1] for item in batch[0]}
        fed, order, noise = _without(before, fed), _without(before, order), []
    if fed != order:
        return f"the order is {fed}, of the whole training {order}"
    same = [rank["parameters"] for rank in rest] == [rank["parameters"] for rank in whole]
    return "bits" if same and _fed(rest, 1) == noise else "order"


def _fed(told: Told, part: int) -> list[Any]:
    return [[batch[part] for epoch in rank["fed"] for batch in epoch] for rank in told]


def _without(before: set[int], order: list[Any]) -> list[Any]:
    """Leave out of each rank's last batch what came before."""
    return [[*rank[:-1], [item for item in rank[-1] if item not in before]] for rank in order]


def _same_epochs(told: Told) -> bool:
    first, second = ([[batch[0] for batch in rank["fed"][epoch]] for rank in told] for epoch in (0, 1))
    return bool(first == second)


def _counted(told: Told) -> tuple[list[list[int]], list[list[int]]]:
    """For each epoch: how often items came on all ranks together, and the steps of each rank."""
    epochs = range(min(len(rank["fed"]) for rank in told))
    samples = [Counter(i for rank in told for batch in rank["fed"][e] for i in batch[0]) for e in epochs]
    return [sorted(each.values()) for each in samples], [[len(rank["fed"][e]) for e in epochs] for rank in told]
