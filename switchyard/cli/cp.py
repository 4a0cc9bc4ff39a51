"""``yard cp``: copies files into a running job, or out of it, as a tar stream through a command inside the stage."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from posixpath import basename, dirname
from typing import TYPE_CHECKING, Any, Final

from switchyard.cli import clean, exits, units
from switchyard.cli.session import connect
from switchyard.cli.sizes import size_bytes
from switchyard.problem import SwitchyardError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from switchyard.client import Client
    from switchyard.entry import Entry
    from switchyard.tarstream import Copied

EXAMPLES = """
  yard cp 42:out/model.pt .                    a file, from the folder in which its command started
  yard cp 42:/tmp/trace traces --stage train --rank 3
  yard cp patch.py 42:src/                     into a folder that is there
"""

_PLACE: Final = re.compile(r"#?(\d+|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}):(.*)", re.DOTALL)
_MOST_COMPLAINTS: Final = 64 << 10
_MOST: Final = 64 << 30


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="FROM", help="JOB:PATH or a path here")
    parser.add_argument("target", metavar="TO", help="the other one; a folder that is there gets it inside")
    parser.add_argument("--stage", default="", help="the stage to copy from or to, where several run")
    parser.add_argument("--rank", type=int, default=0, help="its rank: which node, where it runs on several")
    parser.add_argument("--most", type=size_bytes, default=_MOST, metavar="SIZE", help="take no more than this (64GiB)")
    parser.add_argument("--reason", default="", help="why; it is recorded with the job")


def run(args: argparse.Namespace) -> int:
    source, target = _PLACE.fullmatch(args.source), _PLACE.fullmatch(args.target)
    if (source is None) == (target is None):
        print(
            "error: one of the two is JOB:PATH, the other a path here (usage)\n  hint: ./42:x is a path here",
            file=sys.stderr,
        )
        return exits.USAGE
    with connect(args) as client:
        if source is not None:
            copied = _Copying(client, source[1], args).fetch(source[2], Path(args.target))
        else:
            assert target is not None
            copied = _Copying(client, target[1], args).send(Path(args.source), target[2])
    for text in copied.told:
        print(f"left out: {clean.line(text)}", file=sys.stderr)
    if copied.left_out > len(copied.told):
        print(f"left out: {copied.left_out - len(copied.told)} more", file=sys.stderr)
    what = "file" if copied.files == 1 else "files"
    print(f"{copied.files} {what}, {units.size(copied.size_bytes)}", file=sys.stderr)
    return exits.FAILURE if copied.left_out else exits.OK


class _Copying:
    """Copies to or from one stage of ``job``."""

    def __init__(self, client: Client, job: str, args: argparse.Namespace) -> None:
        self._client, self._job, self._most_bytes = client, job, args.most
        self._ask: dict[str, Any] = {"stage": args.stage, "rank": args.rank, "reason": args.reason}

    def fetch(self, path: str, target: Path) -> Copied:
        """Copy ``path`` of the job to ``target`` here."""
        from switchyard.tarstream import take

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
            copied = take(pieces.read, basename(real), target.absolute(), most_bytes=self._most_bytes)
            pieces.finish("tar")
        return copied

    def send(self, source: Path, path: str) -> Copied:
        """Copy ``source`` here to ``path`` of the job."""
        from switchyard.tarstream import give

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
            try:
                _Pieces(inside).finish("tar")
            except SwitchyardError:
                if not failed:
                    raise
        worker.join()
        if failed and isinstance(failed[0], OSError):
            raise SwitchyardError(f"{failed[0].filename or source}: {failed[0].strerror or failed[0]}") from failed[0]
        if failed:
            raise failed[0]
        return made[0]

    def _enter(self, *command: str, stdin: bool = False) -> Entry:
        return self._client.jobs.enter(self._job, command, **self._ask, stdin=stdin)

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
                f"test ended with {inside.code} inside the job; yard cp needs test, readlink and tar there"
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
        told = clean.lines(self._complaints.decode("utf-8", "replace")).strip()
        if self._inside.code in (126, 127):
            told += f"; yard cp needs {command} inside the job"
        raise SwitchyardError(told or f"{command} ended with {self._inside.code} inside the job")
