"""A party's folder and its supervisor: SuperNode, worker, and the connection to the server."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedalign.deploy.approval import Leaving, leaving
from fedalign.deploy.invitation import Invitation
from fedalign.deploy.keys import make_key, short_key_of
from fedalign.deploy.launch import BELL_FILE, STATE_FILE
from fedalign.deploy.logs import Log, from_flower
from fedalign.deploy.page import Page
from fedalign.deploy.restarts import REPLACED
from fedalign.deploy.supervisor import (
    Child,
    StoppedError,
    environment,
    free_port,
    new_bell,
    notify,
    only_one,
    stopped_by_signals,
)
from fedalign.deploy.tables import read_table
from fedalign.deploy.watching import Receipts
from fedalign.errors import UserError
from fedalign.flower import preflight
from fedalign.system.files import PRIVATE, write_atomically

if TYPE_CHECKING:
    from fedalign.privacy.secure_sums.identity import Identity

FORMAT = 1
NAME = "party.json"
TICK = 0.2
AWAY = 20  # seconds for which a SuperNode tries to reach a server that went away
FIRST, LONGEST = 1.0, 15.0  # seconds between attempts to reach the server


@dataclass(frozen=True)
class PartyFolder:
    """What `fedalign party join` wrote: this party's name, file and key, and the server's address."""

    folder: Path
    name: str
    data: Path
    address: str
    key: str  # short public key
    approved: str  # digest of what may leave

    @classmethod
    def create(
        cls,
        folder: Path,
        invitation: Invitation,
        name: str,
        data: Path,
        approved: str,
        identity: Identity | None = None,
    ) -> PartyFolder:
        """Writes the folder and makes the private key in it, which never leaves it."""
        part = folder.with_name(f".{folder.name}.part")
        part.mkdir(parents=True, mode=0o700)
        try:
            write_atomically(part / "ca.crt", invitation.authority)
            write_atomically(part / "config.toml", invitation.config)
            invitation.write(part / "invitation.json")
            found = cls(folder, name, data.resolve(), invitation.address, make_key(part / "key"), approved)
            found.write(part)
            if identity is not None:
                identity.keep(part / "memory" / name)
            part.rename(folder)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        return found

    def write(self, folder: Path | None = None) -> None:
        table = {"format": FORMAT, "name": self.name, "data": str(self.data), "address": self.address}
        table |= {"key": self.key, "approved": self.approved}
        write_atomically((folder or self.folder) / NAME, json.dumps(table, indent=1) + "\n", PRIVATE)

    @classmethod
    def read(cls, folder: Path) -> PartyFolder:
        def made(table: dict[str, Any]) -> PartyFolder:
            texts = [str(table[key]) for key in ("name", "data", "address", "key", "approved")]
            return cls(folder, texts[0], Path(texts[1]), *texts[2:])

        missing, damaged = "join a run first with fedalign party join", "join again in another folder"
        return read_table(folder / NAME, FORMAT, made, missing, damaged)

    def check_key(self) -> None:
        """Refuses a private key that is not that of the public key."""
        try:
            matches = short_key_of(self.folder / "key") == self.key
        except (OSError, ValueError) as error:
            raise UserError(f"{self.folder / 'key'} cannot be read ({error}); join again in another folder") from error
        if not matches:
            raise UserError(f"{self.folder / 'key'} is another key than {self.key}; join again in another folder")

    def leaving(self) -> Leaving:
        if not self.data.exists():
            raise UserError(f"there is no file {self.data}; put it back, or join again with another file")
        return leaving(self.data, (self.folder / "config.toml").read_text(encoding="utf-8"), self.name)


@dataclass
class PartySide:
    """Everything that runs on a party's machine."""

    own: PartyFolder
    log: Log
    pause: float = FIRST
    try_at: float = 0.0
    said: str = ""  # what was reported last about the connection
    connected: bool = False
    read: int = 0  # bytes of the worker's log that were shown
    port: int = field(default_factory=free_port)
    leaves: list[str] = field(default_factory=list)  # what was approved, for the page

    def __post_init__(self) -> None:
        folder = self.own.folder.resolve()
        (folder / "state").mkdir(mode=0o700, exist_ok=True)
        self.state, bell, secret = folder / "state/node.json", folder / "state/bell", folder / "state/secret"
        self.state.unlink(missing_ok=True)
        write_atomically(secret, secrets.token_hex(32), PRIVATE)
        new_bell(bell)
        env = {**environment(folder / "flower-home"), STATE_FILE: str(self.state), BELL_FILE: str(bell)}
        own = {"data": str(self.own.data), "party": self.own.name, "config": str(folder / "config.toml")}
        own |= {"memory": str(folder / "memory")}
        node = [
            *("--superlink", self.own.address, "--root-certificates", str(folder / "ca.crt")),
            *("--auth-supernode-private-key", str(folder / "key"), "--host", "127.0.0.1", "--port", str(self.port)),
            *("--max-wait-time", str(AWAY), "--isolation", "process", "--superexec-auth-secret-file", str(secret)),
            *("--node-config", " ".join(f"{key}={json.dumps(value)}" for key, value in own.items())),
        ]
        work = ["party", "--address", f"127.0.0.1:{self.port}", "--secret-file", str(secret), "--bell", str(bell)]
        self.node = Child("SuperNode", "supernode", node, folder, folder / "logs/supernode.log", env)
        self.worker = Child("worker", "worker", work, folder, folder / "logs/worker.log", env)
        self.receipts = Receipts(folder / "memory" / self.own.name / "receipt.jsonl")

    def say(self, text: str, level: str = "info") -> None:
        """Reports a state of the connection once."""
        if text != self.said:
            self.log(text, level)
        self.said = text

    def watch(self) -> None:
        if self.node.died():
            self.explain_end()
        if self.node.process is None and time.monotonic() >= self.try_at:
            self.connect()
        if self.node.running and not self.connected and self.reported() == "connected":
            self.connected, self.pause = True, FIRST
            self.say(f"connected to {self.own.address} as {self.own.name}")
        if self.worker.died():
            self.log(f"the worker ended with exit code {self.worker.last_exit}; it is restarted", "warning")
            self.node.kill()  # its task is lost; the server sends it again to the next SuperNode
        if self.worker.due and self.node.running:
            self.worker.start()
        self.show_worker()

    def connect(self) -> None:
        """Starts the SuperNode if the server can be reached; it cannot if its certificate is wrong."""
        try:
            preflight.can_reach(self.own.address, self.own.folder / "ca.crt")
            preflight.can_join(self.own.address, self.own.folder / "ca.crt", self.own.name, self.own.key)
        except preflight.UnknownKeyError as error:
            self.say(str(error))
            self.try_at = time.monotonic() + FIRST  # a cheap question, and people wait for its answer
            return
        except preflight.UnreachableError as error:
            self.say(f"{error}; trying again", "warning")
            self.later()
            return
        self.state.unlink(missing_ok=True)
        self.connected = False
        self.node.start()

    def later(self) -> None:
        self.try_at = time.monotonic() + self.pause
        self.pause = min(1.5 * self.pause, LONGEST)

    def reported(self) -> str:
        with contextlib.suppress(OSError, ValueError, KeyError):
            found = json.loads(self.state.read_text(encoding="utf-8"))
            if found["pid"] == self.node.pids[-1]:
                return str(found["state"])
        return ""

    def explain_end(self) -> None:
        if self.reported() == REPLACED:
            raise UserError(
                f"another command takes part with the key of {self.own.name} since; use each party's folder on one "
                "machine only"
            )
        if self.connected:
            self.say("the connection to the server was lost; connecting again", "warning")
        elif self.reported() == "unknown_key" and self.receipts.path.is_file():  # it took part before
            self.say(
                "the server does not accept this party's key; after a crash that takes up to a minute, and longer if "
                "its operators dropped the key; trying again",
                "warning",
            )
        elif self.reported() == "unknown_key":
            self.say(
                f"the server does not know this party's key; its operators run: "
                f"fedalign server admit KIT {self.own.name} {self.own.key}"
            )
        else:
            self.say(f"the SuperNode ended with exit code {self.node.last_exit}; {self.node.log} says why", "warning")
        self.connected = False
        self.later()

    def show_worker(self) -> None:
        """Shows the errors in the worker's log, such as a refused configuration."""
        with contextlib.suppress(OSError):
            if self.worker.log.stat().st_size < self.read:
                self.read = 0  # rotated
            with self.worker.log.open("rb") as stream:
                stream.seek(self.read)
                fresh = stream.read(1 << 20)
            whole = fresh[: fresh.rfind(b"\n") + 1]
            self.read += len(whole)
            for line in whole.decode(errors="replace").splitlines():
                found = from_flower(line)
                if found is not None and found[0] == "error":
                    self.log(found[1].removeprefix("error: "), "error")

    def shown(self) -> dict[str, Any]:
        """Returns what the page shows."""
        self.receipts.read()
        state = self.said or "starting"
        about = {"side": "party", "name": self.own.name, "healthy": self.connected, "state": state}
        return {**about, "leaves": self.leaves, "receipts": self.receipts.last, "log": self.log.recent[-40:]}

    def stop(self) -> None:
        self.worker.stop()
        self.node.stop()


def take_part(own: PartyFolder, log: Log, page: str = "", found: Leaving | None = None) -> None:
    """Runs the party's side until it is stopped. `found` is what would leave, if that is known already."""
    found = found or own.leaving()
    if found.digest != own.approved:
        raise UserError(
            f"what would leave this party is {found.digest}, and {own.approved or 'nothing'} was approved; read it "
            f"with fedalign party show {own.folder} and start with --approve {found.digest}"
        )
    with only_one(own.folder, f"another fedalign party runs with {own.folder}; stop it first"):
        watch_over(PartySide(own, log, leaves=found.lines), log, page)


def watch_over(side: PartySide, log: Log, page: str) -> None:
    shown = Page(page, side.shown, side.own.folder / "state" / "page") if page else None
    try:
        with stopped_by_signals():
            if shown is not None:
                log(f"page: {shown.url}")
            side.worker.start()  # imports while the connection is made
            side.read = side.worker.log.stat().st_size
            notify("READY=1")
            while True:
                side.watch()
                notify("WATCHDOG=1")
                time.sleep(TICK)
    except StoppedError as signal:
        log(f"stopped by {signal}")
    finally:
        side.stop()
        if shown is not None:
            shown.close()
