"""Loader classes of programs: subclasses whose batches come from a method or an object of their own, and classes that a
library gets as an argument, copies and pickles."""

from __future__ import annotations

import copy
import itertools
import operator
import pickle

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import Dataset, IterableDataset, RandomSampler, get_worker_info

import feedline as fl
from tests.programs.comparing import as_torch, torch, workers

EDGES = [(node, (node * 7 + step) % 23) for node in range(23) for step in range(node % 4)]


def neighbours_of(loader_class):
    class Neighbours(loader_class):
        """Items are numbers of nodes. A batch is the edges of its nodes, made by a method of the loader."""

        def __init__(self, per_worker: bool = True, **options) -> None:
            self.per_worker = per_worker
            super().__init__(range(23), collate_fn=self.sampled, **options)

        def __call__(self, index):
            return self.finished(self.sampled(index))

        def sampled(self, index):
            nodes = torch.as_tensor(index)
            edges = torch.tensor([edge for edge in EDGES if edge[0] in nodes], dtype=torch.long).reshape(-1, 2)
            return self.finished((nodes, edges)) if self.per_worker else (nodes, edges)

        def finished(self, parts):
            return {"nodes": parts[0], "edges": parts[1]} if isinstance(parts, tuple) else parts

        def __iter__(self):
            return map(self.finished, super().__iter__())

    return Neighbours


@pytest.mark.parametrize("per_worker", [False, True])
@workers
def test_a_method_of_the_loader_collates(workers, per_worker):
    def program(loader_class):
        loader = neighbours_of(loader_class)(per_worker, batch_size=4, num_workers=workers)
        return [*(list(loader) for _ in range(3)), loader([3, 4])]

    as_torch(program)


class Series(Dataset):
    """Series of equal length: one tensor, or none, of what does not change in time."""

    def __init__(self, static: bool) -> None:
        self.static = static

    def __len__(self) -> int:
        return 17

    def __getitem__(self, index):
        static = torch.full((2,), float(index)) if self.static else None
        return {"static": static, "temporal": torch.arange(6.0).reshape(3, 2) + index, "names": ["y", "x"]}


def series_of(loader_class):
    class SeriesLoader(loader_class):
        """Stacks tensors in memory that a worker shares, and asks `collate_fn` for the parts."""

        def __init__(self, dataset, **options) -> None:
            loader_class.__init__(self, dataset=dataset, **{**options, "collate_fn": self._stacked})

        def _stacked(self, items):
            if isinstance(items[0], dict):
                parts = {name: self.collate_fn([item[name] for item in items]) for name in ("static", "temporal")}
                return {**parts, "names": items[0]["names"]}
            if items[0] is None:
                return None
            if get_worker_info() is None:
                return torch.stack(items)
            storage = operator.methodcaller("_typed_storage")(items[0])
            storage = operator.methodcaller("_new_shared", sum(item.numel() for item in items))(storage)
            return torch.stack(items, out=items[0].new(storage).resize_(len(items), *items[0].shape))

    return SeriesLoader


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"sampler": True}], ids=["all", "full", "sampler"])
@pytest.mark.parametrize("static", [False, True])
@workers
def test_a_loader_stacks_in_shared_memory(workers, static, options):
    def program(loader_class):
        sampler = RandomSampler(range(17), generator=torch.Generator().manual_seed(1))
        chosen = {**options, "sampler": sampler} if "sampler" in options else options
        loader = series_of(loader_class)(Series(static), batch_size=5, num_workers=workers, **chosen)
        return [list(loader) for _ in range(3)]

    as_torch(program)


class Flips:
    """Collates, and then flips signs by a generator of its own, which goes on from batch to batch."""

    def __init__(self, copies: int) -> None:
        self.copies, self.random = copies, np.random.RandomState(3)

    def __call__(self, items):
        x, y, *rest = torch.utils.data.default_collate(items)
        flipped = [x * float(self.random.choice([-1, 1])) for _ in range(max(1, self.copies))]
        if not self.copies:
            return flipped[0], y, *rest
        return torch.cat([x, *flipped]), y.repeat(1 + self.copies)


