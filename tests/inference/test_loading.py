"""How a stored model is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

BUILD = """
import sys
import torch
from fedalign import registry
from fedalign.inputs import Shape
shapes = {
    "tfidf": ("tokens", (50,)),
    "transformer": ("tokens", (50,)),
    "random_features": ("features", (5,)),
    "mlp": ("features", (5,)),
    "pixels": ("images", (1, 28, 28)),
    "convnet": ("images", (1, 28, 28)),
    "rocket": ("series", (3,)),
}
for name, (kind, size) in shapes.items():
    with torch.device("meta"):
        registry.build("encoders", name, {}).build(Shape(kind, size), torch.Generator())
    if "torch._dynamo" in sys.modules:
        sys.exit(f"{name} imports torch's compiler")
"""


@pytest.mark.slow
def test_shapes_of_encoders_are_found_without_torchs_compiler() -> None:
    """To import it takes two seconds of each prediction."""
    done = subprocess.run([sys.executable, "-c", BUILD], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
