"""Which names do parties share, without showing the others? Each party sends keyed digests of its names.

The key is a file that the parties give each other and nobody else. Without it a digest tells nothing. With it, anybody
can try names: label names have little entropy, so a party can find out whether another has a name it thinks of.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedalign.errors import UserError
from fedalign.labels.names import MAX_NAMES, allowed, normalised
from fedalign.system.files import PRIVATE, write_atomically

HEADER = "fedalign hashed names 1"
SIZE = 64  # hexadecimal digits


def new_key(path: Path) -> None:
    """Writes a new key that only its user can read; never over an old one."""
    if path.exists():
        raise UserError(f"{path} exists already; use it, or give another name")
    write_atomically(path, secrets.token_hex(32) + "\n", PRIVATE)


def read_key(path: Path) -> bytes:
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} holds no key; make one with fedalign labels hash --new-key") from error
    if len(key) != 32:
        raise UserError(f"{path} holds no key of 64 hexadecimal digits; make one with fedalign labels hash --new-key")
    return key


def digest(name: str, key: bytes) -> str:
    """The same for names that are the same class after normalising."""
    return hmac.new(key, normalised(allowed(name)).encode(), hashlib.sha256).hexdigest()


def digests(names: Iterable[str], key: bytes) -> str:
    """The text of a file of digests, in an order that does not depend on that of the names."""
    return "\n".join([HEADER, *sorted({digest(name, key) for name in names})]) + "\n"


def read_digests(path: Path) -> set[str]:
    try:
        lines = path.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read digests from {path}; ask the party for its file") from error
    found = set(lines[len(HEADER.split()) :])
    good = lines[: len(HEADER.split())] == HEADER.split() and all(
        len(one) == SIZE and not one.strip("0123456789abcdef") for one in found
    )
    if not good or len(found) > MAX_NAMES:
        raise UserError(f"{path} is no file of digests; it is written by fedalign labels hash")
    return found


def shared(names: Sequence[str], key: bytes, others: Iterable[set[str]]) -> list[str]:
    """The own names that at least one other party has too."""
    everyone = set[str]().union(*others)
    return [name for name in names if digest(name, key) in everyone]
