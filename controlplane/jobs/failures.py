"""What kind of failure an attempt ended with, judged by its recorded cause and the end of its error output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from scheduler.core.model.lifecycle import Cause

# Only this much of the end of the output is looked at.
MOST_CHARACTERS: Final = 16_384


class Failure(StrEnum):
    """A kind of failure that asks for its own remedy."""

    DEVICE_MEMORY = "device_memory"
    HOST_MEMORY = "host_memory"
    IMPORT = "import"
    COLLECTIVE = "collective"
    DISK_FULL = "disk_full"
    DEVICE = "device"
    TIME_LIMIT = "time_limit"
    PREEMPTED = "preempted"
    NODE = "node"
    LAUNCH = "launch"
    SETUP = "setup"
    HELD_IDLE = "held_idle"
    SIGNAL = "signal"
    EXIT_CODE = "exit_code"
    OTHER = "other"


# What the record knows is certain, so the output is not asked.
_BY_CAUSE: Final[Mapping[str, Failure]] = {
    Cause.OUT_OF_MEMORY: Failure.HOST_MEMORY,
    Cause.OUT_OF_DISK: Failure.DISK_FULL,
    Cause.TIMEOUT: Failure.TIME_LIMIT,
    Cause.DEADLINE: Failure.TIME_LIMIT,
    Cause.PREEMPTED: Failure.PREEMPTED,
    Cause.NODE_FAIL: Failure.NODE,
    Cause.NODE_REBOOT: Failure.NODE,
    Cause.SUPERVISOR_LOST: Failure.NODE,
    Cause.LEASE_EXPIRED: Failure.NODE,
    Cause.DEVICE_ERROR: Failure.DEVICE,
    Cause.LAUNCH_FAILED: Failure.LAUNCH,
    Cause.NODE_UNFIT: Failure.LAUNCH,
    Cause.SETUP_FAILED: Failure.SETUP,
    Cause.HELD_IDLE: Failure.HELD_IDLE,
}
# The first that is found counts: where a rank runs out of memory, the others time out.
_BY_OUTPUT: Final = tuple(
    (failure, re.compile(pattern, re.IGNORECASE))
    for failure, pattern in (
        (
            Failure.DEVICE_MEMORY,
            (
                r"cuda out of memory|hip out of memory|npu out of memory|outofmemoryerror|cuda error: out of memory"
                r"|cuda_error_out_of_memory|resource_exhausted: out of memory"
            ),
        ),
        (Failure.DISK_FULL, r"no space left on device|disk quota exceeded|errno 28\b"),
        (
            Failure.HOST_MEMORY,
            r"\bmemoryerror\b|cannot allocate memory|std::bad_alloc|defaultcpuallocator: can't allocate",
        ),
        (Failure.IMPORT, r"modulenotfounderror|importerror|cannot open shared object file"),
        (
            Failure.DEVICE,
            r"uncorrectable ecc|\bxid\b|cuda error: an illegal|device-side assert|unspecified launch failure",
        ),
        (
            Failure.COLLECTIVE,
            (
                r"watchdog caught collective operation timeout|nccl error|ncclsystemerror|ncclremoteerror"
                r"|hccl_e_timeout|hccl function error|nccl[^\n]{0,200}timed? ?out|hccl[^\n]{0,200}timed? ?out"
            ),
        ),
    )
)


def kind_of(cause: str, output: str) -> Failure:
    """Return the kind of failure of an attempt by its cause and the end of what it printed."""
    if known := _BY_CAUSE.get(cause):
        return known
    if cause not in {Cause.EXIT_CODE, Cause.SIGNAL}:
        return Failure.OTHER
    end = output[-MOST_CHARACTERS:]
    found = next((failure for failure, pattern in _BY_OUTPUT if pattern.search(end)), None)
    return found or (Failure.SIGNAL if cause == Cause.SIGNAL else Failure.EXIT_CODE)
