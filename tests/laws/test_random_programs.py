"""The law of programs: whatever a program changes, and whenever it reads, its batches are those of torch's loader.

A program here has a dataset, an order and a loader. Its steps change labels, shared memory, samplers, seeds and
attributes, and begin, continue and abandon iterators. Items draw no random numbers, and the order is the program's own:
both are documented differences. So are those that `Run.may_change` leaves out.
"""

from __future__ import annotations

import itertools
import multiprocessing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples

pytest.importorskip("torch", reason="torch is not installed")

from torch.utils import data as torch_data

from tests.programs.comparing import as_torch, torch

# ---- what programs are made of ---------------------------------------------------------------------------------


class Records(torch_data.Dataset):
    """Records with a label each. An item shows all that a program can change."""

    def __init__(self, labels, counts: bool) -> None:
        self.labels, self.scale, self.counts, self.reads = labels, 1, counts, 0
        self.shared = multiprocessing.Value("i", 0, lock=False)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index):
        self.reads += self.counts
        scaled = torch.tensor([index * self.scale])
        return {"label": self.labels[index], "scaled": scaled, "shared": self.shared.value, "reads": self.reads}


class Fetched(Records):
    """The same, for a list of indices at once."""

    def __getitems__(self, indices):
        return [{**self[index], "together": len(indices)} for index in indices]


class Stream(torch_data.IterableDataset):
    """The same, in the order of the labels. Workers take turns."""

    def __init__(self, labels, counts: bool) -> None:
        self.records = Records(labels, counts)
        self.labels = self.records.labels

    def __iter__(self):
        worker = torch_data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        yield from map(self.records.__getitem__, range(first, len(self.labels), step))


class Rotated(torch_data.Sampler):
    """A list of indices or batches, which begins at another place in each epoch."""

    def __init__(self, order) -> None:
        self.order, self.epoch = order, 0

    def __len__(self) -> int:
        return len(self.order)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        first = self.epoch % max(1, len(self.order))
        yield from self.order[first:]
        yield from self.order[:first]


def as_list(items):
    return list(items)


def counted(items):
    return {"items": len(items), "first": items[0], "last": items[-1]}


READING = ["begin", "next", "next", "finish", "finish", "abandon", "seed", "draw", "length"]
CHANGING = ["write", "append", "scale", "share", "swap", "epoch", "reseed"]
LOADER = ["batch_size", "drop_last", "resample", "replace", "collate"]
COLLATE = [None, as_list, counted]
MAPPED = ["records", "fetched", "subset", "joined", "tensors", "list", "array"]
INDICES = [None, "list", "rotated", "random", "seeded", "replacement", "weighted", "subset", "share"]
BATCHES = ["lists", "rotated lists", "batches of rotated", "batches of random"]


def dataset_of(kind: str, count: int, counts: bool):
    """A dataset, and the object whose elements are the labels."""
    labels = list(range(100, 100 + count))
    if kind in ("records", "fetched", "stream"):
        return {"records": Records, "fetched": Fetched, "stream": Stream}[kind](labels, counts), labels
    if kind == "subset":
        return torch_data.Subset(Records(labels, counts), list(range(count))[::-1]), labels
    if kind == "joined":
        return torch_data.ConcatDataset([Records(labels, counts), Records(labels, counts)]), labels
    if kind == "tensors":
        tensor = torch.tensor(labels)
        return torch_data.TensorDataset(torch.arange(count), tensor), tensor
    values = labels if kind == "list" else np.array(labels)
    return values, values


def sampler_of(kind: str | None, size: int, generator, order):
    """A sampler of indices by its kind."""
    if kind == "random":
        return torch_data.RandomSampler(range(size))
    if kind == "seeded":
        return torch_data.RandomSampler(range(size), generator=generator)
    if kind == "replacement":
        return torch_data.RandomSampler(range(size), replacement=True, num_samples=size + 3, generator=generator)
    if kind == "weighted":
        return torch_data.WeightedRandomSampler([1.0 + i for i in range(size)], size, generator=generator)
    if kind == "subset":
        return torch_data.SubsetRandomSampler(order, generator=generator)
    if kind == "share":
        return torch_data.DistributedSampler(range(size), num_replicas=2, rank=1)
    return {"list": order, "rotated": Rotated(order), None: None}[kind]


