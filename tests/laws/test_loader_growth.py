"""Data that grows under a `DataLoader`: a sweep ends over what it began with, and later ones have everything.

Over files each sweep is compared with that of a loader over its version alone. Of Python's datasets those grow whose
first items are known to be the same.
"""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

import feedline as fl
from tests.effort import examples
from tests.laws.growing_files import FORMS, Growth

torch = pytest.importorskip("torch", reason="torch is not installed")


def number_of(sample):
    """The number in the first sample of a sequence."""
    first = sample["n"]
    while isinstance(first, (list, tuple)):
        first = first[0]
    if isinstance(first, (bytes, str)):
        return int(first)
    if isinstance(first, fl.Value):
        return int(first.class_indices().rows[0])
    return int(np.ravel(first)[0])


def numbers_in(batch):
    return [number_of(sample) for sample in batch]


def deliver(loader, most, delivered):
    """Continue in loops of which the last one is left after ``most`` batches. Return the state then."""
    while most > 0:
        ended = True
        for batch in loader:
            delivered.append(batch)
            most -= 1
            if most == 0:
                ended = False
                break
        if ended:
            most -= 1
    return json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("trial", range(examples(1)))
def test_each_sequence_comes_once_a_sweep_from_its_version_on(tmp_path, form, trial):
    chance = random.Random(f"{form} {trial}")
    growth, seed = Growth(tmp_path, form), chance.choice([5, 5, None])
    shuffle = chance.choice([True, False, fl.Window(chunks=2)])

    def loader(version=None, **options):
        return fl.DataLoader(growth.corpus(version), shuffle=shuffle, seed=seed, collate_fn=numbers_in, **options)

    growth.append(chance.randint(4, 20))
    state, versions, delivered = None, [(0, 1)], []
    for _ in range(7):
        current = loader(batch_size=chance.randint(1, 9), num_workers=chance.randint(0, 3))
        if state is not None:
            current.load_state_dict(state)
        state = deliver(current, chance.randint(0, 4), delivered)
        for _ in range(chance.choice([0, 1, 1, 2])):
            growth.append(chance.randint(1, 9))
        begins = state["sweep"] + (state["sequence"] > 0)
        if versions[-1][1] != len(growth.counts):
            versions = [row for row in versions if row[0] < begins] + [(begins, len(growth.counts))]
    delivered = [n for batch in delivered for n in batch]
    for sweep in range(state["sweep"] + 1):
        version = next(version for first, version in reversed(versions) if first <= sweep)
        got, delivered = delivered[: sum(growth.counts[:version])], delivered[sum(growth.counts[:version]) :]
        whole = loader(version, batch_size=7)
        if seed is not None:
            whole.load_state_dict({**whole.state_dict(), "sweep": sweep})
            assert got == [n for batch in whole for n in batch][: len(got)]
        assert len(set(got)) == len(got)
        assert sweep == state["sweep"] or sorted(got) == list(range(sum(growth.counts[:version])))
    assert delivered == []


def test_batches_by_length_and_counts_follow_the_version(tmp_path):
    growth = Growth(tmp_path, "jsonl")
    growth.append(10)

    def loader():
        return fl.DataLoader(
            growth.corpus(), batch_sampler=fl.BatchByLength(6), shuffle=True, seed=5, collate_fn=numbers_in
        )

    before = loader()
    iterator = iter(before)
    first, state = next(iterator), before.state_dict()
    rest = list(iterator)
    assert state["sequences"] == 10
    growth.append(9)
    after = loader()
    after.load_state_dict(state)
    assert len(after) == len(rest) + 1
    assert list(after) == rest
    assert [len(row) for row in after.state_dict()["versions"]] == [3, 3]
    assert sorted(n for batch in [first, *rest] for n in batch) == list(range(10))
    assert len(after) > len(rest) + 1
    assert sorted(n for batch in after for n in batch) == list(range(19))


@pytest.mark.parametrize("grows", [0, 3])
def test_a_state_at_the_end_of_a_sweep_that_has_less(tmp_path, grows):
    growth = Growth(tmp_path, "csv")
    growth.append(10)

    def loader():
        return fl.DataLoader(growth.corpus(), batch_size=4, shuffle=True, seed=5, collate_fn=numbers_in)

    before = loader()
    next(iter(before))
    growth.append(9)
    after = loader()
    after.load_state_dict(before.state_dict())
    assert len(after) == 3
    for _ in after:
        last = after.state_dict()  # at the last batch: the end of this sweep
    assert (last["sweep"], last["sequence"]) == (0, 10)
    assert len(after) == 5
    if grows:
        growth.append(grows)
    again = loader()
    again.load_state_dict(last)
    assert list(again) == []
    assert sorted(n for batch in again for n in batch) == list(range(19 + grows))


