"""Who may submit jobs on the node itself, for which project, on which devices, how much and how long: a TOML file.

    socket = "/run/switchyard/edge.sock"   # default: edge.sock in the agent's state folder

    [[allow]]
    account = "line3"        # or group = "operators"
    project = "factory"
    kinds = ["cpu", "gpu"]   # of devices; default: cpu
    devices = []             # their uuids; default: any of these kinds
    most_devices = 1         # accelerators of one job
    cpus = 4                 # cores of one job
    memory_gib = 8           # of one job
    disk_gib = 4             # of one job's files
    hours = 8                # how long one may run
    running = 2              # how many run at once
    waiting = 100            # how many wait at once

An account that the file does not name may nothing; without the file nobody may.
"""

from __future__ import annotations

import grp
import os
import pwd
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

_Name = Annotated[str, Meta(min_length=1, max_length=64)]
GIB: Final = 1 << 30


class Allowance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an account, or each member of a group, may submit in one project."""

    project: Annotated[str, Meta(min_length=1, max_length=120)]
    account: str = ""
    group: str = ""
    kinds: Annotated[list[_Name], Meta(min_length=1, max_length=16)] = msgspec.field(default_factory=lambda: ["cpu"])
    devices: Annotated[list[str], Meta(max_length=64)] = msgspec.field(default_factory=list)
    most_devices: Annotated[int, Meta(ge=0, le=64)] = 1
    cpus: Annotated[float, Meta(gt=0, le=4_096)] = 1.0
    memory_gib: Annotated[float, Meta(gt=0, le=65_536)] = 1.0
    disk_gib: Annotated[float, Meta(gt=0, le=1_048_576)] = 1.0
    hours: Annotated[float, Meta(gt=0, le=8_784)] = 1.0
    running: Annotated[int, Meta(ge=1, le=1_000)] = 1
    waiting: Annotated[int, Meta(ge=1, le=1_000)] = 20


class Allowances(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    allow: Annotated[list[Allowance], Meta(min_length=1, max_length=256)]
    socket: str = ""


@dataclass(frozen=True, slots=True)
class Account:
    """A local account, as the kernel names the other side of the socket."""

    uid: int
    gid: int
    name: str
    home: str = ""


def read_allowances(path: Path) -> Allowances:
    """Read the file. Raises ValueError with a sentence."""
    try:
        found = msgspec.convert(tomllib.loads(path.read_text()), Allowances)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"{path} is refused: {error}") from error
    for each in found.allow:
        if bool(each.account) == bool(each.group):
            raise ValueError(f"{path}: each [[allow]] names an account or a group, and not both")
    return found


def account_of(uid: int, gid: int) -> Account:
    """Return the account with this uid; without an entry its name is the number."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(uid, gid, str(uid))
    return Account(uid, gid, entry.pw_name, entry.pw_dir)


def of_account(found: Allowances, account: Account) -> list[Allowance]:
    """Return what this account may, in the order of the file."""
    groups: set[str] = set()
    if any(each.group for each in found.allow):
        for number in os.getgrouplist(account.name, account.gid):
            try:
                groups.add(grp.getgrgid(number).gr_name)
            except KeyError:
                continue
    return [each for each in found.allow if each.account == account.name or (each.group and each.group in groups)]
