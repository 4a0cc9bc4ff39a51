"""How a command ended, in the words of its exit file. Standard library only: the shim imports it."""

import os

from agents.lean import signal_name

RESTART_CODES = (85, 75)


def exit_of(status: int) -> tuple[int | None, int | None]:
    """The exit code and the signal of a wait status; one of the two is None."""
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def judge(code: int | None, number: int | None, was_killed_after: str | None) -> tuple[str, str]:
    """The cause and the detail of an end that nobody has given a cause for; both empty for a good end.

    ``was_killed_after`` is why the command was asked to stop, where it then had to be killed.
    """
    if number is not None:
        if was_killed_after is not None:
            return "SIGNAL", f"ended by SIGKILL: it had not ended within its grace after {was_killed_after}"
        return "SIGNAL", f"ended by {signal_name(number)}"
    if code in RESTART_CODES:
        return "CHECKPOINTED", "asks to be started again from its checkpoint"
    if code:
        detail = f"ended with exit code {code}"
        if code > 128:
            detail += f"; 128 + {code - 128} often means that its own command was ended by {signal_name(code - 128)}"
        return "EXIT_CODE", detail
    return "", ""
