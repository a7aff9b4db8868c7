"""States of the random generators of torch, Python and NumPy, which user code may use, for checkpoints."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from feedline.errors import StateError, shown


def check_random_states(states: Any, index: int) -> Callable[[], None]:
    """Check saved states, and return a function that restores the states of rank ``index``.

    A rank that the saved run did not have seeds its generators from rank 0's state.

    Raises:
        StateError: the states are malformed.
    """
    if not isinstance(states, list) or not states:
        raise StateError(f"expected states of random generators by rank, got {states!r:.80}")
    if index < len(states):
        return _check(states[index])
    key = hashlib.blake2b(json.dumps([states[0], index]).encode(), digest_size=8).digest()
    seed = int.from_bytes(key, "little") >> 1

    def seed_generators() -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)

    return seed_generators


def random_state() -> dict[str, Any]:
    """Return the states of the generators of torch (CPU and every CUDA device), Python and NumPy, in JSON types."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    version, words, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "cuda": [state.numpy().tobytes().hex() for state in cuda],
        "python": [version, list(words), gauss],
        "numpy": [str(kind), np.asarray(keys).tolist(), int(place), int(has_gauss), float(cached)],
    }


def _check(state: Any) -> Callable[[], None]:
    """Check states on temporary generators. Return a function that restores them."""
    try:
        cpu, cuda = _bytes(state["torch"]), [_bytes(text) for text in state["cuda"]]
        torch.Generator().set_state(cpu)
        version, words, gauss = state["python"]
        python = version, tuple(words), gauss
        random.Random().setstate(python)
        kind, keys, place, has_gauss, cached = state["numpy"]
        if type(place) is not int or not 0 <= place <= 624:  # NumPy would read the word at any place
            raise ValueError(f"a place from 0 to 624 in NumPy's words, got {place!r:.40}")
        numpy = kind, np.asarray(keys, np.uint32), place, has_gauss, cached
        np.random.RandomState().set_state(numpy)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise StateError(f"expected states of random generators, got others: {shown(error, 200)}") from error

    def restore() -> None:
        torch.set_rng_state(cpu)
        if cuda and torch.cuda.is_available() and len(cuda) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(cuda)
        random.setstate(python)
        np.random.set_state(numpy)

    return restore


def _bytes(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
