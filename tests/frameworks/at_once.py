"""All cells of a module's programs in one process for each rank: imports of frameworks take longer than the cells.

``python -m tests.frameworks.at_once MODULE FOLDER`` forks the ranks of jobs of 1, 2 and 3, each of which writes
``WORLD-RANK.json``: for each program, loader and number of workers the samples it was fed in two epochs, in
the second when it began there (the way of a script with ``--resume``), and after it was stopped and
resumed by a state in the middle of an epoch.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.forked import die

WORLDS, WORKERS, EPOCHS, STOP = (1, 2, 3), (0, 2), 2, 1
SEED = 5
# What torch's loader gives does not depend on it, but for the numbers it draws: ``make prove`` has both.
WORKERS_OF_TORCH = WORKERS if os.environ.get("FEEDLINE_PROVE") else (0,)


@dataclass
class Cell:
    """What a program is run over."""

    Loader: Any
    world: int
    rank: int
    workers: int


@dataclass
class Made:
    """A loader and how a script uses it.

    Attributes:
        batches: the iterable of the loop.
        told: returns the content of a batch, in JSON types: (samples, everything else).
        set_epoch: called before each epoch.
        state: has ``state_dict`` and ``load_state_dict``. None: ``batches``.
        ahead: batches that ``batches`` takes before the loop gets them.
    """

    batches: Iterable[Any]
    told: Callable[[Any], Any]
    set_epoch: Callable[[int], None]
    state: Any = None
    ahead: int = 0

    @property
    def saved(self) -> Any:
        return self.batches if self.state is None else self.state


def seeded(program: Callable[[Cell], Made], cell: Cell, seed: int = SEED) -> Made:
    """What a program makes once the global generators are seeded."""
    import numpy as np
    import torch

    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    return program(cell)


def fed(program: Callable[[Cell], Made], cell: Cell, first: int = 0) -> dict[str, Any]:
    """Batches of each epoch from one on, and the state after some of them."""
    made = seeded(program, cell)
    epochs, state = [], None
    for epoch in range(first, EPOCHS):
        made.set_epoch(epoch)
        batches: list[Any] = []
        epochs.append(batches)
        for batch in made.batches:
            batches.append(made.told(batch))
            if epoch == 0 and len(batches) == STOP and hasattr(made.saved, "state_dict"):
                state = json.dumps(made.saved.state_dict())
    return {"epochs": epochs, "state": state, "taken": STOP + made.ahead}


def resumed(program: Callable[[Cell], Made], cell: Cell, state: str) -> dict[str, Any]:
    """What is left of the first epoch, and the second."""
    made = seeded(program, cell, SEED + 1)
    made.set_epoch(0)
    made.saved.load_state_dict(json.loads(state))
    epochs = []
    for epoch in range(EPOCHS):
        made.set_epoch(epoch)
        epochs.append([made.told(batch) for batch in made.batches])
    return {"epochs": epochs}


def cells(program: Callable[[Cell], Made], loader: str, cell: Cell) -> dict[str, Any]:
    """What a program is fed, by number of workers and by how it is begun."""
    ours = loader == "feedline"
    by_workers = {workers: replace(cell, workers=workers) for workers in (WORKERS if ours else WORKERS_OF_TORCH)}
    found: dict[str, Any] = {"second 0": fed(program, by_workers[0], 1)}
    for workers, each in by_workers.items():
        found[f"fresh {workers}"] = fed(program, each)
    for workers, each in by_workers.items() if ours else ():
        # States go on under any number of workers, but where these share out a stream.
        before = workers if getattr(program, "keeps_workers", False) else sum(WORKERS) - workers
        found[f"resumed {workers}"] = resumed(program, each, found[f"fresh {before}"]["state"])
    return found


def rank(module: Any, world: int, number: int, folder: Path) -> None:
    """Run every cell of one rank."""
    import torch
    import torch.utils.data

    import feedline

    if world > 1:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{folder}/rendezvous-{world}",
            rank=number,
            world_size=world,
            timeout=timedelta(seconds=60),
        )
    torchs = torch.utils.data.DataLoader
    told: dict[str, Any] = {}
    for loader, Loader in (("torch", torchs), ("feedline", feedline.DataLoader)):
        torch.utils.data.DataLoader = torch.utils.data.dataloader.DataLoader = Loader
        for program in (program for programs in module.PROGRAMS.values() for program in programs):
            told[f"{program.__name__} {loader}"] = cells(program, loader, Cell(Loader, world, number, 0))
    (folder / f"{world}-{number}.json").write_text(json.dumps(told))
    if world > 1:
        torch.distributed.destroy_process_group()


def main() -> None:
    """See the module."""
    module, folder = importlib.import_module(f"tests.frameworks.{sys.argv[1]}"), Path(sys.argv[2])
    warnings.simplefilter("ignore")
    module.prepare()
    for world in WORLDS:
        running = []
        for number in range(world):
            pid = os.fork()
            if not pid:
                status = 1
                try:
                    rank(module, world, number, folder)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    die(status)
            running.append(pid)
        ended = [os.waitpid(pid, 0)[1] for pid in running]
        if any(ended):
            sys.exit(f"ranks of {world} ended with {ended}")


if __name__ == "__main__":
    main()
