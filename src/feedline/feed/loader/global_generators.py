"""The generators that all code of a process shares: of `random`, of NumPy and of torch."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.random  # takes 5 ms. NumPy would import it at its first use, in the first batch
from numpy.typing import NDArray

from feedline.feed.loader.twister_memory import NORMAL, NUMPY, PYTHON, normal_memory, numpy_memory, python_memory

_MT_WORDS = 624
_shared: Any = getattr(random.random, "__self__", None)


class Global(Protocol):
    """A global generator that can be compared, restored and seeded."""

    def mark(self) -> Any:
        """Return its state now."""

    def changed(self, mark: Any) -> bool:
        """Return whether its state differs from ``mark``."""
        return bool(self.mark() != mark)

    def restore(self, mark: Any) -> None:
        """Restore its state at ``mark``."""

    def seed(self, number: int) -> None:
        """Seed it."""

    def save(self) -> dict[str, Any] | None:
        """Return its state in JSON types, or None if the user has replaced it and must save it."""

    def load(self, saved: Mapping[str, Any]) -> None:
        """Set it to a saved state.

        Raises:
            KeyError, TypeError, ValueError: the state is invalid.
        """


def all_generators() -> list[Global]:
    """Return all generators that user code may draw from; torch's only if torch is imported."""
    torch = torch_if_imported()
    generators: list[Global] = [_Python(), _NumPy()]
    return generators if torch is None else [*generators, torch.GlobalGenerator()]


class _Python(Global):
    """The global generator of `random`."""

    def mark(self) -> Any:
        """Return (`PYTHON`, the normal number that was put aside)."""
        if (memory := python_memory()) is not None:
            return memory.raw, _shared.gauss_next
        _, (*words, index), normal = random.getstate()
        return PYTHON.pack(index, *words), normal

    def restore(self, mark: Any) -> None:
        state, normal = mark
        index, *words = PYTHON.unpack(state)
        random.setstate((3, (*words, index), normal))

    def seed(self, number: int) -> None:
        random.seed(number)

    def save(self) -> dict[str, Any] | None:
        state, normal = self.mark()
        index, *words = PYTHON.unpack(state)
        return {"words": np.array(words, "<u4").tobytes().hex(), "at": index, "normal": normal}

    def load(self, saved: Mapping[str, Any]) -> None:
        words, at, normal = check_twister(saved)
        random.setstate((3, (*words.tolist(), at), normal))


class _NumPy(Global):
    """The global generator of `numpy.random`, if it is a Mersenne Twister.

    Any other was set by the user, who has to seed it.
    """

    def __init__(self) -> None:
        self._bits: Any = None  # whose memory is known
        self._memory: Any = None

    def mark(self) -> Any:
        """Return (`NUMPY`, `NORMAL`), or None for another generator."""
        bits: Any = _bit_generator()
        if type(bits) is not np.random.MT19937:
            return None
        if (normal := normal_memory()) is not None:
            if bits is not self._bits:
                self._bits, self._memory = bits, numpy_memory(bits)
            return self._memory.raw, normal.raw
        state: Any = np.random.get_state(legacy=False)
        words = NUMPY.pack(*state["state"]["key"], state["state"]["pos"])
        return words, NORMAL.pack(state["has_gauss"], state["gauss"])

    def restore(self, mark: Any) -> None:
        if mark is not None:
            state, normal = mark
            *words, index = NUMPY.unpack(state)
            np.random.set_state(("MT19937", np.array(words, np.uint32), index, *NORMAL.unpack(normal)))

    def seed(self, number: int) -> None:
        if self._is_twister():
            np.random.seed(number & 0xFFFFFFFF)

    def save(self) -> dict[str, Any] | None:
        mark = self.mark()
        if mark is None:
            return None
        *words, index = NUMPY.unpack(mark[0])
        is_aside, normal = NORMAL.unpack(mark[1])
        return {
            "words": np.array(words, "<u4").tobytes().hex(),
            "at": index,
            "normal": normal if is_aside else None,
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        words, at, normal = check_twister(saved)
        if self._is_twister():
            np.random.set_state(("MT19937", words, at, int(normal is not None), normal or 0.0))

    @staticmethod
    def _is_twister() -> bool:
        return type(_bit_generator()) is np.random.MT19937


def _bit_generator() -> Any:
    module: Any = np.random  # NumPy's stubs lack the function
    return module.get_bit_generator()


def check_twister(saved: Mapping[str, Any]) -> tuple[NDArray[np.uint32], int, float | None]:
    """Return the words, the index and the cached normal number of a saved Mersenne Twister.

    Raises:
        KeyError, TypeError, ValueError: the state is invalid.
    """
    words, at = np.frombuffer(bytes.fromhex(saved["words"]), "<u4").astype(np.uint32), saved["at"]
    if words.shape != (_MT_WORDS,) or type(at) is not int or not 0 <= at <= _MT_WORDS:
        raise ValueError(f"expected {_MT_WORDS} words of a generator and an index, got {len(words)}, {at!r:.80}")
    normal = saved["normal"]
    if normal is not None and type(normal) is not float:
        raise TypeError(f"expected a cached normal number, or null, got {normal!r:.80}")
    return words, at, normal


def torch_if_imported() -> Any:
    """Return `interop.torch_loading` if torch is imported: otherwise nobody draws from its generators."""
    return importlib.import_module("feedline.interop.torch_loading") if sys.modules.get("torch") is not None else None
