"""``scontrol``: shows jobs, nodes and partitions, changes jobs, and drains nodes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean
from switchyard.problem import ApiProblem
from switchyard.slurm import values
from switchyard.slurm.commands.records import LONG, SlurmJob, SlurmNode, clock, moment
from switchyard.slurm.commands.shell import NO_JOB, SlurmFault, SlurmOptions, connect, jobs_of, why

if TYPE_CHECKING:
    from switchyard.client import Client

ACTS = ("show", "hold", "uhold", "release", "suspend", "resume", "update", "ping", "requeue")


def run(words: Sequence[str]) -> int:
    given = SlurmOptions(
        "scontrol",
        words,
        {
            "o": "oneliner", "oneliner": "oneliner", "d": None, "details": None, "a": None, "all": None, "Q": None,
            "quiet": None, "json": "json", "v": None, "verbose": None, "hide": None, "F": None, "future": None,
            "local": None,
        },
        {"M": None, "clusters": None, "u": None, "uid": None},
    )  # fmt: skip
    verb, *rest = given.rest or [""]
    acts: Mapping[str, Callable[[SlurmOptions, list[str]], int]] = {
        "show": _show, "hold": _hold, "uhold": _hold, "release": _release, "suspend": _suspend, "resume": _resume,
        "update": _update, "ping": _ping, "requeue": _requeue,
    }  # fmt: skip
    found = [name for name in ACTS if verb and name.startswith(verb)]
    name = verb if verb in ACTS else found[0] if len(found) == 1 else ""
    if name not in acts:
        raise SlurmFault(f"scontrol: error: `{verb}` is not supported; there are {', '.join(acts)}")
    return acts[name](given, rest)


# -- showing


def _show(given: SlurmOptions, rest: list[str]) -> int:
    from switchyard import step

    what, *names = rest or [""]
    what, equals, named = what.partition("=")
    names = [named, *names] if equals else names
    if what.lower().startswith(("hostname", "hostlist")):
        return step.scontrol(["show", what.lower(), *names])
    showing: Mapping[str, Callable[[SlurmOptions, list[str]], Iterable[list[list[tuple[str, str]]]]]] = {
        "job": _jobs, "node": _nodes, "partition": _partitions,
    }  # fmt: skip
    kind = next((kind for kind in showing if what and kind.startswith(what.lower().rstrip("s"))), "")
    if not kind:
        raise SlurmFault(f"scontrol: error: show {what} is not supported; there are job, node, partition, hostnames")
    if "json" in given:
        print(_document(kind, names, given), flush=True)
        return 0
    for record in showing[kind](given, names):
        print(_record(record, is_one_line="oneliner" in given), flush=True)
    return 0


def _record(lines: list[list[tuple[str, str]]], *, is_one_line: bool) -> str:
    """Write a record: fields of a line with spaces between, lines below the first indented."""
    written = [" ".join(f"{name}={clean.line(value)}" for name, value in line) for line in lines]
    return " ".join(written) if is_one_line else "\n   ".join(written) + "\n"


def _document(kind: str, names: list[str], given: SlurmOptions) -> str:
    """Return jobs, nodes or partitions as JSON."""
    from switchyard.slurm.commands import as_json

    words, now = ["show", kind], as_json.number(int(time.time()))
    with connect() as client:
        if kind == "job":
            more = {"last_backfill": now, "last_update": now}
            return as_json.document("jobs", map(as_json.job, _found_jobs(client, names)), words, **more)
        if kind == "node":
            return as_json.document("nodes", map(as_json.node, _found_nodes(client, names)), words, last_update=now)
        pairs = _found_pools(client, names)
        rows = (as_json.partition(pool, mine) for pool, mine in pairs)
        return as_json.document("partitions", rows, words, last_update=now)


def _found_jobs(client: Client, names: list[str]) -> list[SlurmJob]:
    numbers = [number for name in names for number in name.split(",") if number]
    found, missing = jobs_of(client, numbers=numbers, states=[] if numbers else ["ACTIVE"])
    if missing:
        raise SlurmFault(f"slurm_load_jobs error: {NO_JOB}")
    return found


def _jobs(given: SlurmOptions, names: list[str]) -> list[list[list[tuple[str, str]]]]:
    with connect() as client:
        found = _found_jobs(client, names)
        if not found:
            print("No jobs in the system")
        return [_job(job) for job in found]


def _job(job: SlurmJob) -> list[list[tuple[str, str]]]:
    places = job.nodes
    array = [("ArrayJobId", job.array_id), ("ArrayTaskId", job.array_index)] if job.array_index != "N/A" else []
    expected = [] if places else [("SchedNodeList", "(null)")] if job.stage.get("planned") else []
    has_begun = job.state != "PD"
    tres = f"cpu={job.cpus},mem={job.memory_mib * job.node_count}M,node={job.node_count},billing={job.cpus}"
    gres = f",{job.gres_of_all}" if job.accelerators else ""
    return [
        [("JobId", str(job.number)), *array, ("JobName", job.text("name"))],
        [("UserId", f"{job.text('user')}(0)"), ("GroupId", f"{job.text('user')}(0)"), ("MCS_label", "N/A")],
        [("Priority", job.priority), ("Nice", "0"), ("Account", job.text("project")), ("QOS", job.qos)],
        [("JobState", LONG[job.state]), ("Reason", job.reason), ("Dependency", job.dependency)],
        [
            ("Requeue", "1"), ("Restarts", str(max(0, int(job.stage.get("attempts") or 1) - 1))), ("BatchFlag", "1"),
            ("Reboot", "0"), ("ExitCode", job.exit_code),
        ],
        [
            ("RunTime", clock(job.elapsed_s, is_padded=True)),
            ("TimeLimit", "UNLIMITED" if job.limit_s is None else clock(job.limit_s, is_padded=True)),
            ("TimeMin", "N/A"),
        ],
        [
            ("SubmitTime", moment(job.job.get("submitted_at"), "Unknown")),
            ("EligibleTime", moment(job.stage.get("eligible_at"), "Unknown")),
        ],
        [("AccrueTime", moment(job.stage.get("eligible_at"), "Unknown"))],
        [("StartTime", job.start("Unknown")), ("EndTime", job.end("Unknown")), ("Deadline", "N/A")],
        [
            ("SuspendTime", "None"), ("SecsPreSuspend", "0"),
            ("LastSchedEval", moment(job.stage.get("evaluated_at"), "N/A")), ("Scheduler", "Main"),
        ],
        [("Partition", job.text("pool")), ("AllocNode:Sid", "N/A:0")],
        [("ReqNodeList", job.required or "(null)"), ("ExcNodeList", job.avoided or "(null)")],
        [("NodeList", job.node_list), *expected],
        *([[("BatchHost", places[0])]] if has_begun and places else []),
        [
            ("NumNodes", str(job.node_count)), ("NumCPUs", str(job.cpus)), ("NumTasks", str(job.node_count)),
            ("CPUs/Task", str(max(1, job.cpus // job.node_count))), ("ReqB:S:C:T", "0:0:*:*"),
        ],
        [("TRES", tres + gres)],
        [("Socks/Node", "*"), ("NtasksPerN:B:S:C", "0:0:*:*"), ("CoreSpec", "*")],
        [
            ("MinCPUsNode", str(max(1, job.cpus // job.node_count))), ("MinMemoryNode", f"{job.memory_mib}M"),
            ("MinTmpDiskNode", "0"),
        ],
        [("Features", job.features or "(null)"), ("DelayBoot", "00:00:00")],
        [("OverSubscribe", "OK"), ("Contiguous", "0"), ("Licenses", "(null)"), ("Network", "(null)")],
        [("Command", "(null)")],
        [("WorkDir", "(null)")],
        [("StdErr", f"yard logs {job.number} --stream err")],
        [("StdIn", "/dev/null")],
        [("StdOut", f"yard logs {job.number} --stream out")],
        [("Power", "")],
    ]  # fmt: skip


def _nodes(given: SlurmOptions, names: list[str]) -> list[list[list[tuple[str, str]]]]:
    with connect() as client:
        return [_node(node) for node in _found_nodes(client, names)]


def _found_nodes(client: Client, names: list[str]) -> list[SlurmNode]:
    from switchyard.step import expand

    wanted = [name for text in names for name in expand(text)]
    found = [SlurmNode(node) for node in client.nodes.list()]
    for name in wanted:
        if name not in {node.name for node in found}:
            print(f"Node {clean.line(name)} not found", file=sys.stderr)
            raise SlurmFault("", 1)
    return [node for node in found if not wanted or node.name in wanted]


def _node(node: SlurmNode) -> list[list[tuple[str, str]]]:
    told = node.node
    reason = [[("Reason", str(told["reason"]))]] if told.get("reason") else []
    return [
        [("NodeName", node.name), ("Arch", str(told.get("arch") or "(null)")), ("CoresPerSocket", str(node.cpus))],
        [
            ("CPUAlloc", str(node.cpus_held)), ("CPUEfctv", str(node.cpus)), ("CPUTot", str(node.cpus)),
            ("CPULoad", "N/A"),
        ],
        [("AvailableFeatures", ",".join(node.features) or "(null)")],
        [("ActiveFeatures", ",".join(node.features) or "(null)")],
        [("Gres", node.gres)],
        [
            ("NodeAddr", node.name), ("NodeHostName", str(told.get("hostname") or node.name)),
            ("Version", str(told.get("agent_version") or "")),
        ],
        [("OS", str(told.get("os") or ""))],
        [
            ("RealMemory", str(node.memory_mib)), ("AllocMem", str(node.memory_held_mib)), ("FreeMem", "N/A"),
            ("Sockets", "1"), ("Boards", "1"),
        ],
        [
            ("State", node.states[1].upper()), ("ThreadsPerCore", "1"), ("TmpDisk", "0"), ("Weight", "1"),
            ("Owner", "N/A"), ("MCS_label", "N/A"),
        ],
        [("Partitions", ",".join(node.pools))],
        *reason,
    ]  # fmt: skip


def _partitions(given: SlurmOptions, names: list[str]) -> list[list[list[tuple[str, str]]]]:
    from switchyard.step import compress

    with connect() as client:
        pairs = _found_pools(client, names)
    found = []
    for pool, mine in pairs:
        cpus, accounts = sum(node.cpus for node in mine), "SOME" if pool.get("restricted") else "ALL"
        found.append(
            [
                [("PartitionName", str(pool["name"]))],
                [("AllowGroups", "ALL"), ("AllowAccounts", accounts), ("AllowQos", "ALL")],
                [("AllocNodes", "ALL"), ("Default", "YES" if pool["name"] == "default" else "NO"), ("QoS", "N/A")],
                [("DefaultTime", _limit(pool.get("default_limit_s"))), ("GraceTime", "0"), ("Hidden", "NO")],
                [("MaxNodes", "UNLIMITED"), ("MaxTime", _limit(pool.get("max_limit_s"))), ("MinNodes", "0")],
                [("Nodes", compress([node.name for node in mine]) or "(null)")],
                [
                    ("State", "DOWN" if pool.get("stopped_by") else "UP"), ("TotalCPUs", str(cpus)),
                    ("TotalNodes", str(len(mine))),
                ],
            ]
        )  # fmt: skip
    return found


def _found_pools(client: Client, names: list[str]) -> list[tuple[Mapping[str, Any], list[SlurmNode]]]:
    """Return pools with their nodes."""
    pools = list(client.pools())
    nodes = [SlurmNode(node) for node in client.nodes.list()]
    for name in names:
        if name not in {pool["name"] for pool in pools}:
            print(f"Partition {clean.line(name)} not found", file=sys.stderr)
            raise SlurmFault("", 1)
    chosen = [pool for pool in pools if not names or pool["name"] in names]
    return [(pool, [node for node in nodes if pool["name"] in node.pools]) for pool in chosen]


def _limit(found: Any) -> str:
    return clock(float(found), is_padded=True) if found else "UNLIMITED"


# -- changing


def _each(rest: list[str], verb: str, act: Callable[[str], object]) -> int:
    """Act on each of the jobs that are named; tell every refusal as Slurm does."""
    code = 0
    for number in [number for word in rest for number in word.split(",") if number]:
        try:
            act(number.removeprefix("jobid=").removeprefix("JobId="))
        except ApiProblem as problem:
            said = {404: NO_JOB, 403: "Access/permission denied"}.get(problem.status) or why(problem)
            print(f"{clean.line(said)} for job {clean.line(number)}", file=sys.stderr)
            print(f"{verb} error: {clean.line(said)}", file=sys.stderr)
            code = 1
    if not rest:
        raise SlurmFault("scontrol: error: name a job by its number")
    return code


def _hold(given: SlurmOptions, rest: list[str]) -> int:
    with connect() as client:
        return _each(rest, "slurm_suspend", lambda job: client.jobs.hold(job, "scontrol hold"))


def _release(given: SlurmOptions, rest: list[str]) -> int:
    with connect() as client:
        return _each(rest, "slurm_suspend", lambda job: client.jobs.release(job, "scontrol release"))


def _suspend(given: SlurmOptions, rest: list[str]) -> int:
    with connect() as client:
        return _each(
            rest, "slurm_suspend", lambda job: client.jobs.adjust(job, suspended=True, reason="scontrol suspend")
        )


def _resume(given: SlurmOptions, rest: list[str]) -> int:
    with connect() as client:
        return _each(
            rest, "slurm_suspend", lambda job: client.jobs.adjust(job, suspended=None, reason="scontrol resume")
        )


def _requeue(given: SlurmOptions, rest: list[str]) -> int:
    with connect() as client:
        return _each(rest, "slurm_requeue", lambda job: client.jobs.requeue(job, "scontrol requeue"))


def _update(given: SlurmOptions, rest: list[str]) -> int:
    """Change jobs, and drain and resume nodes."""
    from switchyard.step import expand

    fields = {name.lower(): value for name, _, value in (word.partition("=") for word in rest)}
    node, state = fields.get("nodename", ""), fields.get("state", "").upper()
    if node and state in ("DRAIN", "RESUME", "UNDRAIN"):
        if state == "DRAIN" and not fields.get("reason"):
            raise SlurmFault(
                "You must specify a reason when DOWNING or DRAINING a node\nslurm_update error: Invalid argument"
            )
        with connect() as client:
            for name in expand(node):
                act = client.nodes.drain if state == "DRAIN" else client.nodes.resume
                act(name, fields.get("reason", ""))
        return 0
    if jobs := fields.pop("jobid", ""):
        patch = _patch(fields)
        with connect() as client:
            change = partial(client.jobs.change, patch=patch, reason="scontrol update")
            return _each([jobs], "slurm_update", change)
    raise SlurmFault("scontrol: error: update takes JobId=..., or NodeName=... State=DRAIN|RESUME Reason=...")


def _time(text: str) -> str:
    return values.utc(values.moment(text, datetime.now().astimezone()))


# The fields of jobs that can change, each with the key of the job file and how its value is read.
_CHANGES: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "timelimit": ("time_limit", values.seconds),
    "partition": ("pool", str),
    "account": ("project", str),
    "qos": ("priority", str),
    "jobname": ("name", str),
    "name": ("name", str),
    "numnodes": ("nodes", values.whole),
    "starttime": ("begin", _time),
    "deadline": ("deadline", _time),
}


def _patch(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return what ``update JobId=...`` means as a change of the job file."""
    patch: dict[str, Any] = {}
    for name, text in fields.items():
        if name not in _CHANGES:
            raise SlurmFault(f"scontrol: error: {clean.line(name)} cannot change here; there are {', '.join(_CHANGES)}")
        key, read = _CHANGES[name]
        try:
            patch[key] = read(text)
        except values.UnreadableValue as fault:
            raise SlurmFault(f"scontrol: error: {name}={clean.line(text)}: {fault}") from None
    if not patch:
        raise SlurmFault(f"scontrol: error: say what of the job is to change: {', '.join(_CHANGES)}")
    return patch


def _ping(given: SlurmOptions, rest: list[str]) -> int:
    with connect() as client:
        client.version()
        print(f"Slurmctld(primary) at {client.url} is UP")
    return 0
