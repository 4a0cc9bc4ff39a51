"""``yard slurm``: answers as a command of Slurm does; ``deploy/slurm-compat`` has files of these names for PATH."""

from __future__ import annotations

import argparse
import os
from importlib import import_module
from typing import Any

COMMANDS = ("sbatch", "squeue", "scancel", "sinfo", "scontrol", "sacct", "srun", "salloc")
EXAMPLES = """
  yard slurm squeue --me -h -o "%i %T"
  yard slurm sbatch --parsable train.sbatch
  yard slurm sacct -X -P -o JobID,State,ExitCode         deploy/slurm-compat has these commands for PATH
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slurm_command", metavar="COMMAND", choices=COMMANDS, help=", ".join(COMMANDS))
    parser.add_argument("words", nargs=argparse.REMAINDER, help="its options, as Slurm has them")


def run(args: argparse.Namespace) -> int:
    from switchyard.slurm.commands import shell

    for name in ("url", "token", "profile"):
        # Slurm's commands have no such options; these come before the command's name.
        if value := getattr(args, name):
            os.environ[f"YARD_{name.upper()}"] = value
    module: Any = import_module(f"switchyard.slurm.commands.{args.slurm_command}")
    return shell.answer(args.slurm_command, module.run, args.words)
