"""Writes the example folder of drawn shapes, always with the same pixels: python examples/make_shapes.py [FOLDER]

    shapes/     grey images of 20 x 20 pixels: circles, squares, crosses and triangles in folders

Each of three parties annotates two of the four classes; the folder test has all of them.
"""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
SIDE = 20
PARTIES = {"north": ("circle", "square"), "south": ("square", "cross"), "east": ("cross", "triangle")}
EACH, TESTED = 14, 10  # images per class, at a party and for testing


def drawn(name: str, rng: np.random.Generator) -> np.ndarray:
    """(20, 20) bytes: a bright shape of any place and size on a dark ground."""
    radius = rng.uniform(4.0, 7.0)
    middle = rng.uniform(radius, SIDE - 1 - radius, 2)
    y, x = (np.mgrid[0:SIDE, 0:SIDE].astype(float) - middle[:, None, None]) / radius
    inside = {
        "circle": x * x + y * y < 1,
        "square": np.maximum(abs(x), abs(y)) < 0.85,
        "cross": (np.minimum(abs(x), abs(y)) < 0.25) & (np.maximum(abs(x), abs(y)) < 1),
        "triangle": (y < 0.8) & (abs(x) < (y + 1) / 2),
    }[name]
    ground, bright = rng.integers(0, 60), rng.integers(150, 256)
    spots = rng.integers(0, 2, (SIDE, SIDE)) * 8
    return (np.where(inside, bright - 8, ground) + spots).astype(np.uint8)


def write_png(path: Path, pixels: np.ndarray) -> None:
    """A grey PNG with 8 bits."""
    height, width = pixels.shape
    lines = b"".join(b"\0" + row.tobytes() for row in pixels)
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0),
        b"IDAT": zlib.compress(lines, 9),
        b"IEND": b"",
    }
    chunks = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


def main(folder: Path = HERE) -> None:
    classes = sorted({name for names in PARTIES.values() for name in names})
    for number, (party, names) in enumerate([*PARTIES.items(), ("test", tuple(classes))]):
        for name in names:
            rng = np.random.default_rng([number, classes.index(name)])
            for i in range(TESTED if party == "test" else EACH):
                write_png(folder / "shapes" / party / name / f"{i + 1:02}.png", drawn(name, rng))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
