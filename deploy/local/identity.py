"""As whom the parts of a stack run, and as whom the stages of this machine's own agent do."""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from typing import Final, Literal
from zlib import crc32

from agents.isolation.users import USUAL, are_mapped
from deploy.local.home import Home
from deploy.local.leash import NOBODY
from deploy.local.service import ROOT, User, leashed, python

# Accounts that the parts may have where root starts the stack, the first that exists. PostgreSQL wants a name. Not
# "postgres": where the system runs a PostgreSQL of its own, that account rules it.
ACCOUNTS = ("switchyard", "daemon")

PROJECTS: Final = 4_096
STACKS: Final = 50_000
# What both need: the interpreter, the code, and the way into the state folder.
_TRIAL = """
import os, sys
sys.path.insert(0, sys.argv[1])
import agents.protocol, deploy.local.leash
os.stat(sys.argv[2])
"""


class Exposed(Exception):
    """Stages would run as root, and nobody said that they may; the message says what helps."""


@dataclass(frozen=True)
class People:
    """The users of the parts (None: who starts the stack) and of the stages, and notes for the person.

    Stages run as the user who starts the stack, as a user per project, or all as one user (nobody, root).
    """

    parts: tuple[int, int] | None = None
    stages: Literal["self", "projects", "nobody", "root"] = "self"
    note: str = ""

    @property
    def user(self) -> User:
        """Return the parts' user in the form of the leash."""
        return "self" if self.parts is None else "{}:{}".format(*self.parts)


def account() -> tuple[int, int] | None:
    """Return uid and gid of the first of ``ACCOUNTS`` on this machine; never those of root or of the stages."""
    for name in ACCOUNTS:
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        if found.pw_uid not in (0, NOBODY):
            return found.pw_uid, found.pw_gid
    return None


def choose(home: Home, stages_as_root: bool) -> People:
    """Choose the users: an ordinary user runs everything; for root, parts and stages run as two others, neither root.

    If these cannot access Python, code and state, all runs as root: raises :class:`Exposed` unless ``stages_as_root``.
    """
    if os.getuid() != 0:
        return People()
    home.path.chmod(0o711)
    parts = account()
    reasons = [f"there is no account named {' or '.join(ACCOUNTS)}"] if parts is None else []
    for uid, gid in (parts or (NOBODY, NOBODY), (NOBODY, NOBODY)):
        if said := _hindrance(home, uid, gid):
            reasons.append(f"uid {uid} cannot come to this Python, {ROOT} or {home.path}: {said}")
            break
    if not reasons:
        return People(parts, "projects" if are_mapped(uids(home)) else "nobody")
    home.path.chmod(0o700)
    if not stages_as_root:
        raise Exposed(
            f"stages would run as root here, so any job could do anything to this machine: {reasons[0]}.\n"
            "Either start the stack as an ordinary user,\n"
            f"or keep Python, checkout and state where every user may enter: this Python is {_real_python()}, the "
            f"checkout {ROOT}, the state {home.path} (YARD_HOME).\n"
            "If only jobs that you trust like yourself will run, --stages-as-root starts it as it is."
        )
    return People(None, "root", f"STAGES RUN AS ROOT, and so does every part, as --stages-as-root allows: {reasons[0]}")


def admit(home: Home, people: People) -> None:
    """Make the path to the stages' own folders accessible to their user, and to nobody else."""
    if people.stages in ("projects", "nobody"):
        home.agents.chmod(0o711)
        # Stages pass through it to folders of their own, which the agent creates: nobody else may put one in their
        # place.
        os.chown(home.shared, 0, 0)
        home.shared.chmod(0o711)
    else:
        home.agents.chmod(0o700)


def uids(home: Home) -> range:
    """Return the uids of projects of this stack: another range for each state folder, so that stages of two stacks have
    different users. The range is above the agents' default one, and below 2^31."""
    return range(first := USUAL.stop + PROJECTS * (crc32(str(home.path).encode()) % STACKS), first + PROJECTS)


def _real_python() -> str:
    return os.path.realpath(python()[0])


def _hindrance(home: Home, uid: int, gid: int) -> str:
    """Return why this user cannot run what a part or a stage needs; empty if it can."""
    trial = subprocess.run(
        leashed(python("-c", _TRIAL, str(ROOT), f"{home.path}/."), user=f"{uid}:{gid}"),
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    if trial.returncode == 0:
        return ""
    said = trial.stderr.strip().splitlines()
    return said[-1] if said else f"exit status {trial.returncode}"
