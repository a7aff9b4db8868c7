"""Random numbers keyed by the sample: the same for any number of workers, including none.

`sample_rng` returns a NumPy generator keyed by (seed, sweep, item). Code that draws from the global generators of
`random`, NumPy (`np.random.*`) and torch works too: they are seeded from the same key before each sample, and restored
afterwards in the process of the training loop.

Seeding costs 1 to 4 µs per sample and generator, so only generators in use are seeded. The states of the others are
compared before and after each batch. In a worker process, where nobody else draws, the state after a batch is the
state before the next. The first batch that draws from a generator is read again with seeding, and from then on each
sample is seeded.

All threads share these generators, so batches that seed them run one at a time, in `turns`. In workers' threads
torch's functions use a per-thread generator, as the training loop may draw from the global one at any moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from feedline import _native
from feedline.concurrency.turns import Reading, turns
from feedline.feed.loader.global_generators import Global, all_generators, check_twister, torch_if_imported

T = TypeVar("T")


# Levels of the key for each kind of random number. Orders, transforms and draws have the lower levels.
ITEM, BATCH, COLLATE, SAMPLER, WORKER = 4, 5, 6, 7, 8

SweepKey = tuple[int, int]
"""The key of all random numbers of a sweep: a seed, and the number of the sweep under it."""


class _Thread(threading.local):
    """The sample that this thread makes. ``names`` is None while it makes none."""

    names: At | None = None


_thread = _Thread()


def sample_rng() -> np.random.Generator:
    """Return the random generator of the current sample, keyed by the loader's seed, the sweep and the item.

    Call it in ``__getitem__``: an item gets the same numbers under any number of workers, with any batch size and after
    a restart, and other numbers in the next sweep. In ``__getitems__`` and ``collate_fn`` the key is the batch's. A
    second call for the same sample returns the same generator, advanced. An `IterableDataset` has no samples in this
    sense.

    Raises:
        RuntimeError: no `DataLoader` is making a sample in this thread.
    """
    names = _thread.names
    if names is None:
        raise RuntimeError(
            "expected to be called while a DataLoader makes a sample (in __getitem__, __getitems__ or collate_fn); "
            "elsewhere create your own generator: np.random.default_rng(seed)"
        )
    key, cached = names.current(), names.numpy
    if cached is None or cached[0] != key:
        bits = np.random.Philox(key=_native.hash_key([*key, 1]))
        cached = names.numpy = (key, np.random.Generator(bits))
    return cached[1]


class Seeding:
    """Seeds the generators that user code draws from. There is one per process, or per loader with threads.

    Args:
        restore: whether to restore the global generators, as the training loop uses them too.
        threads: whether several threads use this object.
        seeded: whether all generators are seeded from the start, so that nothing is read twice.
    """

    def __init__(self, *, restore: bool, threads: bool = False, seeded: bool = False) -> None:
        self._restore = restore
        self._all = all_generators()
        torch = torch_if_imported()
        self._own = torch.own_generator if torch is not None and threads else None
        if self._own is not None:
            self._all.pop()  # threads do not touch the global torch generator
        self._seeded: list[Global] = self._all if seeded else []
        self._nests = False
        self._marks: list[Any] | None = None

    def run(self, key: SweepKey, work: Callable[[At], T]) -> T:
        """Return the result of ``work(at)``, which calls ``at(key, level)`` before each piece of user code.

        ``work`` may be called several times (see the module), as seeded numbers may lead to code that draws from
        another generator.
        """
        while True:
            done, result = self._attempt(key, work)
            if done:
                value: T = result
                return value

    def _attempt(self, key: SweepKey, work: Callable[[At], T]) -> tuple[bool, Any]:
        """Return (whether everything drawn was seeded, the result of ``work``)."""
        reading, names = Reading(self._seeds), _thread.names
        seeded: list[Global] = []
        result, error = None, None
        try:
            turns.begin(reading, self._look)
            seeded = self._seeded if reading.alone else []
            try:
                at = _Seeds(key, seeded) if seeded else At(key)
                if self._own is None:
                    result = work(at)
                else:
                    with self._own(_own):
                        result = work(at)
            except Exception as raised:  # numbers that were not seeded may have caused it
                error = raised
        finally:
            _thread.names = names
            try:
                self._end(reading, seeded)
            except BaseException:  # an interrupt must not change the loop's generators either
                self._end(reading, seeded)
                raise
            finally:
                turns.inside.pop(reading, None)  # in one call, and no interrupt can come before it
                turns.end(reading)
        if reading.again:
            return False, None
        if error is not None:
            raise error
        return True, result

    def _seeds(self) -> bool:
        """Return whether a reading that begins now seeds generators."""
        return bool(self._seeded or self._nests)

    def _look(self) -> list[Any]:
        """Return the state of each generator, or None if it need neither be compared nor restored."""
        marks, self._marks = self._marks, None
        if marks is not None:
            return marks
        return [g.mark() if self._restore or g not in self._seeded else None for g in self._all]

    def _end(self, reading: Reading, seeded: list[Global]) -> None:
        """Restore the generators. If user code drew from one unseeded, it is seeded from now on, and the batch is read
        again."""
        if reading not in turns.inside:
            return  # an interrupt came while it waited for its turn
        turns.take_back(reading)
        with turns.lock:
            for g, (_, mark) in zip(self._all, reading.marks, strict=True):
                if g not in seeded:
                    if not g.changed(mark):
                        continue
                    reading.drawn.append(g)
                elif not self._restore:
                    continue
                g.restore(mark)
            if reading.drawn:
                reading.again = True
                self._seeded = [g for g in self._all if g in self._seeded or g in reading.drawn]
            self._nests = self._nests or reading.nests
            if reading.again:
                turns.restored(reading)
            elif not self._restore:
                self._marks = [mark for _, mark in reading.marks]  # nobody else draws in a worker's process


class GlobalStates:
    """The states of the global generators of this process at one moment. They show which generators were drawn from
    since."""

    def __init__(self) -> None:
        self._all = dict(zip(_NAMES, all_generators(), strict=False))
        self.begin()

    def begin(self) -> None:
        """Take the present moment."""
        self._marks = {name: g.mark() for name, g in self._all.items()}
        self._saved = {name: g.save() for name, g in self._all.items()}

    def before(self) -> dict[str, Any]:
        """Return, by name and in JSON types, the states at that moment of the generators that were drawn from since."""
        return {name: saved for name, saved in self._saved.items() if saved is not None and self._is_drawn(name)}

    def now(self) -> dict[str, Any]:
        """Return the present states of the generators that were drawn from since, by name, in JSON types."""
        states = {name: g.save() for name, g in self._all.items() if self._is_drawn(name)}
        return {name: saved for name, saved in states.items() if saved is not None}

    def _is_drawn(self, name: str) -> bool:
        return self._all[name].changed(self._marks[name])

    def load(self, states: Mapping[str, Any]) -> None:
        """Set generators to states that `before` or `now` has returned."""
        for name, saved in states.items():
            if name in self._all:
                self._all[name].load(saved)

    def restore(self) -> None:
        """Restore all generators to their states at that moment."""
        for name, g in self._all.items():
            g.restore(self._marks[name])

    @staticmethod
    def check(states: Any) -> None:
        """Check states of generators, without loading them.

        Raises:
            KeyError, TypeError, ValueError: they are invalid.
        """
        if not isinstance(states, Mapping) or not states.keys() <= set(_NAMES):
            raise TypeError(f"expected states of the generators {', '.join(_NAMES)}, got {states!r:.80}")
        torch = torch_if_imported()
        for name, saved in states.items():
            if not isinstance(saved, Mapping):
                raise TypeError(f"expected a state of {name} as a mapping, got {saved!r:.80}")
            if name != "torch":
                check_twister(saved)
            elif torch is not None:
                torch.check_generator_state(saved["state"])


_NAMES = ("random", "numpy", "torch")  # in the order of `all_generators`


def seed_process(number: int) -> None:
    """Seed all global generators of a worker process."""
    for generator in all_generators():
        generator.seed(number)


class At:
    """Announces the sample whose code runs next in this thread, for `sample_rng`. It seeds nothing.

    The sample's key is ``_key``, or is looked up on demand: the entry of ``_keys`` at the number of samples made so
    far.
    """

    __slots__ = ("_key", "_keys", "_level", "_samples", "_seed", "_sweep", "numpy", "torch")

    def __init__(self, key: SweepKey) -> None:
        (self._seed, self._sweep), self._level = key, 0
        # The generators of a sample, NumPy's and torch's, once it has drawn from them.
        self.numpy: tuple[tuple[int, ...], np.random.Generator] | None = None
        self.torch: tuple[tuple[int, ...], Any] | None = None

    def __call__(self, key: int, level: int = ITEM) -> None:
        """Announce the code of sample ``key``."""
        self._level, self._key, self._keys, self.numpy, self.torch = level, key, None, None, None
        _thread.names = self

    def many(self, keys: Any, samples: list[Any]) -> bool:
        """Announce all items of a batch, whose samples are appended one by one. Return False if each must be
        announced."""
        self._level, self._keys, self._samples = ITEM, keys, samples
        _thread.names = self
        return True

    def current(self) -> tuple[int, ...]:
        """Return what determines the random numbers of the current sample: seed, sweep, level and key."""
        key = self._key if self._keys is None else self._keys[len(self._samples)]
        return self._seed, self._sweep, self._level, key


class _Seeds(At):
    """Seeds generators, too."""

    def __init__(self, key: SweepKey, generators: list[Global]) -> None:
        super().__init__(key)
        self._generators = generators

    def __call__(self, key: int, level: int = ITEM) -> None:
        super().__call__(key, level)
        number = _native.hash_key([self._seed, self._sweep, level, key])
        for g in self._generators:
            g.seed(number)

    def many(self, keys: Any, samples: list[Any]) -> bool:
        """Return False: each sample must be seeded."""
        return False


def _own() -> Any:
    """Return torch's generator of the current sample, in a thread that does not draw from the global one."""
    names = _thread.names
    assert names is not None
    key, cached = names.current(), names.torch
    if cached is None or cached[0] != key:
        cached = names.torch = (key, torch_if_imported().seeded_generator(_native.hash_key([*key])))
    return cached[1]
