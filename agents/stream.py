"""One output of a command, on its way from a pipe to a file. Standard library only: the shim imports it."""

import os

CHUNK = 65536


class Stream:
    """One output of the command: read always, kept up to a cap, with a marker wherever bytes were dropped."""

    def __init__(self, source: int, path: str, cap_bytes: int) -> None:
        self.source = source
        self.cap_bytes = cap_bytes
        self.kept = 0
        self.capped = False
        self.dropped = 0
        self.sink = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.set_blocking(source, False)

    def pump(self) -> bool:
        """Move what is there; false at the end of the stream."""
        try:
            content = os.read(self.source, CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._keep(content)
        return bool(content)

    def close_source(self) -> None:
        if self.source >= 0:
            os.close(self.source)
            self.source = -1

    def drain(self) -> None:
        """Take what is left once nobody writes any more, then close."""
        while self.source >= 0:
            try:
                content = os.read(self.source, CHUNK)
            except OSError:
                break
            if not content:
                break
            self._keep(content)
        self.close_source()
        if self.dropped:
            self._write(self._marker())
        os.close(self.sink)

    def _marker(self) -> bytes:
        why = f"the cap of {self.cap_bytes} bytes is reached" if self.capped else "the disk did not take them"
        return f"\n[switchyard: {self.dropped} bytes dropped here: {why}]\n".encode()

    def _keep(self, content: bytes) -> None:
        if self.capped:
            self.dropped += len(content)
            return
        if self.dropped and self._write(self._marker()) > 0:
            self.dropped = 0
        fitting = content[: self.cap_bytes - self.kept]
        wrote = 0 if self.dropped else self._write(fitting)
        self.kept += wrote
        self.dropped += len(content) - wrote
        if len(fitting) < len(content):
            self.capped = True
            self._write(f"\n[switchyard: output beyond {self.cap_bytes} bytes is dropped]\n".encode())

    def _write(self, content: bytes) -> int:
        """Bytes written; fewer than given when the disk is full. Never raises: the command must not feel our disk."""
        wrote = 0
        try:
            while wrote < len(content):
                wrote += os.write(self.sink, content[wrote:])
        except OSError:
            pass
        return wrote
