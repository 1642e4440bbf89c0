"""A run's folder: what was asked, what was measured, the model, and a checkpoint after every round.

    config.toml         the resolved configuration
    metrics.jsonl       a line a round, the same bytes for the same run, resumed or not
    timing.jsonl        seconds a round, apart because they never repeat
    result.json         final and per-class scores
    report.html         the page, drawn from the files above and facts.json, alone.json, diagnosis/
    model.safetensors   with labels.json: label names, task, inputs, encoder
    checkpoint/         state.json names the files that count, with their SHA-256 and its own

Everything is written beside its place and renamed, so a kill at any moment leaves a run that resumes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from fedalign.config import Config, to_toml
from fedalign.errors import UserError
from fedalign.learning.client_state import ClientStates
from fedalign.system.files import sync_folder, write_atomically
from fedalign.types import Arrays, Server

FORMAT = 1
STATE, PREVIOUS = "state.json", "state.previous.json"
KEYS = {"format", "round", "fingerprint", "server", "clients"}  # of a state


@dataclass(frozen=True)
class Saved:
    """A checkpoint as it was read."""

    round: int
    fingerprint: str
    weights: Arrays
    extra: Arrays
    clients: dict[str, list[str]]  # client: [file, SHA-256] of what it remembers


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoint"

    # --- beginning and resuming ---------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: Path, config: Config) -> RunFolder:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError(f"{path} exists already; give another --out, or --resume to continue the run there")
        try:
            (path / "checkpoint").mkdir(parents=True, exist_ok=True)
            write_atomically(path / "config.toml", to_toml(config))
        except OSError as error:
            raise UserError(f"cannot write to {path}: {error.strerror}; give another --out") from error
        return cls(path)

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        if not (path / "config.toml").is_file():
            raise UserError(f"{path} is not a run's folder (it holds no config.toml); check the path")
        return cls(path)

    def check_same(self, config: Config) -> None:
        """A run goes on with its own configuration or not at all; only how it is carried out may change, and for how
        many rounds."""
        config, stored = self.resolved(config), self.stored_config()
        free = {"engine": config.engine, "rounds": config.rounds}
        ours, theirs = (c.model_copy(update=free).model_dump() for c in (config, stored))
        different = sorted(_differences(ours, theirs))
        if different:
            raise UserError(
                f"{self.path} was begun with another configuration ({', '.join(different[:4])}); "
                f"resume it with `fedalign run {shlex.quote(str(self.path))} --resume`, or give another --out"
            )
        # a finished run may have lost its checkpoint, and is as long without it
        done = max((self._read_state(STATE) or {"round": 0})["round"], self._finished_rounds())
        if done > config.rounds:
            raise UserError(f"{self.path} has {done} rounds already; ask for as many or more, or give another --out")

    def stored_config(self) -> Config:
        from fedalign import config as configs

        return configs.load(str(self.path / "config.toml"))

    def resolved(self, config: Config) -> Config:
        """Returns the configuration with `labels.source = "auto"` replaced by the source that this run chose."""
        if config.labels.source != "auto":
            return config
        stored = self.stored_config().labels
        labels = config.labels.model_copy(update={"source": stored.source, "file": stored.file})
        return config.model_copy(update={"labels": labels})

    def keep(self, config: Config) -> None:
        """Writes down what the run goes on with; one that was finished is so no longer if it gets more rounds."""
        if not self.finished_with(config):
            (self.path / "result.json").unlink(missing_ok=True)
        write_atomically(self.path / "config.toml", to_toml(config))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One process at a time; the lock dies with its process."""
        with (self.path / ".lock").open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UserError(
                    f"another process is working in {self.path}; wait for it or give another --out"
                ) from error
            yield

    # --- rounds -------------------------------------------------------------------------------------------------

    def save_round(
        self, number: int, server: Server, memory: ClientStates, fingerprint: str, record: dict[str, Any]
    ) -> None:
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")
        self.commit(number, server, memory, fingerprint)

    def commit(self, number: int, server: Server, memory: ClientStates, fingerprint: str) -> None:
        """Makes this the newest state; the one before it is kept."""
        memory.flush(number)
        # a round whose classes have grown is committed again, and the state before it must stay whole
        name = f"server-{number:06d}-{fingerprint[:8]}.safetensors"
        arrays = {f"weights/{k}": v for k, v in server.weights.items()}
        arrays |= {f"extra/{k}": v for k, v in server.extra.items()}
        digest = write_atomically(self.checkpoints / name, save(arrays))
        clients = {str(m): [memory.paths[m], memory.digests[m]] for m in sorted(memory.paths)}
        state = {
            "format": FORMAT,
            "round": number,
            "fingerprint": fingerprint,
            "server": [name, digest],
            "clients": clients,
        }
        newest = self.checkpoints / STATE
        if self._read_state(STATE):  # a damaged one must not take the place of an intact one
            newest.replace(self.checkpoints / PREVIOUS)
        write_atomically(newest, json.dumps({**state, "sha256": _digest(state)}))
        self._sweep()

    def _sweep(self) -> None:
        """Removes files that neither the newest nor the previous state names."""
        wanted: set[str] = {STATE, PREVIOUS}
        for name in (STATE, PREVIOUS):
            state = self._read_state(name)
            if state:
                wanted.add(state["server"][0])
                wanted.update(file for file, _ in state["clients"].values())
        for path in self.checkpoints.iterdir():
            if path.name not in wanted and not path.name.startswith("."):
                path.unlink()

    def load_round(
        self, server: Server, memory: ClientStates, fingerprint: str, warn: Callable[[str], None]
    ) -> tuple[int, Server]:
        """The newest intact state: (rounds done, server); (0, as given) when there is none."""
        for name in (STATE, PREVIOUS):
            state = self._read_state(name)
            if state is None:
                if (self.checkpoints / name).exists():
                    warn(f"{self.checkpoints / name} is damaged; using the checkpoint before it")
                continue
            if state["fingerprint"] != fingerprint:
                raise UserError(f"the data or label vectors of {self.path} have changed since it was begun; start anew")
            try:
                arrays = self._read_arrays(*state["server"])
                # files of earlier rounds were checked then, and are checked again when they are next needed
                before = (self._read_state(PREVIOUS) or {"clients": {}})["clients"] if name == STATE else {}
                for client, (file, digest) in state["clients"].items():
                    if before.get(client) != [file, digest]:
                        self._read_bytes(file, digest)
            except (OSError, ValueError, SafetensorError) as error:
                warn(f"round {state['round']} of {self.path} is damaged ({error}); using the one before it")
                continue
            for client, (file, digest) in state["clients"].items():
                memory.paths[int(client)], memory.digests[int(client)] = file, digest
            memory.flush(state["round"])
            self._cut_metrics(state["round"])
            weights = {k.removeprefix("weights/"): v for k, v in arrays.items() if k.startswith("weights/")}
            extra = {k.removeprefix("extra/"): v for k, v in arrays.items() if k.startswith("extra/")}
            if extra.keys() != server.extra.keys():
                raise UserError(f"{self.path} was begun by another version, whose method kept other arrays; start anew")
            return state["round"], replace(server, weights=weights, extra=extra)
        self._cut_metrics(0)
        return 0, server

    def newest(self) -> Saved | None:
        """The last intact state, for looking at a run without going on with it; nothing is changed."""
        for name in (STATE, PREVIOUS):
            state = self._read_state(name)
            if state is not None:
                try:
                    arrays = self._read_arrays(*state["server"])
                except (OSError, ValueError, SafetensorError):
                    continue
                parts = [
                    {k.removeprefix(start): v for k, v in arrays.items() if k.startswith(start)}
                    for start in ("weights/", "extra/")
                ]
                return Saved(state["round"], state.get("fingerprint", ""), parts[0], parts[1], state["clients"])
        return None

    @property
    def fingerprint(self) -> str | None:
        """Of the data and first weights that the run was trained with; None where no intact state tells."""
        state = self._read_state(STATE) or self._read_state(PREVIOUS)
        return None if state is None else str(state["fingerprint"])

    def _read_state(self, name: str) -> dict[str, Any] | None:
        """A state as it was written, or None; one from before states had a digest is believed if nothing is odd."""
        try:
            state = json.loads((self.checkpoints / name).read_text(encoding="utf-8"))
            digest = state.pop("sha256", None)
            intact = state.keys() == KEYS and state["format"] == FORMAT and digest in (None, _digest(state))
            return state if intact else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _read_bytes(self, name: str, digest: str) -> bytes:
        data = (self.checkpoints / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f"{name} does not match its SHA-256")
        return data

    def _read_arrays(self, name: str, digest: str) -> Arrays:
        return load(self._read_bytes(name, digest))

    def _cut_metrics(self, done: int) -> None:
        """Drops lines of rounds that were not committed."""
        for name in ("metrics.jsonl", "timing.jsonl"):
            path = self.path / name
            if path.exists():
                lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
                write_atomically(path, "".join(lines[:done]))

    # --- reading and ending -------------------------------------------------------------------------------------

    def records(self) -> list[dict[str, Any]]:
        path = self.path / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

    def note_time(self, number: int, seconds: float) -> None:
        with (self.path / "timing.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"round": number, "seconds": round(seconds, 3)}) + "\n")

    def finish(self, weights: Arrays, labels: str, result: dict[str, Any]) -> None:
        write_atomically(self.path / "model.safetensors", save(weights, metadata={"format": "pt"}))
        write_atomically(self.path / "labels.json", labels)
        write_atomically(self.path / "result.json", json.dumps(result, indent=1))
        sync_folder(self.path)

    def finished_with(self, config: Config) -> bool:
        return self._finished_rounds() >= config.rounds

    def _finished_rounds(self) -> int:
        """Of the result; 0 where there is none."""
        try:
            return int(json.loads((self.path / "result.json").read_text(encoding="utf-8"))["rounds"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").is_file()


def _digest(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _differences(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in ours.keys() | theirs.keys():
            yield from _differences(ours.get(key), theirs.get(key), f"{path}.{key}" if path else key)
    elif ours != theirs:
        yield path
