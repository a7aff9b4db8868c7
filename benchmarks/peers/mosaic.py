"""Imports MosaicML Streaming, which takes some preparation.

It imports torchvision, for nothing that is used here. The registry's torchvision registers operators with the torch it
was built against. With a torch without CUDA they are missing, and its import fails. They are declared here, never
called. And it keeps names in shared memory, which turns that were ended leave behind.
"""

from __future__ import annotations

from typing import Any

_KEPT: list[Any] = []  # declarations end with their library


def imported() -> Any:
    """The package ``streaming``."""
    import torch

    if not _KEPT:
        _KEPT.append(torch.library.Library("torchvision", "FRAGMENT"))
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                _KEPT[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import streaming
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    return streaming
