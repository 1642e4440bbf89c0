"""Stores a party's client state on its own disk."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedalign.errors import UserError
from fedalign.system.files import PRIVATE, write_atomically
from fedalign.types import Arrays, bytes_of

WEIGHTS = "server weights 1"
FORMAT, FIRST = "client state 2", "client state 1"  # the first one has no digest


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
        noted = {"fedalign": FORMAT, "sha256": digest_of(arrays)}
        write_atomically(self._path(number), save(arrays, metadata=noted), PRIVATE)
        wanted = [*sorted(found for found in self._rounds() if found <= counted)[-2:], number]
        for old in set(self._rounds()) - set(wanted):
            self._path(old).unlink()

    def keep_weights(self, weights: Arrays, digest: str) -> None:
        """Stores the server's weights, which it will not send again for the next training."""
        self.folder.mkdir(parents=True, exist_ok=True)
        noted = {"fedalign": WEIGHTS, "sha256": digest, "order": json.dumps(list(weights))}
        write_atomically(self.folder / "weights.safetensors", save(weights, metadata=noted), PRIVATE)

    def weights(self, digest: str) -> Arrays:
        """Returns the stored weights; the server sends them again if they are not here."""
        path = self.folder / "weights.safetensors"
        try:
            noted, found = mapped(path)
            found = {name: found[name] for name in json.loads(noted["order"])}
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise UserError(f"the server's weights are not in {path} any more; it sends them again") from error
        if noted.get("fedalign") != WEIGHTS or digest_of(found) != digest:
            raise UserError(f"{path} holds other weights than the server's; it sends them again")
        return found

    def _rounds(self) -> list[int]:
        return [int(path.stem) for path in self.folder.glob("*.safetensors") if path.stem.isdigit()]

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.safetensors"


def _read(path: Path) -> Arrays:
    try:
        noted, arrays = mapped(path)
        noted = noted or {"fedalign": FIRST}  # the first version stored none
        version = noted.get("fedalign", "")
        if version in (FORMAT, FIRST):
            if version == FORMAT and noted.get("sha256") != digest_of(arrays):
                raise ValueError("it does not match its SHA-256")
            return arrays
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read ({error}); remove it to start without client state") from error
    raise UserError(
        f"{path} has the format {version[:80]!a}, which this version does not know; update fedalign, or remove the "
        "file to start without client state"
    )


def mapped(path: Path) -> tuple[dict[str, str], Arrays]:
    """What a file notes, and its arrays, which stay in the file."""
    with safe_open(path, framework="pt") as file:
        return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def digest_of(arrays: Arrays) -> str:
    """SHA-256 of names, types, shapes and values."""
    found = hashlib.sha256()
    for name, value in sorted(arrays.items()):
        found.update(f"{name!a} {value.dtype} {tuple(value.shape)}\n".encode())
        found.update(bytes_of(value))
    return found.hexdigest()


def fit_rows(state: Arrays, class_arrays: tuple[str, ...], classes: int) -> Arrays:
    """Returns state from before a class was added, with zeros for that class."""
    result = dict(state)
    for key, value in state.items():
        if key.rpartition(":")[2] in class_arrays and value.dim() and classes - len(value) > 0:
            result[key] = torch.cat([value, value.new_zeros(classes - len(value), *value.shape[1:])])
    return result
