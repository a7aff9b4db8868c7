"""Random numbers that belong to the sample: the same for any number of workers, none included.

`sample_rng` hands out a NumPy generator keyed by (seed, sweep, item). Code that draws from the global generators of
`random`, NumPy (`np.random.*`) and torch is served too: they are seeded from the same key before each sample, and in
the process of the loop they are put back afterwards.

That costs 1 to 4 us a sample and generator, so it is done only for those that samples use. The first batches of a
process are seeded in full; a generator that none of them touched is not seeded any more, but looked at around each
batch. If a batch draws from it after all, the batch is read once more, seeded, and from then on each sample is. So
values never depend on what was guessed; a dataset that draws rarely sees one batch read twice.

Threads share `random`'s and NumPy's generators: batches that draw from them run one at a time there. torch's calls are
given a generator of the thread's own instead, as the loop may be drawing from the global one at any moment.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from feedline import _native

T = TypeVar("T")

_numpy_random: Any = np.random  # whose types leave some functions out

# Levels of the key, after those of orders, transforms and draws: whose random numbers these are.
ITEM, BATCH, COLLATE, SAMPLER, WORKER = 4, 5, 6, 7, 8

TRIAL = 2  # batches of a process that are seeded in full before generators nobody uses are left alone

_MT_WORDS = 624


class _Place(threading.local):
    """Which sample this thread is making; ``words`` is None outside of any.

    Its key is told, or looked up when it is wanted: ``keys`` of all samples of a batch, at the number of those made.
    """

    words: tuple[int, int, int] | None = None  # seed, sweep, level
    keys: Any = None
    samples: Any = None
    key = 0
    made: tuple[Any, int, np.random.Generator] | None = None

    def current(self) -> int:
        """The key of the moment."""
        return self.key if self.keys is None else self.keys[len(self.samples)]

    def leave(self) -> None:
        """No sample is being made."""
        self.words = self.keys = self.samples = self.made = None


_place = _Place()


def sample_rng() -> np.random.Generator:
    """The random generator of the sample that is being made, keyed by the loader's seed, the sweep and the item.

    Call it in ``__getitem__``: the same item gets the same numbers under any number of workers, batch size or restart,
    and others in the next sweep. In ``__getitems__`` and ``collate_fn`` it belongs to the batch. Called twice for one
    sample, it is the same generator, further on. In an `IterableDataset` there is no sample to belong to.

    Raises:
        RuntimeError: no `DataLoader` is making a sample in this thread.
    """
    words = _place.words
    if words is None:
        raise RuntimeError(
            "expected to be called while a DataLoader makes a sample (in __getitem__, __getitems__ or collate_fn); "
            "elsewhere make a generator of your own: np.random.default_rng(seed)"
        )
    key, made = _place.current(), _place.made
    if made is None or made[0] is not words or made[1] != key:
        bits = np.random.Philox(key=_native.hash_key([*words, key, 1]))
        made = _place.made = (words, key, np.random.Generator(bits))
    return made[2]


class _Global(Protocol):
    """A global generator: its state as something to compare and to put back."""

    def words(self) -> Any: ...
    def mark(self) -> Any: ...
    def restore(self, mark: Any) -> None: ...
    def seed(self, number: int) -> None: ...


class _Python:
    """The generator behind the functions of `random`."""

    def __init__(self) -> None:
        self._at = _python_words()

    def words(self) -> Any:
        # Reading memory is forty times faster than building a tuple of 625 numbers, twice for each batch.
        return random.getstate() if self._at is None else ctypes.string_at(self._at, 4 * (_MT_WORDS + 1))

    def mark(self) -> Any:
        return self.words(), _instance.gauss_next

    def restore(self, mark: Any) -> None:
        state, second = mark
        if self._at is not None:
            words = np.frombuffer(state, np.uint32).tolist()
            state = (_instance.VERSION, (*words[1:], words[0]), second)
        random.setstate(state)

    def seed(self, number: int) -> None:
        random.seed(number)


_instance: Any = random.random.__self__  # type: ignore[attr-defined]  # a bound method of the shared instance


def _python_words() -> int | None:
    """Address of index and words of `random`'s generator; None if they do not lie where CPython has them."""
    try:
        state = random.getstate()[1]
        words, base = np.array(state, np.uint32), random.Random.__base__
        raw = ctypes.string_at(id(_instance), base.__basicsize__)  # type: ignore[union-attr]
        at = raw.find(words[:-1].tobytes()) - 4
        return id(_instance) + at if at > 0 and raw[at : at + 4] == words[-1:].tobytes() else None
    except (AttributeError, TypeError, ValueError):
        return None


