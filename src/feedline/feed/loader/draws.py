"""Draws from the program's generators, as torch's `DataLoader` makes them.

A loader without ``seed`` takes the seed of each sweep from the generator as it is at ``iter``, so that a seed which the
program sets before an epoch decides its order. Then it draws as much as torch's loader and its `RandomSampler` draw, at
the same moments. So the numbers that the program draws next, for the parameters of a network for instance, are the same
as with torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from feedline.feed.loader.collate import torch_side

T = TypeVar("T")


def seed_at(generator: Any) -> int:
    """Return the seed that follows from the state of a generator, which does not change. None: the global generator."""
    if torch_side() is not None:
        return int(torch_side().seed_at(generator))
    before = np.random.get_state()
    try:
        return draw(None)
    finally:
        np.random.set_state(before)


def draw(generator: Any) -> int:
    """Draw one number from a generator, as torch's loader does for its workers. None is the global generator."""
    if torch_side() is not None:
        return int(torch_side().first_seed(generator))
    return int(np.random.randint(0, 2**63 - 1, dtype=np.int64))


class ProgramGenerator:
    """The global generator that the sweeps of a loader without ``seed`` follow.

    After a state has been loaded, they follow a twin of the saved run's generator, until the program draws from the
    global one or sets it. So the next sweeps equal the sweeps of the saved run, under any initial seed of the program,
    and loading a state does not change the numbers that the program draws.

    Args:
        saved: result of `state`, to be followed. None if no state was loaded.
    """

    def __init__(self, saved: str | None = None) -> None:
        self._twin: Any = None
        self._draw_at: str | None = None  # state of the global one after our last draw
        if saved is not None:
            self.follow(saved)

    def __reduce__(self) -> Any:
        return ProgramGenerator, (None if self.current_twin() is None else self.state(),)

    def follow(self, saved: str) -> None:
        """Follow a twin in this state from now on."""
        torch = torch_side()
        if torch is not None:
            self._draw_at, self._twin = torch.generator_state(None), torch.generator_at(saved)

    def state(self) -> str | None:
        """Return the state of the generator that is followed, as text, or None without torch."""
        return None if torch_side() is None else str(torch_side().generator_state(self.current_twin()))

    def draw(self) -> None:
        """Draw one number."""
        twin = self.current_twin()
        draw(None)
        if twin is not None:
            draw(twin)
            self._draw_at = torch_side().generator_state(None)

    def run(self, start: Callable[[], T]) -> T:
        """Start a user's sampler, which draws from the global generator, or from the twin in its place."""
        twin, torch = self.current_twin(), torch_side()
        if twin is None:
            return start()
        program = torch.generator_state(None)
        torch.set_generator_state(None, torch.generator_state(twin))
        try:
            return start()
        finally:
            torch.set_generator_state(twin, torch.generator_state(None))
            torch.set_generator_state(None, program)

    def current_twin(self) -> Any:
        """Return the twin, or None once the program has changed the global generator. Called whenever a sweep
        begins."""
        twin = self._twin
        if twin is not None and torch_side().generator_state(None) != self._draw_at:
            twin = self._twin = None
        return twin


class SamplerDraws:
    """The draws of torch's `RandomSampler` in a sweep.

    They come with the first index and, from a generator that was passed to the loader, once more after the last one.

    Args:
        generator: generator of the sampler. None: the global one.
        program: the global generator.
        items: number of items.
        size: indices of a batch.
        ahead: batches that torch's loader asks for when a sweep begins, as its workers make them ahead.
        done: batches asked for before the sweep was interrupted. None if the sweep begins.
    """

    def __init__(
        self, generator: Any, program: ProgramGenerator, *, items: int, size: int, ahead: int, done: int | None
    ) -> None:
        self._generator, self._program, self._items, self._asked = generator, program, items, ahead + (done or 0)
        self._draw_at = [1, items // size + 1]  # numbers of batches asked for at which something is drawn
        if done is not None:  # the saved run has drawn the others already
            self._draw_at = [number for number in self._draw_at if number > self._asked]
        self._begun = len(self._draw_at) < 2
        self.draw_for(0)

    @property
    def ended(self) -> bool:
        """Whether nothing is left to be drawn in this sweep."""
        return not self._draw_at

    def draw_for(self, batches: int) -> None:
        """Draw as much as torch has drawn by the time the program has asked for ``batches`` batches."""
        while self._draw_at and batches + self._asked >= self._draw_at[0]:
            first, self._begun = not self._begun, True
            del self._draw_at[0]
            if self._generator is not None:
                torch_side().permute(self._items, self._generator)
            elif first:
                self._program.draw()
