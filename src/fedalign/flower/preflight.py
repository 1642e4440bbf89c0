"""What can be wrong before a run begins, said in one sentence to the person who can mend it.

Flower itself retries a connection that fails and says no more than that; so each side can try first.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from fedalign.errors import UserError

PATIENCE = 5.0  # seconds


def address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(f"{text!a} is no address; write host:port, for example 127.0.0.1:8000")
    return host.strip("[]"), int(port)


def can_listen(text: str) -> None:
    """On the server's machine: the address is its own and free."""
    host, port = address(text)
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        if error.errno in (98, 48, 10048):
            raise UserError(
                f"port {port} is in use on {host}; stop what listens there or choose another --port"
            ) from error
        raise UserError(f"cannot listen on {text}: {error.strerror}; give an address of this machine") from error


def can_reach(text: str, certificate: Path) -> str:
    """On a party's machine: the server answers over TLS, and our certificate vouches for it; returns until when."""
    host, port = address(text)
    try:
        context = ssl.create_default_context(cafile=str(certificate))
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"{certificate} is no certificate that can be read; ask for the server's ca.crt") from error
    try:
        with (
            socket.create_connection((host, port), timeout=PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            found = secure.getpeercert() or {}
    except ssl.SSLCertVerificationError as error:
        if "mismatch" in error.verify_message:
            raise UserError(
                f"the server's certificate is for other names than {host}; use a name that it lists, or have one made"
            ) from error
        if "expired" in error.verify_message:
            raise UserError("the server's certificate has expired; its people must renew it") from error
        raise UserError(
            f"{certificate} does not vouch for the server at {text} ({error.verify_message}); ask for its ca.crt"
        ) from error
    except ssl.SSLError as error:
        raise UserError(f"{text} does not speak TLS; was the SuperLink started with certificates?") from error
    except ConnectionRefusedError as error:
        raise UserError(f"nothing listens at {text}; ask whether the SuperLink is started") from error
    except (TimeoutError, OSError) as error:
        raise UserError(f"{text} cannot be reached ({error}); check the address and the firewall") from error
    return str(found.get("notAfter", ""))
