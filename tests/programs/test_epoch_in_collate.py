"""Datasets that make their own batches, and learn the epoch from a shared number when a batch is collated."""

from __future__ import annotations

import multiprocessing
import random

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import Dataset, RandomSampler, get_worker_info

from tests.programs.comparing import as_torch, torch, workers


class Buckets(Dataset):
    """Item ``i`` is a whole batch of pictures of one size. Each epoch has its own order of batches."""

    def __init__(self) -> None:
        self.epoch = 0
        self.batches = [[i, i + 1] for i in range(0, 16, 2)]

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index):
        return {"items": torch.tensor(self.batches[index]), "names": [f"{i}.png" for i in self.batches[index]]}

    def begin(self, epoch: int) -> None:
        """Shuffle once for each epoch that has begun."""
        while self.epoch < epoch:
            self.epoch += 1
            random.Random(self.epoch).shuffle(self.batches)


class Collate:
    """Takes the only batch of its list, and tells the dataset of its process the epoch."""

    def __init__(self, epoch, dataset) -> None:
        self.epoch, self.dataset = epoch, dataset

    def __call__(self, batches):
        info = get_worker_info()
        (self.dataset if info is None else info.dataset).begin(self.epoch.value)
        return batches[0]


@workers
@pytest.mark.parametrize("persistent", [False, True])
def test_the_epoch_is_told_by_a_shared_number(persistent, workers):
    """With one worker, as two of them tell each other's datasets nothing."""

    def program(loader_class):
        epoch, dataset = multiprocessing.Value("i", 0), Buckets()
        loader = loader_class(
            dataset,
            batch_size=1,
            sampler=RandomSampler(dataset, generator=torch.Generator().manual_seed(2)),
            collate_fn=Collate(epoch, dataset),
            num_workers=min(workers, 1),
            persistent_workers=persistent and workers > 0,
        )
        fed = []
        for number in range(1, 4):
            epoch.value = number
            fed += loader
        return fed

    as_torch(program)
