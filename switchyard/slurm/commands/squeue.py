"""``squeue``: lists jobs that have not ended, or that are in the states asked for."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from switchyard.slurm.commands.records import (
    ENDED,
    LONG,
    SlurmJob,
    SlurmStep,
    clock,
    local_now,
    moment,
    sort_key,
    together,
)
from switchyard.slurm.commands.shell import (
    NO_JOB,
    SlurmFault,
    SlurmOptions,
    columns,
    connect,
    fitted,
    jobs_of,
    table,
    user_named,
)

USUAL: Final = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONGER: Final = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
STEPS: Final = "%.15i %.8j %.9P %.8u %.9M %N"
STARTS: Final = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
ALSO: Final = ("COMPLETING,CONFIGURING,RESIZING,RESV_DEL_HOLD,REQUEUED,REQUEUE_FED,REQUEUE_HOLD,REVOKED,SIGNALING,"
               "SPECIAL_EXIT,STAGE_OUT,STOPPED")  # fmt: skip
VALID: Final = (
    "PENDING,RUNNING,SUSPENDED,COMPLETED,CANCELLED,FAILED,TIMEOUT,NODE_FAIL,PREEMPTED,BOOT_FAIL,DEADLINE,OUT_OF_MEMORY"
)

Field = tuple[str, Callable[[SlurmJob], str]]
NAMED: Final[Mapping[str, Field]] = {
    "Account": ("ACCOUNT", lambda job: job.text("project")),
    "ArrayJobID": ("ARRAY_JOB_ID", lambda job: job.array_id),
    "ArrayTaskID": ("ARRAY_TASK_ID", lambda job: job.array_index),
    "Comment": ("COMMENT", lambda job: str((job.job.get("labels") or {}).get("comment") or "(null)")),
    "Dependency": ("DEPENDENCY", lambda job: job.dependency),
    "EndTime": ("END_TIME", lambda job: job.end("N/A")),
    "JobArrayID": ("JOBID", lambda job: job.id),
    "JobID": ("JOBID", lambda job: str(job.number)),
    "MinMemory": ("MIN_MEMORY", lambda job: f"{job.memory_mib}M"),
    "Name": ("NAME", lambda job: job.text("name")),
    "NodeList": ("NODELIST", lambda job: job.node_list),
    "NumCPUs": ("CPUS", lambda job: str(job.cpus)),
    "NumNodes": ("NODES", lambda job: str(job.node_count)),
    "Partition": ("PARTITION", lambda job: job.text("pool")),
    "PendingTime": ("PENDING_TIME", lambda job: str(int(job.waited_s))),
    "PriorityLong": ("PRIORITY", lambda job: job.priority),
    "QOS": ("QOS", lambda job: job.qos),
    "Reason": ("REASON", lambda job: job.reason),
    "ReasonList": ("NODELIST(REASON)", lambda job: job.where),
    "SchedNodes": ("SCHEDNODES", lambda job: "(null)"),
    "StartTime": ("START_TIME", lambda job: job.start("N/A")),
    "State": ("STATE", lambda job: LONG[job.state]),
    "StateCompact": ("ST", lambda job: job.state),
    "SubmitTime": ("SUBMIT_TIME", lambda job: moment(job.job.get("submitted_at"), "N/A")),
    "TimeLeft": ("TIME_LEFT", lambda job: job.left),
    "TimeLimit": ("TIME_LIMIT", lambda job: job.limit),
    "TimeUsed": ("TIME", lambda job: clock(job.elapsed_s)),
    "TresPerNode": ("TRES_PER_NODE", lambda job: job.gres),
    "UserName": ("USER", lambda job: job.text("user")),
    "WorkDir": ("WORK_DIR", lambda job: "(null)"),
}
"""Fields by the names of ``--Format``."""

LETTERS: Final[Mapping[str, Field]] = {
    **{
        letter: NAMED[name]
        for letter, name in {
            "a": "Account", "A": "JobID", "b": "TresPerNode", "C": "NumCPUs", "D": "NumNodes", "e": "EndTime",
            "E": "Dependency", "F": "ArrayJobID", "i": "JobArrayID", "j": "Name", "k": "Comment", "K": "ArrayTaskID",
            "l": "TimeLimit", "L": "TimeLeft", "m": "MinMemory", "M": "TimeUsed", "N": "NodeList", "P": "Partition",
            "q": "QOS", "Q": "PriorityLong", "r": "Reason", "R": "ReasonList", "S": "StartTime", "t": "StateCompact",
            "T": "State", "u": "UserName", "V": "SubmitTime", "Y": "SchedNodes", "Z": "WorkDir",
        }.items()
    },
    "p": ("PRIORITY", lambda job: f"{int(job.priority) / 10_000:.14f}"),
    "h": ("OVER_SUBSCRIBE", lambda job: "OK"),
    "B": ("EXEC_HOST", lambda job: (job.nodes or ["n/a"])[0]),
    "c": ("MIN_CPUS", lambda job: str(job.cpus // job.node_count)),
    "f": ("FEATURES", lambda job: job.features or "(null)"),
    "o": ("COMMAND", lambda job: "(null)"),
    "v": ("RESERVATION", lambda job: job.reservation or "(null)"),
    "w": ("WCKEY", lambda job: str((job.job.get("labels") or {}).get("wckey") or "(null)")),
    "x": ("EXC_NODES", lambda job: job.avoided),
    "n": ("REQ_NODES", lambda job: job.required),
    "y": ("NICE", lambda job: "0"),
}  # fmt: skip
"""Fields by the letters of ``--format``."""

OF_STEPS: Final[Mapping[str, Field]] = {
    "i": ("STEPID", lambda job: job.id),
    "j": ("NAME", lambda job: job.name if isinstance(job, SlurmStep) else ""),
}

ORDER: Final[Mapping[str, Callable[[SlurmJob], object]]] = {
    "i": lambda job: sort_key(job.id),
    "A": lambda job: job.number,
    "j": lambda job: job.text("name"),
    "u": lambda job: job.text("user"),
    "a": lambda job: job.text("project"),
    "P": lambda job: job.text("pool"),
    "t": lambda job: list(LONG).index(job.state),
    "T": lambda job: list(LONG).index(job.state),
    "p": lambda job: int(job.priority),
    "Q": lambda job: int(job.priority),
    "M": lambda job: job.elapsed_s,
    "S": lambda job: job.start("9"),
    "e": lambda job: job.end("9"),
    "V": lambda job: str(job.job.get("submitted_at")),
    "D": lambda job: job.node_count,
    "C": lambda job: job.cpus,
    "l": lambda job: job.limit_s or 1e18,
}


def run(words: Sequence[str]) -> int:
    given = SlurmOptions(
        "squeue",
        words,
        {
            "h": "noheader", "noheader": "noheader", "l": "long", "long": "long", "start": "start", "me": "me",
            "a": None, "all": None, "r": "array", "array": "array", "v": None, "verbose": None, "local": None,
            "hide": None, "array-unique": None, "json": "json", "s": "steps", "steps": "steps", "notme": "notme",
        },
        {
            "o": "format", "format": "format", "O": "Format", "Format": "Format", "j": "jobs", "jobs": "jobs",
            "job": "jobs", "u": "user", "user": "user", "users": "user", "t": "states", "states": "states",
            "n": "name", "name": "name", "p": "partition", "partition": "partition", "A": "account",
            "account": "account", "q": "qos", "qos": "qos", "w": "nodelist", "nodelist": "nodelist", "S": "sort",
            "sort": "sort", "i": "iterate", "iterate": "iterate", "M": None, "clusters": None,
        },
    )  # fmt: skip
    # A bare `--jobs` or `--user` would need a value; a job number may also follow the options.
    while True:
        _show(given)
        if "iterate" not in given:
            return 0
        time.sleep(max(1, int(given.get("iterate")) if given.get("iterate").isdecimal() else 60))


def _show(given: SlurmOptions) -> None:
    states = _states(given.get("states"))
    users = ["me"] if "me" in given else [user_named(name) for name in given.listed("user")]
    numbers = [*given.listed("jobs"), *given.rest]
    with connect() as client:
        found, missing = jobs_of(client, numbers=numbers, users=users, states=_asked(states))
        if missing and len(numbers) == 1:
            raise SlurmFault(f"slurm_load_jobs error: {NO_JOB}")
        chosen = [job for job in found if job.state in states and _is_meant(job, given)]
        if "steps" in given:
            chosen = [step for job in chosen for step in job.steps if step.state == "R"]
        elif "array" not in given:
            chosen = together(chosen)
        order = given.get("sort") or ("P,t,-p" if "start" not in given else "S")
        for key in reversed(order.split(",")):
            name = key.lstrip("+-")
            if name not in ORDER:
                raise SlurmFault(f"squeue: error: Invalid sort specification: {key}")
            by = ORDER[name]
            chosen.sort(key=by, reverse=key.startswith("-"))  # type: ignore[arg-type]
        if "start" in given:
            chosen = [job for job in chosen if job.state == "PD"]
        if "json" in given:
            from switchyard.slurm.commands import as_json

            now = as_json.number(int(time.time()))
            more = {"last_backfill": now, "last_update": now}
            print(as_json.document("jobs", map(as_json.job, chosen), ["squeue", "--json"], **more), flush=True)
            return
        if "long" in given and "noheader" not in given:
            print(local_now().strftime("%a %b %d %H:%M:%S %Y"))
        lines = list(_lines(given, chosen))
    if lines:
        print("\n".join(lines), flush=True)


def _lines(given: SlurmOptions, jobs: Sequence[SlurmJob]) -> list[str]:
    headers = "noheader" not in given
    if "Format" in given:
        return list(_named(given.get("Format"), jobs, headers=headers))
    usual = LONGER if "long" in given else STARTS if "start" in given else os.environ.get("SQUEUE_FORMAT") or USUAL
    text = given.get("format") or (STEPS if "steps" in given else usual)
    letters = {**LETTERS, **OF_STEPS} if "steps" in given else LETTERS
    fields = columns(text, letters, lambda letter: f"squeue: error: Invalid job format specification: {letter}")
    return list(table(jobs, fields, headers=headers))


def _named(text: str, jobs: Sequence[SlurmJob], *, headers: bool) -> list[str]:
    """Print ``--Format``: ``JobID,Name:12,State:.10``."""
    by_name = {name.lower(): field for name, field in NAMED.items()}
    fields = []
    for word in text.split(","):
        match = re.fullmatch(r"([A-Za-z_-]+)(?::(\.?)([0-9]{0,4})(.*))?", word.strip())
        if not match or match[1].lower() not in by_name:
            raise SlurmFault(f"squeue: error: Invalid job format specification: {word}")
        title, value = by_name[match[1].lower()]
        fields.append((title, value, int(match[3] or 20), bool(match[2]), match[4] or ""))
    lines = ["".join(fitted(title, width, right) + end for title, _, width, right, end in fields)] if headers else []
    return lines + [
        "".join(fitted(value(job), width, right) + end for _, value, width, right, end in fields) for job in jobs
    ]


def _states(text: str) -> set[str]:
    """Return Slurm's short states of ``--states``; without it those of jobs that have not ended."""
    if not text:
        return set(LONG) - ENDED
    short = {long: one for one, long in LONG.items()}
    found: set[str] = set()
    for word in re.split(r"[\s,]+", text.upper()):
        if word == "ALL":
            return set(LONG)
        if word in LONG or word in short:
            found.add(short.get(word, word))
        elif word and word not in ALSO.split(","):
            print(f"squeue: error: Invalid job state specified: {text}", file=sys.stderr)
            raise SlurmFault(f"squeue: error: Valid job states include: {VALID},{ALSO}\n")
    return found


def _asked(states: set[str]) -> list[str]:
    """Return the states to ask the REST interface for."""
    by = {"CD": "COMPLETED", "CA": "CANCELLED"}
    ended = {by.get(state, "FAILED") for state in states & ENDED}
    return sorted(ended) + (["ACTIVE"] if states - ENDED else [])


def _is_meant(job: SlurmJob, given: SlurmOptions) -> bool:
    from switchyard.step import expand

    wanted = (
        ("name", job.text("name")),
        ("partition", job.text("pool")),
        ("account", job.text("project")),
        ("qos", job.qos),
    )
    if any(option in given and value not in given.listed(option) for option, value in wanted):
        return False
    return "nodelist" not in given or bool(set(expand(given.get("nodelist"))) & set(job.nodes))
