"""Who a party is: an Ed25519 key, made once, whose public part the parties give each other by other means.

The server must not be the one that passes them on: it could hand out keys of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedalign.errors import UserError
from fedalign.system.files import PRIVATE, write_atomically

FILE = "identity.key"
SIGNATURE = 64  # bytes
KEY = 32  # bytes of a public or private key


def library() -> Any:
    """The package cryptography, or one sentence."""
    try:
        import cryptography.hazmat.primitives.asymmetric.ed25519
        import cryptography.hazmat.primitives.asymmetric.x25519
    except ImportError as error:
        raise UserError(
            "keys and masks need the library cryptography; install it with pip install 'fedalign[privacy]'"
        ) from error
    return cryptography.hazmat.primitives.asymmetric


@dataclass(frozen=True)
class Identity:
    """The private key of a party. It never leaves the party."""

    private: bytes

    @classmethod
    def new(cls) -> Identity:
        return cls(library().ed25519.Ed25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def simulated(cls, *key: object) -> Identity:
        """The identity of a party in a simulation, the same for the same key. It protects nobody."""
        return cls(hashlib.sha256(repr(("simulated", *key)).encode()).digest())

    @classmethod
    def of_folder(cls, folder: Path) -> Identity:
        """The identity kept in a folder, made if there is none."""
        path = folder / FILE
        try:
            text = path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            made = cls.new()
            made.keep(folder)
            return made
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path} cannot be read; restore it from a backup") from error
        try:
            private = bytes.fromhex(text)
        except ValueError:
            private = b""
        if len(private) != KEY:
            raise UserError(f"{path} holds no key; restore it from a backup, or delete it and exchange a new one")
        return cls(private)

    def keep(self, folder: Path) -> None:
        """Writes the key to a file that only its user can read."""
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / FILE, self.private.hex() + "\n", PRIVATE)

    def check_listed(self, identities: Mapping[str, str], name: str) -> None:
        """Refuses a list of identities in which this party has another key, or none."""
        if identities.get(name) != self.public.hex():
            raise UserError(
                f"privacy.identities has another key of {name!a} than this party's own, {self.public.hex()}; nothing "
                "is sent, the operators must correct the list"
            )

    @property
    def public(self) -> bytes:
        found: bytes = (
            library().ed25519.Ed25519PrivateKey.from_private_bytes(self.private).public_key().public_bytes_raw()
        )
        return found

    def sign(self, message: bytes) -> bytes:
        found: bytes = library().ed25519.Ed25519PrivateKey.from_private_bytes(self.private).sign(message)
        return found


def signed_by(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the owner of a public key signed this message."""
    keys = library()
    from cryptography.exceptions import InvalidSignature

    try:
        keys.ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
