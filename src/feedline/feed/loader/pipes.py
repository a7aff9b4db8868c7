"""Data pipes of torch: iterable datasets whose shufflers and sharding filters the loader controls.

torch's loader switches their shufflers on or off, seeds them equally in all workers and ranks, and has their sharding
filters keep the share of each worker of each rank. Here the seed is derived from (seed of the loader, sweep).
"""

from __future__ import annotations

from typing import Any

from feedline import _native
from feedline.feed.loader.collate import torch_side
from feedline.feed.loader.random import SAMPLER, SweepKey


def is_pipe(dataset: Any) -> bool:
    """Return whether a dataset consists of iterable data pipes."""
    torch = torch_side()
    return torch is not None and isinstance(dataset, torch.IterDataPipe)


def shuffled(pipe: Any, shuffle: bool) -> Any:
    """Return a pipe whose shufflers are switched on or off; torch warns if there are none, and one is added."""
    return _graph().apply_shuffle_settings(pipe, shuffle=shuffle)


def share_out(dataset: Any, index: int, count: int) -> None:
    """Make the sharding filters of a pipe keep one share of ``count``; other datasets share themselves out."""
    if is_pipe(dataset):
        _graph().apply_sharding(dataset, count, index)


def seed_pipe(dataset: Any, key: SweepKey) -> None:
    """Seed the shufflers of a pipe for a sweep: alike everywhere, as each worker filters the same order."""
    torch = torch_side()
    if torch is not None and is_pipe(dataset):
        torch.seed_pipe(dataset, _native.hash_key([*key, SAMPLER]))


def _graph() -> Any:
    torch = torch_side()
    assert torch is not None, "pipes are torch's"
    return torch.graph_settings
