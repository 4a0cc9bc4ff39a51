"""The supervisor of a part that is a job of a foreign engine: a shim on the engine's node, over a shared folder.

Standard library only. ``engine`` variables (which devices the engine gave, its job's number) pass on to the command.
"""

import os
import sys

from agents.isolation.prctl import CHILD_SUBREAPER, prctl
from agents.supervisor import procfs
from agents.supervisor.fork_server import shape_for_commands
from agents.supervisor.lean import signal
from agents.supervisor.shim import Shim

# What tells a vendor's runtime which devices its engine gave to the job, and what the engine tells of the job.
PASSED = (
    "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
    "ASCEND_RT_VISIBLE_DEVICES", "HABANA_VISIBLE_DEVICES", "MLU_VISIBLE_DEVICES", "MUSA_VISIBLE_DEVICES",
)  # fmt: skip
PREFIXES = ("SLURM_",)


def run(folder: str) -> int:
    """Run the part of this folder, unless another job of it already does."""
    shape_for_commands()
    given = {name: value for name, value in os.environ.items() if name in PASSED or name.startswith(PREFIXES)}
    Shim().serve(folder, given)
    return 0


def guard(folder: str) -> int:
    """As ``run``, where the engine does not end what a job leaves: this process outlives the supervisor, and ends what
    that has left behind if it was killed."""
    prctl(CHILD_SUBREAPER, 1)
    supervisor = os.fork()
    if supervisor == 0:
        return run(folder)
    # The supervisor is told to end as well, and sees to it.
    signal.signal(signal.SIGTERM, _do_nothing)
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            return 1
        if pid == supervisor:
            break
    procfs.end_all(lambda: procfs.descendants(os.getpid()))
    return 0 if status == 0 else 1


def _do_nothing(*_: object) -> None:
    """Do nothing: an ignored signal would be ignored by the command too, had it been forked later."""


if __name__ == "__main__":
    sys.exit(run(sys.argv[1]))
