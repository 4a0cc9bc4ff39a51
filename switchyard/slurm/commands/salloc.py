"""``salloc``: holds an allocation, and runs a command or a shell inside it, on its first node, while it lasts."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from switchyard.cli import batch
from switchyard.slurm import options
from switchyard.slurm.commands.shell import SlurmFault, connect
from switchyard.slurm.sbatch import REFUSED, STEP

if TYPE_CHECKING:
    from switchyard.client import Client, JobRecord

HOLDS: Final = "#!/bin/sh\ntrap 'exit 0' TERM\nwhile :; do sleep 3600 & wait $!; done\n"
LONGEST_POLL_S: Final = 2.0
AT_ONCE_S: Final = 5.0


def run(words: Sequence[str]) -> int:
    found, read = options.read(words)
    for word in found:
        if not word.option:
            name = word.written.partition("=")[0]
            raise SlurmFault(f"salloc: unrecognized option '{name}'\nTry \"salloc --help\" for more information")
    command = list(words[read:])
    if command[:1] == [":"]:
        raise SlurmFault(f"salloc: error: {options.HETEROGENEOUS}")
    made = batch.converted(HOLDS, "interactive", list(words[:read]))
    for _, one in made.having(REFUSED):
        raise SlurmFault(f"salloc: error: {one.option}: {one.said}")
    patience_s = min((_patience_s(word) for word in found if word.option == "immediate"), default=None)
    with connect() as client:
        job = client.jobs.submit(made.spec)
        stays = any(word.option == "no-shell" for word in found)
        is_granted = False
        try:
            _await(job, None if patience_s is None else time.monotonic() + patience_s)
            is_granted = True
            print(f"salloc: Granted job allocation {job.number}", file=sys.stderr, flush=True)
            return 0 if stays else _inside(job, command)
        except KeyboardInterrupt:
            raise SlurmFault(f"salloc: Job allocation {job.number} has been revoked.") from None
        finally:
            if not (stays and is_granted):
                _relinquish(client, job)


def _relinquish(client: Client, job: JobRecord) -> None:
    print(f"salloc: Relinquishing job allocation {job.number}", file=sys.stderr, flush=True)
    client.jobs.cancel(job, "the shell of salloc has ended")


def _patience_s(immediate: options.Word) -> float:
    """Return for how many seconds ``--immediate`` waits: without a value until it was planned once."""
    if not immediate.value:
        return AT_ONCE_S
    if not re.fullmatch(r"[0-9]{1,9}", immediate.value):
        raise SlurmFault(f"salloc: error: Invalid --immediate specification: {immediate.value[:60]}")
    return float(immediate.value)


def _await(job: JobRecord, until: float | None) -> None:
    """Wait until it runs, or until this monotonic time."""
    pause_s, is_told = 0.2, False
    while job.state != "RUNNING" or job.stages[0].get("state") != "RUNNING":
        if job.is_final:
            raise SlurmFault(f"salloc: error: Job allocation {job.number} has been revoked.")
        if until is not None and time.monotonic() > until:
            raise SlurmFault("salloc: error: Unable to allocate resources: Requested nodes are busy")
        if not is_told:
            print(f"salloc: Pending job allocation {job.number}", file=sys.stderr, flush=True)
            is_told = True
        time.sleep(pause_s)
        pause_s = min(LONGEST_POLL_S, pause_s * 1.3)
        job.refresh()


def _inside(job: JobRecord, command: Sequence[str]) -> int:
    """Run the command, or a shell, with what a batch script would have: its variables, and srun."""
    from switchyard.cli import exec as session

    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return session.run(
        argparse.Namespace(
            job=str(job.number),
            command=["/bin/sh", "-c", f'{STEP}\nexec python3 -I "$step" enter "$@"', "salloc", *command],
            stdin=True, tty=is_terminal, stage="", rank=0, reason="salloc", url=None, token=None, profile=None,
        )
    )  # fmt: skip
