"""The interface of torchdata's StatefulDataLoader, in ours, and in torchdata's if it is installed.

torchdata changes torch's samplers when it is imported, so it runs in separate processes. Each test is a function of the
class alone, called here with ours, and in a fresh process with torchdata's.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap

import pytest

import feedline as fl
from tests.feed.loader.swapped import Function, IterableDataset, Numbers, flat, torch
from tests.warm import run


def test_constructor(Loader):
    assert flat(Loader(Numbers(4), batch_size=2, snapshot_every_n_steps=3)) == [0, 1, 2, 3]


def test_goes_on_after_the_delivered_minibatches(Loader):
    for workers in (0, 2):
        for shuffle in (False, True):
            torch.manual_seed(1)
            loader = Loader(Numbers(20), batch_size=3, shuffle=shuffle, num_workers=workers)
            iterator = iter(loader)
            before = flat(next(iterator) for _ in range(3))
            state = loader.state_dict()
            rest = flat(iterator)
            assert sorted(before + rest) == list(range(20))
            torch.manual_seed(2)
            again = Loader(Numbers(20), batch_size=3, shuffle=shuffle, num_workers=workers)
            again.load_state_dict(state)
            assert flat(again) == rest


def test_a_state_taken_at_every_batch(Loader):
    loader = Loader(Numbers(7), batch_size=2)
    seen = []
    states = [loader.state_dict()]
    for batch in loader:
        seen += flat([batch])
        states.append(loader.state_dict())
        again = Loader(Numbers(7), batch_size=2)
        again.load_state_dict(states[-1])
        assert seen + flat(again) == list(range(7))
        assert flat(again) == list(range(7))
    again = Loader(Numbers(7), batch_size=2)
    again.load_state_dict(states[0])
    assert flat(again) == list(range(7))


def test_at_the_end_of_an_epoch_the_next_one_comes(Loader):
    loader = Loader(Numbers(6), batch_size=2)
    list(loader)
    again = Loader(Numbers(6), batch_size=2)
    again.load_state_dict(loader.state_dict())
    read = flat(again) or flat(again)
    assert read == list(range(6))


class Counting(IterableDataset):
    """0 … 9, with its own state, and the number of reads from the beginning."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self):
        while self.next < 10:
            self.next += 1
            yield self.next - 1
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def test_an_iterable_with_a_state(Loader):
    loader = Loader(Counting(), batch_size=3)
    iterator = iter(loader)
    assert flat([next(iterator)]) == [0, 1, 2]
    state = loader.state_dict()
    again = Loader(Counting(), batch_size=3)
    again.load_state_dict(state)
    assert flat(again) == [3, 4, 5, 6, 7, 8, 9]


def test_an_iterable_with_a_state_in_workers(Loader):
    loader = Loader(Counting(), batch_size=3, num_workers=1)
    iterator = iter(loader)
    assert flat([next(iterator)]) == [0, 1, 2]
    state = loader.state_dict()
    again = Loader(Counting(), batch_size=3, num_workers=1)
    again.load_state_dict(state)
    assert flat(again) == [3, 4, 5, 6, 7, 8, 9]


class Sampler:
    """Backwards, with its own state."""

    def __init__(self) -> None:
        self.left = 10

    def __iter__(self):
        while self.left:
            self.left -= 1
            yield self.left
        self.left = 10

    def __len__(self):
        return 10

    def state_dict(self):
        return {"left": self.left}

    def load_state_dict(self, state):
        self.left = state["left"]


def test_a_sampler_with_a_state(Loader):
    loader = Loader(Numbers(10), batch_size=2, sampler=Sampler())
    iterator = iter(loader)
    assert flat([next(iterator), next(iterator)]) == [9, 8, 7, 6]
    state = loader.state_dict()
    again = Loader(Numbers(10), batch_size=2, sampler=Sampler())
    again.load_state_dict(state)
    assert flat(again) == [5, 4, 3, 2, 1, 0]


class Bounded:
    """A sampler without a state."""

    def __iter__(self):
        return iter([5, 3, 1, 0, 2])


def test_a_sampler_without_a_state_is_replayed(Loader):
    for workers in (0, 2):
        loader = Loader(Function(float), sampler=Bounded(), num_workers=workers)
        iterator = iter(loader)
        assert flat([next(iterator), next(iterator)]) == [5.0, 3.0]
        again = Loader(Function(float), sampler=Bounded(), num_workers=workers)
        again.load_state_dict(loader.state_dict())
        assert flat(again) == [1.0, 0.0, 2.0]


TESTS = [value for name, value in sorted(globals().items()) if name.startswith("test_")]


@pytest.fixture
def Loader():
    return fl.DataLoader


@pytest.mark.frameworks("torchdata")
@pytest.mark.parametrize("name", [test.__name__ for test in TESTS])
def test_in_torchdata(name):
    script = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from torchdata.stateful_dataloader import StatefulDataLoader\n"
        f"from tests.feed.loader.test_torchdata_interface import {name}\n"
        f"{name}(StatefulDataLoader)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = run(["-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.frameworks("torchdata")
def test_torchdatas_loader_over_ours():
    """Where ours was put in the place of torch's before torchdata was imported, theirs is a subclass of it."""
    script = """
        import warnings; warnings.simplefilter("ignore")
        import copy, torch.utils.data, feedline
        torch.utils.data.DataLoader = torch.utils.data.dataloader.DataLoader = feedline.DataLoader
        from torchdata.stateful_dataloader import StatefulDataLoader
        from tests.feed.loader.swapped import Numbers, flat
        assert issubclass(StatefulDataLoader, feedline.DataLoader)
        for workers in (0, 1):
            loader = StatefulDataLoader(Numbers(7), batch_size=2, num_workers=workers)
            assert len(loader) == 4 and "StatefulDataLoader" in repr(loader)
            assert flat(loader) == flat(copy.copy(loader)) == list(range(7))
            batches = iter(loader)
            next(batches)
            again = StatefulDataLoader(Numbers(7), batch_size=2, num_workers=workers)
            again.load_state_dict(loader.state_dict())
            assert flat(again) == flat(batches) == [2, 3, 4, 5, 6]
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = run(["-c", textwrap.dedent(script)], env=environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


def test_the_state_is_json():
    loader = fl.DataLoader(Numbers(20), batch_size=3, shuffle=True)
    iterator = iter(loader)
    next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = flat(iterator)
    again = fl.DataLoader(Numbers(20), batch_size=3, shuffle=True)
    again.load_state_dict(state)
    assert flat(again) == rest
