"""Imports torchvision where its binary is built for CUDA and torch is not: MosaicML Streaming imports it, for nothing.

The registry's torchvision registers operators with the torch it was built against; beside a torch without CUDA they are
missing, and its import fails. They are declared here, never called.
"""

from __future__ import annotations

from typing import Any

_KEPT: list[Any] = []  # declarations end with their library


def declare() -> None:
    """Declare what torchvision's import looks for."""
    import torch

    if not _KEPT:
        _KEPT.append(torch.library.Library("torchvision", "FRAGMENT"))
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                _KEPT[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
