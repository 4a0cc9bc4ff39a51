"""Reads processes from /proc: start times, descendants, marks and resource use. Standard library only: the shim imports
it.

A process is identified by its pid *and* its start time (clock ticks since boot), because pids are reused. Spans are in
seconds, memory in bytes. Every function handles processes that vanish meanwhile; none raises for it.
"""

import os
import time

from agents.supervisor.lean import signal
from agents.supervisor.small_file import content

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
MARK = "YARD_PART_ID"
SESSION_MARK = "YARD_SESSION_ID"
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD of the flags in /proc/PID/stat
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Return seconds since the machine booted, including suspended time."""
    return time.clock_gettime(_CLOCK)


def boot_id() -> str:
    """Return the id of this boot. ``AGENT_BOOT_ID_PATH`` names another file than the kernel's, for tests of a
    reboot."""
    path = os.environ.get("AGENT_BOOT_ID_PATH", "/proc/sys/kernel/random/boot_id")
    with open(path) as file:
        return file.read().strip()


def _stat(pid: int) -> list[bytes] | None:
    """Return the fields of ``/proc/PID/stat`` after the command's name; index 0 is the state."""
    line = content(f"/proc/{pid}/stat")
    if not line:
        return None
    return line[line.rfind(b")") + 2 :].split()


def start_time(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; None if it is gone or a zombie."""
    fields = _stat(pid)
    if fields is None or fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19])


def is_alive(pid: int, born: int) -> bool:
    """Return whether this very process, not a later one with the same pid, still runs."""
    return start_time(pid) == born


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _children(pid: int) -> list[int] | None:
    """Return the children of a process; None if this kernel does not list them."""
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for task in tasks:
        told = content(f"/proc/{pid}/task/{task}/children")
        if told is None and os.path.exists(f"/proc/{pid}/task/{task}"):
            return None
        found.extend(int(child) for child in (told or b"").split())
    return found


def _descendants_by_scan(root: int) -> list[int]:
    family: dict[int, list[int]] = {}
    for pid in pids():
        fields = _stat(pid)
        if fields is not None:
            family.setdefault(int(fields[1]), []).append(pid)
    found: list[int] = []
    rest = [root]
    while rest:
        children = family.get(rest.pop(), [])
        found += children
        rest += children
    return found


def descendants(root: int) -> list[int]:
    """Return every process below ``root``, zombies included; below a subreaper this is everything that a part
    forked."""
    found: list[int] = []
    rest = [root]
    while rest:
        children = _children(rest.pop())
        if children is None:
            return _descendants_by_scan(root)
        found += children
        rest += children
    return found


def marked(part: str, name: str = MARK) -> list[int]:
    """Return live processes whose environment has the part's mark, as far as this user may read it."""
    mark = f"{name}={part}".encode()
    return [
        pid
        for pid in pids()
        if mark in (content(f"/proc/{pid}/environ") or b"").split(b"\0") and start_time(pid) is not None
    ]


def environment(pid: int, names: "tuple[str, ...] | list[str]") -> "dict[str, str]":
    """Return these variables of the environment with which the process started, as far as they can be read."""
    pairs = (pair.partition(b"=") for pair in (content(f"/proc/{pid}/environ") or b"").split(b"\0") if names)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if os.fsdecode(name) in names}


def nameless(born_after: int) -> list[int]:
    """Return live processes started at or after a tick that have no environment: in the middle of execve they have no
    mark yet.

    One that was given an empty environment on purpose is listed too; kernel threads are not.
    """
    found = []
    for pid in pids():
        fields = _stat(pid)
        if fields is None or fields[0] in (b"Z", b"X") or int(fields[19]) < born_after:
            continue
        if not int(fields[6]) & _KERNEL_THREAD and content(f"/proc/{pid}/environ") == b"":
            found.append(pid)
    return found


def carries_mark(pid: int) -> bool:
    """Return whether the process's environment names a part, as far as this user may read it."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return any(entry.startswith(f"{MARK}=".encode()) for entry in file.read().split(b"\0"))
    except OSError:
        return False


def parent(pid: int) -> int | None:
    """Return the pid of the process's parent; None if it is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields is not None else None


def of_session(session: int, born_after: int) -> list[int]:
    """Return live processes of a session started at or after a tick, which guards against a reused session id."""
    found = []
    for pid in pids():
        fields = _stat(pid)
        if fields and fields[0] not in (b"Z", b"X") and int(fields[3]) == session and int(fields[19]) >= born_after:
            found.append(pid)
    return found


def memory(processes: list[int], shared_bytes: int = 0) -> int:
    """Return the resident bytes of a family of processes: what each has alone, plus the largest set that any of them
    shares.

    ``shared_bytes``, the content of their own shared memory, is used instead of that set if it is larger.
    """
    alone, shared = 0, shared_bytes // PAGE
    for pid in processes:
        fields = (content(f"/proc/{pid}/statm") or b"").split()
        if not fields:
            continue
        resident, common = int(fields[1]), int(fields[2])
        alone += resident - common
        shared = max(shared, common)
    return (alone + shared) * PAGE


def cpu_s(processes: list[int]) -> float:
    """Return the CPU seconds that these processes and their reaped children have used so far."""
    ticks = 0
    for pid in processes:
        fields = _stat(pid)
        if fields is not None:
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / TICKS


def send(pid: int, number: int) -> None:
    """Signal a process; one that is gone or may not be signalled is ignored."""
    try:
        os.kill(pid, number)
    except OSError:
        pass


def end_all(find, patience_s: float = 5.0) -> list[int]:  # type: ignore[no-untyped-def]
    """Kill until ``find()`` returns no process; return those left after ``patience_s``.

    Each round stops all of them before it kills any, so a family that forks quickly cannot escape.
    """
    deadline = time.monotonic() + patience_s
    pause = 0.002
    while True:
        left: list[int] = find()
        if not left or time.monotonic() > deadline:
            return left
        for pid in left:
            send(pid, signal.SIGSTOP)
        for pid in left:
            send(pid, signal.SIGKILL)
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
