"""The server's supervisor: SuperLink, worker, keys, and one run from the first party to the result."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from fedalign.deploy import supervisor
from fedalign.deploy.control import Control, NodeState
from fedalign.deploy.keys import public_key
from fedalign.deploy.kit import ServerKit, check_free
from fedalign.deploy.launch import SECRET_FILE
from fedalign.deploy.logs import Log, from_flower
from fedalign.deploy.page import Page
from fedalign.deploy.supervisor import Child, StoppedError, environment, notify, stopped_by_signals, wait_for
from fedalign.deploy.watching import Receipts, Rounds, parties_of
from fedalign.errors import UserError
from fedalign.flower import preflight

READY = 60.0  # seconds for a process to be ready
TICK = 0.2  # seconds between two looks at the processes
LOOK = (1.0, 5.0)  # seconds between two lists of nodes, before and during a run
ASK = 2.0  # seconds between two questions whether the run has ended, unless its result is there
ATTEMPTS = 5  # times that a run which ended without a result is resumed
ENDED = "finished"  # Flower's status of a run


@dataclass
class ServerSide:
    """Everything that runs on the server."""

    kit: ServerKit
    log: Log
    out: Path  # the run's folder
    listen: str = ""  # where to listen, if not at the address that the parties use
    in_memory: bool = True
    control: Control | None = None
    nodes: list[NodeState] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)  # registered with the SuperLink that runs now
    run: int | None = None
    attempts: int = 0
    mistake: str = ""  # what the app said before it gave up
    waiting: str = ""
    looked: float = 0.0
    asked: float = 0.0

    def __post_init__(self) -> None:
        kit = self.kit
        logs = kit.folder / "logs"
        env = {**environment(kit.folder / "flower-home"), SECRET_FILE: str(kit.secret("control").resolve())}
        secret = str(kit.secret("worker").resolve())
        certificates = kit.folder.resolve() / "certificates"
        database = [] if self.in_memory else ["--database", str(kit.folder.resolve() / "state.db")]
        host, port = preflight.address(self.listen) if self.listen else (kit.host, kit.port)
        link = [
            *("--host", host, "--port", str(port), "--isolation", "process"),
            *("--ssl-ca-certfile", str(certificates / "ca.crt"), "--ssl-certfile", str(certificates / "server.pem")),
            *("--ssl-keyfile", str(certificates / "server.key"), "--enable-supernode-auth"),
            *("--superexec-auth-secret-file", secret, "--disable-runtime-dependency-installation", *database),
        ]
        # the trial certificate names 127.0.0.1 too
        self.near = kit.address if not self.listen else f"127.0.0.1:{port}"
        self.bell = supervisor.new_bell(kit.folder.resolve() / "secrets" / "bell")
        work = ["server", "--address", self.near, "--secret-file", secret, "--bell", str(self.bell)]
        work += ["--root-certificates", str(certificates / "ca.crt")]
        self.link = Child("SuperLink", "superlink", link, kit.folder, logs / "superlink.log", env)
        self.worker = Child("worker", "worker", work, kit.folder, logs / "worker.log", env)
        self.receipts, self.rounds = Receipts(self.out / "receipt.jsonl"), Rounds(self.out)

    # --- processes --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.link.start()
        self.control = wait_for(self.connected, "the SuperLink", READY, self.link)
        if self.control is None:  # killed while it started
            self.lost()
            return
        self.keys = {}  # the next step registers those that are admitted
        if not self.worker.running:
            self.worker.start()

    def connected(self) -> Control | None:
        try:
            control = Control(self.near, self.kit.authority, (self.kit.folder / "secrets/control").read_bytes())
            self.nodes = control.nodes()
            return control
        except Exception:  # not listening yet
            return None

    def stop(self) -> None:
        self.worker.stop()
        self.link.stop()

    def watch(self) -> None:
        """Restarts what died. A run that lost its SuperLink is resumed."""
        if self.worker.died():
            self.log(f"the worker ended with exit code {self.worker.last_exit}; it is restarted", "warning")
        if self.link.died():
            self.lost()
        if self.link.due:
            self.start()
        elif self.worker.due and self.link.running:
            self.worker.start()

    def lost(self) -> None:
        """Prepares the restart of a SuperLink that ended. After several ends without a round in between it gives up."""
        if self.rounds.advanced():
            self.link.deaths, self.attempts = 1, 0
        if self.link.deaths >= ATTEMPTS:
            raise UserError(f"the SuperLink ended {ATTEMPTS} times in a row; {self.link.log} says why")
        self.log(f"the SuperLink ended with exit code {self.link.last_exit}; it is restarted", "warning")
        self.worker.stop()
        self.worker.restart_at = self.link.restart_at
        self.run, self.nodes, self.control = None, [], None

    # --- keys and parties -------------------------------------------------------------------------------------------

    def register(self) -> None:
        """Brings the keys of the SuperLink in line with those that are admitted."""
        assert self.control is not None
        wanted = self.kit.admitted()
        for name in [name for name, key in self.keys.items() if wanted.get(name) != key]:
            for node in self.control.nodes():
                if node.name == name:
                    self.control.unregister(node.number)
            del self.keys[name]
            self.log("dropped", party=name)
        for name, key in wanted.items():
            if name not in self.keys:
                self.control.register(name, public_key(key))
                self.keys[name] = key
                self.log("admitted", party=name)

    def look(self) -> None:
        """Lists the nodes and reports who came and who left."""
        assert self.control is not None
        self.looked = time.monotonic()
        before = {node.name for node in self.nodes if node.online}
        self.nodes = self.control.nodes()
        now = {node.name for node in self.nodes if node.online}
        for name in sorted(now - before):
            self.log("connected", party=name)
        for name in sorted(before - now):
            self.log("is not connected any more", "warning", party=name)

    @property
    def online(self) -> set[str]:
        return {node.name for node in self.nodes if node.online}

    def needed(self) -> set[str]:
        """Returns the parties without which the run cannot start or resume."""
        names = set(self.kit.parties)
        if (self.out / "parties.json").is_file():
            names = set(parties_of(self.out))
        return names - set(self.kit.dropped())

    def shown(self) -> dict[str, Any]:
        """Returns what the page shows."""
        self.receipts.read()
        rounds = self.rounds.read()
        names = sorted({*self.kit.parties, *self.keys})
        parties = []
        for name in names:
            messages, size = self.receipts.sent.get(name, [0, 0])
            entry = {"name": name, "admitted": name in self.keys, "online": name in self.online}
            counts = {"messages": messages, "bytes": size, "refused": self.rounds.refused.get(name, 0)}
            parties.append({**entry, **counts})
        state = f"round {len(rounds)} is done" if rounds else f"waiting for {self.waiting or 'the first round'}"
        healthy = self.link.running and self.worker.running
        about = {"side": "server", "name": self.kit.address, "healthy": healthy, "state": state}
        return {**about, "parties": parties, "rounds": rounds, "log": self.log.recent[-40:]}

    def missing(self) -> str:
        """Returns for whom the run waits, and why; empty once all are here."""
        reasons = [
            f"{name} ({'admitted, not connected' if name in self.keys else 'not admitted'})"
            for name in sorted(self.needed() - self.online)
        ]
        return ", ".join(reasons)

    # --- the run ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        assert self.control is not None
        resume = (self.out / "parties.json").is_file()
        settings: dict[str, Any] = {"out": str(self.out.resolve()), "resume": resume, "packed": True}
        settings["parties"] = len(self.needed())
        if self.kit.dropped():
            settings["dropped"] = ";".join(self.kit.dropped())
        self.mistake = ""
        try:
            self.run = self.control.start_run(self.kit.folder / "app", settings)
        except httpx.HTTPStatusError as error:
            reason = " ".join(error.response.text.split())[:200]
            raise UserError(f"the SuperLink refused the run ({reason}); make a new kit with this version") from error
        self.attempts += 1
        supervisor.ring(self.bell)
        self.control.follow(self.run, self.heard)
        self.log("the run resumes" if resume else "the run begins")

    def heard(self, line: str) -> None:
        """Shows what the run's app reports."""
        found = from_flower(line)
        if found is None:
            return
        level, text = found
        if level == "error" and text.startswith("error: "):
            self.mistake = text.removeprefix("error: ")
            return
        if not text.startswith(("Start `", "[flwr", "Starting ", "Stopping ")):
            self.log(text, level)

    def finished(self) -> bool:
        """Whether the run has its result. One that was killed is resumed; one with a mistake in it stops the server."""
        there = (self.out / "result.json").is_file()
        if self.run is None or (not there and time.monotonic() - self.asked < ASK):
            return False
        assert self.control is not None
        self.asked = time.monotonic()
        status, _, details = self.control.run_state(self.run)
        if status != ENDED:
            return False
        if there:
            time.sleep(0.5)  # the last lines of its log
            return True
        if self.rounds.advanced():
            self.attempts = 0
        if self.mistake or self.attempts >= ATTEMPTS:
            raise UserError(self.mistake or f"the run ended {ATTEMPTS} times without a result ({details[:200]})")
        self.log(f"the run ended without a result ({details[:200]}); it is resumed", "warning")
        self.run = None
        return False

    def loop(self) -> dict[str, Any]:
        """Runs until there is a result; returns it."""
        while True:
            self.watch()
            notify("WATCHDOG=1")
            try:
                if self.control is not None and self.step():
                    return dict(json.loads((self.out / "result.json").read_text(encoding="utf-8")))
            except httpx.TransportError as error:  # the SuperLink is busy or died, which the next look shows
                self.log(f"the SuperLink does not answer ({type(error).__name__})", "warning")
            time.sleep(TICK)

    def step(self) -> bool:
        """Does what is due while the SuperLink runs; returns whether there is a result."""
        if self.kit.admitted() != self.keys:
            self.register()
        if time.monotonic() - self.looked > LOOK[self.run is not None]:
            self.look()
        if self.run is None:
            self.wait_or_begin()
            return False
        return self.finished()

    def wait_or_begin(self) -> None:
        missing = self.missing()
        if not missing:
            self.begin()
        elif missing != self.waiting:
            self.log(f"waiting for {missing}")
        self.waiting = missing


def serve(
    kit: ServerKit, log: Log, out: Path, page: str = "", listen: str = "", in_memory: bool = True
) -> dict[str, Any] | None:
    """Runs the server's side. Returns the result, or None if it was stopped before there was one."""
    with kit.running():
        check_free(kit, out, listen)
        side = ServerSide(kit, log, out, listen, in_memory)
        shown = Page(page, side.shown, kit.folder / "secrets" / "page") if page else None
        try:
            with stopped_by_signals():
                log(f"listening on {listen or kit.address}")
                if shown is not None:
                    log(f"page: {shown.url}")
                side.start()
                notify("READY=1")
                return side.loop()
        except StoppedError as signal:
            log(f"stopped by {signal}; the same command resumes the run", "warning")
            return None
        finally:
            side.stop()
            if shown is not None:
                shown.close()
