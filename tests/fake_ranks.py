"""One process as a rank of any number, by torch's fake process group, whose collectives return at once."""

from __future__ import annotations

import contextlib
import gc

import torch
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextlib.contextmanager
def as_rank(rank, world_size):
    """Be rank ``rank`` of ``world_size``. Meshes that were made meanwhile are collected afterwards."""
    torch.distributed.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield world_size
    finally:
        torch.distributed.destroy_process_group()
        gc.collect()
