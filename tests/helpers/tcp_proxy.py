"""A TCP proxy on loopback that counts bytes and stays when the server behind it is gone."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """Forwards connections to a port of this machine."""

    def __init__(self, target: int) -> None:
        self.target, self.down, self.up = target, 0, 0
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listening.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
                    server.settimeout(None)
                except OSError:
                    client.close()  # as a proxy does: the party sees a connection that ends in the middle of TLS
                    continue
                threading.Thread(target=self._copy, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._copy, args=(server, client, False), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
                if up:
                    self.up += len(data)
                else:
                    self.down += len(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        self.listening.close()
