"""Copies one output of a command from its pipe to a file. Standard library only: the shim imports it."""

import os
import time

from agents.masking import Mask

CHUNK = 65536
# How long a command may write as fast as it likes, in seconds of its pace.
BURST_S = 8
# If agent and job are one user, a job may have put something else there: a link, or a pipe without a reader.
_SINK = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK


class OutputStream:
    """One output of the command: always read, masked, kept up to a cap, with a marker wherever bytes were dropped.

    ``pace`` is how many bytes per second it keeps on average (0: all). A command that floods its log loses log lines,
    and does not fill the host's disk or network.

    The file is created with the first byte, because most stages leave one or both of their streams empty.
    """

    def __init__(self, source: int, path: str, cap_bytes: int, mask: "Mask | None" = None, pace: int = 0) -> None:
        self.source = source
        self.path = path
        self.cap_bytes = cap_bytes
        self.mask = mask
        self.pace = pace
        self._room, self._counted_at = float(pace * BURST_S), time.monotonic()
        self.slowed = False
        self.kept = 0
        self.capped = False
        self.dropped = 0
        self.sink = -1
        os.set_blocking(source, False)

    def pump(self) -> bool:
        """Copy what is there; return False at the end of the stream."""
        try:
            content = os.read(self.source, CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if content:
            self._take(content)
        return bool(content)

    def close_source(self) -> None:
        if self.source >= 0:
            os.close(self.source)
            self.source = -1

    def drain(self) -> None:
        """Copy the rest once no process has the pipe open any more, then close."""
        while self.source >= 0:
            try:
                content = os.read(self.source, CHUNK)
            except OSError:
                break
            if not content:
                break
            self._take(content)
        if self.mask and not self.capped:
            self._keep(self.mask.end())
        self.close_source()
        if self.dropped:
            self._write(self._marker())
        if self.sink >= 0:
            os.close(self.sink)

    def _marker(self) -> bytes:
        why = "the disk did not take them"
        if self.slowed:
            why = f"more than {self.pace} bytes a second"
        if self.capped:
            why = f"the cap of {self.cap_bytes} bytes is reached"
        return f"\n[switchyard: {self.dropped} bytes dropped here: {why}]\n".encode()

    def _take(self, content: bytes) -> None:
        """Drop what exceeds the limits, and mask the rest."""
        if self.capped:
            self.dropped += len(content)
            return
        if self.pace and not self._has_room(len(content)):
            if self.mask and not self.slowed:
                self.dropped += self.mask.forget()
            self.slowed = True
            self.dropped += len(content)
            return
        if self.slowed:
            # The line in the middle of which it begins again may hold half of a secret.
            line = content.find(b"\n") + 1 or len(content)
            self.dropped += line
            content = content[line:]
        if content:
            self._keep(self.mask.feed(content) if self.mask else content)

    def _keep(self, content: bytes) -> None:
        if not content:
            return
        if self.dropped and self._write(self._marker()) > 0:
            self.dropped, self.slowed = 0, False
        fitting = content[: self.cap_bytes - self.kept]
        wrote = 0 if self.dropped else self._write(fitting)
        self.kept += wrote
        self.dropped += len(content) - wrote
        if len(fitting) < len(content):
            self.capped = True
            self._write(f"\n[switchyard: output beyond {self.cap_bytes} bytes is dropped]\n".encode())

    def _has_room(self, count: int) -> bool:
        """Return whether so many bytes may be kept now. After a refusal, half of the burst must be available again."""
        now = time.monotonic()
        most = float(self.pace * BURST_S)
        self._room = min(most, self._room + (now - self._counted_at) * self.pace)
        self._counted_at = now
        if self._room < (most / 2 if self.slowed else count):
            return False
        self._room -= count
        return True

    def _write(self, content: bytes) -> int:
        """Return the number of bytes written; fewer than given if the disk is full. Never raises, so the command is
        not affected."""
        wrote = 0
        try:
            if self.sink < 0:
                self.sink = os.open(self.path, _SINK, 0o600)
            while wrote < len(content):
                wrote += os.write(self.sink, content[wrote:])
        except OSError:
            pass
        return wrote
