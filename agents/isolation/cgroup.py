"""A part's control group, where the host lends one. Standard library only: the shim imports it.

Only cgroup v2 is used: it alone ends a whole family in one step (``cgroup.kill``). Groups are made below the agent's
own group. A host without a writable v2 tree is served by session and subreaper alone, and the node says so.
"""

import os


def _mount() -> str | None:
    try:
        with open("/proc/self/mounts") as file:
            for line in file:
                fields = line.split()
                if fields[2] == "cgroup2":
                    return fields[1]
    except OSError:
        pass
    return None


def base() -> str | None:
    """The folder below which this agent may make groups; None where it may not."""
    mount = _mount()
    if mount is None:
        return None
    try:
        with open("/proc/self/cgroup") as file:
            own = next(line.strip()[3:] for line in file if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    folder = os.path.join(mount, own.lstrip("/"))
    probe = os.path.join(folder, f"switchyard-probe-{os.getpid()}")
    try:
        os.mkdir(probe)
        able = os.path.exists(os.path.join(probe, "cgroup.kill"))
        os.rmdir(probe)
    except OSError:
        return None
    return folder if able else None


def isolation(folder: str | None) -> str:
    """``cgroup2`` where groups also limit memory, else ``none``: a group that can only kill isolates nothing."""
    if folder is None:
        return "none"
    try:
        with open(os.path.join(folder, "cgroup.subtree_control")) as file:
            return "cgroup2" if "memory" in file.read().split() else "none"
    except OSError:
        return "none"


def make(folder: str, memory_bytes: int, weight: int = 100, processes: int = 0) -> None:
    """Make a part's group, with limits of memory and processes (0: none) and a CPU weight (100: everybody's) where the
    controllers are lent."""
    os.mkdir(folder)
    for name, value, is_told in (
        ("memory.max", memory_bytes, memory_bytes > 0),
        ("cpu.weight", weight, weight != 100),
        ("pids.max", processes, processes > 0),
    ):
        path = os.path.join(folder, name)
        if is_told and os.path.exists(path):
            _write(path, str(value))


def join(folder: str) -> None:
    _write(os.path.join(folder, "cgroup.procs"), "0")


def kill(folder: str) -> None:
    """End every process of the group; nothing happens where the group is gone."""
    try:
        _write(os.path.join(folder, "cgroup.kill"), "1")
    except OSError:
        pass


def processes(folder: str) -> list[int]:
    try:
        with open(os.path.join(folder, "cgroup.procs")) as file:
            return [int(line) for line in file]
    except OSError:
        return []


def oom_kills(folder: str) -> int:
    """How often the kernel ended a process of the group for want of memory."""
    try:
        with open(os.path.join(folder, "memory.events")) as file:
            return int(next(line.split()[1] for line in file if line.startswith("oom_kill ")))
    except (OSError, StopIteration, ValueError):
        return 0


def remove(folder: str) -> bool:
    """Remove an empty group; false when a process is still in it."""
    try:
        os.rmdir(folder)
    except OSError:
        return not os.path.isdir(folder)
    return True


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
