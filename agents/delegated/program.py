"""Runs a program of a foreign engine with bounds: its time, what it may print, and the environment that it gets."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from agents.delegated import EngineSilent
from agents.ends import clause

MOST_S: Final = 20.0
MOST_PRINTED: Final = 4 << 20
PASSED: Final = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "SLURM_CONF", "TMPDIR")


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """How a program ended, and what it printed."""

    code: int
    out: str
    err: str


def ask(words: Sequence[str], given: str = "", most_s: float = MOST_S) -> EngineAnswer:
    """Run a program with ``given`` as its input. Raises EngineSilent if it cannot be run, takes too long, prints too
    much, or prints what is no text; whether it had an effect is unknown then."""
    passed = {name: os.environ[name] for name in PASSED if name in os.environ}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                env={**passed, "TZ": "UTC", "LC_ALL": "C"},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise EngineSilent(clause("ToolNotStarted", source=words[0], error=str(error.strerror))) from error
        try:
            process.communicate(given.encode(), timeout=most_s)
        except subprocess.TimeoutExpired:
            raise EngineSilent(clause("NoAnswer", source=words[0], deadline_s=most_s)) from None
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for file in (out, err):
            file.seek(0)
        printed = out.read(MOST_PRINTED + 1)
        if len(printed) > MOST_PRINTED:
            raise EngineSilent(clause("AnswerTooLong", source=words[0], most_bytes=MOST_PRINTED))
        said = " ".join(err.read(4_096).decode(errors="replace").split())
        try:
            return EngineAnswer(process.returncode, printed.decode(), said.replace("\0", "")[:300])
        except UnicodeDecodeError:
            raise EngineSilent(clause("Unreadable", source=words[0], error="UTF-8")) from None