class Run:
    """One run of a program.

    Args:
        loader_class: class of its loader.
        world: what the program is made of, see `worlds`.
    """

    def __init__(self, loader_class, world) -> None:
        self.world, self.fed, self.open = world, [], {}
        self.generator = torch.Generator().manual_seed(world["seed"])
        self.dataset, self.labels = dataset_of(world["dataset"], world["count"], counts=not world["workers"])
        self.order = None
        options = dict(world["options"])
        if world["dataset"] != "stream":
            size, kind = len(self.dataset), world["order"]
            self.order = [(i * 5 + 2) % size for i in range(size)]
            if kind in BATCHES:
                options = {name: options[name] for name in options if name not in ("batch_size", "drop_last")}
                options["batch_sampler"] = self.batches_of(kind, size)
            else:
                options["sampler"] = sampler_of(kind, size, self.generator, self.order)
        if world["generator"]:
            options["generator"] = self.generator
        self.loader = loader_class(self.dataset, **options)

    def batches_of(self, kind: str, size: int):
        if kind.startswith("batches"):
            indices = Rotated(self.order) if kind.endswith("rotated") else torch_data.RandomSampler(range(size))
            return torch_data.BatchSampler(indices, 3, drop_last=False)
        self.order = [self.order[i : i + 1 + i % 3] for i in range(0, size, 2)]
        return self.order if kind == "lists" else Rotated(self.order)

    def may_change(self, step: str) -> bool:
        """Whether a program may take a step now, so that no documented difference is met.

        With workers, what the program changes while they read may or may not reach a batch, under both loaders.
        """
        dataset, workers = self.world["dataset"], self.world["workers"]
        kept = self.world["options"].get("persistent_workers")
        if kept and step in ("write", "append") and dataset in ("tensors", "list", "array"):
            return False  # these are gathered in this process, where torch's workers keep their copies
        if kept and step in ("collate", "resample", "replace"):
            return False  # our loader starts other workers
        if dataset == "stream" and (step == "drop_last" or (kept and step == "batch_size")):
            return False  # torch's loader ignores the first, and ours starts other workers for the second
        if step in LOADER or (step == "append" and self.world["order"] is None):
            return not self.open  # our loader follows at the next `iter`
        return not (workers and self.open)

    # ---- steps ------------------------------------------------------------------------------------------------

    def take(self, step: str, number: int, other: int) -> None:
        if step in READING or self.may_change(step):
            getattr(self, step)(number, other)

    def begin(self, number: int, _) -> None:
        if self.world["options"].get("persistent_workers"):
            self.open.clear()  # torch's loader has one iterator, which it begins again
        self.open[number % 2] = iter(self.loader)

    def next(self, number: int, count: int) -> None:
        """Read some batches, and begin first where that was not done."""
        if number % 2 not in self.open:
            self.begin(number, 0)
        for _ in range(1 + count % 4):
            try:
                self.fed.append(next(self.open[number % 2]))
            except StopIteration:
                self.fed.append("end")
                del self.open[number % 2]
                break
            except (IndexError, KeyError) as error:
                self.fed.append(type(error).__name__)

    def finish(self, number: int, _) -> None:
        self.next(number, 0)
        while number % 2 in self.open:
            self.next(number, 3)

    def abandon(self, number: int, _) -> None:
        self.open.pop(number % 2, None)

    def write(self, number: int, value: int) -> None:
        if len(self.labels):
            self.labels[number % len(self.labels)] = value

    def append(self, value: int, _) -> None:
        if isinstance(self.labels, list):
            self.labels.append(value)

    def scale(self, value: int, _) -> None:
        """Change an attribute of the dataset, however deep."""
        for records in self.records():
            records.scale = value

    def share(self, value: int, _) -> None:
        for records in self.records():
            records.shared.value = value

    def records(self):
        inner = [self.dataset, *getattr(self.dataset, "datasets", ()), getattr(self.dataset, "dataset", None)]
        return [each for each in (*inner, getattr(self.dataset, "records", None)) if isinstance(each, Records)]

    def swap(self, number: int, other: int) -> None:
        """Change the program's own list of indices, or of batches, in place."""
        if self.order:
            i, j = number % len(self.order), other % len(self.order)
            self.order[i], self.order[j] = self.order[j], self.order[i]

    def epoch(self, number: int, _) -> None:
        batches = self.loader.batch_sampler
        for sampler in (self.loader.sampler, batches, getattr(batches, "sampler", None)):
            if isinstance(sampler, (Rotated, torch_data.DistributedSampler)):
                sampler.set_epoch(number)

    def seed(self, number: int, _) -> None:
        torch.manual_seed(number)

    def reseed(self, number: int, _) -> None:
        self.generator.manual_seed(number)

    def draw(self, *_) -> None:
        self.fed.append(torch.rand(2))

    def length(self, *_) -> None:
        try:
            self.fed.append(len(self.loader))
        except TypeError:
            self.fed.append("no length")

    def batch_size(self, number: int, _) -> None:
        if type(self.loader.batch_sampler) is not list and hasattr(self.loader.batch_sampler, "batch_size"):
            self.loader.batch_sampler.batch_size = 1 + number % 4

    def drop_last(self, number: int, _) -> None:
        if hasattr(self.loader.batch_sampler, "drop_last"):
            self.loader.batch_sampler.drop_last = number % 2 == 0

    def resample(self, number: int, other: int) -> None:
        """Give the batch sampler another sampler."""
        if self.order is not None and hasattr(self.loader.batch_sampler, "sampler"):
            order = [i % len(self.dataset) for i in range(number, number + 2 + other)]
            self.loader.batch_sampler.sampler = Rotated(order) if number % 2 else order

    def replace(self, number: int, other: int) -> None:
        """Put another batch sampler in the loader, as programs do that are not allowed to."""
        if self.order is not None and self.loader.batch_sampler is not None:
            size = len(self.dataset)
            batches = [[(i + number) % size, (i + other) % size] for i in range(5)]
            object.__setattr__(self.loader, "batch_sampler", Rotated(batches) if number % 2 else batches)

    def collate(self, number: int, _) -> None:
        if self.loader.batch_size is not None:
            self.loader.collate_fn = [as_list, counted][number % 2]


