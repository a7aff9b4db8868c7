"""Minibatches on a device: their tensors copied by a stream of their own, in the order delivered.

A copy is begun when its minibatch is asked for, so that a source's position stays what was delivered; on CUDA it runs
beside what the loop has queued before, and what it queues next waits for it on the device, not here.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from feedline.data import Minibatch


def on_device(minibatches: Iterator[Minibatch], device: Any) -> Iterator[Minibatch]:
    """The same minibatches with ``tensors`` on ``device``, laid out as `Value.torch` does by default."""
    transfer = importlib.import_module("feedline.interop.torch_loading").Transfer(device)
    for minibatch in minibatches:
        tensors = {name: value.torch() for name, value in minibatch.items()}
        minibatch.tensors = transfer.finish(*transfer.start(tensors))
        yield minibatch
