"""Connections to a host that was resolved and judged before (:mod:`controlplane.addresses`), which never last long."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl


class CutConnection(http.client.HTTPConnection):
    """A connection to one address, whatever the name in the request resolves to. Another thread may cut it off."""

    def __init__(self, host: str, port: int, address: str, context: ssl.SSLContext | None, patience_s: float) -> None:
        super().__init__(host, port, timeout=patience_s)
        self._address, self._context = address, context
        self.is_cut = False

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), timeout=self.timeout)
        if self._context is not None:
            # The handshake is a step of its own, so that it too can be cut off.
            self.sock = self._context.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
            self.sock.do_handshake()

    def cut(self) -> None:
        """End whatever goes on, from another thread. To the reader this looks like the other side's end."""
        self.is_cut = True
        with contextlib.suppress(OSError, AttributeError):
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)
