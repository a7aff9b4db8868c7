"""States of the random generators that a training may draw from, for checkpoints."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def torch_rng_state() -> dict[str, torch.Tensor]:
    """Generators of torch: the CPU's and every CUDA device's."""
    tensors = {"random/torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        tensors |= {f"random/cuda{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    return tensors


def restore_torch_rng(tensors: Mapping[str, torch.Tensor]) -> None:
    """Set torch's generators to a state; those of CUDA only where there are as many devices."""
    torch.set_rng_state(tensors["random/torch"])
    cuda = [tensors[name] for i in range(len(tensors)) if (name := f"random/cuda{i}") in tensors]
    if cuda and torch.cuda.is_available() and len(cuda) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(cuda)


def rng_state() -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Generators that user code may draw from: torch's as tensors, Python's and NumPy's in JSON types."""
    version, words, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = np.random.get_state(legacy=True)
    numpy_state = [str(kind), np.asarray(keys).tolist(), int(place), int(has_gauss), float(cached)]
    return torch_rng_state(), {"python": [version, list(words), gauss], "numpy": numpy_state}


def restore_rng(tensors: Mapping[str, torch.Tensor], generators: Mapping[str, Any]) -> None:
    """Set all of them to what `rng_state` gave."""
    restore_torch_rng(tensors)
    version, words, gauss = generators["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, place, has_gauss, cached = generators["numpy"]
    np.random.set_state((kind, np.asarray(keys, np.uint32), place, has_gauss, cached))
