"""A cache of prepared data with a fingerprint of their sources, so that slow files are parsed once.

An entry is used only if it is complete and its sources have not changed. If the cache cannot be written, data are
prepared each time.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedalign.system.files import sync_folder
from fedalign.types import Arrays

FOLDER = "prepared"  # in the data folder
STALE = 3600  # seconds after which an unfinished file counts as abandoned


@dataclass(frozen=True)
class Prepared:
    """What a loader made of its source files: arrays, and other values as plain JSON."""

    arrays: Arrays
    notes: dict[str, Any] = field(default_factory=dict)


def prepared(folder: Path, name: str, version: int, sources: Iterable[Path], build: Callable[[], Prepared]) -> Prepared:
    """What `build` makes of the sources, from the data folder's cache if neither they nor `version` changed."""
    mark = fingerprint(
        folder, version, sources
    )  # before reading, so that a file that changes meanwhile is read next time
    return kept(folder / FOLDER / f"{name}.safetensors", mark, build)


def kept(path: Path, mark: str, build: Callable[[], Prepared], private: bool = False) -> Prepared:
    """The contents of the file if it carries this mark, else what `build` returns, which is then stored. Only this user
    can read a private file."""
    found = _load(path, mark)
    if found is None:
        found = build()
        _store(path, mark, found, private)
    return found


def fingerprint(folder: Path, version: int | str, sources: Iterable[Path]) -> str:
    """A digest of the files' names, sizes and times of change; contents are not read."""
    digest = hashlib.sha256(str(version).encode())
    for path in sorted(sources):
        state = path.stat()
        digest.update(f"\n{path.relative_to(folder)}\t{state.st_size}\t{state.st_mtime_ns}".encode())
    return digest.hexdigest()


def files_of(path: Path) -> list[Path]:
    """The file itself, or all files in a folder."""
    return [path] if path.is_file() else [found for found in path.rglob("*") if found.is_file()]


def _load(path: Path, mark: str) -> Prepared | None:
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if about.get("sources") != mark:
                return None
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return Prepared(arrays, json.loads(about["notes"])) if about["crc32"] == _checksum(arrays) else None
    except (OSError, SafetensorError, KeyError, ValueError):
        return None  # absent or damaged: prepared anew


def _store(path: Path, mark: str, made: Prepared, private: bool) -> None:
    about = {"sources": mark, "crc32": _checksum(made.arrays), "notes": json.dumps(made.notes)}
    part = path.with_name(f".{path.name}.{os.getpid()}.part")  # two runs may prepare the same data at once
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f".{path.name}.*.part"):  # left by a process that was killed
            if left.stat().st_mtime < time.time() - STALE:
                left.unlink(missing_ok=True)
        try:
            if private:
                part.touch(mode=0o600)
            save_file({name: array.contiguous() for name, array in made.arrays.items()}, part, about)
            with part.open("rb") as stream:
                os.fsync(stream.fileno())
            part.replace(path)
            sync_folder(path.parent)
        finally:
            part.unlink(missing_ok=True)
    except (OSError, SafetensorError):
        return  # a full disk, or a folder of another user


def _checksum(arrays: Arrays) -> str:
    value = 0
    for name in sorted(arrays):
        array = arrays[name].contiguous()
        value = zlib.crc32(f"{name} {array.dtype} {tuple(array.shape)}".encode(), value)
        value = zlib.crc32(array.flatten().view(torch.uint8).numpy().data, value)
    return f"{value:08x}"
