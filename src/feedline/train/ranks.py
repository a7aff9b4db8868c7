"""The ranks of a session: which one this is, and everybody's random generators.

Without torch.distributed there is one rank, 0. What is exchanged are numbers and JSON text, never pickles.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from feedline.kvstore.collective import Collective
from feedline.train.learners.base import Workers


def rank() -> int:
    """Rank of this process in torch.distributed, 0 without it."""
    return int(torch.distributed.get_rank()) if _initialised() else 0


class Ranks:
    """The ranks that run one session: those whose learners learn together, or else all of torch.distributed's."""

    def __init__(self, workers: Workers | None) -> None:
        self._workers = workers
        self._own: Collective | None = None

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """As many ``numbers`` of every rank, by rank; all ranks have to ask."""
        return [list(numbers)] if self._alone() else self._connected().gather(numbers)

    def random_states(self) -> list[dict[str, Any]]:
        """States of the generators that user code may draw from, by rank, in JSON types; all ranks have to ask."""
        if self._alone():
            return [json.loads(json.dumps(_random_state()))]
        texts = self._connected().gather_bytes(json.dumps(_random_state()).encode())
        return [json.loads(text) for text in texts]

    def close(self) -> None:
        """Let go of connections that were made for the session."""
        if self._own is not None:
            self._own.close()
            self._own = None

    def _alone(self) -> bool:
        return self._workers is None and not _initialised()

    def _connected(self) -> Collective:
        if self._workers is not None:
            connected: Collective = self._workers.ranks
            return connected
        if self._own is None:
            self._own = Collective()
        return self._own


def restore_random_state(states: Sequence[Mapping[str, Any]]) -> None:
    """Set this rank's generators; a rank that the saved run did not have seeds its own from rank 0's."""
    own = rank()
    if own < len(states):
        _set_random_state(states[own])
        return
    key = hashlib.blake2b(json.dumps([states[0], own]).encode(), digest_size=8).digest()
    seed = int.from_bytes(key, "little") >> 1
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _random_state() -> dict[str, Any]:
    """torch's (CPU and every CUDA device), Python's and NumPy's."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    version, words, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "cuda": [state.numpy().tobytes().hex() for state in cuda],
        "python": [version, list(words), gauss],
        "numpy": [str(kind), np.asarray(keys).tolist(), int(place), int(has_gauss), float(cached)],
    }


def _set_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(_bytes(state["torch"]))
    cuda = [_bytes(text) for text in state["cuda"]]
    if cuda and torch.cuda.is_available() and len(cuda) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(cuda)
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, place, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.asarray(keys, np.uint32), place, has_gauss, cached))


def _bytes(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def _initialised() -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())
