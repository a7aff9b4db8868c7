"""Minibatches on a device: their tensors copied by a stream of their own, in the order delivered.

A copy is begun when its minibatch is asked for, and before that counts as delivered, so that a source's position is
what the loop was given; on CUDA it runs beside what the loop has queued before, and what it queues next waits for it on
the device, not here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from feedline.data import Minibatch


def mover(device: Any) -> Callable[[Minibatch], None]:
    """What gives minibatches their ``tensors`` on ``device``, laid out as `Value.torch` does by default."""
    transfer = importlib.import_module("feedline.interop.torch_loading").Transfer(device)

    def move(minibatch: Minibatch) -> None:
        tensors = {name: value.torch() for name, value in minibatch.items()}
        minibatch.tensors = transfer.finish(*transfer.start(tensors))

    return move
