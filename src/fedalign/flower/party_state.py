"""What a party keeps of its visits on its own disk."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from fedalign.errors import UserError
from fedalign.system.files import PRIVATE, write_atomically
from fedalign.types import Arrays


class Memory:
    """What this party remembers of a run, on its own disk, with the round it was made in.

    A visit may come to nothing: its reply is lost or late, too few parties reply, the server is killed before it has
    written the round down. So what a visit leaves behind counts only once the server says that its update did.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self.folder = folder / hashlib.sha256(run.encode()).hexdigest()[:16]  # a run's key is data, not a path

    def of(self, counted: int, class_arrays: tuple[str, ...], classes: int) -> Arrays:
        """What was remembered after the last visit that counted; empty before there was one."""
        for found in sorted(self._rounds(), reverse=True):
            if found <= counted:
                try:
                    return fit_rows(load(self._path(found).read_bytes()), class_arrays, classes)
                except (OSError, SafetensorError) as error:
                    raise UserError(f"{self._path(found)} cannot be read ({error}); remove it to begin anew") from error
        return {}

    def keep(self, number: int, arrays: Arrays, counted: int) -> None:
        """Adds this round's to the last that counted, and to the one before it: a server whose newest checkpoint is
        damaged goes back to the one before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path(number), save(arrays), PRIVATE)
        wanted = [*sorted(found for found in self._rounds() if found <= counted)[-2:], number]
        for old in set(self._rounds()) - set(wanted):
            self._path(old).unlink()

    def _rounds(self) -> list[int]:
        return [int(path.stem) for path in self.folder.glob("*.safetensors") if path.stem.isdigit()]

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.safetensors"


def fit_rows(memory: Arrays, class_arrays: tuple[str, ...], classes: int) -> Arrays:
    """Memory from before a class was added: zeros for its rows."""
    result = dict(memory)
    for key, value in memory.items():
        if key.rpartition(":")[2] in class_arrays and value.dim() and classes - len(value) > 0:
            result[key] = torch.cat([value, value.new_zeros(classes - len(value), *value.shape[1:])])
    return result
