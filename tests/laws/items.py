"""Datasets of items for the laws, at the top of a module so that any worker can read them."""

from __future__ import annotations

import os
import random
import signal

import numpy as np

import feedline as fl


class Augmented:
    """Item ``i`` is ``i`` and what the generators that items may use say."""

    def __init__(self, n, bad=()):
        self.n, self.bad = n, frozenset(bad)

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError(f"planted in {index}")
        drawn = [random.random(), random.gauss(0, 1), np.random.standard_normal(), fl.sample_rng().random()]
        return index, np.array(drawn + torch_draws())


class Plain(Augmented):
    """Item ``i`` is ``i``; no random numbers."""

    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError(f"planted in {index}")
        return index


class Rare(Augmented):
    """Random numbers for few items only."""

    def __getitem__(self, index):
        return super().__getitem__(index) if index % 17 == 5 else (index, np.zeros(len(torch_draws()) + 4))


class Killing(Augmented):
    """Whoever reads item ``victim`` first is killed."""

    def __init__(self, n, victim, marker):
        super().__init__(n)
        self.victim, self.marker = victim, marker

    def __getitem__(self, index):
        if index == self.victim and not self.marker.exists():
            self.marker.touch()
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
