"""Replaces this process by a command that dies with its parent; run by path, imports only the standard library.

``python -I -S leash.py SIGNAL USER NICE PARENT COMMAND...``: the kernel sends SIGNAL to the command when the process
PARENT, which started this one, ends in whatever way. NICE is the niceness. USER is ``self``, ``mapped`` (in a user
namespace where the caller appears as uid 65534: PostgreSQL refuses to run as uid 0) or ``UID:GID``.

It is a program of its own, because these steps are not safe between fork and exec of a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
CLONE_NEWUSER = 0x10000000
NOBODY = 65534
EXIT_CANNOT_MAP = 71


def main(arguments: list[str]) -> None:
    """Become the command; never returns."""
    death_signal, user, nice, parent, *command = arguments
    tie(death_signal, user, int(nice), int(parent))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise SystemExit(f"{command[0]} cannot be started: {error.strerror}") from None


def tie(death_signal: str, user: str, nice: int, parent: int) -> None:
    """Become ``user``, raise the niceness by ``nice``, and get ``death_signal`` when the process ``parent`` ends."""
    os.nice(nice)
    libc = ctypes.CDLL(None, use_errno=True)
    if user == "mapped":
        enter_user_namespace(libc)
    elif user != "self":
        uid, gid = (int(number) for number in user.split(":"))
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    # After the change of user, which clears it; before the check, so that a parent's end is never missed.
    libc.prctl(PR_SET_PDEATHSIG, signal.Signals[death_signal].value, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)
    # A background shell job ignores these for all its children; a part must be stoppable by them.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def enter_user_namespace(libc: ctypes.CDLL) -> None:
    """Move into a user namespace where the present user and group appear as 65534."""
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWUSER) != 0:
        print(f"user namespaces are not allowed here: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
        raise SystemExit(EXIT_CANNOT_MAP)
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {uid} 1"), ("gid_map", f"{NOBODY} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    except OSError as error:
        print(f"user namespaces are not allowed here: {error.strerror}: {error.filename}", file=sys.stderr)
        raise SystemExit(EXIT_CANNOT_MAP) from None


if __name__ == "__main__":
    main(sys.argv[1:])
