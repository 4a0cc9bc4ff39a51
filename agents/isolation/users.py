"""The user of each task: one for all, an account named by the operator per project, or a uid per project.

The operator of the node decides: an order names its project and the project's number, and no user. Tasks of projects
with different users cannot signal, read or change each other; tasks of one project share a user, because they share its
files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from agents.ends import Unlaunchable, clause
from agents.isolation.run_as import NOBODY, RunAs, parse

LOWEST: Final = 1_000
HIGHEST: Final = 2**32 - 2
# Beyond what distributions, containers and systemd give away (systemd's UIDS-GIDS), and below what some tools take for
# negative. Two installations that share a host need two ranges.
USUAL: Final = range(1_900_000_000, 1_900_065_536)


@dataclass(frozen=True, slots=True)
class Users:
    """``default`` is the user of tasks of other projects; ``accounts`` are by project name, ``uids`` by project
    number."""

    default: RunAs
    accounts: Mapping[str, RunAs] = field(default_factory=dict)
    uids: range = range(0)

    def of(self, project: str, number: int) -> RunAs:
        """Return the user of tasks of this project. Raises Unlaunchable if its number has no uid here."""
        if project in self.accounts:
            return self.accounts[project]
        if not self.uids or number == 0:  # a control plane of before does not number projects
            return self.default
        if not 0 < number < len(self.uids):
            raise Unlaunchable(clause("NoUserForProject", project=project, number=number, most=len(self.uids) - 1))
        uid = self.uids[number]
        return RunAs(name=str(uid), uid=uid, gid=uid)

    @property
    def spoken(self) -> str:
        """Return a description of the users of tasks, for people."""
        name = f"a user per project ({self.uids[0]}-{self.uids[-1]})" if self.uids else self.default.name
        return f"{name}; {len(self.accounts)} projects as accounts of their own" if self.accounts else name


def chosen(run_as: str | None, uid_range: str | None, accounts: list[str]) -> Users:
    """Parse ``--run-as``, ``--uid-range`` and ``--account``. Raises ValueError with advice.

    Without these options a root agent gives each project a uid of the usual range, if this host has those uids.
    """
    is_root = os.geteuid() == 0
    if (uid_range or accounts) and not is_root:
        raise ValueError("--uid-range and --account need an agent that runs as root: others cannot change their user")
    if uid_range and run_as:
        raise ValueError("give --run-as (one user for all) or --uid-range (one for each project), not both")
    named = dict(map(_account, accounts))
    if uid_range:
        return Users(parse("nobody"), named, _range(uid_range))
    if run_as is None and is_root and are_mapped(USUAL):
        return Users(parse("nobody"), named, USUAL)
    default = parse(run_as)
    if default.groups and any(each.groups for each in named.values()):
        raise ValueError("--account cannot be given beside a --run-as user that has groups of its own")
    return Users(default, named)


def _account(text: str) -> tuple[str, RunAs]:
    project, equals, name = text.partition("=")
    if not (equals and project and name):
        raise ValueError(f'--account "{text}": write it as PROJECT=USER')
    user = parse(name)
    if user.uid is None or user.uid < LOWEST:
        raise ValueError(f'--account "{text}": uid {user.uid or 0} is of the system; accepted are uids from {LOWEST}')
    # The agent takes on a user's rights to files thread by thread, and groups belong to the whole process.
    return project, RunAs(name=user.name, uid=user.uid, gid=user.gid, home=user.home)


def _range(text: str) -> range:
    found = re.fullmatch(r"([0-9]{1,10})-([0-9]{1,10})", text)
    first, last = (int(found[1]), int(found[2])) if found else (0, 0)
    if not LOWEST <= first < last <= HIGHEST or first <= NOBODY <= last:
        raise ValueError(
            f'--uid-range "{text}": write it as FIRST-LAST, from {LOWEST} to {HIGHEST} and without {NOBODY}, '
            f"for example {USUAL[0]}-{USUAL[-1]}"
        )
    uids = range(first, last + 1)
    if not are_mapped(uids):
        raise ValueError(
            f'--uid-range "{text}": these uids are not there: this agent is in a user namespace without them'
        )
    return uids


def are_mapped(uids: range) -> bool:
    """Return whether this process may switch to all of these users (user_namespaces(7)) and to groups of the same
    numbers."""

    def covers(path: str) -> bool:
        with open(path) as file:
            spans = [tuple(map(int, line.split())) for line in file]
        return any(inside <= uids[0] and uids[-1] < inside + length for inside, _, length in spans)

    try:
        return covers("/proc/self/uid_map") and covers("/proc/self/gid_map")
    except (OSError, ValueError):
        return False
