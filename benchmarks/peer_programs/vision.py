"""Lets torchvision be imported where its compiled part does not fit this torch, such as a CUDA build beside torch for
CPUs. None of its operators is used here; only two names must exist."""

import torch

library = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
