"""The supervisor of a part that is a job of a foreign engine: a shim on the engine's node, over a shared folder.

A shim that dies leaves processes that no agent of another host can end. So it has a guard, its parent and the engine's
process: the guard passes signals on, ends what a dead shim left, and tells the end. Standard library only.
"""

import os
import select
import sys

from agents.ends import clause, told
from agents.isolation.prctl import CHILD_SUBREAPER, prctl
from agents.supervisor import procfs
from agents.supervisor.fork_server import shape_for_commands
from agents.supervisor.lean import signal
from agents.supervisor.record import shim_record, stop_order, write_whole
from agents.supervisor.secret_file import forget
from agents.supervisor.shim import Shim

# What tells a vendor's runtime which devices its engine gave to the job, and what the engine tells of the job.
PASSED = (
    "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
    "ASCEND_RT_VISIBLE_DEVICES", "HABANA_VISIBLE_DEVICES", "MLU_VISIBLE_DEVICES", "MUSA_VISIBLE_DEVICES",
)  # fmt: skip
PREFIXES = ("SLURM_",)
PASSED_ON = (signal.SIGTERM, signal.SIGUSR1)
PATIENCE_S = 60.0
LOOK_S = 0.2


def run(folder: str) -> int:
    """Run the part of this folder, unless another job of it already does."""
    shape_for_commands()
    # What a dead shim leaves becomes a child of this process.
    prctl(CHILD_SUBREAPER, 1)
    shims: list[int] = []

    def pass_on(number: int, _: object) -> None:
        for shim in shims:
            procfs.send(shim, number)

    # One that comes before there is a shim is for what its folder tells as well.
    for number in PASSED_ON:
        signal.signal(number, pass_on)
    shim = os.fork()
    if shim == 0:
        serve(folder)
        os._exit(0)
    shims.append(shim)
    while True:
        pid, status = os.wait()
        if pid == shim:
            break
    shims.clear()
    if status != 0:
        clean(folder, shim)
    return 0


def serve(folder: str) -> None:
    given = {name: value for name, value in os.environ.items() if name in PASSED or name.startswith(PREFIXES)}
    Shim().serve(folder, given)


def clean(folder: str, shim: int) -> None:
    """End what a shim left that died before it could tell how its part ended, and tell that."""
    me = os.getpid()
    left = procfs.end_all(
        lambda: [pid for pid in procfs.descendants(me) if procfs.start_time(pid) is not None], PATIENCE_S
    )
    record = shim_record(folder)
    if not record or record["pid"] != shim or os.path.exists(f"{folder}/exit.json"):
        return  # another job of this part has its own shim
    forget(folder)
    said = [clause("SupervisorGone" if "main" in record else "SupervisorGoneEarly")]
    if left:
        said.append(clause("StillThere", pids=", ".join(map(str, left))))
    stopped = stop_order(folder) is not None
    write_whole(f"{folder}/exit.json", {"cause": "SUPERVISOR_LOST", "stopped": stopped, **told(*said)}, sync=True)


def guard(folder: str) -> int:
    """As ``run``, for an engine that does not end what a job leaves, or ends only a part of it.

    All of the part is below a keeper apart from this process, which ends it at once when this process is told to end,
    or is killed; this one ends once nothing of the part is left.
    """
    ends, life = os.pipe()
    ended, over = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        os.close(life)
        os.close(ended)
        os._exit(_keep(folder, ends, over))
    os.close(ends)
    os.close(over)
    os.wait()
    return 0 if os.read(ended, 1) else 1


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
