"""Control groups of a part, if they are delegated to the agent. Standard library only: the shim imports it.

A part has up to three, by name: *unified* of cgroup v2, which alone can kill a whole group at once (``cgroup.kill``),
and *memory* and *pids* of cgroup v1, where v2 does not have these controllers. They are created below the agent's own
groups. Without any, session, subreaper and the shim's memory checks are used, and the node says so.

Sources: the kernel's admin-guide/cgroup-v2.rst and cgroup-v1/{memory,pids}.rst; systemd's CGROUP_DELEGATION.
"""

import os

from agents.supervisor.small_file import content

UNIFIED = "unified"
MEMORY, PIDS = "memory", "pids"
# The unit file's DelegateSubgroup: the agent is a leaf, and its part's groups stand beside it with controllers.
LEAF = "agent"


def bases() -> dict[str, str]:
    """Return, by name, the folders below which this agent may create groups."""
    mounts, own = _mounts(), _own()
    found = {}
    if UNIFIED in mounts and UNIFIED in own:
        folder = _lent(os.path.join(mounts[UNIFIED], own[UNIFIED].lstrip("/")))
        if _may_make(folder, "cgroup.kill"):
            found[UNIFIED] = folder
    for name, limit in ((MEMORY, "memory.limit_in_bytes"), (PIDS, "pids.max")):
        if name in mounts and name in own:
            folder = os.path.join(mounts[name], own[name].lstrip("/"))
            if _may_make(folder, limit):
                found[name] = folder
    return found


def limits(found: dict[str, str]) -> bool:
    """Return whether the kernel enforces a part's limits of memory and processes in these groups."""
    lent = _content(os.path.join(found.get(UNIFIED, "/nowhere"), "cgroup.subtree_control")).split()
    return all(name in found or name in lent for name in (MEMORY, PIDS))


def of_part(found: dict[str, str], part: str) -> dict[str, str]:
    """Return the groups that a part has or would have, given the result of :func:`bases`."""
    return {name: f"{folder.rstrip('/')}/switchyard-{part}" for name, folder in found.items()}


def make(groups: dict[str, str], memory_bytes: int, weight: int = 100, processes: int = 0) -> dict[str, str]:
    """Create a part's groups, with limits of memory and processes (0: none) and a CPU weight (100: default) where the
    controllers are available.

    Returns the groups that could be created; without any, nothing of the part is moved.
    """
    made = {}
    for name, folder in groups.items():
        try:
            os.mkdir(folder)
            made[name] = folder
            _limit(folder, "pids.max", processes)
            _limit(folder, "cpu.weight", weight if weight != 100 else 0)
        except OSError:
            continue
    if memory_bytes:
        set_memory(made, memory_bytes)
    return made


def set_memory(groups: dict[str, str], memory_bytes: int | None) -> None:
    """Set another memory limit of a part, or none, where its groups have the controller."""
    for name, file, none in ((UNIFIED, "memory.max", "max"), (MEMORY, "memory.limit_in_bytes", "-1")):
        try:
            if name in groups:
                _limit(groups[name], file, memory_bytes or none)
        except OSError:
            pass  # below what is in use, which the shim judges too


def join(groups: dict[str, str]) -> None:
    """Move this process, which must have one thread, into the groups.

    In cgroup v1 the thread that calls moves itself through ``tasks``: the kernel then takes no lock that waits for its
    other cores, which ``cgroup.procs`` does (0.1 ms instead of 12 for each group).
    """
    for name, folder in groups.items():
        _write(os.path.join(folder, "cgroup.procs" if name == UNIFIED else "tasks"), "0")


def kill(groups: dict[str, str]) -> None:
    """Kill every process of the groups at once if the kernel can; does nothing if the group is gone."""
    if UNIFIED in groups:
        try:
            _write(os.path.join(groups[UNIFIED], "cgroup.kill"), "1")
        except OSError:
            pass


def processes(groups: dict[str, str]) -> set[int]:
    """Return the processes in any of the groups."""
    found: set[int] = set()
    for folder in groups.values():
        found.update(int(line) for line in _content(os.path.join(folder, "cgroup.procs")).split() if line.isdigit())
    return found


def oom_kills(groups: dict[str, str]) -> int:
    """Return how often the kernel killed a process of the groups for lack of memory."""
    files = ((UNIFIED, "memory.events"), (MEMORY, "memory.oom_control"))
    return sum(_count(groups, name, file, "oom_kill") for name, file in files)


def refused_forks(groups: dict[str, str]) -> int:
    """Return how often the kernel refused the groups another process or thread."""
    return sum(_count(groups, name, "pids.events", "max") for name in (UNIFIED, PIDS))


def remove(groups: dict[str, str]) -> bool:
    """Remove empty groups; return False while a process is in one."""
    gone = True
    for folder in groups.values():
        try:
            os.rmdir(folder)
        except OSError:
            gone = gone and not os.path.isdir(folder)
    return gone


def _mounts() -> dict[str, str]:
    """Return where the hierarchies that parts have groups in are mounted."""
    found: dict[str, str] = {}
    for line in _content("/proc/self/mounts").splitlines():
        _, place, kind, options = line.split(" ")[:4]
        if kind == "cgroup2":
            found.setdefault(UNIFIED, place)
        elif kind == "cgroup":
            found.update({name: place for name in (MEMORY, PIDS) if name in options.split(",")})
    return found


def _own() -> dict[str, str]:
    """Return the groups of this process, as paths below the mount points of their hierarchies."""
    found = {}
    for line in _content("/proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        found.update(dict.fromkeys(names.split(",") if names else [UNIFIED], path))
    return found


def _lent(folder: str) -> str:
    """Return the folder for groups: the agent's own, or its parent if systemd delegated that and made this a leaf.

    Groups beside the leaf can have controllers, which groups below a group with processes cannot.
    """
    above, name = os.path.split(folder)
    if name != LEAF or not any(_is_delegated(above, by) for by in ("user", "trusted")):
        return folder
    for controller in (MEMORY, PIDS, "cpu"):
        try:
            _write(os.path.join(above, "cgroup.subtree_control"), f"+{controller}")
        except OSError:
            pass  # this kernel or the group above does not lend it
    return above


def _is_delegated(folder: str, by: str) -> bool:
    try:
        return os.getxattr(folder, f"{by}.delegate") == b"1"
    except OSError:
        return False


def _may_make(folder: str, file: str) -> bool:
    """Return whether a group with this file can be created here."""
    probe = os.path.join(folder, f"switchyard-probe-{os.getpid()}")
    try:
        os.mkdir(probe)
        able = os.path.exists(os.path.join(probe, file))
        os.rmdir(probe)
    except OSError:
        return False
    return able


def _limit(folder: str, file: str, value: int | str) -> None:
    """Write a limit other than 0 if the group has the file."""
    path = os.path.join(folder, file)
    if value and os.path.exists(path):
        _write(path, str(value))


def _count(groups: dict[str, str], name: str, file: str, word: str) -> int:
    for line in _content(os.path.join(groups[name], file)).splitlines() if name in groups else ():
        key, _, value = line.partition(" ")
        if key == word and value.isdigit():
            return int(value)
    return 0


def _content(path: str) -> str:
    """Return the content of a kernel file; empty if it does not exist."""
    return (content(path) or b"").decode(errors="replace")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
