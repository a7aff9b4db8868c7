"""The ranks of a session: which one this is, what they tell each other, and everybody's random generators.

Without torch.distributed there is one rank, 0. What is exchanged are numbers and JSON text, never pickles.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from feedline.collective.communicator import Communicator
from feedline.errors import StateError, shown
from feedline.train.learner import Workers

T = TypeVar("T")
#: Seconds that ranks wait for each other where no learner says how long: as many as torch.distributed's groups do.
PATIENCE = 1800.0


def rank() -> int:
    """Rank of this process in torch.distributed, 0 without it."""
    return int(torch.distributed.get_rank()) if _initialised() else 0


class Ranks:
    """The ranks that run one session: those whose learners learn together, or else all of torch.distributed's."""

    def __init__(self, workers: Workers | None) -> None:
        self._workers = workers
        self._own: Communicator | None = None

    @property
    def rank(self) -> int:
        """Of this process among them; rank 0 decides what one has to decide."""
        return int(self._workers.ranks.rank) if self._workers is not None else rank()

    @property
    def count(self) -> int:
        """How many there are."""
        if self._workers is not None:
            return int(self._workers.ranks.count)
        return int(torch.distributed.get_world_size()) if _initialised() else 1

    @property
    def alone(self) -> bool:
        """Whether there is nobody to agree with."""
        return self._workers is None and self.count == 1

    @property
    def beside(self) -> bool:
        """Whether there are others whose learners know nothing of these: a model that exchanges gradients by itself."""
        return self._workers is None and not self.alone

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """As many ``numbers`` of every rank, by rank; all ranks have to ask."""
        return [list(numbers)] if self.alone else self._connected().gather(numbers)

    def tell(self, value: Any) -> list[Any]:
        """What every rank says, by rank, in JSON types; all ranks have to ask."""
        text = json.dumps(value)
        if self.alone:
            return [json.loads(text)]
        return [json.loads(told) for told in self._connected().gather_bytes(text.encode())]

    def first(self, action: Callable[[], T]) -> T | None:
        """What rank 0 alone does; None on the others. All ranks have to ask.

        Raises:
            Exception: what ``action`` raises, on rank 0.
            StateError: the same in words, on the others.
        """
        found, error = None, None
        if self.rank == 0:
            try:
                found = action()
            except Exception as raised:
                error = raised
        self.check(error)
        return found

    def check(self, error: Exception | None) -> None:
        """Fail on all ranks if one has failed; all ranks have to ask.

        Raises:
            Exception: ``error``, where there is one.
            StateError: another rank's error in words.
        """
        told = self.tell(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for other, text in enumerate(told):
            if text is not None:
                raise StateError(f"expected no error on rank {other}, got {text}")

    def random_states(self) -> list[dict[str, Any]]:
        """States of the generators that user code may draw from, by rank, in JSON types; all ranks have to ask."""
        return self.tell(random_state())

    def equalise(self, tensors: Sequence[torch.Tensor]) -> None:
        """Let ``tensors`` hold what rank 0's do; all ranks have to ask."""
        if tensors and not self.alone:
            self._connected().broadcast(tensors)

    def barrier(self) -> None:
        """Wait until all ranks have come here."""
        self.gather([0.0])

    def close(self) -> None:
        """Let go of connections that were made for the session."""
        if self._own is not None:
            self._own.close()
            self._own = None

    def _connected(self) -> Communicator:
        if self._workers is not None:
            connected: Communicator = self._workers.ranks
            return connected
        if self._own is None:
            self._own = Communicator(timeout=PATIENCE)
        return self._own


def checked_random_state(states: Any, own: int) -> Callable[[], None]:
    """What sets the generators of rank ``own``; one that the saved run did not have seeds its own from rank 0's.

    Raises:
        StateError: they are no states of generators.
    """
    if not isinstance(states, list) or not states:
        raise StateError(f"expected states of random generators by rank, got {states!r:.80}")
    if own < len(states):
        return _checked(states[own])
    key = hashlib.blake2b(json.dumps([states[0], own]).encode(), digest_size=8).digest()
    seed = int.from_bytes(key, "little") >> 1

    def begin() -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)

    return begin


def random_state() -> dict[str, Any]:
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


def _checked(state: Any) -> Callable[[], None]:
    """Tried on generators of nobody first."""
    try:
        cpu, cuda = _bytes(state["torch"]), [_bytes(text) for text in state["cuda"]]
        torch.Generator().set_state(cpu)
        version, words, gauss = state["python"]
        python = version, tuple(words), gauss
        random.Random().setstate(python)
        kind, keys, place, has_gauss, cached = state["numpy"]
        if type(place) is not int or not 0 <= place <= 624:  # NumPy would read there
            raise ValueError(f"a place from 0 to 624 in NumPy's words, got {place!r:.40}")
        numpy = kind, np.asarray(keys, np.uint32), place, has_gauss, cached
        np.random.RandomState().set_state(numpy)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise StateError(f"expected states of random generators, got others: {shown(error, 200)}") from error

    def begin() -> None:
        torch.set_rng_state(cpu)
        if cuda and torch.cuda.is_available() and len(cuda) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(cuda)
        random.setstate(python)
        np.random.set_state(numpy)

    return begin


def _bytes(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def _initialised() -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())
