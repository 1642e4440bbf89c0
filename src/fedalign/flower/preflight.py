"""Checks of the network before a run starts. Each failure is one sentence for the person who can fix it.

Flower retries a failed connection and gives no reason, so each side can test its own part first.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from pathlib import Path

import fedalign
from fedalign.errors import UserError

TIMEOUT = 5.0  # seconds
PORT_IN_USE = (98, 48, 10048)  # errno on Linux, macOS and Windows
EXPIRED, OTHER_NAME = (10,), (62, 64)  # verification codes of OpenSSL


KEY_PATH, KEY_HEADER = "/fedalign/key", "x-fedalign-key"  # of the question under which name a key is admitted


class UnreachableError(UserError):
    """The server does not answer now, but may do so later."""


class UnknownKeyError(UnreachableError):
    """The server has not admitted the party's key yet."""


def address(text: str) -> tuple[str, int]:
    """Returns host and port."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(f"{text!a} is not an address; write host:port, for example 127.0.0.1:8000")
    return host.strip("[]"), int(port)


def can_listen(text: str) -> None:
    """Checks on the server's machine that the address belongs to it and is free."""
    host, port = address(text)
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        if error.errno in PORT_IN_USE:
            raise UserError(
                f"port {port} is in use on {host}; stop the program that uses it, or give fedalign deploy init another "
                "--port"
            ) from error
        raise UserError(f"cannot listen on {text}: {error.strerror}; give an address of this machine") from error


def can_reach(text: str, certificate: Path) -> str:
    """Checks on a party's machine that the server answers over TLS with a certificate that `certificate` signed.

    Returns the time at which the server's certificate expires.
    """
    host, port = address(text)
    try:
        context = ssl.create_default_context(cafile=str(certificate))
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"{certificate} is not a readable certificate; ask for the server's ca.crt") from error
    try:
        with (
            socket.create_connection((host, port), timeout=TIMEOUT) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            found = secure.getpeercert() or {}
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in OTHER_NAME:
            raise UserError(
                f"the server's certificate is for other names than {host}; use a name that it lists, or ask "
                "for a new certificate"
            ) from error
        if error.verify_code in EXPIRED:
            raise UserError(
                "the server's certificate has expired; ask the server's administrator to renew it"
            ) from error
        raise UserError(
            f"{certificate} did not sign the certificate of {text} ({error.verify_message}); ask for the server's "
            "ca.crt"
        ) from error
    except ssl.SSLError as error:
        raise UnreachableError(f"{text} does not use TLS; start the SuperLink with certificates") from error
    except ConnectionRefusedError as error:
        raise UnreachableError(f"no program listens at {text}; ask whether the SuperLink is running") from error
    except (TimeoutError, OSError) as error:
        raise UnreachableError(f"{text} cannot be reached ({error}); check the address and the firewall") from error
    return str(found.get("notAfter", ""))


def minor(version: str) -> list[str]:
    """Returns the part of a version that both sides must share."""
    return version.split(".")[:2]


def can_join(text: str, certificate: Path, name: str, key: str) -> None:
    """Checks on a party's machine that a server of this version admits the party's public key under its name.

    Asks nothing of a SuperLink that was started without `fedalign server`.
    """
    found = asked(text, certificate, key)
    if not found:
        return
    if minor(found["fedalign"]) != minor(fedalign.__version__):
        raise UserError(
            f"the server runs fedalign {found['fedalign'][:40]} and this is {fedalign.__version__}; install the "
            "server's version"
        )
    if not found["party"]:
        raise UnknownKeyError(
            f"the server does not know this party's key; its operators run: fedalign server admit KIT {name} {key}"
        )
    if found["party"] != name:
        raise UserError(
            f"the server admitted this key as {found['party'][:80]!a} and this party is {name!a}; ask its operators to "
            "drop that name and admit this one"
        )


def asked(text: str, certificate: Path, key: str) -> dict[str, str]:
    """Returns the server's version and the name of a key; nothing if the server does not answer such questions."""
    host, port = address(text)
    context = ssl.create_default_context(cafile=str(certificate))
    line = http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=context)
    try:
        line.request("GET", KEY_PATH, headers={KEY_HEADER: key})
        answer = line.getresponse()
        table = json.loads(answer.read(10_000)) if answer.status == http.HTTPStatus.OK else {}
        return {name: str(table[name]) for name in ("fedalign", "party")} if table else {}
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        raise UnreachableError(f"{text} does not answer ({type(error).__name__}); try again") from error
    finally:
        line.close()