class _Numpy:
    """The generator behind the functions of `numpy.random`, as long as it is a Mersenne Twister."""

    def __init__(self) -> None:
        self._last = b""
        self._cached: tuple[int, float] = (0, 0.0)  # the second half of a pair of normal numbers

    def words(self) -> Any:
        bits: Any = _numpy_random.get_bit_generator()
        if type(bits) is not np.random.MT19937:
            return None  # somebody chose another one: it is theirs to seed
        return ctypes.string_at(bits.ctypes.state_address, 4 * (_MT_WORDS + 1))

    def mark(self) -> Any:
        raw = self.words()
        if raw is None:
            return None
        if raw != self._last or self._cached[0]:
            # Asking takes 30 us; nothing can have been put aside while nothing was drawn.
            state: Any = np.random.get_state(legacy=False)
            self._last, self._cached = raw, (state["has_gauss"], state["gauss"])
        return raw, self._cached

    def restore(self, mark: Any) -> None:
        if mark is not None:
            raw, cached = mark
            words = np.frombuffer(raw, np.uint32)
            np.random.set_state(("MT19937", words[:-1], int(words[-1]), *cached))
            self._last, self._cached = raw, cached

    def seed(self, number: int) -> None:
        if type(_numpy_random.get_bit_generator()) is np.random.MT19937:
            np.random.seed(number & 0xFFFFFFFF)


def _numpy_is_known() -> bool:
    """Whether a Mersenne Twister of NumPy lies in memory as expected: words, then the position."""
    bits: Any = np.random.MT19937(1)
    bits.random_raw(3)
    state = bits.state["state"]
    raw = ctypes.string_at(bits.ctypes.state_address, 4 * (_MT_WORDS + 1))
    return bool(raw == state["key"].tobytes() + np.uint32(state["pos"]).tobytes())


class _NumpyByState(_Numpy):
    """As above through NumPy's own functions alone, 30 us each."""

    def words(self) -> Any:
        state: Any = np.random.get_state(legacy=False)
        if state["bit_generator"] != "MT19937":
            return None
        inner = state["state"]
        return bytes(inner["key"].tobytes() + np.uint32(inner["pos"]).tobytes())


class Seeding:
    """Seeds what user code draws from; one for each process, or for each loader of threads.

    Args:
        seed: of the loader.
        restore: put the global generators back: they are the loop's too.
        threads: several threads use this.
    """

    def __init__(self, seed: int, *, restore: bool, threads: bool = False) -> None:
        self._seed, self._restore = seed, restore
        self._all: list[_Global] = [_Python(), _Numpy() if _numpy_is_known() else _NumpyByState()]
        torch = _torch()
        self._own = torch.own_generator if torch is not None and threads else None
        if torch is not None and not threads:
            self._all.append(torch.GlobalGenerator())
        self._seeded: list[_Global] = self._all
        self._trial = TRIAL
        self._used: set[int] = set()
        self._gate = _Gate() if threads else None

    def run(self, sweep: int, work: Callable[[At], T]) -> T:
        """What ``work(at)`` returns; it calls ``at(key, level)`` before each piece of user code.

        ``work`` may be called twice, see the module.
        """
        if not self._seeded and self._gate is None:
            # The way of most batches: look before and after, nothing else.
            before = [g.mark() for g in self._all]
            try:
                result = work(_Names(self._seed, sweep))
            except Exception as raised:
                return self._after(sweep, work, before, raised, None)
            finally:
                _place.leave()
            if [g.mark() for g in self._all] == before:
                return result
            return self._after(sweep, work, before, None, result)
        if self._gate is None:
            done, result = self._attempt(sweep, work)
        else:
            done = False
            if not self._seeded:
                with self._gate.shared():
                    done, result = self._attempt(sweep, work)
            if not done:
                with self._gate.alone():
                    done, result = self._attempt(sweep, work)
                    return cast(T, result if done else self._attempt(sweep, work)[1])
        return cast(T, result if done else self._attempt(sweep, work)[1])

    def _after(self, sweep: int, work: Callable[[At], T], before: list[Any], error: Exception | None, result: Any) -> T:
        """What follows a pass without seeds: once more with them if it drew, else what came of it."""
        if not self._drawn(self._all, before):
            if error is not None:
                raise error
            return cast(T, result)
        return cast(T, self._attempt(sweep, work)[1])

    def _drawn(self, idle: list[_Global], before: list[Any]) -> bool:
        """Whether generators that are not seeded were drawn from; they are put back, and seeded from now on."""
        drawn = [(g, mark) for g, mark in zip(idle, before, strict=True) if g.mark() != mark]
        for g, mark in drawn:
            g.restore(mark)
        found = [g for g, _ in drawn]
        self._seeded = [g for g in self._all if g in self._seeded or g in found]
        return bool(drawn)

    def _attempt(self, sweep: int, work: Callable[[At], T]) -> tuple[bool, Any]:
        """(whether all that was drawn was seeded, what ``work`` gave)."""
        seeded, trial = self._seeded, self._trial > 0
        idle = [g for g in self._all if g not in seeded]
        before = [g.mark() for g in idle]
        kept = [(g, g.mark()) for g in seeded] if self._restore else []
        at = _Seeds(self._seed, sweep, seeded, trial) if seeded else _Names(self._seed, sweep)
        result, error = None, None
        try:
            try:
                with contextlib.nullcontext() if self._own is None else self._own(_number):
                    result = work(at)
            except Exception as raised:  # it may come of numbers that were not seeded
                error = raised
            finally:
                _place.leave()
            if trial:
                at.look()
                self._used |= at.used
                self._trial -= 1
                if self._trial == 0:
                    self._seeded = [g for i, g in enumerate(self._all) if i in self._used]
            again = bool(idle) and self._drawn(idle, before)
        finally:
            for g, mark in kept:
                g.restore(mark)
        if again:
            return False, None
        if error is not None:
            raise error
        return True, result


