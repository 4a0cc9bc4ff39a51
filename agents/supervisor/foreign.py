"""The supervisor of a part that is a job of a foreign engine: a shim on the engine's node, over a shared folder.

Standard library only. ``engine`` variables (which devices the engine gave, its job's number) pass on to the command.
"""

import os
import sys

from agents.supervisor.fork_server import shape_for_commands
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


if __name__ == "__main__":
    sys.exit(run(sys.argv[1]))
