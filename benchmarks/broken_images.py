"""2,000 drawn images in six forms, 20 of them broken in ten ways: what check, run, and run with leave out do.

With --tiny instead: what check needs for many images of 8 x 8 random pixels.

python benchmarks/broken_images.py FOLDER
python benchmarks/broken_images.py FOLDER --tiny 100000
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

CLASSES = {"north": ("circle", "square"), "south": ("circle", "triangle")}
FORMS = (("png", "RGB"), ("jpg", "RGB"), ("tiff", "RGB"), ("webp", "RGB"), ("png", "L"), ("png", "I;16"))
WAYS = (
    *("cut.png", "cut.jpg", "text.png", "empty.png", "30000.png", "85-million.png"),
    *("moving.gif", "print.jpg", "glass.png", "float.tiff"),
)
RUN = ("--no-report",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--tiny", type=int, default=0)
    given = parser.parse_args()
    if given.tiny:
        check_tiny(given.folder / "tiny", given.tiny)
    else:
        check_broken(given.folder, given.images)


def check_broken(folder: Path, count: int) -> None:
    data, random_ = folder / "shapes", random.Random(1)
    drawn = [draw_all(data, party, count // 2 - len(WAYS), random_) for party in CLASSES]
    broken = [(party, name) for party in CLASSES for name in break_all(data / party / "circle", random_)]
    fedalign("init", data)
    print(f"{sum(drawn) + len(broken):,} images, {len(broken)} of them broken")
    print("command | exit code | seen | CPU seconds")
    status, output, seconds = fedalign("check", data, "--json")
    findings = json.loads(output)["data"]["findings"]
    errors = [one["message"] for one in findings if one["level"] == "error"]
    named = sum(any(one.startswith(f"{party}/, ") and name in one for one in errors) for party, name in broken)
    print(f"check | {status} | {len(errors)} errors, {named} of {len(broken)} files named | {seconds:.1f}")
    status, output, seconds = fedalign("run", data, "--out", folder / "stopped", *RUN)
    made = "a folder" if (folder / "stopped").exists() else "no folder"
    print(f"run | {status} | {made}; {output.strip().splitlines()[-1]} | {seconds:.1f}")
    leave = ("--set", "dataset.broken_images=leave out")
    status, output, seconds = fedalign("run", data, "--out", folder / "run", *RUN, *leave)
    result = json.loads((folder / "run" / "result.json").read_text(encoding="utf-8"))
    print(f"run, leave out | {status} | F1 {100 * result['last']['f1']:.1f} | {seconds:.1f}")


def check_tiny(data: Path, count: int) -> None:
    rng = np.random.default_rng(1)
    for number in range(count):
        party = ("north", "south")[number % 2]
        path = data / party / CLASSES[party][number // 2 % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path, compress_level=1)
    status, _, seconds = fedalign("check", data)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    print(f"check of {count:,} images: exit code {status}, {seconds:.0f} s of CPU time, {peak:.1f} GB")


def fedalign(*words: object) -> tuple[int, str, float]:
    """Exit code, output and CPU seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "fedalign", *map(str, words)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return found.returncode, found.stdout if "--json" in words else found.stdout + found.stderr, seconds


def draw_all(data: Path, party: str, count: int, random_: random.Random) -> int:
    for number in range(count):
        name = CLASSES[party][number % 2]
        ending, mode = FORMS[number // 2 % len(FORMS)]
        path = data / party / name / f"{number:04}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = drawn_shape(name, random_)
        if mode == "I;16":
            picture = Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)
        (picture if mode == "I;16" else picture.convert(mode)).save(path)
    return count


def drawn_shape(name: str, random_: random.Random) -> Image.Image:
    """A dark shape on a bright ground, with sides of 20 to 119 pixels."""
    width, height = random_.randint(20, 119), random_.randint(20, 119)
    picture = Image.new("RGB", (width, height), tuple(random_.randint(150, 255) for _ in range(3)))
    left, right = width * random_.uniform(0.05, 0.25), width * random_.uniform(0.7, 0.95)
    top, bottom = height * random_.uniform(0.05, 0.25), height * random_.uniform(0.7, 0.95)
    colour, pen = tuple(random_.randint(0, 110) for _ in range(3)), ImageDraw.Draw(picture)
    if name == "circle":
        pen.ellipse((left, top, right, bottom), fill=colour)
    elif name == "square":
        pen.rectangle((left, top, right, bottom), fill=colour)
    else:
        pen.polygon([(left, bottom), ((left + right) / 2, top), (right, bottom)], fill=colour)
    return picture


def break_all(folder: Path, random_: random.Random) -> list[str]:
    """Writes one file per way of being broken; returns their names, as check writes them."""
    picture = drawn_shape("circle", random_).resize((60, 60))
    for name in ("cut.png", "cut.jpg"):
        picture.save(folder / name)
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
    (folder / "text.png").write_text("name,age\nAda,36\n", encoding="utf-8")
    (folder / "empty.png").write_bytes(b"")
    (folder / "30000.png").write_bytes(claiming(30_000, 30_000))
    (folder / "85-million.png").write_bytes(claiming(9_500, 9_000))
    picture.save(folder / "moving.gif", save_all=True, append_images=[picture.rotate(90)])
    picture.convert("CMYK").save(folder / "print.jpg")
    picture.convert("RGBA").rotate(45, expand=True).save(folder / "glass.png")
    Image.fromarray(np.ones((4, 4), dtype=np.float32)).save(folder / "float.tiff")
    return [f"circle/{name}" for name in WAYS]


def claiming(width: int, height: int) -> bytes:
    """A small PNG file whose header claims many grey pixels."""
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)), (b"IDAT", zlib.compress(bytes(100)))]
    chunks = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in (*parts, (b"IEND", b""))
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


if __name__ == "__main__":
    main()
