"""Where the Mersenne Twisters of `random` and NumPy have their states in memory.

Their own functions return a state as 624 numbers, which takes longer than a batch of small samples. CPython and NumPy
have the same words next to each other in memory. Their place is looked up once, by a state that is known. Where it is
not as expected, callers have to use those functions.
"""

from __future__ import annotations

import ctypes
import functools
import random
import struct
import sys
from typing import Any

import numpy as np

PYTHON = struct.Struct("i624I")
"""The state of `random`: the index of the next word, and the words."""

NUMPY = struct.Struct("624Ii")
"""The state of NumPy's bit generator: the words, and the index of the next one."""

NORMAL = struct.Struct("id")
"""Of NumPy's functions: whether a normal number was put aside, and that number."""


@functools.cache
def python_memory() -> Any:
    """Return the memory of `PYTHON` in the generator of `random`, whose ``raw`` is its present content. None if it is
    not known."""
    _, (*words, index), _ = random.getstate()
    return _memory_at(_address_in(getattr(random.random, "__self__", None), PYTHON.pack(index, *words)), PYTHON)


def numpy_memory(bits: Any) -> Any:
    """Return the memory of `NUMPY` in a `MT19937`, if `normal_memory` is not None. It lasts as long as ``bits``."""
    return _memory_at(bits.ctypes.state_address, NUMPY)


@functools.cache
def normal_memory() -> Any:
    """Return the memory of `NORMAL` in the generator of NumPy's functions, or None if it is not known."""
    bits = np.random.MT19937(0)
    state: Any = bits.state["state"]
    if ctypes.string_at(bits.ctypes.state_address, NUMPY.size) != NUMPY.pack(*state["key"], state["pos"]):
        return None
    example, number = np.random.RandomState(bits), 0.123456789
    offsets = set()
    for is_aside in (0, 1):
        example.set_state(("MT19937", np.arange(624, dtype=np.uint32), 624, is_aside, number))
        address = _address_in(example, NORMAL.pack(is_aside, number))
        offsets.add(None if address is None else address - id(example))
    offset, shared = offsets.pop(), getattr(np.random.get_state, "__self__", None)
    if offsets or offset is None or type(shared) is not type(example):
        return None
    return _memory_at(id(shared) + offset, NORMAL)


def _memory_at(address: int | None, layout: struct.Struct) -> Any:
    return None if address is None else (ctypes.c_char * layout.size).from_address(address)


def _address_in(owner: object, data: bytes) -> int | None:
    """Return the address of data in an object, or None if it has the data not exactly once."""
    if sys.implementation.name != "cpython":
        return None
    memory = ctypes.string_at(id(owner), type(owner).__basicsize__)
    return id(owner) + memory.index(data) if memory.count(data) == 1 else None
