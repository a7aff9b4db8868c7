"""Random numbers keyed by the sample: the same for any number of workers, including none.

`sample_rng` returns a NumPy generator keyed by (seed, sweep, item). Code that draws from the global generators of
`random`, NumPy (`np.random.*`) and torch works too: they are seeded from the same key before each sample, and restored
afterwards in the process of the training loop.

Seeding costs 1 to 4 us per sample and generator, so only generators in use are seeded. A process seeds all of them for
its first batches. A generator that none of these touched is no longer seeded, but checked around each batch: if a batch
draws from it after all, the batch is read again with seeding, and from then on each sample is seeded. Values thus never
depend on the guess; a dataset that rarely draws has one batch read twice.

Threads share the generators of `random` and NumPy, so batches that draw from those run one at a time. torch's functions
are given a per-thread generator instead, as the training loop may draw from the global one at any moment.
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
import numpy.random  # at 5 ms, and NumPy itself imports it at its first use: in the first batch
from numpy.typing import NDArray

from feedline import _native
from feedline.concurrency.per_process import PerProcess

T = TypeVar("T")


# Levels of the key for each kind of random number; orders, transforms and draws have the lower levels.
ITEM, BATCH, COLLATE, SAMPLER, WORKER = 4, 5, 6, 7, 8

SweepKey = tuple[int, int]
"""What all random numbers of a sweep follow from: a seed, and the number of the sweep under it."""

TRIAL = 2  # batches of a process before unused generators are no longer seeded

_MT_WORDS = 624


class _Thread(threading.local):
    """What this thread is doing; ``names`` is None while it makes no sample."""

    names: _Names | None = None


_thread = _Thread()


def _numpy_random() -> Any:
    """Return `numpy.random`, which is imported at first use; untyped, as its stubs lack some functions."""
    return np.random


def sample_rng() -> np.random.Generator:
    """Return the random generator of the current sample, keyed by the loader's seed, the sweep and the item.

    Call it in ``__getitem__``: an item gets the same numbers under any number of workers, batch size or restart, and
    others in the next sweep. In ``__getitems__`` and ``collate_fn`` the key is the batch's. A second call for the same
    sample returns the same generator, advanced. An `IterableDataset` has no samples in this sense.

    Raises:
        RuntimeError: no `DataLoader` is making a sample in this thread.
    """
    names = _thread.names
    if names is None:
        raise RuntimeError(
            "expected to be called while a DataLoader makes a sample (in __getitem__, __getitems__ or collate_fn); "
            "elsewhere create your own generator: np.random.default_rng(seed)"
        )
    key, made = names.current(), names.made
    if made is None or made[0] != key:
        bits = np.random.Philox(key=_native.hash_key([*key, 1]))
        made = names.made = (key, np.random.Generator(bits))
    return made[1]


class Global(Protocol):
    """A global generator that can be observed, restored and seeded."""

    def witness(self) -> Any:
        """Return a few words that differ after almost any draw, and after every draw from a fresh seed."""

    def mark(self) -> Any:
        """Return what `restore` needs."""

    def changed(self, mark: Any) -> bool:
        """Return whether anything was drawn since ``mark``."""

    def restore(self, mark: Any) -> None:
        """Restore its state at ``mark``."""

    def seed(self, number: int) -> None:
        """Seed it."""

    def save(self) -> dict[str, Any] | None:
        """Return its state in JSON types; None: the user has replaced it and must save it."""

    def load(self, saved: Mapping[str, Any]) -> None:
        """Set it to a saved state.

        Raises:
            KeyError, TypeError, ValueError: the state is invalid.
        """


def globals_() -> list[Global]:
    """Return all generators that user code may draw from; torch's only if torch is imported."""
    torch = torch_if_imported()
    found: list[Global] = [_python(), _numpy()]
    return found if torch is None else [*found, torch.global_generator()]


class _PythonByState:
    """The global generator of `random`."""

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
    """The same, observed in memory: ``getstate`` returns 625 numbers, at 12 us, twice per batch."""

    def __init__(self, address: int) -> None:
        self._view = _view(address, 20)  # the index and the first words: those change whenever any does
        self._seen: Any = None
        self._state: Any = None

    def witness(self) -> Any:
        return bytes(self._view), _instance.gauss_next

    def mark(self) -> Any:
        seen = self.witness()
        while seen != self._seen:
            state, before = random.getstate(), seen
            seen = self.witness()
            if seen == before:  # else another thread has drawn meanwhile
                self._state, self._seen = state, seen
        return seen, self._state

    def changed(self, mark: Any) -> bool:
        return bool(self.witness() != mark[0])

    def restore(self, mark: Any) -> None:
        random.setstate(mark[1])


