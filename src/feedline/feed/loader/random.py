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
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

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


class Global(Protocol):
    """A global generator: something to look at, to put back and to seed."""

    def witness(self) -> Any:
        """A few words that differ after almost any draw, and after every one from a fresh seed."""

    def mark(self) -> Any:
        """What `restore` needs."""

    def changed(self, mark: Any) -> bool:
        """Whether anything was drawn since ``mark``."""

    def restore(self, mark: Any) -> None:
        """Put it back."""

    def seed(self, number: int) -> None:
        """Seed it."""

    def save(self) -> dict[str, Any] | None:
        """Its state in JSON types; None: it is another's to save."""

    def load(self, saved: Mapping[str, Any]) -> None:
        """Put it to a saved state.

        Raises:
            KeyError, TypeError, ValueError: that is none.
        """


def globals_() -> list[Global]:
    """All generators that user code may draw from; torch's where somebody has imported torch."""
    torch = torch_if_imported()
    found: list[Global] = [_python(), _numpy()]
    return found if torch is None else [*found, torch.global_generator()]


class _PythonByState:
    """The generator behind the functions of `random`."""

    def witness(self) -> Any:
        return random.getstate()

    def mark(self) -> Any:
        return random.getstate()

    def changed(self, mark: Any) -> bool:
        return bool(self.witness() != mark)

    def restore(self, mark: Any) -> None:
        random.setstate(mark)

    def seed(self, number: int) -> None:
        random.seed(number)

    def save(self) -> dict[str, Any] | None:
        _, words, normal = random.getstate()
        return {"words": np.array(words[:-1], "<u4").tobytes().hex(), "at": words[-1], "normal": normal}

    def load(self, saved: Mapping[str, Any]) -> None:
        words, at, normal = _twister(saved)
        random.setstate((3, (*words.tolist(), at), normal))


class _Python(_PythonByState):
    """As above, looked at in memory: a tuple of 625 numbers costs 12 us, twice a batch."""

    def __init__(self, address: int) -> None:
        self._view = _view(address, 20)  # the index and the first words, which change when all do
        self._seen: Any = None
        self._state: Any = None

    def witness(self) -> Any:
        return bytes(self._view), _instance.gauss_next

    def mark(self) -> Any:
        seen = self.witness()
        if seen != self._seen:
            self._state, self._seen = random.getstate(), seen
        return seen, self._state

    def changed(self, mark: Any) -> bool:
        return bool(self.witness() != mark[0])

    def restore(self, mark: Any) -> None:
        random.setstate(mark[1])


_instance: Any = random.random.__self__  # type: ignore[attr-defined]  # a bound method of the shared instance


def _python() -> Global:
    """By memory if index and words lie where CPython has them."""
    try:
        state = random.getstate()[1]
        words, base = np.array(state, np.uint32), random.Random.__base__
        raw = ctypes.string_at(id(_instance), base.__basicsize__)  # type: ignore[union-attr]
        at = raw.find(words[:-1].tobytes()) - 4
        if at > 0 and raw[at : at + 4] == words[-1:].tobytes():
            return _Python(id(_instance) + at)
    except (AttributeError, TypeError, ValueError):
        pass
    return _PythonByState()


class _NumpyByState:
    """The generator behind the functions of `numpy.random`, as long as it is a Mersenne Twister.

    Another one is its owner's to seed.
    """

    def witness(self) -> Any:
        state: Any = np.random.get_state(legacy=False)
        if state["bit_generator"] != "MT19937":
            return None
        inner = state["state"]
        return inner["key"].tobytes(), inner["pos"], state["has_gauss"], state["gauss"]

    def mark(self) -> Any:
        seen = self.witness()
        return seen, None if seen is None else np.random.get_state(legacy=False)

    def changed(self, mark: Any) -> bool:
        return bool(self.witness() != mark[0])

    def restore(self, mark: Any) -> None:
        if mark[1] is not None:
            np.random.set_state(mark[1])

    def seed(self, number: int) -> None:
        if type(_numpy_random.get_bit_generator()) is np.random.MT19937:
            np.random.seed(number & 0xFFFFFFFF)

    def save(self) -> dict[str, Any] | None:
        state: Any = np.random.get_state(legacy=False)
        if state["bit_generator"] != "MT19937":
            return None
        inner = state["state"]
        normal = float(state["gauss"]) if state["has_gauss"] else None
        return {"words": inner["key"].astype("<u4").tobytes().hex(), "at": int(inner["pos"]), "normal": normal}

    def load(self, saved: Mapping[str, Any]) -> None:
        words, at, normal = _twister(saved)
        if type(_numpy_random.get_bit_generator()) is np.random.MT19937:
            np.random.set_state(("MT19937", words, at, int(normal is not None), normal or 0.0))


class _Numpy(_NumpyByState):
    """As above, looked at in memory: asking costs 30 us."""

    def __init__(self) -> None:
        self._bits: Any = None
        self._head: Any = None
        self._position: Any = None
        self._seen: Any = None
        self._state: Any = None

    def witness(self) -> Any:
        bits = _numpy_random.get_bit_generator()
        if bits is not self._bits:
            head = position = None
            if type(bits) is np.random.MT19937:
                address = bits.ctypes.state_address
                head, position = _view(address, 16), _view(address + 4 * _MT_WORDS, 4)
            self._bits, self._head, self._position, self._seen = bits, head, position, None
        return None if self._head is None else bytes(self._head) + bytes(self._position)

    def mark(self) -> Any:
        seen = self.witness()
        if seen is None:
            return None, None
        # The second half of a pair of normal numbers, kept elsewhere, may be used up while the words stay.
        if seen != self._seen or self._state["has_gauss"]:
            self._state, self._seen = np.random.get_state(legacy=False), seen
        return seen, self._state

    def changed(self, mark: Any) -> bool:
        seen, state = mark
        if self.witness() != seen:
            return True
        return bool(state is not None and state["has_gauss"] and not np.random.get_state(legacy=False)["has_gauss"])


