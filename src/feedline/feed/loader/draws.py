"""What torch's `DataLoader` draws from the program's generators, drawn here as well.

A loader without ``seed`` takes the seed of each sweep from the generator as it is at ``iter``, so that a seed which the
program sets before an epoch decides its order. Then as much is drawn as torch's loader and its `RandomSampler` draw, at
the same moments, so that what the program draws next, such as the parameters of a network, is what it is with torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from feedline.feed.loader.collate import torch_side


def seed_at(generator: Any) -> int:
    """Return the seed that follows from a generator as it is, which stays as it is; None: the global one."""
    torch = torch_side()
    if torch is not None:
        seed: int = torch.seed_at(generator)
        return seed
    before = np.random.get_state()
    try:
        return draw(None)
    finally:
        np.random.set_state(before)


def draw(generator: Any) -> int:
    """Draw one number from a generator, as torch's loader does for its workers; None: the global one."""
    torch = torch_side()
    if torch is not None:
        drawn: int = torch.first_seed(generator)
        return drawn
    return int(np.random.randint(0, 2**63 - 1, dtype=np.int64))


def generator_state(generator: Any) -> str:
    """Return the state of a generator, which is torch's, as text."""
    torch = torch_side()
    assert torch is not None, "generators are torch's"
    text: str = torch.generator_state(generator)
    return text


def set_generator_state(generator: Any, saved: str) -> None:
    """Set a generator to such a state."""
    torch = torch_side()
    assert torch is not None, "generators are torch's"
    torch.set_generator_state(generator, saved)


class SamplerDraws:
    """The draws of torch's `RandomSampler` in a sweep.

    They come with the first index, and, from a generator of its own, once more behind the last one.

    Args:
        generator: of the sampler; None: the global one.
        items: number of items.
        size: indices of a batch.
        ahead: batches that torch's loader asks for when a sweep begins: those that its workers make ahead.
        done: batches asked for before the sweep was interrupted; None: it begins.
    """

    def __init__(self, generator: Any, items: int, size: int, ahead: int, done: int | None) -> None:
        self._generator, self._items, self._asked = generator, items, ahead + (done or 0)
        self._left = [1, items // size + 1]  # numbers of batches asked for at which something is drawn
        if done is not None:  # what was drawn by then is not drawn again
            self._left = [number for number in self._left if number > self._asked]
        self._begun = len(self._left) < 2
        self.asked(0)

    def asked(self, batches: int) -> None:
        """Draw what torch has drawn when so many batches were asked for by the program."""
        while self._left and batches + self._asked >= self._left[0]:
            first, self._begun = not self._begun, True
            del self._left[0]
            torch = torch_side()
            if self._generator is not None and torch is not None:
                torch.permute(self._items, self._generator)
            elif first:
                draw(None)