# ---- programs --------------------------------------------------------------------------------------------------

numbers = st.integers(0, 11)
steps = st.lists(st.tuples(st.sampled_from(READING + CHANGING + LOADER), numbers, numbers), min_size=1, max_size=20)


@st.composite
def worlds(draw, workers: int):
    """What a program is made of."""
    dataset = draw(st.sampled_from([*MAPPED, "stream"]))
    single = draw(st.booleans()) and draw(st.booleans())
    options = (
        {"batch_size": None} if single else {"batch_size": draw(st.integers(1, 4)), "drop_last": draw(st.booleans())}
    )
    options["collate_fn"] = None if single else draw(st.sampled_from(COLLATE))
    if workers:
        options |= {"num_workers": workers, "persistent_workers": draw(st.booleans())}
    return {
        "dataset": dataset,
        "count": draw(st.integers(1, 9)),
        "order": draw(st.sampled_from(INDICES if single else INDICES + BATCHES)),
        "options": options,
        "generator": draw(st.booleans()),
        "seed": draw(numbers),
        "workers": workers,
    }


def check(world, program) -> None:
    def run(loader_class):
        run = Run(loader_class, world)
        for step in itertools.chain([("length", 0, 0)], program, [("finish", 0, 0), ("draw", 0, 0)]):
            run.take(*step)
        return run.fed

    as_torch(run)


@settings(max_examples=examples(100))
@given(worlds(0), steps)
def test_batches_are_those_of_torch(world, program):
    check(world, program)


@settings(max_examples=examples(4))
@given(worlds(2), steps)
def test_batches_of_workers_are_those_of_torch(world, program):
    check(world, program)
