"""torchvision's binary is built for CUDA; beside a torch for CPUs its operators are missing when it is imported."""

import torch

_DECLARED = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    _DECLARED.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
