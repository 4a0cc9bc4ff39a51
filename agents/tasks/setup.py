"""Runs the setup of a stage before its command, in the same process group, environment and folder. Pure.

The shell that runs the setup becomes the command, so the command has the process id that is watched and signalled. A
setup that fails is reported in the stage's report file, because its exit code alone would be taken for the command's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from agents.ends import clause, told
from agents.protocol import Exit

# $1 is the script; the command follows it. All that the setup writes is in one stream, between two lines that mark it.
_FIRST: Final = """
say() { printf 'switchyard: %s\\n' "$1"; }
report() { printf '%s\\n' "$1" >> "$YARD_REPORT_FILE"; }
report '{"phase": {"name": "setup"}}'
say 'setup begins'
/bin/sh -c "$1" 2>&1
code=$?
if [ $code -ne 0 ]; then
    say "setup ended with exit code $code"
    report "{\\"setup\\": {\\"code\\": $code}}"
    exit $code
fi
say 'setup ended'
report '{"phase": {"name": ""}}'
shift
exec "$@"
"""


def command(script: str, argv: Sequence[str]) -> list[str]:
    """Return a command that runs the script and then, if it ended with 0, becomes ``argv``."""
    return ["/bin/sh", "-c", _FIRST, "setup", script, *argv]


def judged(end: Exit, code: int | None) -> Exit:
    """Return the end of a part whose setup reported that it failed with ``code``; unchanged if it reported nothing or
    the part ended otherwise."""
    if code is None or end.code != code or end.cause not in ("EXIT_CODE", "CHECKPOINTED"):
        return end
    return msgspec.structs.replace(end, cause="SETUP_FAILED", **told(clause("SetupFailed", code=code)))
