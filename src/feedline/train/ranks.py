"""The ranks of torch.distributed: who one is, numbers of all of them, and everybody's random generators.

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


def rank() -> int:
    """Rank of this process in torch.distributed, 0 without it."""
    return int(torch.distributed.get_rank()) if _initialised() else 0


def over_ranks(numbers: Sequence[float]) -> list[list[float]]:
    """As many ``numbers`` of every rank, by rank; all ranks have to ask."""
    if not _initialised():
        return [list(numbers)]
    own = torch.tensor(list(numbers), dtype=torch.float64, device=_device())
    everywhere = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(everywhere, own)
    return [row.tolist() for row in everywhere]


def random_states() -> list[dict[str, Any]]:
    """States of the generators that user code may draw from, by rank, in JSON types; all ranks have to ask."""
    own = json.dumps(_random_state()).encode()
    lengths = [int(row[0]) for row in over_ranks([float(len(own))])]
    if len(lengths) == 1:
        return [json.loads(own)]
    padded = torch.frombuffer(bytearray(own.ljust(max(lengths))), dtype=torch.uint8).to(_device())
    everywhere = [torch.empty_like(padded) for _ in lengths]
    torch.distributed.all_gather(everywhere, padded)
    return [json.loads(bytes(row[:n].tolist())) for row, n in zip(everywhere, lengths, strict=True)]


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


def _device() -> str:
    return "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