def _numpy() -> Global:
    """By memory if a Mersenne Twister of NumPy lies there as expected: words, then the position."""
    bits: Any = np.random.MT19937(1)
    bits.random_raw(3)
    state = bits.state["state"]
    raw = ctypes.string_at(bits.ctypes.state_address, 4 * (_MT_WORDS + 1))
    known = raw == state["key"].tobytes() + np.uint32(state["pos"]).tobytes()
    return _Numpy() if known else _NumpyByState()


def _twister(saved: Mapping[str, Any]) -> tuple[NDArray[np.uint32], int, float | None]:
    """A Mersenne Twister as it was saved: its words, an index of them, the normal number that it has put aside.

    Raises:
        KeyError, TypeError, ValueError: that is none.
    """
    words, at = np.frombuffer(bytes.fromhex(saved["words"]), "<u4").astype(np.uint32), saved["at"]
    if words.shape != (_MT_WORDS,) or type(at) is not int or not 0 <= at <= _MT_WORDS:
        raise ValueError(
            f"expected {_MT_WORDS} words of a generator and an index of them, got {len(words)}, {at!r:.80}"
        )
    normal = saved["normal"]
    if normal is not None and type(normal) is not float:
        raise TypeError(f"expected a number put aside, or none, got {normal!r:.80}")
    return words, at, normal


def _view(address: int, size: int) -> Any:
    return (ctypes.c_ubyte * size).from_address(address)


class Seeding:
    """Seeds what user code draws from; one for each process, or for each loader of threads.

    Args:
        seed: of the loader.
        restore: put the global generators back: they are the loop's too.
        threads: several threads use this.
    """

    def __init__(self, seed: int, *, restore: bool, threads: bool = False) -> None:
        self._seed, self._restore = seed, restore
        self._all = globals_()
        torch = torch_if_imported()
        self._own = torch.own_generator if torch is not None and threads else None
        if self._own is not None:
            self._all.pop()  # threads leave torch's to the loop
        self._seeded: list[Global] = self._all
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
            except BaseException:  # an interrupt: the batch will be read again, and the loop goes on drawing
                self._drawn(self._all, before)
                raise
            finally:
                _place.leave()
            for g, mark in zip(self._all, before, strict=True):
                if g.changed(mark):
                    return self._after(sweep, work, before, None, result)
            return result
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

    def _drawn(self, idle: list[Global], before: list[Any]) -> bool:
        """Whether generators that are not seeded were drawn from; they are put back, and seeded from now on."""
        drawn = [(g, mark) for g, mark in zip(idle, before, strict=True) if g.changed(mark)]
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


class Drawn:
    """What was drawn in a process of our own from its global generators, so that drawing can go on elsewhere."""

    def __init__(self) -> None:
        self._all = dict(zip(_NAMES, globals_(), strict=False))
        self.begin()

    def begin(self) -> None:
        """From here on."""
        self._marks = {name: g.mark() for name, g in self._all.items()}

    def states(self) -> dict[str, Any] | None:
        """The states of those generators that were drawn from, by name, in JSON types; None: of none."""
        drawn = {name: g.save() for name, g in self._all.items() if g.changed(self._marks[name])}
        return {name: saved for name, saved in drawn.items() if saved is not None} or None

    def restore(self, states: Mapping[str, Any]) -> None:
        """Go on where ``states`` were taken."""
        for name, saved in states.items():
            if name in self._all:
                self._all[name].load(saved)

    @staticmethod
    def check(states: Any) -> None:
        """Check that these are states of generators; changes none.

        Raises:
            KeyError, TypeError, ValueError: they are not.
        """
        if not isinstance(states, Mapping) or not states.keys() <= set(_NAMES):
            raise TypeError(f"expected states of the generators {', '.join(_NAMES)}, got {states!r:.80}")
        torch = torch_if_imported()
        for name, saved in states.items():
            if not isinstance(saved, Mapping):
                raise TypeError(f"expected a state of {name} as a mapping, got {saved!r:.80}")
            if name != "torch":
                _twister(saved)
            elif torch is not None:
                torch.check_generator_state(saved["state"])


_NAMES = ("random", "numpy", "torch")  # in the order of `globals_`


def seed_process(number: int) -> None:
    """Seed all global generators of a worker process."""
    random.seed(number)
    np.random.seed(number & 0xFFFFFFFF)
    torch = torch_if_imported()
    if torch is not None:
        torch.global_generator().seed(number)


def torch_if_imported() -> Any:
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

    def __init__(self, seed: int, sweep: int, generators: list[Global], trial: bool) -> None:
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
            self._after = [g.witness() for g in self._generators]

    def many(self, keys: Any, samples: list[Any]) -> bool:
        """Each is seeded."""
        return False

    def look(self) -> None:
        """Note what was drawn from since the last seeding."""
        self.used.update(
            i for i, (g, after) in enumerate(zip(self._generators, self._after, strict=False)) if g.witness() != after
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
