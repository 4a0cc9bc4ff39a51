"""``scancel``: ends jobs by number, or those that options choose."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from switchyard.cli import clean
from switchyard.problem import ApiProblem
from switchyard.slurm.commands.records import LONG
from switchyard.slurm.commands.shell import SlurmFault, SlurmOptions, connect, jobs_of, user_named, why

# Those that are passed on, by the numbers that they have on Linux.
NUMBERS = {
    "1": "HUP", "2": "INT", "3": "QUIT", "6": "ABRT", "10": "USR1", "12": "USR2", "14": "ALRM", "18": "CONT",
    "28": "WINCH",
}  # fmt: skip
STATES = {"PENDING": ["PD"], "RUNNING": ["R", "CF", "CG"], "SUSPENDED": ["S"]}


def run(words: Sequence[str]) -> int:
    given = SlurmOptions(
        "scancel",
        words,
        {
            "me": "me", "Q": "quiet", "quiet": "quiet", "v": "verbose", "verbose": "verbose", "b": "batch",
            "batch": "batch", "f": "full", "full": "full", "i": "interactive", "interactive": "interactive", "H": None,
            "hurry": None, "c": None, "ctld": None,
        },
        {
            "u": "user", "user": "user", "n": "name", "name": "name", "jobname": "name", "t": "state", "state": "state",
            "p": "partition", "partition": "partition", "A": "account", "account": "account", "q": "qos", "qos": "qos",
            "s": "signal", "signal": "signal", "w": "nodelist", "nodelist": "nodelist", "M": None, "clusters": None,
        },
    )  # fmt: skip
    signal = {"15": "TERM", "9": "KILL"}.get(given.get("signal"), given.get("signal").upper().removeprefix("SIG"))
    signal = NUMBERS.get(signal, signal)
    if signal not in ("", "TERM", "KILL", *NUMBERS.values()):
        said = f"there are KILL and TERM, which end the job, and {', '.join(NUMBERS.values())}"
        raise SlurmFault(f"scancel: error: --signal={given.get('signal')}: {said}")
    chosen = ("user", "me", "name", "state", "partition", "account", "qos", "nodelist")
    if not given.rest and not any(option in given for option in chosen):
        raise SlurmFault("scancel: error: No job identification provided")
    numbers = [_number(word) for text in given.rest for word in text.split(",") if word]
    state = given.get("state").upper()
    state = {"PD": "PENDING", "R": "RUNNING", "S": "SUSPENDED"}.get(state, state)
    if state and state not in STATES:
        raise SlurmFault(f"scancel: error: Invalid job state specified: {given.get('state')}")
    users = ["me"] if "me" in given else [user_named(name) for name in given.listed("user")]
    code = 0
    with connect() as client:
        # Without numbers only one's own jobs are meant where no user is named: nobody ends those of all by a name.
        found, _ = jobs_of(client, numbers=numbers, users=users or ([] if numbers else ["me"]), states=["ACTIVE"])
        for job in found:
            fits = (
                (not state or job.state in STATES[state])
                and ("name" not in given or job.text("name") in given.listed("name"))
                and ("partition" not in given or job.text("pool") == given.get("partition"))
                and ("account" not in given or job.text("project") == given.get("account"))
                and ("qos" not in given or job.qos == given.get("qos"))
                and ("nodelist" not in given or given.get("nodelist") in job.nodes)
            )
            if not fits or job.job["state"] in ("COMPLETED", "FAILED", "CANCELLED"):
                continue
            if "interactive" in given and not _agreed(f"Cancel job_id={job.id} name={job.text('name')}"):
                continue
            try:
                if signal in ("", "TERM", "KILL"):
                    client.jobs.cancel(job.number, "scancel")
                else:
                    client.jobs.signal(job.number, f"SIG{signal}", reason="scancel")
            except ApiProblem as problem:
                said = "Access/permission denied" if problem.status == 403 else clean.line(why(problem))
                print(f"scancel: error: Kill job error on job id {job.id}: {said}", file=sys.stderr)
                code = 1
            else:
                if "verbose" in given and signal in ("", "TERM", "KILL"):
                    print(f"scancel: Terminating job {job.id} ({LONG[job.state]})", file=sys.stderr)
    return code


def _number(word: str) -> str:
    if not re.fullmatch(r"[0-9]{1,18}(_[0-9]{1,9})?", word):
        raise SlurmFault(f"scancel: error: Invalid job id {word}")
    return word


def _agreed(question: str) -> bool:
    print(f"{clean.line(question)} [y/n]? ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower().startswith("y")
