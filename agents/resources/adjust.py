"""Changes the resources of running processes, at the same pid: cores, weights, memory limit, and suspension.

Uses the part's control group if the host delegates a controller, else each process. What could not be applied is
returned as a note, never ignored. These calls may take milliseconds each and may be repeated.

Sources: Documentation/admin-guide/cgroup-v2.rst, sched_setaffinity(2), ioprio_set(2), setpriority(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import platform
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from agents.ends import clause
from agents.isolation import cgroup
from agents.notes import NoteText
from agents.supervisor import procfs
from agents.supervisor.record import write_whole

MIDDLE_WEIGHT = 100
LIMITS_FILE = "limits.json"
_ROUNDS = 8
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}.get(platform.machine())
_BEST_EFFORT = 2 << 13
_ONE_PROCESS = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Setting:
    """The resources of a part. Empty ``cpus`` and ``None`` mean: as it started."""

    cpus: tuple[int, ...] = ()
    cpu_weight: int | None = None
    io_weight: int | None = None
    memory_bytes: int | None = None
    suspended: bool = False


@dataclass(frozen=True, slots=True)
class Reach:
    """Which processes an adjustment acts on.

    ``family`` lists them; ``groups`` are control groups that hold exactly them, by name (see
    :mod:`agents.isolation.cgroup`); ``folder`` is where their supervisor reads a new memory limit, once ``wake`` has
    told it to look; ``started_with`` tells the one that they were given at first (0: none).
    """

    family: Callable[[], list[int]]
    groups: dict[str, str] = field(default_factory=dict)
    folder: str | None = None
    wake: Callable[[], None] = lambda: None
    started_with: Callable[[], int] = lambda: 0


def apply(reach: Reach, before: Setting, after: Setting) -> list[NoteText]:
    """Change the processes from one setting to another; return what could not be done, as notes.

    Resuming is done first and suspending last, so a family of processes is not changed while suspended longer than
    needed.
    """
    failures: list[NoteText] = []
    if before.suspended and not after.suspended:
        failures += resume(reach)
    if after.cpus and after.cpus != before.cpus:
        failures += set_cpus(reach, after.cpus)
    if after.cpu_weight is not None and after.cpu_weight != before.cpu_weight:
        failures += set_cpu_weight(reach, after.cpu_weight)
    if after.io_weight is not None and after.io_weight != before.io_weight:
        failures += set_io_weight(reach, after.io_weight)
    if after.memory_bytes is not None and after.memory_bytes != before.memory_bytes:
        failures += set_memory(reach, after.memory_bytes)
    elif after.memory_bytes is None and before.memory_bytes is not None:
        failures += reset_memory(reach)
    if after.suspended and not before.suspended:
        failures += suspend(reach)
    return failures


# -- cores


def set_cpus(reach: Reach, cpus: Iterable[int]) -> list[NoteText]:
    """Restrict every thread of the family to these cores."""
    wanted = sorted(set(cpus))
    listed = ",".join(map(str, wanted))
    told = _write(reach, "cpuset.cpus", listed)
    failure = _each_thread(reach.family, lambda tid: os.sched_setaffinity(tid, wanted))
    if failure and not told:
        return [NoteText(clause("CoresNotSet", cores=listed, error=failure))]
    return []


# -- weights


def nice_of(weight: int) -> int:
    """Return the nice value whose share is nearest to a weight; a step of nice is a quarter more or less."""
    return max(-20, min(19, round(-math.log(weight / MIDDLE_WEIGHT) / math.log(1.25))))


def io_level_of(weight: int) -> int:
    """Return the best-effort level of a weight; 4 is the middle, 0 the best, 7 the worst."""
    return max(0, min(7, 4 - round(math.log2(weight / MIDDLE_WEIGHT))))


def set_cpu_weight(reach: Reach, weight: int) -> list[NoteText]:
    if _write(reach, "cpu.weight", str(weight)):
        return []
    nice = nice_of(weight)
    failure = _each_thread(reach.family, lambda tid: os.setpriority(os.PRIO_PROCESS, tid, nice))
    return [NoteText(clause("CpuWeightNotSet", weight=weight, nice=nice, error=failure))] if failure else []


def set_io_weight(reach: Reach, weight: int) -> list[NoteText]:
    if _write(reach, "io.weight", f"default {weight}"):
        return []
    if _IOPRIO_SET is None:
        return [NoteText(clause("IoWeightUnknown", weight=weight))]
    level = io_level_of(weight)

    def lower(tid: int) -> None:
        if _libc.syscall(_IOPRIO_SET, _ONE_PROCESS, tid, _BEST_EFFORT | level) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    failure = _each_thread(reach.family, lower)
    return [NoteText(clause("IoWeightNotSet", weight=weight, level=level, error=failure))] if failure else []


# -- memory


def set_memory(reach: Reach, limit_bytes: int) -> list[NoteText]:
    """Change the limit; one below the present use would kill processes, and is not set."""
    used = procfs.memory(reach.family())
    if limit_bytes < used:
        return [NoteText(clause("MemoryNotLowered", limit_bytes=limit_bytes, used_bytes=used))]
    cgroup.set_memory(reach.groups, limit_bytes)
    if reach.folder is None:
        return [NoteText(clause("MemoryNotWatched", limit_bytes=limit_bytes))]
    try:
        write_whole(os.path.join(reach.folder, LIMITS_FILE), {"memory_bytes": limit_bytes})
    except OSError as error:
        why = error.strerror or str(error)
        return [NoteText(clause("MemoryNotNoted", limit_bytes=limit_bytes, error=why))]
    reach.wake()
    return []


def reset_memory(reach: Reach) -> list[NoteText]:
    """Set the memory limit with which they started."""
    limit = reach.started_with()
    if limit:
        return set_memory(reach, limit)
    cgroup.set_memory(reach.groups, None)
    if reach.folder is None:
        return [NoteText(clause("MemoryNotReset"))]
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(reach.folder, LIMITS_FILE))
    reach.wake()
    return []


# -- whether it runs


def suspend(reach: Reach) -> list[NoteText]:
    """Stop every process; accelerator memory is kept."""
    if _write(reach, "cgroup.freeze", "1"):
        return []
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        fresh = [pid for pid in reach.family() if pid not in stopped]
        if not fresh:
            return []
        for pid in fresh:
            procfs.send(pid, signal.SIGSTOP)
            stopped.add(pid)
        time.sleep(0.001)
    return [NoteText(clause("ForksTooFast"))]


def resume(reach: Reach) -> list[NoteText]:
    """Continue every process, whichever way it was stopped."""
    _write(reach, "cgroup.freeze", "0")
    for pid in reach.family():
        procfs.send(pid, signal.SIGCONT)
    return []


# -- ways


def _write(reach: Reach, file: str, text: str) -> bool:
    """Return whether the group accepted the value; without the file the controller is not delegated."""
    if cgroup.UNIFIED not in reach.groups:
        return False
    path = os.path.join(reach.groups[cgroup.UNIFIED], file)
    try:
        descriptor = os.open(path, os.O_WRONLY)
    except OSError:
        return False
    try:
        os.write(descriptor, text.encode())
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _threads(family: Callable[[], list[int]]) -> set[int]:
    found: set[int] = set()
    for pid in family():
        try:
            found.update(int(name) for name in os.listdir(f"/proc/{pid}/task"))
        except OSError:
            continue
    return found


def _each_thread(family: Callable[[], list[int]], act: Callable[[int], None]) -> str:
    """Act on all threads, including those started meanwhile; return why one failed, if one did.

    A thread started after its parent was changed inherits the setting, so the rounds come to an end.
    """
    done: set[int] = set()
    failure = ""
    for _ in range(_ROUNDS):
        fresh = _threads(family) - done
        if not fresh:
            break
        for tid in fresh:
            try:
                act(tid)
            except ProcessLookupError:
                continue
            except OSError as error:
                failure = f"{(error.strerror or str(error)).lower()} (thread {tid})"
        done |= fresh
    return failure
