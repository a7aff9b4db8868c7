"""Over shared data the next sweep begins while the workers of the present one finish. It changes no batch."""

from __future__ import annotations

import copy
import gc
import os
import random
import time

import numpy as np
import pytest

import feedline as fl

torch = pytest.importorskip("torch", reason="torch is not installed")


class Records:
    """Records of a large list, with a number that the program may change, and a file with the items that were read."""

    def __init__(self, path=None, draws=False):
        self.records = [{"number": i} for i in range(1100)]
        self.offset, self.path, self.draws = 0, path, draws

    def __len__(self):
        return 40

    def __getitem__(self, i):
        if self.path is not None:
            with open(self.path, "ab") as file:
                file.write(bytes([i]))
        noise = random.random() + np.random.rand() + torch.rand(()).item() if self.draws else 0.0
        return self.records[i]["number"] + self.offset, noise


class Scaled:
    """A dataset around another one."""

    def __init__(self, inner):
        self.inner, self.scale = inner, 1

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, i):
        number, noise = self.inner[i]
        return number * self.scale, noise


def make(dataset, workers=2, persistent_workers=True, **options):
    if "generator" in options:
        options["generator"] = torch.Generator().manual_seed(options["generator"])
    persistent_workers = persistent_workers and workers > 0
    return fl.DataLoader(dataset, 4, num_workers=workers, persistent_workers=persistent_workers, **options)


def batches(loader):
    return [[part.tolist() for part in batch] for batch in loader]


def items_read(path, at_least):
    """Return the items that were read, once there are as many, within a minute."""
    deadline = time.monotonic() + 60
    while os.path.getsize(path) < at_least and time.monotonic() < deadline:
        time.sleep(0.01)
    return list(path.read_bytes())


OPTIONS = [
    {"shuffle": True, "seed": 4},
    {"shuffle": True},
    {},
    {"sampler": fl.Weighted([1.0, 2.0] * 20)},
    {"shuffle": True, "generator": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("draws", [False, True], ids=["plain", "draws"])
def test_it_changes_no_batch_and_no_draw(options, draws):
    def run(dataset):
        torch.manual_seed(1)
        loader = make(dataset, **options)
        return [batches(loader) for _ in range(3)], torch.rand(2).tolist()

    assert run(fl.shared(Records(draws=draws))) == run(Records(draws=draws))


def subset(dataset):
    return torch.utils.data.Subset(dataset, range(40))


def concatenated(dataset):
    return torch.utils.data.ConcatDataset([dataset])


@pytest.mark.parametrize(
    ("wrap", "options"),
    [*((None, options) for options in OPTIONS), (Scaled, {}), (subset, {}), (concatenated, {})],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_the_next_sweep_is_read_before_it_begins(wrap, options, tmp_path):
    dataset = fl.shared(Records(path := tmp_path / "read"))
    loader = make(dataset if wrap is None else wrap(dataset), **options)
    for sweep in range(1, 3):
        iterator = iter(loader)
        first = next(iterator)[0].tolist()
        if "sampler" not in options:  # no item comes twice in a sweep
            assert [list(path.read_bytes()).count(item) for item in first] == [sweep] * 4
        assert len(list(iterator)) == 9
        del iterator
        assert len(items_read(path, 40 * sweep + 16)) == 40 * sweep + 16  # two batches for each worker


def test_workers_end_with_the_loader():
    def children():
        with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
            return set(map(int, file.read().split()))

    before = children()
    loader = make(fl.shared(Records()))
    batches(loader)
    assert len(children() - before) == 2
    loader.close()
    assert children() - before == set()
    batches(loader)
    assert len(children() - before) == 2
    del loader
    gc.collect()
    assert children() - before == set()
    loader = make(fl.shared(Records()), persistent_workers=False)
    batches(loader)  # as the sweep ends, so do they: a program may wait for them, or for what they hold open
    assert children() - before == set()
    del loader
    gc.collect()
    assert children() - before == set()


class Noted:
    """A collate function with a number that the program may change."""

    def __init__(self):
        self.number = 0

    def __call__(self, samples):
        return [torch.tensor([number + self.number for number, _ in samples])]


def change_dataset(loader, step):
    loader.dataset.offset = step


def change_inner(loader, step):
    loader.dataset.inner.offset = 10 * step


def change_collate(loader, step):
    loader.collate_fn.number = step


def set_collate(loader, step):
    loader.collate_fn = Noted()
    loader.collate_fn.number = 5 * step


def set_epoch(loader, step):
    loader.sampler.set_epoch(7 - step)


def set_seed(loader, step):
    torch.manual_seed(step)


def draw(loader, step):
    torch.rand(step)


def load_state(loader, step):
    """Load a state in the middle of the sweep that comes next."""
    twin = copy.copy(loader)
    iterator = iter(twin)
    next(iterator)
    loader.load_state_dict(twin.state_dict())


def leave(loader, step):
    for _ in zip(range(9), loader, strict=False):
        pass


def take_share(loader, step):
    loader.repartition((step % 2, 2))


def set_records(loader, step):
    loader.dataset.records = fl.shared([{"number": -i * step} for i in range(1100)])


CHANGES = [
    change_dataset,
    change_inner,
    change_collate,
    set_collate,
    set_epoch,
    set_seed,
    draw,
    load_state,
    leave,
    take_share,
    set_records,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_changes_between_sweeps_counts_as_over_data_that_is_not_shared(change):
    def run(share, **how):
        dataset = share(Records())
        options = {"shuffle": True}
        if change is change_inner:
            dataset = Scaled(dataset)
        if change is take_share:
            options |= {"partition": (0, 1), "seed": 4}
        torch.manual_seed(1)
        loader = make(dataset, collate_fn=Noted(), **how, **options)
        delivered = []
        for step in range(1, 4):
            delivered.append(batches(loader))
            change(loader, step)
        return [*delivered, batches(loader)]

    assert run(fl.shared) == run(lambda dataset: dataset)
    assert run(fl.shared, persistent_workers=False) == run(fl.shared, workers=0)


def test_what_may_change_is_not_read_before_its_time(tmp_path):
    """Without persistent workers, in the order of the program's sampler, over data that is not shared, or that is
    shared in another way, too."""

    def beside(path):
        dataset = fl.shared(Records(path))
        dataset.labels = torch.zeros(4).share_memory_()
        return dataset

    for number, (dataset, options) in enumerate(
        (
            (lambda path: fl.shared(Records(path)), {"persistent_workers": False}),
            (lambda path: fl.shared(Records(path)), {"sampler": range(40)}),
            (Records, {}),
            (beside, {}),
        )
    ):
        path = tmp_path / str(number)
        loader = make(dataset(path), **options)
        for _ in loader:
            pass
        assert os.path.getsize(path) == 40
        time.sleep(0.05)
        assert os.path.getsize(path) == 40
