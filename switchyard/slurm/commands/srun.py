"""``srun`` outside of a batch script: a job with one step, whose output and exit code are those of the command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from switchyard.cli import batch, demand
from switchyard.cli.attach import attach
from switchyard.slurm import options
from switchyard.slurm.commands.sbatch import code_of
from switchyard.slurm.commands.shell import SlurmFault, connect
from switchyard.slurm.sbatch import REFUSED

OF_STEP = (
    "label",
    "kill-on-bad-exit",
    "wait",
    "unbuffered",
    "output",
    "error",
    "open-mode",
    "mpi",
    "cpu-bind",
    "gpu-bind",
)
"""SlurmOptions that the step is given; all others are those of the job."""


def run(words: Sequence[str]) -> int:
    from switchyard import step

    try:
        given, command = step.srun_options(list(words))
    except ValueError as error:
        raise SlurmFault(f"srun: error: {error}") from None
    if not command:
        raise SlurmFault("srun: fatal: No command given to execute.")
    step_words = [f"--{name}={value}" if value else f"--{name}" for name, value in given.items() if name in OF_STEP]
    job_words = [
        f"--{name}={value}" if value else f"--{name}"
        for name, value in given.items()
        if name in options.KNOWN and name not in OF_STEP
    ]
    quoted = " ".join(shlex.quote(word) for word in (*step_words, "--", *command))
    if not any(name in given for name in ("ntasks", "ntasks-per-node", "nodes")):
        job_words.append("--ntasks=1")
    name = given.get("job-name") or Path(command[0]).name
    made = batch.converted(f"#!/bin/sh\nexec srun {quoted}\n", name, job_words)
    for _, one in made.having(REFUSED):
        raise SlurmFault(f"srun: error: {one.option}: {one.said}")
    if named := demand.uses_file_of(command, Path.cwd()):
        made.spec["workdir"] = "." if named else None
    with connect() as client:
        job = client.jobs.submit(made.spec, workdir=demand.pack(made.spec, quiet=True))
        attach(client, job, raw=False, quiet=True)
        return code_of(client, job.number)
