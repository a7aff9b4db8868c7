"""Datasets for their own programs, at the top of a module so that workers find them."""

from __future__ import annotations

import numpy as np


class Rows:
    """Item ``i`` is 2000 times ``i``: large enough for shared memory."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return np.full(2000, index, np.float32)


class Failing(Rows):
    """One item cannot be read."""

    def __init__(self, n, bad):
        super().__init__(n)
        self.bad = bad

    def __getitem__(self, index):
        if index == self.bad:
            raise ValueError(f"planted in {index}")
        return super().__getitem__(index)


class Counting:
    """Iterated, with a state."""

    def __init__(self, n):
        self.n, self.at = n, 0

    def __iter__(self):
        while self.at < self.n:
            self.at += 1
            yield np.full(2000, self.at - 1, np.float32)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]
