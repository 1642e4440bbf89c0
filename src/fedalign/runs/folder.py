"""A run's folder: its configuration, its metrics, the model, and a checkpoint after every round.

    config.toml         the resolved configuration
    metrics.jsonl       one line per round, the same bytes for the same run, resumed or not
    timing.jsonl        seconds per round, in a file of their own because they differ between runs
    result.json         final and per-class scores
    report.html         the report, made from the files above and facts.json, alone.json, diagnosis/
    parties/NAME/       a party's model, if parties have encoders of their own
    model.safetensors   with labels.json: label names, task, inputs, encoder; of such parties, the distilled model
    checkpoint/         see runs/checkpoint.py

Every file is written under a temporary name and renamed, so a run that is killed at any moment can be resumed.
"""

from __future__ import annotations

import fcntl
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedalign import registry
from fedalign.config import Config, to_toml
from fedalign.errors import UnknownFormatError, UserError, parsing
from fedalign.inference.card import ModelCard
from fedalign.inference.storage import RESULT_FORMAT, write_model
from fedalign.learning.client_state import ClientStates
from fedalign.runs.checkpoint import STATE, Checkpoints, Saved, Written
from fedalign.runs.round_log import RoundLog
from fedalign.system.files import sync_folder, write_atomically
from fedalign.types import Arrays, Server


