"""Datasets of items for the laws, at the top of a module so that any worker can read them."""

from __future__ import annotations

import contextlib
import os
import random
import signal

import numpy as np

import feedline as fl


class Augmented:
    """Item ``i`` is ``i`` and draws from all generators that items may use."""

    def __init__(self, n, bad=()):
        self.n, self.bad = n, frozenset(bad)

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError(f"planted in {index}")
        numbers = [random.random(), random.gauss(0, 1), np.random.standard_normal(), fl.sample_rng().random()]
        return index, np.array(numbers + torch_draws())


class Plain(Augmented):
    """Item ``i`` is ``i``, without random numbers."""

    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError(f"planted in {index}")
        return index


class Rare(Augmented):
    """Random numbers for few items only."""

    def __getitem__(self, index):
        return super().__getitem__(index) if index % 17 == 5 else (index, np.zeros(len(torch_draws()) + 4))


class Killing(Augmented):
    """The process that first reads item ``victim`` is killed."""

    def __init__(self, n, victim, marker):
        super().__init__(n)
        self.victim, self.marker = victim, marker

    def __getitem__(self, index):
        if index == self.victim:
            with contextlib.suppress(FileExistsError):  # only one can create it, if two read the item at the same time
                self.marker.open("x").close()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def torch_draws():
    try:
        import torch
    except ModuleNotFoundError:
        return []
    return [torch.rand(()).item(), torch.empty(1).normal_().item()]


def content(batches):
    """Items in order as bytes."""
    out = []
    for batch in batches:
        columns = [np.asarray(part) for part in (batch if isinstance(batch, (list, tuple)) else [batch])]
        out += [tuple(column[i].tobytes() for column in columns) for i in range(len(columns[0]))]
    return out


class Slots(Plain):
    """Item ``i`` is ``i``, ``1 + i % 3`` times."""

    def __getitem__(self, index):
        return np.full(1 + index % 3, index)


class Looping:
    """0 … n-1, iterated, without a state."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        for i in range(self.n):
            yield self.item(i)

    def item(self, i):
        return i


class Counting(Looping):
    """The same, with a state."""

    def __init__(self, n):
        super().__init__(n)
        self.at = 0

    def __iter__(self):
        while self.at < self.n:
            item = self.item(self.at)
            self.at += 1
            yield item
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Shuffling:
    """A sampler with a state: 0, 7, 14, … modulo n."""

    def __init__(self, n):
        self.n, self.drawn = n, 0

    def __len__(self):
        return self.n

    def __iter__(self):
        while self.drawn < self.n:
            index = self.drawn * 7 % self.n
            self.drawn += 1
            yield index
        self.drawn = 0

    def state_dict(self):
        return {"drawn": self.drawn}

    def load_state_dict(self, state):
        self.drawn = state["drawn"]


def numbers(samples):
    """A ``collate_fn`` of corpora."""
    return np.array([int(sample["x"]) for sample in samples])


def doubled(sequence):
    """A transform."""
    return {"x": sequence["x"] * 2}
