"""Runs a vendor's command with a deadline and an output limit."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from agents.devices.readers.library import ReaderSilent
from agents.ends import clause
from agents.notes import NoteText

CAP_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Tool:
    """A command by name; ``folders`` are where its vendor installs it if it is not on the PATH.

    Without ``cwd`` it runs in the agent's working folder.
    """

    name: str
    folders: tuple[str, ...] = ()
    cwd: str | None = "/"

    def path(self, root: Path = Path("/")) -> str | None:
        """Return the path of the command, or None."""
        found = shutil.which(self.name)
        if found is not None:
            return found
        return shutil.which(self.name, path=os.pathsep.join(str(root / folder.lstrip("/")) for folder in self.folders))

    def ask(self, arguments: tuple[str, ...], deadline_s: float, root: Path = Path("/")) -> str:
        """Return the output of the command. Raises ReaderSilent, with a sentence, if it is silent, endless, late or
        absent."""
        path = self.path(root)
        if path is None:
            raise ReaderSilent(NoteText(clause("ToolMissing", source=self.name)))
        shown = " ".join((self.name, *arguments))
        try:
            process = subprocess.Popen(
                [path, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "LC_ALL": "C", "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
                cwd=self.cwd,
            )
        except OSError as error:
            why = clause("ToolNotStarted", source=self.name, error=error.strerror or str(error))
            raise ReaderSilent(NoteText(why)) from error
        patience_s = 0.0
        try:
            printed = _read(process, shown, time.monotonic() + deadline_s, deadline_s)
            patience_s = 0.5
        finally:
            code = _end(process, patience_s)
        if not printed.strip():
            raise ReaderSilent(NoteText(clause("AnswerEmpty", source=f"`{shown}`", code=code)))
        return printed.decode(errors="replace")


def _read(process: subprocess.Popen[bytes], shown: str, until: float, deadline_s: float) -> bytes:
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    printed = bytearray()
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            raise ReaderSilent(NoteText(clause("NoAnswer", source=f"`{shown}`", deadline_s=deadline_s)))
        piece = os.read(pipe, 1 << 16)
        if not piece:
            return bytes(printed)
        printed += piece
        if len(printed) > CAP_BYTES:
            raise ReaderSilent(NoteText(clause("AnswerTooLong", source=f"`{shown}`", most_bytes=CAP_BYTES)))


def _end(process: subprocess.Popen[bytes], patience_s: float) -> str:
    """Return how the command ended; one that still runs is killed with all of its processes, and not waited for
    long."""
    assert process.stdout is not None
    try:
        code = process.wait(patience_s)
    except subprocess.TimeoutExpired:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            pass
        try:
            code = process.wait(0.5)
        except subprocess.TimeoutExpired:
            return "nothing: the kernel does not let go of it"
    finally:
        process.stdout.close()
    return f"code {code}" if code >= 0 else signal.Signals(-code).name
