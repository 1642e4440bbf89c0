"""An invitation: one file that the server's operators send to the parties. It holds nothing secret.

It names the server's address and certificate authority, the run's configuration, the parties, and the day on which it
expires. Its fingerprint is short enough to be compared over the telephone.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

import fedalign
from fedalign.errors import UserError
from fedalign.flower.preflight import minor
from fedalign.system.files import write_atomically

FORMAT = 1
LARGEST = 4 << 20  # bytes
DAYS = 30


@dataclass(frozen=True)
class Invitation:
    """What a party needs to know about a run before it joins."""

    address: str  # host:port
    authority: str  # PEM
    config: str  # TOML
    parties: Annotated[tuple[str, ...], Field(min_length=1)]
    expires: datetime.datetime
    fedalign: str  # version

    @property
    def fingerprint(self) -> str:
        """Returns 16 hexadecimal digits in groups of four."""
        found = hashlib.sha256(json.dumps(self.table(), sort_keys=True).encode()).hexdigest()[:16]
        return "-".join(found[at : at + 4] for at in range(0, 16, 4))

    def table(self) -> dict[str, Any]:
        return {**asdict(self), "parties": list(self.parties), "expires": self.expires.isoformat()}

    def write(self, path: Path) -> None:
        table = {"format": FORMAT, **self.table(), "fingerprint": self.fingerprint}
        write_atomically(path, json.dumps(table, indent=1) + "\n")


READER = TypeAdapter(Invitation)


def new_invitation(
    address: str, authority: Path, config: str, parties: Sequence[str], days: float = DAYS
) -> Invitation:
    expires = datetime.datetime.now(datetime.UTC).replace(microsecond=0) + datetime.timedelta(days=days)
    text = authority.read_text(encoding="ascii")
    return Invitation(address, text, config, tuple(parties), expires, fedalign.__version__)


def read_invitation(path: Path, fingerprint: str = "") -> Invitation:
    """Returns a valid invitation, or says why it cannot be used."""
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError("it is too large")
        table = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(table, dict) or "format" not in table:
            raise ValueError("it names no format")
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}; ask the server's operators for their invitation.json") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not an invitation; ask the server's operators for invitation.json") from error
    version = table.pop("format")
    if version != FORMAT:
        raise UserError(
            f"{path} has the format {version!r:.40}, which this version does not know; install the server's version of "
            f"fedalign ({str(table.get('fedalign', 'newer'))[:40]!a})"
        )
    stated = table.pop("fingerprint", "")
    try:
        found = READER.validate_python(table)
    except ValidationError as error:
        raise UserError(f"{path} was changed or is damaged; ask the server's operators to send it again") from error
    if found.fingerprint != stated:
        raise UserError(f"{path} was changed after it was written; ask the server's operators to send it again")
    if fingerprint and fingerprint.lower() != stated:
        raise UserError(
            f"{path} has the fingerprint {stated}, not {fingerprint[:40]}; it is not the invitation that you were "
            "told about, so ask the server's operators to send it again"
        )
    if minor(found.fedalign) != minor(fedalign.__version__):
        raise UserError(
            f"{path} was written by fedalign {found.fedalign[:40]} and this is {fedalign.__version__}; "
            "install the server's version"
        )
    if found.expires < datetime.datetime.now(datetime.UTC):
        raise UserError(f"{path} expired on {found.expires:%Y-%m-%d}; ask the server's operators for a new one")
    return found
