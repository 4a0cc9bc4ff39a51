"""Copies files into a running job, or out of it, as a tar stream through a command inside the stage.

Both functions block, and open sessions of their own at ``address``, the URL and token of a client.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from posixpath import basename, dirname
from typing import Any, Final
from urllib.parse import quote

from switchyard.cli import clean
from switchyard.entry import Entry
from switchyard.problem import SwitchyardError
from switchyard.tarstream import Copied, give, take
from switchyard.wire import Wire

MOST_BYTES: Final = 64 << 30
_MOST_COMPLAINTS: Final = 64 << 10


def fetch(
    address: tuple[str, str], job: str, ask: Mapping[str, Any], path: str, target: Path, most_bytes: int
) -> Copied:
    """Copy ``path`` of ``job`` to ``target`` here; a folder that is there gets it inside."""
    return _Copying(address, job, ask).fetch(path, target, most_bytes)


def send(address: tuple[str, str], job: str, ask: Mapping[str, Any], source: Path, path: str) -> Copied:
    """Copy ``source`` here to ``path`` of ``job``; a folder that is there gets it inside."""
    return _Copying(address, job, ask).send(source, path)


class _Copying:
    """Copies to or from one stage of ``job``; ``ask`` has ``stage``, ``rank`` and ``reason``."""

    def __init__(self, address: tuple[str, str], job: str, ask: Mapping[str, Any]) -> None:
        self._wire, self._job, self._ask = Wire(*address), job, dict(ask)

    def fetch(self, path: str, target: Path, most_bytes: int) -> Copied:
        """Copy ``path`` of the job to ``target`` here."""
        told = self._answer("readlink", "-f", "--", path or ".")
        real = told.decode("utf-8", "surrogateescape").removesuffix("\n")
        if not basename(real):
            raise SwitchyardError(f"job {self._job} has no {path or '.'}, or it is everything; name a file or a folder")
        if target.is_dir():
            # A folder such as "." has no name of its own.
            target /= basename(path) if basename(path) not in ("", ".", "..") else f"job-{self._job}"
        if not target.absolute().parent.is_dir():
            raise SwitchyardError(f"{target.parent} is no folder here")
        with self._enter("tar", "-cf", "-", "-C", dirname(real), "--", basename(real)) as inside:
            pieces = _Pieces(inside)
            copied = take(pieces.read, basename(real), target.absolute(), most_bytes=most_bytes)
            pieces.finish("tar")
        return copied

    def send(self, source: Path, path: str) -> Copied:
        """Copy ``source`` here to ``path`` of the job."""
        source = source.absolute()
        if not source.exists():
            raise SwitchyardError(f"{source} is not there")
        folder, name = path or ".", source.resolve().name
        if not self._is_folder(folder):
            folder, name = dirname(folder.rstrip("/")) or ".", basename(folder.rstrip("/"))
        failed: list[BaseException] = []
        made: list[Copied] = []
        with self._enter("tar", "-xpof", "-", "-C", folder, stdin=True) as inside:

            def write(content: bytes) -> None:
                if inside.end:
                    raise BrokenPipeError
                inside.send(content)

            def work() -> None:
                try:
                    made.append(give(write, source.resolve(), name))
                    inside.finish()
                except BrokenPipeError:
                    return
                except BaseException as error:  # noqa: BLE001 - raised again where it can be answered
                    failed.append(error)
                    inside.close()

            worker = threading.Thread(target=work, daemon=True)
            worker.start()
            pieces = _Pieces(inside)
            try:
                pieces.finish("tar")
            except SwitchyardError:
                if not failed:
                    raise
        worker.join()
        if failed and isinstance(failed[0], OSError):
            raise SwitchyardError(f"{failed[0].filename or source}: {failed[0].strerror or failed[0]}") from failed[0]
        if failed:
            raise failed[0]
        if not made:
            raise SwitchyardError(
                "; ".join(filter(None, ("tar inside the job ended before it had read all", pieces.complaints)))
            )
        return made[0]

    def _enter(self, *command: str, stdin: bool = False) -> Entry:
        path = f"/jobs/{quote(self._job, safe='')}/exec"
        return Entry(self._wire, path, {"command": list(command), **self._ask, "stdin": stdin}).open()

    def _answer(self, *command: str) -> bytes:
        """Return what a command prints inside, the first of it."""
        with self._enter(*command) as inside:
            pieces = _Pieces(inside)
            told = pieces.read(8192)
            pieces.finish(command[0])
        return told

    def _is_folder(self, path: str) -> bool:
        with self._enter("test", "-d", path) as inside:
            for _ in inside:
                pass
        if inside.code > 1:
            raise SwitchyardError(
                f"test ended with {inside.code} inside the job; copying needs test, readlink and tar there"
            )
        return inside.code == 0


class _Pieces:
    """The output of a command as a file; what it says on standard error comes at the end, cleaned."""

    def __init__(self, inside: Entry) -> None:
        self._inside, self._rest, self._complaints = inside, bytearray(), bytearray()
        self._found = self._output()

    def _output(self) -> Iterator[bytes]:
        for stream, piece in self._inside:
            if stream == 1:
                yield piece
            else:
                self._complaints += piece[: _MOST_COMPLAINTS - len(self._complaints)]

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes, or fewer at the end."""
        while len(self._rest) < size and (piece := next(self._found, None)) is not None:
            self._rest += piece
        content = bytes(self._rest[:size])
        del self._rest[:size]
        return content

    def finish(self, command: str) -> None:
        """Wait for the end of the command, and raise what it complained about if it failed."""
        for _ in self._found:
            pass
        if self._inside.code == 0:
            return
        told = [self.complaints]
        if self._inside.code in (126, 127):
            told.append(f"copying needs {command} inside the job")
        elif signal := self._inside.end.get("signal"):
            told.append(f"{command} was ended by signal {signal} inside the job")
        raise SwitchyardError(
            "; ".join(filter(None, told)) or f"{command} ended with {self._inside.code} inside the job"
        )

    @property
    def complaints(self) -> str:
        """What the command said on standard error, cleaned."""
        return clean.lines(self._complaints.decode("utf-8", "replace")).strip()
