"""Programs that change a loader's data and sampler between its epochs."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from tests.torture.case import Case
from tests.torture.scenario import Scenario


class ChangedData(Scenario):
    """The same samples with the same content as from torch's loader, sample by sample, and the same draws."""

    name = "changed-data"
    asks = "does an epoch have what the program has changed before it?"

    def run(self, case: Case) -> None:
        import torch

        rng = case.rng
        options: dict[str, Any] = {"batch_size": rng.choice([1, 3, 8]), "num_workers": rng.choice([0, 1, 2])}
        if options["num_workers"]:
            options["persistent_workers"] = rng.random() < 0.4
            options["prefetch_factor"] = rng.choice([1, 2, 4])
        order = rng.choice(["in order", "shuffled", "random", "with a generator", "distributed"])
        # What is drawn from all random numbers is drawn once, before both programs run.
        steps = [
            (rng.choice(list(CHANGES)), epoch, rng.randrange(100), rng.choice([None, None, 1, 2]), rng.random() < 0.2)
            for epoch in range(rng.randint(2, 5))
        ]
        how = f"{order}, {options}, {[step[0] for step in steps]}"
        found = []
        for name, make in (("torch", torch.utils.data.DataLoader), ("ours", fl.DataLoader)):
            case.doing(f"{name}: {how}")
            folder = case.folder / name
            folder.mkdir()
            found.append(program(make, folder, order, options, steps))
        (expected, drawn), (got, drawn_by_us) = found
        if order == "shuffled":  # in another order, on which the content of a sample does not depend
            expected, got = [sorted(epoch) for epoch in expected], [sorted(epoch) for epoch in got]
        for epoch, pair in enumerate(zip(expected, got, strict=True)):
            # An epoch that is left early has other samples where orders differ.
            if order != "shuffled" or len(pair[0]) == SAMPLES:
                case.compare(f"epoch {epoch}: {how}", *pair)
            elif {sample[1:] for sample in pair[0]} != {sample[1:] for sample in pair[1]}:
                case.fail("silent", f"epoch {epoch}: {how}: {pair[1][:3]} instead of {pair[0][:3]}")
        if drawn != drawn_by_us:
            case.fail("silent", f"other random numbers after an epoch than with torch: {how}")


SAMPLES = 20


class Shown:
    """Item ``i`` is ``i`` and everything that a program can change."""

    def __init__(self, folder: Path) -> None:
        import torch

        self.value = multiprocessing.Value("q", 0)
        self.shared = torch.zeros(SAMPLES, dtype=torch.long).share_memory_()
        self.mapped = np.memmap(folder / "map", np.int64, "w+", shape=SAMPLES)
        self.file = folder / "file"
        self.file.write_text("0")
        self.array = np.zeros(SAMPLES, np.int64)
        self.tensor = torch.zeros(SAMPLES, dtype=torch.long)
        self.listed, self.named = [0] * SAMPLES, dict.fromkeys(range(SAMPLES), 0)
        self.attribute = 0

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> tuple[int, ...]:
        held = self.value.value, self.shared[i], self.mapped[i], self.file.read_text(), self.array[i], self.tensor[i]
        return (i, *map(int, (*held, self.listed[i], self.named[i], self.attribute)))


def _in_place(name: str) -> Callable[[Shown, int], None]:
    def change(data: Shown, number: int) -> None:
        for i in range(SAMPLES):
            getattr(data, name)[i] = number

    return change


CHANGES: dict[str, Callable[[Shown, int], Any]] = {
    "value": lambda data, number: setattr(data.value, "value", number),
    "file": lambda data, number: data.file.write_text(str(number)),
    "attribute": lambda data, number: setattr(data, "attribute", number),
    **{name: _in_place(name) for name in ("shared", "mapped", "array", "tensor", "listed", "named")},
}


def program(
    make: Any, folder: Path, order: str, options: dict[str, Any], steps: list[tuple[str, int, int, int | None, bool]]
) -> tuple[list[list[tuple[int, ...]]], list[float]]:
    """Return the samples of each epoch, and a number drawn after each."""
    import torch

    data, generator = Shown(folder), torch.Generator().manual_seed(4)
    torch.manual_seed(3)
    sampler: Any = None
    if order == "distributed":
        sampler = torch.utils.data.DistributedSampler(data, num_replicas=2, rank=1)
    elif order in ("random", "with a generator"):
        sampler = torch.utils.data.RandomSampler(data, generator=None if order == "random" else generator)
    loader = make(data, sampler=sampler, shuffle=order == "shuffled", collate_fn=list, **options)
    epochs, drawn = [], []
    for change, epoch, number, taken, peeks in steps:
        CHANGES[change](data, number)
        if number % 3 == 0:
            torch.manual_seed(number)
        if peeks:
            next(iter(loader))
        if order == "distributed":
            sampler.set_epoch(epoch)
        samples = []
        for count, batch in enumerate(loader):
            samples += batch
            if count == taken:
                break
        epochs.append(samples)
        drawn.append(torch.rand((), generator=generator if number % 2 else None).item())
    return epochs, drawn
