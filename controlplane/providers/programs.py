"""Runs a program of a foreign engine with bounds: its time, what it may print, and the environment that it gets."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from controlplane.providers.engine import EngineFault

MOST_S: Final = 20.0
MOST_PRINTED: Final = 4 << 20
# What a program needs to find itself and its configuration; nothing of the control plane's own secrets.
PASSED: Final = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "SLURM_CONF", "TMPDIR")
# What a program prints, and each file that it writes, in units of 512 bytes: 64 MiB.
_LIMITED: Final = 'ulimit -c 0; ulimit -f 131072; exec "$@"'
# The shell's exit codes for what cannot be run, or is not there.
_NOT_RUN: Final = (126, 127)


@dataclass(frozen=True, slots=True)
class Printed:
    """How a program ended, and what it printed."""

    code: int
    out: str
    err: str


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a program: times in UTC, words in English, and ``more``."""
    passed = {name: os.environ[name] for name in PASSED if name in os.environ}
    return {**passed, "TZ": "UTC", "LC_ALL": "C", **(more or {})}


def run(
    words: Sequence[str], *, given: str = "", more: Mapping[str, str] | None = None, most_s: float = MOST_S
) -> Printed:
    """Run a program with ``given`` as its standard input. Raises EngineFault if it cannot be run, takes too long, or
    prints too much; whether it had an effect is unknown then."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _LIMITED, "sh", *words],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            env=environment(more),
            cwd="/",
            start_new_session=True,
        )
        try:
            process.communicate(given.encode(), timeout=most_s)
        except subprocess.TimeoutExpired:
            raise EngineFault("ProgramTooSlow", words[0]) from None
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for file in (out, err):
            file.seek(0)
        if process.returncode in _NOT_RUN:
            raise EngineFault("ProgramMissing", words[0])
        printed = out.read(MOST_PRINTED + 1)
        if len(printed) > MOST_PRINTED:
            raise EngineFault("ProgramTooLoud", words[0])
        said = " ".join(err.read(4_096).decode(errors="replace").split())
        try:
            return Printed(process.returncode, printed.decode(), said[:300])
        except UnicodeDecodeError:
            raise EngineFault("AnswerUnreadable", words[0]) from None
