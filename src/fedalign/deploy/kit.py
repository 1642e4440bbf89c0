"""The server's folder: address, certificates, the app, the invitation, and the keys that were admitted."""

from __future__ import annotations

import datetime
import fcntl
import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedalign.config import Config
from fedalign.deploy.invitation import Invitation, new_invitation
from fedalign.deploy.keys import public_key
from fedalign.deploy.supervisor import only_one
from fedalign.deploy.tables import read_table, stored
from fedalign.errors import UserError
from fedalign.flower import preflight
from fedalign.flower.kit import hosts_of, write_kit, write_server_certificate
from fedalign.system.files import PRIVATE, write_atomically

FORMAT = 1
NAME = "kit.json"


@dataclass(frozen=True)
class ServerKit:
    """A folder that `fedalign deploy init` wrote."""

    folder: Path
    address: str
    parties: tuple[str, ...]

    @classmethod
    def create(cls, folder: Path, config: Config, parties: Sequence[str], host: str, port: int) -> Invitation:
        """Writes the folder; returns the invitation in it."""
        write_kit(folder, config, parties, host, port)
        kit = cls(folder, f"{host}:{port}", tuple(parties))
        table = {"format": FORMAT, "address": kit.address, "parties": list(parties)}
        write_atomically(folder / NAME, json.dumps(table, indent=1) + "\n")
        return kit.invite()

    @classmethod
    def read(cls, folder: Path) -> ServerKit:
        def made(table: dict[str, Any]) -> ServerKit:
            return cls(folder, str(table["address"]), tuple(map(str, table["parties"])))

        missing, damaged = "make a kit with fedalign deploy init", "make a new kit with fedalign deploy init"
        return read_table(folder / NAME, FORMAT, made, missing, damaged)

    @property
    def authority(self) -> Path:
        return self.folder / "certificates" / "ca.crt"

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")

    def invite(self) -> Invitation:
        """Writes invitation.json."""
        config = (self.folder / "config.toml").read_text(encoding="utf-8")
        found = new_invitation(self.address, self.authority, config, self.parties)
        found.write(self.folder / "invitation.json")
        return found

    def renew(self, days: int) -> datetime.datetime:
        """Writes a new server certificate of the same authority; returns when it expires."""
        folder = self.folder / "certificates"
        if not (folder / "ca.key").is_file():
            raise UserError(f"{folder} holds no ca.key, so the certificates are your organisation's; renew them there")
        return write_server_certificate(folder, hosts_of(self.host), days)

    # --- admitted keys ----------------------------------------------------------------------------------------------

    @property
    def _admitted(self) -> Path:
        return self.folder / "admitted.json"

    def admitted(self) -> dict[str, str]:
        """Returns the short key of each admitted party."""
        found = stored(self._admitted, dict, "remove it and admit the parties again")
        return {str(name): str(key) for name, key in (found or {}).items()}

    def admit(self, name: str, key: str, new: bool = False) -> None:
        """Stores the key of a party. A running server notices."""
        public_key(key)
        with self._changing():
            known = self.admitted()
            if name not in self.parties and not new:
                raise UserError(
                    f"{name!a} is not a party of this kit ({', '.join(map(ascii, self.parties))}); correct the name, "
                    "or add --new for a party that joins later"
                )
            if known.get(name, key) != key:
                raise UserError(
                    f"{name!a} has a key already; ask who sent this one, and run fedalign server drop first if the "
                    "party made a new key"
                )
            owner = next((other for other, held in known.items() if held == key and other != name), None)
            if owner is not None:
                raise UserError(f"this key is that of {owner!a}; ask {name!a} for its own")
            write_atomically(self._admitted, json.dumps({**known, name: key}, indent=1), PRIVATE)

    def drop(self, name: str) -> None:
        """Removes a party's key. A resumed run no longer waits for the party."""
        with self._changing():
            known = self.admitted()
            if name not in known:
                raise UserError(f"{name!a} is not admitted; the admitted parties are {', '.join(known) or 'none'}")
            del known[name]
            write_atomically(self._admitted, json.dumps(known, indent=1), PRIVATE)
            write_atomically(self.folder / "dropped.json", json.dumps(sorted({*self.dropped(), name})), PRIVATE)

    def dropped(self) -> list[str]:
        gone = stored(self.folder / "dropped.json", list, "remove it and drop the parties again")
        return [name for name in map(str, gone or []) if name not in self.admitted()]

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with (self.folder / ".admitting").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    # --- a running server -------------------------------------------------------------------------------------------

    def running(self) -> AbstractContextManager[None]:
        """Holds the folder, so that no second server starts in it."""
        return only_one(self.folder, f"another fedalign server runs with {self.folder}; stop it first")

    def secret(self, name: str) -> Path:
        """Returns a file with a new secret that only this user can read."""
        folder = self.folder / "secrets"
        folder.mkdir(mode=0o700, exist_ok=True)
        write_atomically(folder / name, secrets.token_hex(32), PRIVATE)
        return folder / name

    def config(self) -> Config:
        from fedalign import config as configs

        return configs.load(str(self.folder / "config.toml"))


def check_free(kit: ServerKit, out: Path, listen: str) -> None:
    """Refuses to start where that cannot work."""
    if (out / "result.json").is_file():
        raise UserError(f"{out} holds a finished run; read it with fedalign report {out}, or give another --out")
    if out.exists() and any(out.iterdir()) and not (out / "parties.json").is_file():
        raise UserError(f"{out} is not a run of this kit; give another --out")
    if (out / "parties.json").is_file():
        from fedalign.runs.folder import RunFolder

        RunFolder.existing(out).check_same(kit.config())
    preflight.can_listen(listen or kit.address)