def seed_process(number: int) -> None:
    """Seed all global generators of a worker process."""
    random.seed(number)
    np.random.seed(number & 0xFFFFFFFF)
    torch = _torch()
    if torch is not None:
        torch.GlobalGenerator().seed(number)


def _torch() -> Any:
    """torch's side, where somebody has imported torch: nobody draws from generators that are not there."""
    return importlib.import_module("feedline.interop.torch_loading") if sys.modules.get("torch") is not None else None


class At(Protocol):
    """Says whose user code runs next."""

    used: set[int]

    def __call__(self, key: int, level: int = ITEM) -> None:
        """The code of sample ``key``."""

    def many(self, keys: Any, samples: list[Any]) -> bool:
        """Whether that is all that need be said of the items of a batch, whose samples are appended one by one."""

    def look(self) -> None:
        """No more follows."""


class _Names:
    """Tells `sample_rng` and nobody else."""

    used: set[int] = frozenset()  # type: ignore[assignment]

    def __init__(self, seed: int, sweep: int) -> None:
        self._seed, self._sweep, self._level = seed, sweep, 0

    def __call__(self, key: int, level: int = ITEM) -> None:
        if level != self._level:
            self._level, _place.words = level, (self._seed, self._sweep, level)
        _place.key, _place.keys, _place.made = key, None, None

    def many(self, keys: Any, samples: list[Any]) -> bool:
        """See `At.many`."""
        _place.words, _place.keys, _place.samples = (self._seed, self._sweep, ITEM), keys, samples
        return True

    def look(self) -> None:
        """Nothing is seeded."""


class _Seeds(_Names):
    """Seeds generators too; in a trial it notes which of them are used."""

    def __init__(self, seed: int, sweep: int, generators: list[_Global], trial: bool) -> None:
        super().__init__(seed, sweep)
        self._generators, self._trial = generators, trial
        self._after: list[Any] = []
        self.used = set()

    def __call__(self, key: int, level: int = ITEM) -> None:
        super().__call__(key, level)
        number = _native.hash_key([self._seed, self._sweep, level, key])
        if self._trial:
            self.look()
        for g in self._generators:
            g.seed(number)
        if self._trial:
            self._after = [g.words() for g in self._generators]

    def many(self, keys: Any, samples: list[Any]) -> bool:
        """Each is seeded."""
        return False

    def look(self) -> None:
        """Note what was drawn from since the last seeding."""
        self.used.update(
            i for i, (g, after) in enumerate(zip(self._generators, self._after, strict=False)) if g.words() != after
        )


def _number() -> int:
    """What seeds a thread's own generator for the sample it is making."""
    assert _place.words is not None
    return _native.hash_key([*_place.words, _place.current()])


class _Gate:
    """Many may be inside together, or one alone."""

    def __init__(self) -> None:
        self._changed, self._inside, self._alone = threading.Condition(), 0, False

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._alone = True
            self._changed.wait_for(lambda: not self._inside)
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()
