"""Runs the operator's own programs on a node: health checks, prolog and epilog, with the agent's rights.

Whoever can change one of them has the agent's rights, so a program is refused if anybody else may write it or a folder
on its path. Its output is bounded, and one that takes too long is ended with all processes that it started.
"""

from __future__ import annotations

import os
import selectors
import signal
import stat
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MOST_HEARD: Final = 4096
MOST_SAID: Final = 200


def check_ours(path: Path) -> None:
    """Raise ValueError if anybody but root and the agent's user could change what is run there."""
    for step in (path, *path.parents):
        status = step.stat()
        is_sticky = bool(status.st_mode & stat.S_ISVTX) and step != path
        if status.st_uid not in (0, os.geteuid()) or (status.st_mode & 0o022 and not is_sticky):
            raise ValueError(
                f'"{step}" could be changed by others, who would have the rights of this agent: give it to root, '
                f"and let nobody else write there (chmod go-w)"
            )


def listed(folder: Path) -> list[Path]:
    """Return the programs of a folder by name. Raises OSError, and ValueError if others could change them."""
    check_ours(folder)
    return [path for path in sorted(folder.iterdir()) if path.is_file() and os.access(path, os.X_OK)]


def run(path: Path, env: Mapping[str, str], timeout_s: float) -> str:
    """Run a program to its end; return what is wrong in a sentence, empty for exit status 0. Blocks."""
    try:
        check_ours(path)
        process = subprocess.Popen(
            [path],
            cwd="/",
            env={"PATH": PATH, "LANG": "C.UTF-8", **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return _line(str(error))
    try:
        said = _read_output(process, time.monotonic() + timeout_s)
    finally:
        # Processes that it left behind belong to it.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            pass
        status = process.wait()
        assert process.stdout is not None, "it was asked for"
        process.stdout.close()
    if said is None:
        return f"did not end within {timeout_s:g} s"
    if status == 0:
        return ""
    ended = f"exit status {status}" if status > 0 else f"ended by signal {-status}"
    return f"{_line(said)} ({ended})" if said.strip() else ended


def _read_output(process: subprocess.Popen[bytes], deadline: float) -> str | None:
    """Return the beginning of its output, up to its end; None if it did not end by the deadline."""
    heard = b""
    assert process.stdout is not None, "it was asked for"
    os.set_blocking(process.stdout.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            has_ended = process.poll() is not None
            if selector.get_map() and selector.select(0.0 if has_ended else 0.05):
                piece = process.stdout.read(65536)
                if not piece:
                    selector.unregister(process.stdout)
                heard += (piece or b"")[: MOST_HEARD - len(heard)]
                if piece and time.monotonic() < deadline:
                    continue
            elif not selector.get_map() and not has_ended:
                time.sleep(0.02)
            if has_ended:
                return heard.decode(errors="replace")
            if time.monotonic() > deadline:
                return None


def _line(said: str) -> str:
    """Return the first non-blank line, short and printable."""
    line = next((line.strip() for line in said.splitlines() if line.strip()), "")
    return "".join(char if char.isprintable() else "?" for char in line)[:MOST_SAID]