def test_files_that_were_replaced_are_an_error(tmp_path):
    growth, other = Growth(tmp_path, "csv"), Growth(tmp_path / "other", "csv", {3: 900})
    for each in (growth, other):
        each.append(10)
    loader = fl.DataLoader(growth.corpus(), batch_size=3, seed=5)
    next(iter(loader))
    other.append(4)
    with pytest.raises(fl.StateError, match="Rows that were replaced or removed do not fit") as caught:
        fl.DataLoader(other.corpus(), batch_size=3, seed=5).load_state_dict(loader.state_dict())
    assert list(caught.value.saved) == ["corpus"]


def arrays(rows):
    return {"x": np.arange(rows), "y": np.arange(rows * 2.0).reshape(rows, 2)}


def parts(rows):
    """A dataset of tens."""
    return torch.utils.data.ConcatDataset([list(range(a, min(a + 10, rows))) for a in range(0, rows, 10)])


DATASETS = {
    "array": np.arange,
    "tensor": torch.arange,
    "list": lambda rows: [{"x": i} for i in range(rows)],
    "range": range,
    "arrays": arrays,
    "tuple": lambda rows: tuple(arrays(rows).values()),
    "TensorDataset": lambda rows: torch.utils.data.TensorDataset(torch.arange(rows), torch.arange(rows) * 2),
    "ConcatDataset": parts,
    "Subset": lambda rows: torch.utils.data.Subset(np.arange(100), list(range(rows))),
}


def items_of(loader):
    """The first number of each item that a loop delivers."""
    numbers = []
    for batch in loader:
        if isinstance(batch, dict):
            batch = batch["x"]
        numbers += (batch[0] if isinstance(batch, (list, tuple)) else batch).tolist()
    return numbers


@pytest.mark.parametrize("kind", DATASETS)
@pytest.mark.parametrize("seed", [5, None])
@pytest.mark.parametrize("rows", [20, 17])
def test_a_dataset_that_became_longer_ends_its_sweep_over_what_it_began_with(kind, seed, rows):
    make = DATASETS[kind]

    def loader(count, **options):
        return fl.DataLoader(make(count), shuffle=True, seed=seed, **options)

    before = loader(rows, batch_size=4)
    iterator = iter(before)
    next(iterator), next(iterator)
    state = json.loads(json.dumps(before.state_dict()))
    rest = items_of(iterator)
    after = loader(33, batch_size=3)
    after.load_state_dict(state)
    assert items_of(after) == rest
    assert sorted(items_of(after)) == list(range(33))
    assert after.state_dict()["items"] == 33
    fresh = loader(rows, batch_size=4)
    begin = {**fresh.state_dict(), "seed": "0000000000000005"}  # of a sweep that has not begun
    later = loader(33, batch_size=3)
    later.load_state_dict(begin)
    assert sorted(items_of(later)) == list(range(33))


def test_two_worker_processes_end_the_sweep(tmp_path):
    before = fl.DataLoader([[i] for i in range(40)], batch_size=4, shuffle=True, seed=5)
    iterator = iter(before)
    next(iterator)
    state, rest = before.state_dict(), [batch[0].tolist() for batch in iterator]
    data = [[i] for i in range(60)]
    with fl.DataLoader(data, batch_size=4, shuffle=True, seed=5, num_workers=2, workers="process") as after:
        after.load_state_dict(state)
        data += [[i] for i in range(60, 70)]  # also behind the loader's back, until the sweep is over
        assert [batch[0].tolist() for batch in after] == rest
        assert sorted(n for batch in after for n in batch[0].tolist()) == list(range(70))


class Squares:
    """A dataset of the user, of which only the length is known."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return self.rows

    def __getitem__(self, i):
        return i * i


@pytest.mark.parametrize("make", [Squares, lambda rows: np.arange(rows)[::-1].copy()])
def test_other_datasets_say_how_to_end_the_sweep(make):
    before = fl.DataLoader(make(20), batch_size=4, shuffle=True, seed=5)
    iterator = iter(before)
    next(iterator)
    state, rest = before.state_dict(), [batch.tolist() for batch in iterator]
    loader = fl.DataLoader(make(30), batch_size=4, shuffle=True, seed=5)
    with pytest.raises(fl.StateError, match=r"Subset\(dataset, range\(20\)\) ends the sweep over its first ones"):
        loader.load_state_dict(state)
    if make is Squares:
        ending = fl.DataLoader(torch.utils.data.Subset(make(30), range(20)), batch_size=4, shuffle=True, seed=5)
        ending.load_state_dict(state)
        assert [batch.tolist() for batch in ending] == rest
    with pytest.raises(fl.StateError) as caught:  # a shorter one has no such way
        fl.DataLoader(make(10), batch_size=4, shuffle=True, seed=5).load_state_dict(state)
    assert "Subset" not in str(caught.value)
