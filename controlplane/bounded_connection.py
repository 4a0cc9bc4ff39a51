"""An HTTP connection that ends in time, also where the other side sends a byte every few seconds.

Redirections are not followed, and no proxy of the environment is used.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator


class ExchangeFailed(Exception):
    """No whole answer came: ``code`` is tls_failed, timed_out or no_answer. ``error`` is what was raised."""

    def __init__(self, code: str, error: Exception | None = None) -> None:
        super().__init__(code)
        self.code, self.error = code, error


class BoundedConnection(http.client.HTTPConnection):
    """A connection to one address, whatever the host's name in the request resolves to; no step takes ``patience_s``.

    With a ``context`` it is encrypted, and the host's certificate is checked as the context says.
    """

    def __init__(
        self, host: str, port: int, context: ssl.SSLContext | None, *, patience_s: float, address: str = ""
    ) -> None:
        super().__init__(host, port, timeout=patience_s)
        self._address, self._context = address or host, context
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

    @contextlib.contextmanager
    def cut_after(self, most_s: float) -> Iterator[None]:
        """Cut it off after so many seconds, and close it at the end of the block. Raises ExchangeFailed."""
        timer = threading.Timer(most_s, self.cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (OSError, http.client.HTTPException, ValueError) as error:
            if self.is_cut or isinstance(error, TimeoutError):
                raise ExchangeFailed("timed_out", error) from None
            raise ExchangeFailed("tls_failed" if isinstance(error, ssl.SSLError) else "no_answer", error) from None
        finally:
            timer.cancel()
            self.close()
        # What was read may be the beginning of an answer.
        if self.is_cut:
            raise ExchangeFailed("timed_out")