_instance: Any = random.random.__self__  # type: ignore[attr-defined]  # a bound method of the shared instance


def _python() -> Global:
    """Observe memory if index and words lie where CPython puts them."""
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
    """The global generator of `numpy.random`, if it is a Mersenne Twister.

    Any other was set by the user, who has to seed it.
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
        if type(_numpy_random().get_bit_generator()) is np.random.MT19937:
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
        if type(_numpy_random().get_bit_generator()) is np.random.MT19937:
            np.random.set_state(("MT19937", words, at, int(normal is not None), normal or 0.0))


class _Numpy(_NumpyByState):
    """The same, observed in memory: ``get_state`` costs 30 us."""

    def __init__(self) -> None:
        self._bits: Any = None
        self._head: Any = None
        self._position: Any = None
        self._seen: Any = None
        self._state: Any = None

    def witness(self) -> Any:
        bits = _numpy_random().get_bit_generator()
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
        # The cached second half of a pair of normal numbers may be used up while the words stay.
        while seen != self._seen or self._state["has_gauss"]:
            state, before = np.random.get_state(legacy=False), seen
            seen = self.witness()
            if seen == before:  # else another thread has drawn meanwhile
                self._state, self._seen = state, seen
                break
        return seen, self._state

    def changed(self, mark: Any) -> bool:
        seen, state = mark
        if self.witness() != seen:
            return True
        return bool(state is not None and state["has_gauss"] and not np.random.get_state(legacy=False)["has_gauss"])


def _numpy() -> Global:
    """Observe memory if NumPy lays a Mersenne Twister out as expected: words, then the position."""
    bits: Any = np.random.MT19937(1)
    bits.random_raw(3)
    state = bits.state["state"]
    raw = ctypes.string_at(bits.ctypes.state_address, 4 * (_MT_WORDS + 1))
    known = raw == state["key"].tobytes() + np.uint32(state["pos"]).tobytes()
    return _Numpy() if known else _NumpyByState()


def _twister(saved: Mapping[str, Any]) -> tuple[NDArray[np.uint32], int, float | None]:
    """Return the words, the index and the cached normal number of a saved Mersenne Twister.

    Raises:
        KeyError, TypeError, ValueError: the state is invalid.
    """
    words, at = np.frombuffer(bytes.fromhex(saved["words"]), "<u4").astype(np.uint32), saved["at"]
    if words.shape != (_MT_WORDS,) or type(at) is not int or not 0 <= at <= _MT_WORDS:
        raise ValueError(
            f"expected {_MT_WORDS} words of a generator and an index into them, got {len(words)}, {at!r:.80}"
        )
    normal = saved["normal"]
    if normal is not None and type(normal) is not float:
        raise TypeError(f"expected a cached normal number, or null, got {normal!r:.80}")
    return words, at, normal


def _view(address: int, size: int) -> Any:
    return (ctypes.c_ubyte * size).from_address(address)


class _Attempt:
    """Work that runs beside that of other threads.

    Attributes:
        begun: when it began, or the earliest of those that have restored since; a count.
        marks: of the generators, at that time.
        overlapped: whether another thread has restored them since.
    """

    __slots__ = ("begun", "marks", "overlapped")

    def __init__(self, begun: int, marks: list[Any]) -> None:
        self.begun, self.marks, self.overlapped = begun, marks, False


class Seeding:
    """Seeds the generators that user code draws from; one per process, or per loader with threads.

    Args:
        restore: whether to restore the global generators, as the training loop uses them too.
        threads: whether several threads use this object.
    """

    def __init__(self, *, restore: bool, threads: bool = False) -> None:
        self._restore = restore
        self._all = globals_()
        torch = torch_if_imported()
        self._own = torch.own_generator if torch is not None and threads else None
        if self._own is not None:
            self._all.pop()  # threads do not touch the global torch generator
        self._seeded: list[Global] = self._all
        self._trial = TRIAL
        self._used: set[int] = set()
        self._gate = _Gate() if threads else None
        # Of `_beside`: how often it began, and what runs now.
        self._undoing = threading.Lock()
        self._begun = 0
        self._running: list[_Attempt] = []
        self._turn = PerProcess(threading.RLock)  # for loops in several threads over one loader without workers

    def run(self, key: SweepKey, work: Callable[[At], T]) -> T:
        """Return ``work(at)``, which calls ``at(key, level)`` before each piece of user code.

        ``work`` may be called several times, see the module.
        """
        if self._gate is None:
            with self._turn.get():
                return self._alone(key, work)
        while True:
            with self._gate.held(lambda: bool(self._seeded)) as alone:
                if alone:
                    return self._seen_through(key, work)
                done, result = self._beside(key, work)
            if done:
                return cast(T, result)

    def _beside(self, key: SweepKey, work: Callable[[At], T]) -> tuple[bool, Any]:
        """Return (whether nothing was drawn, the result of ``work``), which runs beside that of other threads.

        A thread that has drawn restores what all share, also what another one may have drawn meanwhile: that other one
        sees no difference, and must repeat its work whenever somebody has restored since it began. Its own marks may
        lie after draws of a thread that began earlier, whose marks are the ones to restore then.
        """
        with self._undoing:
            self._begun += 1
            own = _Attempt(self._begun, [g.mark() for g in self._all])
            self._running.append(own)
        result, error = None, None
        try:
            with contextlib.nullcontext() if self._own is None else self._own(_number):
                result = work(_Names(key))
        except Exception as raised:  # unseeded numbers may have caused it
            error = raised
        finally:
            _thread.names = None
            with self._undoing:
                self._running.remove(own)
                drawn = self._drawn(self._all, own.marks)
                for other in self._running if drawn else ():
                    other.overlapped = True
                    if own.begun < other.begun:
                        other.begun, other.marks = own.begun, own.marks
        if drawn or own.overlapped:
            return False, None
        if error is not None:
            raise error
        return True, result

    def _alone(self, key: SweepKey, work: Callable[[At], T]) -> T:
        if self._seeded:
            return self._seen_through(key, work)
        # The common case: observe before and after, nothing else.
        before = [g.mark() for g in self._all]
        try:
            result = work(_Names(key))
        except Exception as raised:
            return self._after(key, work, before, raised, None)
        except BaseException:  # an interrupt: the batch will be read again, and the loop may draw next
            self._drawn(self._all, before)
            raise
        finally:
            _thread.names = None
        for g, mark in zip(self._all, before, strict=True):
            if g.changed(mark):
                return self._after(key, work, before, None, result)
        return result

    def _after(
        self, key: SweepKey, work: Callable[[At], T], before: list[Any], error: Exception | None, result: Any
    ) -> T:
        """Finish an unseeded pass: repeat it with seeding if it drew, else return or raise its outcome."""
        if not self._drawn(self._all, before):
            if error is not None:
                raise error
            return cast(T, result)
        return self._seen_through(key, work)

    def _seen_through(self, key: SweepKey, work: Callable[[At], T]) -> T:
        """Return the result of ``work`` once everything it draws is seeded.

        Seeded numbers may lead to code that draws from one more generator; each attempt adds one at least.
        """
        while True:
            done, result = self._attempt(key, work)
            if done:
                return cast(T, result)

    def _drawn(self, idle: list[Global], before: list[Any]) -> bool:
        """Return whether unseeded generators were drawn from; restore those, and seed them from now on."""
        drawn = [(g, mark) for g, mark in zip(idle, before, strict=True) if g.changed(mark)]
        for g, mark in drawn:
            g.restore(mark)
        found = [g for g, _ in drawn]
        self._seeded = [g for g in self._all if g in self._seeded or g in found]
        return bool(drawn)

    def _attempt(self, key: SweepKey, work: Callable[[At], T]) -> tuple[bool, Any]:
        """Return (whether everything drawn was seeded, the result of ``work``)."""
        seeded, trial = self._seeded, self._trial > 0
        idle = [g for g in self._all if g not in seeded]
        before = [g.mark() for g in idle]
        kept = [(g, g.mark()) for g in seeded] if self._restore else []
        at = _Seeds(key, seeded, trial) if seeded else _Names(key)
        result, error = None, None
        try:
            try:
                with contextlib.nullcontext() if self._own is None else self._own(_number):
                    result = work(at)
            except Exception as raised:  # unseeded numbers may have caused it
                error = raised
            finally:
                _thread.names = None
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
    """Tracks draws from the global generators of a worker process, so that drawing can continue elsewhere."""

    def __init__(self) -> None:
        self._all = dict(zip(_NAMES, globals_(), strict=False))
        self.begin()

    def begin(self) -> None:
        """Start tracking."""
        self._marks = {name: g.mark() for name, g in self._all.items()}

    def states(self) -> dict[str, Any] | None:
        """Return the states of generators that were drawn from, by name, in JSON types; None: of none."""
        drawn = {name: g.save() for name, g in self._all.items() if g.changed(self._marks[name])}
        return {name: saved for name, saved in drawn.items() if saved is not None} or None

    def restore(self, states: Mapping[str, Any]) -> None:
        """Set the generators to ``states``."""
        for name, saved in states.items():
            if name in self._all:
                self._all[name].load(saved)

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
                _twister(saved)
            elif torch is not None:
                torch.check_generator_state(saved["state"])


class GlobalStates:
    """The states of the global generators of this process at one moment."""

    def __init__(self) -> None:
        self._all = dict(zip(_NAMES, globals_(), strict=False))
        self._marks = {name: g.mark() for name, g in self._all.items()}
        self._saved = {name: g.save() for name, g in self._all.items()}

    def drawn(self) -> dict[str, Any]:
        """Return what those were that were drawn from since, by name, in JSON types."""
        changed = [name for name, g in self._all.items() if g.changed(self._marks[name])]
        return {name: self._saved[name] for name in changed if self._saved[name] is not None}

    def load(self, states: Mapping[str, Any]) -> None:
        """Set generators to what `drawn` returned."""
        for name, saved in states.items():
            if name in self._all:
                self._all[name].load(saved)

    def restore(self) -> None:
        """Set all of them to what they were."""
        for name, g in self._all.items():
            g.restore(self._marks[name])


_NAMES = ("random", "numpy", "torch")  # in the order of `globals_`


def seed_process(number: int) -> None:
    """Seed all global generators of a worker process."""
    random.seed(number)
    np.random.seed(number & 0xFFFFFFFF)
    torch = torch_if_imported()
    if torch is not None:
        torch.global_generator().seed(number)


def torch_if_imported() -> Any:
    """Return `interop.torch_loading` if torch is imported: otherwise nobody draws from its generators."""
    return importlib.import_module("feedline.interop.torch_loading") if sys.modules.get("torch") is not None else None


class At(Protocol):
    """Announces whose user code runs next."""

    used: set[int]

    def __call__(self, key: int, level: int = ITEM) -> None:
        """Announce the code of sample ``key``."""

    def many(self, keys: Any, samples: list[Any]) -> bool:
        """Announce all items of a batch, whose samples are appended one by one; return False if each must be
        announced."""

    def look(self) -> None:
        """Announce the end."""


class _Names:
    """Names the sample that this thread makes, for `sample_rng`, and seeds nothing.

    The sample's key is ``_key``, or is looked up on demand: the entry of ``_keys`` at the number of samples made so
    far.
    """

    __slots__ = ("_key", "_keys", "_level", "_samples", "_seed", "_sweep", "made")

    used: set[int] = frozenset()  # type: ignore[assignment]

    def __init__(self, key: SweepKey) -> None:
        (self._seed, self._sweep), self._level = key, 0
        self.made: tuple[tuple[int, ...], np.random.Generator] | None = None

    def __call__(self, key: int, level: int = ITEM) -> None:
        self._level, self._key, self._keys, self.made = level, key, None, None
        _thread.names = self

    def many(self, keys: Any, samples: list[Any]) -> bool:
        """See `At.many`."""
        self._level, self._keys, self._samples = ITEM, keys, samples
        _thread.names = self
        return True

    def current(self) -> tuple[int, ...]:
        """Return what determines the random numbers of the current sample: seed, sweep, level and key."""
        key = self._key if self._keys is None else self._keys[len(self._samples)]
        return self._seed, self._sweep, self._level, key

    def look(self) -> None:
        """Do nothing: no generator is seeded."""


class _Seeds(_Names):
    """Seeds generators too; during the trial it records which of them are used."""

    def __init__(self, key: SweepKey, generators: list[Global], trial: bool) -> None:
        super().__init__(key)
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
        """Return False: each sample must be seeded."""
        return False

    def look(self) -> None:
        """Record what was drawn from since the last seeding."""
        self.used.update(
            i for i, (g, after) in enumerate(zip(self._generators, self._after, strict=False)) if g.witness() != after
        )


def _number() -> int:
    """Return the seed of a thread's own generator for its current sample."""
    assert _thread.names is not None
    return _native.hash_key([*_thread.names.current()])


class _Gate:
    """A reader-writer lock: many shared holders, or one exclusive."""

    def __init__(self) -> None:
        self._changed, self._inside, self._alone = threading.Condition(), 0, False

    @contextlib.contextmanager
    def held(self, exclusive: Callable[[], bool]) -> Iterator[bool]:
        """Hold it exclusively if ``exclusive()`` once nobody else does, otherwise shared; yield which."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            alone = exclusive()
            if alone:
                self._alone = True
                self._changed.wait_for(lambda: not self._inside)
            else:
                self._inside += 1
        try:
            yield alone
        finally:
            with self._changed:
                if alone:
                    self._alone = False
                else:
                    self._inside -= 1
                self._changed.notify_all()
