"""Data pipes of torch: iterable datasets whose shufflers and sharding filters the loader controls.

torch's loader switches their shufflers on or off, gives them the same seed in all workers and ranks, and makes their
sharding filters keep the part of each worker of each rank. Here the seed is derived from (seed of the loader, sweep).
"""

from __future__ import annotations

import copy
import threading
from typing import Any

from feedline import _native
from feedline.concurrency.fork_local import PerProcess
from feedline.feed.loader.collate import torch_side
from feedline.feed.loader.sample_seeds import SAMPLER, SweepKey

_turn: PerProcess[Any] = PerProcess(threading.RLock)  # torch walks through pipes with hooks that all threads share


def is_pipe(dataset: Any) -> bool:
    """Return whether a dataset consists of iterable data pipes."""
    torch = torch_side()
    return torch is not None and isinstance(dataset, torch.IterDataPipe)


def set_shuffle(pipe: Any, shuffle: bool) -> Any:
    """Return a pipe whose shufflers are switched on or off. If there are none, torch warns and adds one."""
    with _turn.get():
        return torch_side().graph_settings.apply_shuffle_settings(pipe, shuffle=shuffle)


def for_thread(dataset: Any) -> Any:
    """Return a copy of a dataset for a thread, with its own attributes, as a process would have. All parts of a pipe
    are copied."""
    with _turn.get():
        return (copy.deepcopy if is_pipe(dataset) else copy.copy)(dataset)


def keep_part(dataset: Any, index: int, count: int) -> None:
    """Make the sharding filters of a pipe keep one part of ``count``. Other datasets divide themselves."""
    if is_pipe(dataset):
        with _turn.get():
            torch_side().graph_settings.apply_sharding(dataset, count, index)


def seed_pipe(dataset: Any, key: SweepKey) -> None:
    """Seed the shufflers of a pipe for a sweep, equally in all workers, as each filters the same order."""
    if is_pipe(dataset):
        with _turn.get():
            torch_side().seed_pipe(dataset, _native.hash_key([*key, SAMPLER]))
