"""Datasets and samplers for tests of states, at the top of a module so that workers find them."""

from __future__ import annotations

import random

import numpy as np


class Plain:
    """Item ``i`` is ``i``, in a user's class."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return index


class Noisy(Plain):
    """Items of the seed of torch's generator, and a draw from it."""

    def __getitem__(self, index):
        import torch

        return torch.initial_seed(), torch.rand(()).item()


class Sampler(Plain):
    """In order, with a state, which is set back at the end."""

    drawn = 0

    def __iter__(self):
        while self.drawn < self.n:
            self.drawn += 1
            yield self.drawn - 1
        self.drawn = 0

    def state_dict(self):
        return {"drawn": self.drawn}

    def load_state_dict(self, state):
        self.drawn = state["drawn"]


def share(items):
    """This worker's part of them."""
    try:
        from torch.utils.data import get_worker_info
    except ModuleNotFoundError:
        return items
    info = get_worker_info()
    return items if info is None else items[info.id :: info.num_workers]


class Stateless:
    """0 … n-1, iterated."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(share(range(self.n)))


class Resetting(Stateless):
    """The state is the number of delivered items, which is reset at the end."""

    at = 0

    def __iter__(self):
        items = share(range(self.n))
        while self.at < len(items):
            self.at += 1
            yield items[self.at - 1]
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class OwnIterator(Stateless):
    """Its own iterator, which `__iter__` sets back."""

    at = 0

    def __iter__(self):
        self.at, self.items = 0, share(range(self.n))
        return self

    def __next__(self):
        if self.at == len(self.items):
            raise StopIteration
        self.at += 1
        return self.items[self.at - 1]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class MadeInIter(Stateless):
    """Its state exists only from `__iter__` on."""

    def __iter__(self):
        self.inner = {"at": 0}
        items = share(range(self.n))
        return (items[i] for i in self.places(len(items)))

    def places(self, n):
        while self.inner["at"] < n:
            self.inner["at"] += 1
            yield self.inner["at"] - 1

    def state_dict(self):
        return dict(self.inner)

    def load_state_dict(self, state):
        self.inner["at"] = state["at"]


class Coarse(Stateless):
    """Only `__iter__` applies the state, as in torchdata, and consumes it."""

    begin = at = 0

    def __iter__(self):
        begin, self.begin = self.begin, 0
        return self.given(begin)

    def given(self, begin):
        for at, item in enumerate(share(range(self.n))[begin:], begin):
            self.at = at + 1
            yield item

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.begin = state["at"]


class TwoStates(Stateless):
    """A state of the dataset and another one of its iterator."""

    sweeps = 0

    def __iter__(self):
        self.sweeps += 1
        return Iterator(share(range(self.n)))

    def state_dict(self):
        return {"sweeps": self.sweeps}

    def load_state_dict(self, state):
        self.sweeps = state["sweeps"]


class Iterator:
    """Of `TwoStates`."""

    def __init__(self, items):
        self.items, self.at = items, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == len(self.items):
            raise StopIteration
        self.at += 1
        return self.items[self.at - 1]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Drawing(OwnIterator):
    """Items of draws from the global generators."""

    def __init__(self, n, stateful):
        super().__init__(n)
        self.stateful = stateful

    def __next__(self):
        super().__next__()
        drawn = [random.random(), random.gauss(0, 1), np.random.random(), np.random.standard_normal()]
        try:
            import torch
        except ModuleNotFoundError:
            return drawn
        return [*drawn, torch.rand(()).item(), torch.randn(()).item()]

    def __getattribute__(self, name):
        if name in ("state_dict", "load_state_dict") and not object.__getattribute__(self, "stateful"):
            raise AttributeError(name)
        return object.__getattribute__(self, name)
