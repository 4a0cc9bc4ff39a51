"""The supervisor of a part that is a job of a foreign engine: a shim on the engine's node, over a shared folder.

Standard library only. ``engine`` variables (which devices the engine gave, its job's number) pass on to the command.
"""

import os
import select
import sys

from agents.isolation.prctl import CHILD_SUBREAPER, prctl
from agents.supervisor import procfs
from agents.supervisor.fork_server import shape_for_commands
from agents.supervisor.shim import Shim

# What tells a vendor's runtime which devices its engine gave to the job, and what the engine tells of the job.
PASSED = (
    "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
    "ASCEND_RT_VISIBLE_DEVICES", "HABANA_VISIBLE_DEVICES", "MLU_VISIBLE_DEVICES", "MUSA_VISIBLE_DEVICES",
)  # fmt: skip
PREFIXES = ("SLURM_",)
LOOK_S = 0.2


def run(folder: str) -> int:
    """Run the part of this folder, unless another job of it already does."""
    shape_for_commands()
    given = {name: value for name, value in os.environ.items() if name in PASSED or name.startswith(PREFIXES)}
    Shim().serve(folder, given)
    return 0


def guard(folder: str) -> int:
    """As ``run``, for an engine that does not end what a job leaves, or ends only a part of it.

    All of the part is below a keeper apart from this process, which ends it at once when this process is told to end,
    or is killed; this one ends once nothing of the part is left.
    """
    ends, life = os.pipe()
    told, over = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        os.close(life)
        os.close(told)
        os._exit(_keep(folder, ends, over))
    os.close(ends)
    os.close(over)
    os.wait()
    return 0 if os.read(told, 1) else 1


def _keep(folder: str, ends: int, over: int) -> int:
    """Run a part until its supervisor ends or ``ends`` is at its end; end what is left, and tell ``over``."""
    prctl(CHILD_SUBREAPER, 1)
    supervisor = os.fork()
    if supervisor == 0:
        os.close(ends)
        os.close(over)
        return run(folder)
    while supervisor not in _reaped():
        if select.select([ends], [], [], LOOK_S)[0]:
            break
    left = procfs.end_all(_left)
    try:
        os.write(over, b"0")
    except BrokenPipeError:
        pass
    return 1 if left else 0


def _left() -> "list[int]":
    _reaped()
    return procfs.descendants(os.getpid())


def _reaped() -> "list[int]":
    """Reap the children that have ended; return them."""
    found: list[int] = []
    try:
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            found.append(pid)
    except ChildProcessError:
        pass
    return found


if __name__ == "__main__":
    sys.exit(run(sys.argv[1]))
