"""Trying before a run: real sockets, real certificates."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="Flower is not installed; pip install 'fedalign[flower]'")

from fedalign.errors import UserError
from fedalign.flower import kit, preflight


@contextmanager
def listening(folder: Path | None) -> Iterator[str]:
    """A server on a port of its own, with TLS where a folder of certificates is given."""
    server = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def serve() -> None:
        server.settimeout(0.1)
        context = None
        if folder is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(folder / "server.pem", folder / "server.key")
        while not stop.is_set():
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            with connection:
                try:
                    if context is None:
                        connection.sendall(b"HTTP/1.0 400 no TLS here\r\n\r\n")
                    else:
                        context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        stop.set()
        thread.join()
        server.close()


def test_a_server_with_our_certificate_is_reached(tmp_path: Path) -> None:
    kit.write_certificates(tmp_path, ["127.0.0.1", "localhost"])
    with listening(tmp_path) as place:
        assert "GMT" in preflight.can_reach(place, tmp_path / "ca.crt")


def test_each_mistake_is_one_sentence(tmp_path: Path) -> None:
    kit.write_certificates(tmp_path / "ours", ["127.0.0.1"])
    kit.write_certificates(tmp_path / "others", ["127.0.0.1"])
    kit.write_certificates(tmp_path / "elsewhere", ["example.org"])
    kit.write_certificates(tmp_path / "old", ["127.0.0.1"], days=0)
    ours = tmp_path / "ours" / "ca.crt"
    with listening(tmp_path / "others") as place, pytest.raises(UserError, match="did not sign the certificate of 127"):
        preflight.can_reach(place, ours)
    with listening(tmp_path / "elsewhere") as place, pytest.raises(UserError, match="for other names than 127"):
        preflight.can_reach(place, tmp_path / "elsewhere" / "ca.crt")
    with listening(tmp_path / "old") as place, pytest.raises(UserError, match="expired"):
        preflight.can_reach(place, tmp_path / "old" / "ca.crt")
    with listening(None) as place, pytest.raises(UserError, match="does not use TLS"):
        preflight.can_reach(place, ours)
    with pytest.raises(UserError, match="no program listens"):
        preflight.can_reach(place, ours)  # the server has gone
    with pytest.raises(UserError, match=r"ask for the server's ca\.crt"):
        preflight.can_reach(place, tmp_path / "missing.crt")
    for text in ("localhost", "x:0", "x:99999", ":80", "x:y"):
        with pytest.raises(UserError, match="host:port"):
            preflight.address(text)


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} is in use"):
            preflight.can_listen(f"127.0.0.1:{port}")
    preflight.can_listen(f"127.0.0.1:{port}")
    with pytest.raises(UserError, match="address of this machine"):
        preflight.can_listen("203.0.113.7:80")
