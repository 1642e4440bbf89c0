"""The section `[training]`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedalign.registry import Section


class Training(Section):
    """The local training of one visit."""

    epochs: int = Field(5, ge=1)
    batch_size: int = Field(128, ge=1)
    lr: float = Field(0.001, gt=0)
    label_lr: float | None = Field(None, gt=0)  # of the label encoder or head; None: lr
    optimizer: Literal["adam", "sgd"] = "adam"
    momentum: float = Field(0.0, ge=0, lt=1)  # of sgd
    keep_optimizer: bool = True  # a client keeps its optimizer state between rounds
    balanced: bool = True  # multi-label: the yes and the no entries of a class have equal total weight
    over_classes: Literal["mean", "sum"] = "mean"  # multi-label: of the losses of a row's classes; sum: Eq. 2
    clip: float | None = Field(None, gt=0)  # limit of the gradient's norm
