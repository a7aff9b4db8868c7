"""Imports torchvision, whose binary lacks its operators where torch is built for CPUs and it for CUDA."""

import sys

import torch

try:
    import torchvision
except RuntimeError:
    # Nothing of the attempt is kept: the modules that were loaded look for operators only once.
    for _name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[_name]
    _DECLARED = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _DECLARED.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision  # noqa: F401