class Signals(Dataset):
    """A signal, its label, and where it was cut."""

    def __len__(self) -> int:
        return 19

    def __getitem__(self, index):
        if isinstance(index, tuple):  # windows that belong together
            return np.stack([np.full(3, part, np.float32) for part in index]), sum(index)
        return np.full(3, index, np.float32), index % 2, [0, index, index + 3]


@pytest.mark.parametrize("copies", [0, 2])
def test_augmentation_in_the_collate_function_keeps_its_generator(copies):
    def program(loader_class):
        loader = loader_class(Signals(), 4, collate_fn=Flips(copies))
        return [list(loader) for _ in range(3)]

    first, second, _ = as_torch(program)
    assert not all(torch.equal(one[0], other[0]) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("copies", [0, 2])
def test_augmentation_in_workers_begins_again_with_each_epoch(copies):
    def program(loader_class):
        loader = loader_class(Signals(), 4, collate_fn=Flips(copies), num_workers=1)
        return [list(loader) for _ in range(3)]

    first, second, _ = as_torch(program)
    assert all(torch.equal(one[0], other[0]) for one, other in zip(first, second, strict=True))


@workers
def test_a_sampler_yields_tuples_of_indices(workers):
    def program(loader_class):
        sampler = [(first, first + 1, first + 2) for first in range(0, 16, 3)]
        loader = loader_class(Signals(), 4, sampler=sampler, num_workers=workers)
        return [list(loader) for _ in range(3)]

    as_torch(program)


class Net:
    """A model in the way of scikit-learn: it has the class of its loader and the arguments, and makes one for each
    run."""

    def __init__(self, loader, **options) -> None:
        self.loader, self.options = loader, options

    def batches(self, dataset, epochs: int = 3):
        loader = self.loader(dataset, **self.options)
        return [list(loader) for _ in range(epochs)]


@workers
def test_a_class_of_loaders_is_copied_and_pickled(workers):
    def program(loader_class):
        net = Net(loader_class, batch_size=4, num_workers=workers)
        fed = [net.batches(Signals())]
        net.options["batch_size"] = 7
        for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            other.options["drop_last"] = True
            fed.append(other.batches(Signals(), 1))
        return [*fed, net.batches(Signals(), 1)]

    as_torch(program)


class Mapped(IterableDataset):
    """Dictionaries of the indices of an endless sampler, of which each worker makes its part, a batch at a time."""

    def __init__(self, sampler, size: int) -> None:
        self.sampler, self.size = sampler, size

    def __iter__(self):
        info = get_worker_info()
        worker, count = (info.id, info.num_workers) if info else (0, 1)
        for number, index in enumerate(self.sampler):
            if number // self.size % count == worker:
                yield {"index": index, "width": 10 + index % 3, "picture": torch.full((2,), index)}


class Endless:
    """Permutations without end, by a seed."""

    def __iter__(self):
        generator = torch.Generator().manual_seed(4)
        while True:
            yield from torch.randperm(13, generator=generator).tolist()


class ByShape(IterableDataset):
    """Batches of items that are wide, and of those that are not. What has not filled one is kept for the next epoch."""

    def __init__(self, items, size: int) -> None:
        self.items, self.size, self.kept = items, size, ([], [])

    def __iter__(self):
        for item in self.items:
            kept = self.kept[item["width"] > 11]
            kept.append(item)
            if len(kept) == self.size:
                batch, kept[:] = kept[:], []
                yield batch


@pytest.mark.parametrize("grouped", [False, True])
@workers
def test_an_endless_sampler_is_divided_within_the_dataset(workers, grouped):
    def program(loader_class):
        options = {"collate_fn": operator.itemgetter(0)} if grouped else {"collate_fn": list, "batch_size": 4}
        loader = loader_class(
            Mapped(Endless(), 4), num_workers=workers, generator=torch.Generator().manual_seed(1), **options
        )
        batches = ByShape(loader, 4) if grouped else loader
        return [list(itertools.islice(batches, 9)) for _ in range(3)]

    as_torch(program)


def test_our_loaders_are_of_these_classes():
    """That the programs above ran ours, and not torch's a second time."""
    loader = neighbours_of(fl.DataLoader)(batch_size=4)
    assert isinstance(loader, fl.DataLoader)
    assert loader.state_dict()
