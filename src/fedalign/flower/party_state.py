"""Stores a party's client state on its own disk."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save

from fedalign.errors import UserError
from fedalign.system.files import PRIVATE, write_atomically
from fedalign.types import Arrays

FORMAT = "client state 1"


class Memory:
    """This party's client state of a run, one file per round.

    An update may be lost: the reply is late, too few parties reply, the server is killed before it has stored the
    round. So the state after a visit counts only once the server says that it accepted the update.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self.folder = folder / hashlib.sha256(run.encode()).hexdigest()[:16]  # a run's key is data, not a path

    def of(self, counted: int, class_arrays: tuple[str, ...], classes: int) -> Arrays:
        """Returns the state after the last update that was accepted; empty before the first one."""
        for found in sorted(self._rounds(), reverse=True):
            if found <= counted:
                return fit_rows(_read(self._path(found)), class_arrays, classes)
        return {}

    def keep(self, number: int, arrays: Arrays, counted: int) -> None:
        """Stores the state after this round. The last two that were accepted stay, because a server whose newest
        checkpoint is damaged returns to the one before it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path(number), save(arrays, metadata={"fedalign": FORMAT}), PRIVATE)
        wanted = [*sorted(found for found in self._rounds() if found <= counted)[-2:], number]
        for old in set(self._rounds()) - set(wanted):
            self._path(old).unlink()

    def _rounds(self) -> list[int]:
        return [int(path.stem) for path in self.folder.glob("*.safetensors") if path.stem.isdigit()]

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.safetensors"


def _read(path: Path) -> Arrays:
    try:
        with safe_open(path, framework="pt") as file:
            version = (file.metadata() or {}).get("fedalign", FORMAT)  # the first version stored none
        if version == FORMAT:
            return load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read ({error}); remove it to start without client state") from error
    raise UserError(
        f"{path} has the format {version[:80]!a}, which this version does not know; update fedalign, or remove the "
        "file to start without client state"
    )


def fit_rows(state: Arrays, class_arrays: tuple[str, ...], classes: int) -> Arrays:
    """Returns state from before a class was added, with zeros for that class."""
    result = dict(state)
    for key, value in state.items():
        if key.rpartition(":")[2] in class_arrays and value.dim() and classes - len(value) > 0:
            result[key] = torch.cat([value, value.new_zeros(classes - len(value), *value.shape[1:])])
    return result
