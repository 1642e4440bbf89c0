"""A run's checkpoints: the server's arrays and the clients' states after the newest and the previous round.

state.json names the files of the newest checkpoint with their SHA-256, and holds a digest of itself;
state.previous.json does so for the one before it. Files that neither names are removed. A client's state that both name
has a second copy, since no other checkpoint could take its place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedalign.errors import UnknownFormatError, UserError
from fedalign.learning.client_state import ClientStates, second_copy
from fedalign.runs.round_log import NAME as METRICS
from fedalign.runs.round_log import Mark
from fedalign.system.cores import cores
from fedalign.system.files import write_atomically
from fedalign.types import Arrays, Server, size_of

FORMAT = 1
STATE, PREVIOUS = "state.json", "state.previous.json"
KEYS = {"format", "round", "fingerprint", "server", "clients"}  # of every state.json
MORE = {"state", "metrics"}  # that one may also have
LARGE = 1 << 16  # bytes from which an array of the server's state has a file of its own

Written = dict[str, tuple[Tensor, str, str]]  # name: the array, its file and the file's SHA-256


@dataclass(frozen=True)
class Saved:
    """A checkpoint as it was read."""

    round: int
    fingerprint: str
    weights: Arrays
    extra: Arrays
    clients: dict[str, list[str]]  # client: [file, SHA-256] of its state
    state: Arrays = field(default_factory=dict)  # the server's own arrays, never sent


@dataclass(frozen=True)
class Checkpoints:
    """The folder `checkpoint` of a run."""

    folder: Path
    written: Written = field(default_factory=dict)  # large arrays of the server's state that are on disk

    def write(
        self, number: int, server: Server, states: ClientStates, fingerprint: str, metrics: Mark | None = None
    ) -> None:
        """Makes this the newest checkpoint and keeps the one before it."""
        states.flush(number)
        # a round is committed again when classes were added, and the checkpoint before it must stay intact
        name = f"server-{number:06d}-{fingerprint[:8]}.safetensors"
        arrays = {f"weights/{k}": v for k, v in server.weights.items()}
        arrays |= {f"extra/{k}": v for k, v in server.extra.items()}
        large = {k: v for k, v in server.state.items() if size_of({k: v}) > LARGE}
        arrays |= {f"state/{k}": v for k, v in server.state.items() if k not in large}
        digest = write_atomically(self.folder / name, save(arrays))
        state = {
            "format": FORMAT,
            "round": number,
            "fingerprint": fingerprint,
            "server": [name, digest],
            "clients": {str(m): [states.paths[m], states.digests[m]] for m in sorted(states.paths)},
        }
        if large:
            with ThreadPoolExecutor(cores()) as pool:  # hashing takes as long as writing, and neither holds the lock
                written = pool.map(self._write_once, large, large.values(), [number] * len(large))
                state["state"] = dict(zip(large, written, strict=True))
        if metrics is not None:
            state["metrics"] = list(metrics)
        newest = self.folder / STATE
        before = self.read_state(STATE)
        if before:  # a damaged file must not replace an intact one
            self._copy_shared(before["clients"].values(), state["clients"].values())  # type: ignore[attr-defined]
            newest.replace(self.folder / PREVIOUS)
        write_atomically(newest, json.dumps({**state, "sha256": _digest(state)}))
        self._remove_unused()

    def _copy_shared(self, before: Iterable[list[str]], after: Iterable[list[str]]) -> None:
        """Makes a second copy of each client's file that two checkpoints name."""
        shared = set(map(tuple, before)) & set(map(tuple, after))
        for file, digest in sorted(shared):
            target = second_copy(self.folder / file)
            if not target.exists():
                write_atomically(target, self._read_bytes(file, digest))

    def _write_once(self, name: str, value: Tensor, number: int) -> list[str]:
        """[file, SHA-256] of a large array, which is written only when it has changed."""
        known = self.written.get(name)
        if known is None or known[0] is not value:
            file = f"state-{hashlib.sha256(name.encode()).hexdigest()[:12]}-{number:06d}.safetensors"
            self.written[name] = (value, file, write_atomically(self.folder / file, save({"value": value})))
        return list(self.written[name][1:])

    def _remove_unused(self) -> None:
        wanted: set[str] = {STATE, PREVIOUS, METRICS}
        for name in (STATE, PREVIOUS):
            state = self.read_state(name)
            if state:
                wanted.add(state["server"][0])
                for file, _ in state["clients"].values():
                    wanted |= {file, second_copy(self.folder / file).name}
                wanted.update(file for file, _ in state.get("state", {}).values())
        for path in self.folder.iterdir():
            if path.name not in wanted and not path.name.startswith("."):
                path.unlink()

    def newest(
        self,
        fingerprint: str | None = None,
        warn: Callable[[str], None] = lambda message: None,
        restore: Callable[[dict[str, Any]], None] = lambda state: None,
    ) -> Saved | None:
        """The newest intact checkpoint; None if there is none.

        With a fingerprint, for a run that resumes: a checkpoint of other data is refused, the files of the clients'
        states are checked as well, and `restore` may raise ValueError for a state that cannot be used.
        """
        for name in (STATE, PREVIOUS):
            state = self.read_state(name)
            if state is None:
                if (self.folder / name).exists():
                    warn(f"{self.folder / name} is damaged; using the checkpoint before it")
                continue
            if fingerprint is not None and state["fingerprint"] != fingerprint:
                run = self.folder.parent
                raise UserError(f"the data or label vectors of {run} have changed since it started; start a new run")
            try:
                arrays = self._read_arrays(*state["server"]) | self._read_large(state)
                if fingerprint is not None:
                    for file, digest in state["clients"].values():
                        self._check_client(file, digest, warn)
                restore(state)
            except (OSError, ValueError, SafetensorError) as error:
                warn(f"round {state['round']} of {self.folder.parent} is damaged ({error}); using the one before it")
                continue
            weights, extra, kept = (_group(arrays, name) for name in ("weights", "extra", "state"))
            return Saved(state["round"], state["fingerprint"], weights, extra, state["clients"], kept)
        return None

    def _check_client(self, file: str, digest: str, warn: Callable[[str], None]) -> None:
        """Raises ValueError if a client's file is damaged and no second copy of it is intact."""
        try:
            self._read_bytes(file, digest)
        except (OSError, ValueError):
            copy = second_copy(self.folder / file)
            write_atomically(self.folder / file, self._read_bytes(copy.name, digest))
            warn(f"{self.folder / file} was damaged; it is restored from its second copy")

    @property
    def fingerprint(self) -> str | None:
        """The digest of the data and first weights of the run; None if no intact checkpoint holds it."""
        state = self.read_state(STATE) or self.read_state(PREVIOUS)
        return None if state is None else str(state["fingerprint"])

    def read_state(self, name: str) -> dict[str, Any] | None:
        """A state as it was written; None if it is absent or damaged.

        An intact state of an unknown format is refused. Earlier versions wrote no digest; their states are accepted if
        they have the right keys.
        """
        try:
            state = json.loads((self.folder / name).read_text(encoding="utf-8"))
            digest = state.pop("sha256", None)
            intact = digest in (None, _digest(state))
            version = state.get("format")
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return None
        if intact and type(version) is int and version != FORMAT:
            raise UnknownFormatError(self.folder / name, version, FORMAT)
        return state if intact and version == FORMAT and state.keys() - MORE == KEYS else None

    def _read_bytes(self, name: str, digest: str) -> bytes:
        data = (self.folder / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f"{name} does not match its SHA-256")
        return data

    def _read_large(self, state: dict[str, Any]) -> Arrays:
        """The large arrays of the server's state, by their names in a checkpoint."""
        found: Arrays = {}
        for name, (file, digest) in state.get("state", {}).items():
            found[f"state/{name}"] = self._read_arrays(file, digest)["value"]
            self.written[name] = (found[f"state/{name}"], file, digest)
        return found

    def _read_arrays(self, name: str, digest: str) -> Arrays:
        return load(self._read_bytes(name, digest))


def _group(arrays: Arrays, name: str) -> Arrays:
    """The arrays stored under `name/`."""
    return {k.removeprefix(f"{name}/"): v for k, v in arrays.items() if k.startswith(f"{name}/")}


def _digest(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
