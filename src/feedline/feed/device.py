"""Minibatches on a device: tensors are copied on a separate stream, in delivered order.

A copy is begun when its minibatch is requested, before it counts as delivered, so that a source's position counts the
minibatches that the loop has received. On CUDA the copy overlaps with work queued before it. Work queued after it waits
for it on the device, not here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from feedline.data import Minibatch


def mover(device: Any) -> Callable[[Minibatch], None]:
    """Return a function that sets ``tensors`` of a minibatch on ``device``, laid out as `Value.torch` does by
    default. Byte strings are omitted: they are decoded on the host."""
    transfer = importlib.import_module("feedline.interop.torch_loading").Transfer(device)

    def move(minibatch: Minibatch) -> None:
        strings = {name for name, stream in minibatch.schema.items() if stream.is_bytes}
        tensors = {name: value.torch() for name, value in minibatch.items() if name not in strings}
        minibatch.tensors = transfer.finish(*transfer.start(tensors))

    return move
