"""A sampler of whole batches that is its own iterator, and whose ``__iter__`` begins its epoch again.

Speech toolkits sample like that: batches are filled up to a duration, and the sampler counts what it has drawn in an
epoch for its own checkpoints.
"""

from __future__ import annotations

import json
import random
from itertools import islice

import pytest

import feedline
from feedline import DataLoader
from tests.programs.comparing import as_torch, batches_equal, torch, workers


class Groups:
    """Groups of at most ``limit`` seconds of the recordings, in an order of each epoch."""

    def __init__(self, seconds, limit: float = 3.0) -> None:
        self.seconds, self.limit = seconds, limit
        self.epoch, self.drawn, self.restored = 0, 0, False

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.drawn, self.restored = 0, False
        self.epoch = epoch

    def __iter__(self):
        if not self.restored:
            self.drawn = 0
        return self

    def __next__(self):
        self.restored = False
        order = list(range(len(self.seconds)))
        random.Random(self.epoch).shuffle(order)
        group, total = [], 0.0
        for index in order[self.drawn :]:
            if group and total + self.seconds[index] > self.limit:
                break
            group.append(index)
            total += self.seconds[index]
        self.drawn += len(group)
        if not group:
            raise StopIteration
        return group

    def state_dict(self):
        return {"epoch": self.epoch, "drawn": self.drawn}

    def load_state_dict(self, state) -> None:
        self.epoch, self.drawn, self.restored = state.pop("epoch"), state.pop("drawn"), True
        assert not state, "expected a known state"


class Recordings(torch.utils.data.Dataset):
    """Takes a group, and pads it."""

    def __init__(self) -> None:
        self.seconds = [0.5 + (i * 7 % 5) / 4 for i in range(19)]

    def __getitem__(self, group):
        width = max(int(self.seconds[i] * 4) for i in group)
        sound = torch.zeros(len(group), width)
        for row, i in enumerate(group):
            sound[row, : int(self.seconds[i] * 4)] = i
        return {"sound": sound, "ids": list(group)}

    def __len__(self) -> int:
        return len(self.seconds)


def loader_of(loader, workers, form="batches"):
    recordings = Recordings()
    sampler = Groups(recordings.seconds)
    if form == "batches":
        return loader(recordings, batch_size=None, sampler=sampler, num_workers=workers), sampler
    return loader(range(19), batch_sampler=sampler, num_workers=workers), sampler


def epochs(loader, workers, form, named):
    """Three epochs, the second one left early."""
    loop, sampler = loader_of(loader, workers, form)
    fed = []
    for epoch in range(3):
        if named:
            sampler.set_epoch(epoch)
        for step, batch in enumerate(loop):
            fed.append(batch)
            if epoch == 1 and step == 2:
                break
            assert step < 100, "expected an epoch that ends"
    return fed


@workers
@pytest.mark.parametrize("form", ["batches", "batch sampler"])
@pytest.mark.parametrize("named", [False, True], ids=["", "set_epoch"])
def test_batches_come_once_in_the_order_of_the_sampler(workers, form, named):
    assert len(as_torch(epochs, workers=workers, form=form, named=named)) > 15


@workers
@pytest.mark.parametrize("form", ["batches", "batch sampler"])
@pytest.mark.parametrize("taken", [1, 4])
def test_a_state_goes_on_after_the_last_batch(workers, form, taken):
    loop, _ = loader_of(DataLoader, workers, form)
    whole = list(islice(loop, 100))
    stopped, _ = loader_of(DataLoader, workers, form)
    batches = iter(stopped)
    for _ in range(taken):
        next(batches)
    state = json.loads(json.dumps(stopped.state_dict()))
    for _ in range(2):  # the state is as good the second time
        resumed, _ = loader_of(DataLoader, workers, form)
        resumed.load_state_dict(state)
        assert batches_equal(whole[taken:], list(islice(resumed, 100)))


class Stream:
    """Samples of an open file, which ``iter`` winds back."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self):
        self.at = 0
        return self

    def __next__(self):
        if self.at == 100:
            raise StopIteration
        self.at += 1
        return self.at


def test_a_stream_that_iter_winds_back_is_converted_once(tmp_path):
    store = tmp_path / "stream.store"
    feedline.convert(Stream(), store)
    batches = feedline.DataLoader(str(store), batch_size=100)
    (batch,) = list(batches)
    assert next(iter(batch.values())).reshape(-1).tolist() == list(range(1, 101))


class Resumable(torch.utils.data.IterableDataset):
    """Numbers, from a state of which ``load_state_dict`` takes the parts out."""

    at = 0

    def __iter__(self):
        while self.at < 10:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state) -> None:
        self.at = state.pop("at")


@workers
def test_a_state_that_a_stream_takes_apart_loads_twice(workers):
    stopped = DataLoader(Resumable(), batch_size=None, num_workers=min(workers, 1))
    batches = iter(stopped)
    assert [next(batches) for _ in range(3)] == [1, 2, 3]
    state = stopped.state_dict()
    for _ in range(2):
        resumed = DataLoader(Resumable(), batch_size=None, num_workers=min(workers, 1))
        resumed.load_state_dict(state)
        assert list(resumed) == [4, 5, 6, 7, 8, 9, 10]
