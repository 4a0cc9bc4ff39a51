"""Translates how a command ended to the fields of its exit file. Standard library only: the shim imports it."""

import os

from agents.ends import clause
from agents.supervisor.lean import signal_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agents.ends import Clause

RESTART_CODES = (85, 75)


def exit_of(status: int) -> tuple[int | None, int | None]:
    """Return the exit code and the signal of a wait status; one of the two is None."""
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def judge(code: int | None, number: int | None, was_killed_after: str | None) -> "tuple[str, list[Clause]]":
    """Return the cause and the clauses of an end without a known cause; both empty for a successful end.

    ``was_killed_after`` is why the command was asked to stop, if it then had to be killed.
    """
    if number is not None:
        if was_killed_after is not None:
            return "SIGNAL", [clause("GraceOver", why=was_killed_after)]
        return "SIGNAL", [clause("Signal", signal=signal_name(number))]
    if code in RESTART_CODES:
        return "CHECKPOINTED", [clause("AsksAgain")]
    if code:
        said = [clause("ExitCode", code=code)]
        if code > 128:
            said.append(clause("CommandSignal", number=code - 128, signal=signal_name(code - 128)))
        return "EXIT_CODE", said
    return "", []
