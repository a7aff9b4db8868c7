"""Loaders that keep one endless iterator for all epochs, and end its workers by the names of torch's iterator."""

from __future__ import annotations

import operator

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import Dataset, DistributedSampler, RandomSampler, TensorDataset, get_worker_info

import feedline as fl
from tests.programs.comparing import TORCH, as_torch, torch, workers

# Names of torch's iterator, which are not public but used by programs.
shut_down, workers_of = operator.methodcaller("_shutdown_workers"), operator.attrgetter("_workers")


class Boxes(Dataset):
    """Pictures of few pixels, with a different number of boxes each, that a program changes while it trains."""

    def __init__(self, count: int = 11) -> None:
        self.count, self.scale = count, 1

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index):
        return {"picture": torch.full((3, 2), index * self.scale), "boxes": torch.full((index % 3, 4), index)}


def joined(items):
    """A batch in which each box knows its picture."""
    of = [torch.full((len(item["boxes"]),), i) for i, item in enumerate(items)]
    boxes = torch.cat([item["boxes"] for item in items])
    return {"picture": torch.stack([item["picture"] for item in items]), "boxes": boxes, "of": torch.cat(of)}


def seed_worker(_) -> None:
    assert get_worker_info().seed == torch.initial_seed()


class Cycle:
    """Batches of indices without end."""

    def __init__(self, sampler) -> None:
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from self.sampler


def endless(loader_class):
    class Endless(loader_class):
        """The iterator is made when it is first needed, and again after `reset`."""

        def __init__(self, *arguments, **options) -> None:
            super().__init__(*arguments, **options)
            object.__setattr__(self, "batch_sampler", Cycle(self.batch_sampler))
            self.running, self.closed = None, 0

        def __len__(self) -> int:
            return len(self.batch_sampler.sampler)

        def __iter__(self):
            if self.running is None:
                self.running = self._get_iterator()
            for _ in range(len(self)):
                yield next(self.running)

        def close(self) -> None:
            """A method of its own, which no loader calls."""
            self.closed += 1
            if hasattr(self.running, "_workers"):
                shut_down(self.running)

        def reset(self) -> None:
            self.close()
            self.running = None

    return Endless


@workers
@pytest.mark.parametrize("kind", ["random", "share", "order"])
def test_epochs_out_of_one_iterator(kind, workers):
    """The dataset changes before the last epoch, and new workers see it."""

    def program(loader_class):
        dataset = Boxes()
        sampler = {
            "random": RandomSampler(dataset, generator=torch.Generator().manual_seed(3)),
            "share": DistributedSampler(dataset, num_replicas=2, rank=1),
            "order": None,
        }[kind]
        options = {"num_workers": workers, "collate_fn": joined, "worker_init_fn": seed_worker}
        generator = torch.Generator().manual_seed(4)
        loader = endless(loader_class)(dataset, batch_size=2, sampler=sampler, generator=generator, **options)
        fed = [len(loader)]
        for epoch in range(4):
            if epoch == 3:
                dataset.scale = 10
                loader.reset()
            fed += loader
        loader.close()
        return [*fed, loader.closed, torch.rand(2)]

    as_torch(program)


# ---- workers that a program ends ------------------------------------------------------------------------------

both = pytest.mark.parametrize("Loader", [TORCH, fl.DataLoader], ids=["torch", "feedline"])


@both
@pytest.mark.parametrize("persistent", [False, True])
def test_a_program_ends_the_workers(Loader, persistent):
    loader = Loader(Boxes(), num_workers=2, collate_fn=joined, persistent_workers=persistent)
    iterator = iter(loader)
    next(iterator)
    processes = list(workers_of(iterator))
    assert [process.is_alive() for process in processes] == [True, True]
    assert len({process.pid for process in processes}) == 2
    shut_down(iterator)
    assert [process.is_alive() for process in processes] == [False, False]
    shut_down(iterator)


def test_a_program_kills_the_workers_first():
    """With torch's loader the handler of SIGCHLD may raise before the workers are ended."""
    iterator = iter(fl.DataLoader(Boxes(), num_workers=2, collate_fn=joined))
    next(iterator)
    processes = list(workers_of(iterator))
    for process in processes:
        process.terminate()
    shut_down(iterator)
    assert [process.is_alive() for process in processes] == [False, False]


@pytest.mark.parametrize("persistent", [False, True])
def test_an_iterator_whose_workers_have_been_ended_raises_and_the_next_starts_others(persistent):
    loader = fl.DataLoader(Boxes(), batch_size=4, num_workers=2, collate_fn=joined, persistent_workers=persistent)
    whole = [batch["picture"].tolist() for batch in loader]
    iterator = iter(loader)
    assert next(iterator)["picture"].tolist() == whole[0]
    shut_down(iterator)
    with pytest.raises(RuntimeError, match="closed"):
        for _ in range(3):
            next(iterator)
    assert [batch["picture"].tolist() for batch in loader] == whole


@both
def test_without_workers_there_are_no_such_names(Loader):
    iterator = iter(Loader(Boxes(), collate_fn=joined))
    assert not hasattr(iterator, "_workers")
    assert not hasattr(iterator, "_shutdown_workers")


@pytest.mark.parametrize("dataset", [TensorDataset(torch.arange(6)), Boxes()], ids=["gathered", "threads"])
def test_workers_that_are_no_processes(dataset):
    iterator = iter(fl.DataLoader(dataset, num_workers=2, workers="thread"))
    next(iterator)
    assert workers_of(iterator) == []
    shut_down(iterator)