@dataclass(frozen=True)
class RunFolder:
    """A run's folder, and which large arrays of the server's state are on disk already."""

    path: Path
    written: Written = field(default_factory=dict, compare=False, repr=False)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoint"

    # --- starting and resuming ----------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: Path, config: Config) -> RunFolder:
        """A new folder, or one that is empty, with the configuration in it."""
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
        """The folder of a run that has started."""
        if not (path / "config.toml").is_file():
            raise UserError(f"{path} is not a run's folder (it holds no config.toml); check the path")
        return cls(path)

    def check_same(self, config: Config) -> None:
        """Refuses a configuration that differs from the run's own; only the engine and the number of rounds may."""
        config, stored = self.resolved(config), self.stored_config()
        free = {"engine": config.engine, "rounds": config.rounds}
        ours, theirs = (c.model_copy(update=free).model_dump() for c in (config, stored))
        different = sorted(_differences(ours, theirs))
        if different:
            raise UserError(
                f"{self.path} was started with another configuration ({', '.join(different[:4])}); "
                f"resume it with `fedalign run {shlex.quote(str(self.path))} --resume`, or give another --out"
            )
        # a finished run may have lost its checkpoint; its result holds the number of rounds
        done = max((self._store.read_state(STATE) or {"round": 0})["round"], self._finished_rounds())
        if done > config.rounds and not _ends_by_itself(config):
            raise UserError(f"{self.path} has {done} rounds already; ask for as many or more, or give another --out")

    def stored_config(self) -> Config:
        from fedalign import config as configs

        return configs.load(str(self.path / "config.toml"))

    def resolved(self, config: Config) -> Config:
        """Returns the configuration with what this run chose by itself: the label source for `labels.source = "auto"`,
        and the feature map in place of an encoder that is trained."""
        stored = self.stored_config()
        if config.labels.source == "auto":
            labels = config.labels.model_copy(update={"source": stored.labels.source, "file": stored.labels.file})
            config = config.model_copy(update={"labels": labels})
        if config.algorithm.name != stored.algorithm.name:
            return config
        fixed = getattr(registry.find("encoders", config.encoder.name), "fixed", False)
        if _ends_by_itself(config) and not fixed and not config.encoder.parties:
            config = config.model_copy(update={"encoder": stored.encoder})
        return config

    def keep(self, config: Config) -> None:
        """Stores the configuration of the resumed run. A finished run that gets more rounds is no longer finished."""
        if not self.finished_with(config):
            (self.path / "result.json").unlink(missing_ok=True)
        write_atomically(self.path / "config.toml", to_toml(config))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lets one process at a time work in the folder. The lock ends with its process."""
        with (self.path / ".lock").open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UserError(
                    f"another process is working in {self.path}; wait for it, or give another --out"
                ) from error
            yield

    # --- rounds -------------------------------------------------------------------------------------------------

    def save_round(
        self, number: int, server: Server, states: ClientStates, fingerprint: str, record: dict[str, Any]
    ) -> None:
        """Appends the round's line to metrics.jsonl and commits its checkpoint."""
        RoundLog.of(self.path).append(json.dumps(record))
        self.commit(number, server, states, fingerprint)

    def commit(self, number: int, server: Server, states: ClientStates, fingerprint: str) -> None:
        """Makes this the newest checkpoint and keeps the one before it."""
        self._store.write(number, server, states, fingerprint, RoundLog.of(self.path).mark())

    def load_round(
        self, server: Server, states: ClientStates, fingerprint: str, warn: Callable[[str], None]
    ) -> tuple[int, Server]:
        """The newest intact checkpoint: (rounds done, server), or (0, the given server) if there is none."""
        log = RoundLog.of(self.path)

        def restore(state: dict[str, Any]) -> None:
            log.restore(tuple(state["metrics"]), warn) if "metrics" in state else log.cut(state["round"])

        saved = self._store.newest(fingerprint, warn, restore)
        if saved is None:
            log.cut(0)
            self._cut_times(0)
            return 0, server
        for client, (file, digest) in saved.clients.items():
            states.paths[int(client)], states.digests[int(client)] = file, digest
        states.flush(saved.round)
        self._cut_times(saved.round)
        if _lasting(saved.extra) != _lasting(server.extra):
            raise UserError(f"{self.path} is of another version, whose method kept other arrays; start a new run")
        return saved.round, replace(server, weights=saved.weights, extra=saved.extra, state=saved.state)

    def newest(self) -> Saved | None:
        """The newest intact checkpoint, for looking at a run; nothing is changed."""
        return self._store.newest()

    @property
    def fingerprint(self) -> str | None:
        """The digest of the data and first weights of the run; None if no intact checkpoint holds it."""
        return self._store.fingerprint

    @property
    def _store(self) -> Checkpoints:
        return Checkpoints(self.checkpoints, self.written)

    def _cut_times(self, done: int) -> None:
        """Drops the times of rounds that were not committed."""
        path = self.path / "timing.jsonl"
        if path.exists():
            write_atomically(path, b"".join(path.read_bytes().splitlines(keepends=True)[:done]))

    # --- metrics and result -------------------------------------------------------------------------------------

    def records(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        with parsing(str(path), "resume the run, which restores it"):
            return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []

    def note_time(self, number: int, seconds: float) -> None:
        """Appends a line to timing.jsonl."""
        with (self.path / "timing.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"round": number, "seconds": round(seconds, 3)}) + "\n")

    def finish(self, weights: Arrays, card: ModelCard, result: dict[str, Any]) -> None:
        """Writes the model, unless each party has its own, and the result; the run is finished from then on."""
        if weights:
            write_model(self.path, weights, card)
        write_atomically(self.path / "result.json", json.dumps({"format": RESULT_FORMAT, **result}, indent=1))
        sync_folder(self.path)

    def result(self) -> dict[str, Any]:
        """The contents of result.json; empty if it is absent or damaged. An unknown format is refused."""
        path = self.path / "result.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(found, dict):
            return {}
        version = found.get("format", RESULT_FORMAT)  # earlier versions wrote none
        if version != RESULT_FORMAT:
            raise UnknownFormatError(path, version, RESULT_FORMAT)
        return found

    def finished_with(self, config: Config) -> bool:
        """Whether the run is finished with at least as many rounds."""
        return self._finished_rounds() >= config.rounds or (self.finished and _ends_by_itself(config))

    def _finished_rounds(self) -> int:
        rounds = self.result().get("rounds")
        return rounds if isinstance(rounds, int) else 0

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").is_file()


def _ends_by_itself(config: Config) -> bool:
    """Whether the method decides how many rounds it takes."""
    method = registry.build("algorithms", config.algorithm.name, config.algorithm.options)
    return bool(method.fixed_features or method.base != "none" or config.encoder.distilled)


def _differences(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """The dotted keys under which two tables differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in ours.keys() | theirs.keys():
            yield from _differences(ours.get(key), theirs.get(key), f"{path}.{key}" if path else key)
    elif ours != theirs:
        yield path


def _lasting(arrays: Arrays) -> set[str]:
    """The names of arrays that a method keeps in all rounds; those of secure sums come and go with their steps."""
    return {name for name in arrays if not name.startswith("secure/")}
