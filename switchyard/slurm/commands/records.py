"""Jobs and nodes of the REST interface in Slurm's words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from switchyard.cli import clean, units

LONG: Final[Mapping[str, str]] = {
    "PD": "PENDING", "R": "RUNNING", "S": "SUSPENDED", "CD": "COMPLETED", "CA": "CANCELLED", "F": "FAILED",
    "TO": "TIMEOUT", "NF": "NODE_FAIL", "PR": "PREEMPTED", "BF": "BOOT_FAIL", "DL": "DEADLINE", "OOM": "OUT_OF_MEMORY",
    "CG": "COMPLETING", "CF": "CONFIGURING",
}  # fmt: skip
"""Slurm's states by their short names, in the order in which Slurm sorts them."""

ENDED: Final = frozenset({"CD", "CA", "F", "TO", "NF", "PR", "BF", "DL", "OOM"})
_ACTIVE: Final = {
    "HELD": "PD", "PENDING": "PD", "STARTING": "CF", "RUNNING": "R", "SUSPENDED": "S", "STOPPING": "CG",
    "COMPLETED": "CD", "CANCELLED": "CA",
}  # fmt: skip
_CAUSES: Final = {
    "TIMEOUT": "TO", "OUT_OF_MEMORY": "OOM", "NODE_FAIL": "NF", "NODE_REBOOT": "NF", "PREEMPTED": "PR",
    "DEADLINE": "DL", "LAUNCH_FAILED": "BF", "SETUP_FAILED": "BF",
}  # fmt: skip
_REASONS: Final = {
    "Held": "JobHeldUser", "DependencyPending": "Dependency", "DependencyNeverSatisfied": "DependencyNeverSatisfied",
    "BeginTime": "BeginTime", "BackoffAfterFailure": "BeginTime", "CapacityInsufficient": "Resources",
    "Fragmented": "Resources", "WaitingForPreemption": "Resources", "PlannedDeviceBusy": "Resources",
    "ProviderBrings": "Resources",
    "NodesRestricted": "BadConstraints", "NodesAvoided": "BadConstraints", "DataResidency": "BadConstraints",
    "TopologyUnsatisfied": "Resources", "PriorityBehind": "Priority", "FairShareDeferred": "Priority",
    "PlannedLater": "Priority", "PromiseYielded": "Priority", "ReservedForHigher": "Priority",
    "PendingEvaluation": "None", "QuotaExhausted": "AssocGrpCpuLimit", "ExceedsQuotaMax": "AssocGrpCpuLimit",
    "Budget": "AssocGrpCPUMinutesLimit",
    "UserLimit": "AssocMaxJobsLimit", "UserStages": "AssocMaxJobsLimit", "UserDevices": "AssocMaxGRESPerJob",
    "PoolStopped": "PartitionDown", "NodesUnavailable": "ReqNodeNotAvail",
    "NoMatchingDevice": "BadConstraints", "ExceedsClusterMax": "PartitionConfig", "PoolRefused": "AccountNotAllowed",
    "MaintenanceWindow": "ReqNodeNotAvail",
}  # fmt: skip
_RESTRICTED: Final = frozenset({"NodesRestricted", "NodesAvoided", "DataResidency"})
"""Reasons of a stage that limits its nodes: of one that can never run there, and of one whose nodes are busy."""
_FAILURES: Final = {
    "F": "NonZeroExitCode", "TO": "TimeLimit", "NF": "NodeFail", "OOM": "OutOfMemory", "DL": "DeadLine", "PR": "None",
    "BF": "JobLaunchFailure",
}  # fmt: skip
_NODES: Final = {"JOINING": ("unk", "unknown"), "LOST": ("down", "down"), "DRAINED": ("drain", "drained")}


def clock(total_s: float, *, is_padded: bool = False) -> str:
    """Write a span: ``0:03``, ``1:00:00``, ``1-02:00:00``; ``00:00:03`` where it is padded."""
    days, rest = divmod(max(0, int(total_s)), 86_400)
    hours, minutes, seconds = rest // 3600, rest % 3600 // 60, rest % 60
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{seconds:02d}"
    if is_padded:
        return f"{hours:02d}:{minutes:02d}:{seconds:02d}"
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def moment(text: object, missing: str) -> str:
    """Write a time in the reader's zone, as Slurm does."""
    found = units.parse_time(text)
    return found.astimezone().strftime("%Y-%m-%dT%H:%M:%S") if found else missing


class SlurmJob:
    """A job as Slurm shows it, by the fields that the list of jobs has: a row costs no request of its own."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self.job = job
        self.indexes: list[int] = []
        stages = list(job.get("stages") or [])
        open_ones = [one for one in stages if one.get("state") not in ("COMPLETED", "FAILED", "CANCELLED")]
        is_ended = job["state"] in ("COMPLETED", "FAILED", "CANCELLED")
        bad = next((one for one in stages if one.get("state") == job["state"]), None)
        last = stages[-1] if stages else {}
        self.stage: Mapping[str, Any] = (bad or last) if is_ended else (open_ones or [last])[0]

    # -- who

    @property
    def number(self) -> int:
        """Its number; where it stands for several elements of an array, that of the array."""
        return int(self.job["array"]["number"] if self.indexes else self.job["number"])

    @property
    def id(self) -> str:
        """Its number or, of an element of an array, ``42_7``."""
        array = self.job.get("array")
        return f"{array['number']}_{self.array_index}" if isinstance(array, Mapping) else str(self.number)

    @property
    def array_id(self) -> str:
        array = self.job.get("array")
        return str(array["number"]) if isinstance(array, Mapping) else str(self.number)

    @property
    def array_index(self) -> str:
        array = self.job.get("array")
        if not isinstance(array, Mapping):
            return "N/A"
        if not self.indexes:
            return str(array["index"])
        from switchyard.step import compress

        written = compress([f"i{index}" for index in sorted(self.indexes)]).removeprefix("i")
        return written if written.startswith("[") else f"[{written}]"

    def text(self, key: str) -> str:
        return clean.line(self.job.get(key) or "")

    @property
    def qos(self) -> str:
        return clean.line((self.job.get("priority") or {}).get("class", ""))

    @property
    def priority(self) -> str:
        return "0" if self.is_held else str((self.job.get("priority") or {}).get("value", 0))

    # -- how it is

    @property
    def state(self) -> str:
        """Slurm's short state."""
        if self.job["state"] == "FAILED":
            return _CAUSES.get(str(self.stage.get("cause") or self.job.get("cause") or ""), "F")
        if self.job["state"] in ("COMPLETED", "CANCELLED"):
            return _ACTIVE[self.job["state"]]
        found = _ACTIVE.get(str(self.stage.get("state") or self.job["state"]), "PD")
        # A job whose next stage waits has begun all the same.
        return "R" if found == "PD" and self.job.get("state") == "RUNNING" and len(self.job["stages"]) > 1 else found

    @property
    def is_held(self) -> bool:
        return self.stage.get("state") == "HELD" or self.job["state"] == "HELD"

    @property
    def reason(self) -> str:
        if self.state in ENDED:
            return "None" if self.signal else _FAILURES.get(self.state, "None")
        if self.state != "PD":
            return "None"
        if self.is_held:
            return "JobHeldUser"
        found = self.stage.get("reason") or self.job.get("reason") or {}
        code = str(found.get("code") or "None") if isinstance(found, Mapping) else "None"
        if code in _RESTRICTED and self.stage.get("expected_start"):
            return "Resources"  # its own nodes would do, and are busy
        return clean.line(_REASONS.get(code, code)).replace(" ", "")

    @property
    def nodes(self) -> list[str]:
        return [clean.line(place.get("node")) for place in self.stage.get("placed") or []] if self.state != "PD" else []

    @property
    def node_list(self) -> str:
        from switchyard.step import compress

        return compress(self.nodes)

    @property
    def where(self) -> str:
        """Its nodes, or in brackets why it waits or how it failed."""
        if self.state == "PD" or (self.state in ENDED and self.state not in ("CD", "CA")):
            return f"({self.reason})"
        return self.node_list

    @property
    def node_count(self) -> int:
        return len(self.nodes) or int(self.stage.get("nodes") or 1)

    @property
    def cpus(self) -> int:
        """Cores on all its nodes, rounded up."""
        for one in self.stage.get("asks_said") or []:
            if one.get("code") == "SomeCores":
                return max(1, -int(-float(one["params"]["cores"]) // 1) * self.node_count)
        return self.node_count

    @property
    def accelerators(self) -> tuple[str, int] | None:
        """The kind of its accelerators and their count on each node; None where it has none."""
        for one in self.stage.get("asks_said") or []:
            params = one.get("params") or {}
            if one.get("code") in ("Devices", "OneShare", "Shares", "OnePartition", "Partitions"):
                return clean.line(self.stage.get("device_kind") or "gpu"), int(params.get("count") or 1)
        return None

    @property
    def gres(self) -> str:
        """Accelerators of each node: ``gres/gpu:4``; N/A where there are none."""
        return f"gres/{self.accelerators[0]}:{self.accelerators[1]}" if self.accelerators else "N/A"

    @property
    def gres_of_all(self) -> str:
        """Accelerators of all its nodes, as a part of TRES: ``gres/gpu=8``; empty where there are none."""
        return f"gres/{self.accelerators[0]}={self.accelerators[1] * self.node_count}" if self.accelerators else ""

    @property
    def memory_mib(self) -> int:
        """Memory on each node, in MiB; 0 where it asks for none."""
        return int(self.stage.get("memory_bytes") or 0) >> 20

    @property
    def features(self) -> str:
        """The labels that its nodes must have."""
        return clean.line(self.stage.get("constraint") or "")

    @property
    def reservation(self) -> str:
        return clean.line(self.stage.get("reservation") or "")

    @property
    def required(self) -> str:
        """The only nodes that it may run on; empty where any will do."""
        return self._listed("only_on")

    @property
    def avoided(self) -> str:
        return self._listed("avoid")

    def _listed(self, key: str) -> str:
        from switchyard.step import compress

        return clean.line(compress([str(name) for name in self.stage.get(key) or []]))

    @property
    def tres(self) -> str:
        """What all its nodes give: ``billing=2,cpu=2,mem=200M,node=1``."""
        gres = f"{self.gres_of_all}," if self.accelerators else ""
        memory = f"mem={self.memory_mib * self.node_count}M," if self.memory_mib else ""
        return f"billing={self.cpus},cpu={self.cpus},{gres}{memory}node={self.node_count}"

    # -- when

    @property
    def elapsed_s(self) -> float:
        if not self.job.get("started_at") or self.state == "PD":
            return 0.0
        return units.since(self.job["started_at"], self.job.get("ended_at")) or 0.0

    @property
    def waited_s(self) -> float:
        """How long it waited for its start."""
        until = self.job.get("started_at") or self.job.get("ended_at")
        return units.since(self.job.get("submitted_at"), until) or 0.0

    @property
    def left(self) -> str:
        return "UNLIMITED" if self.limit_s is None else clock(self.limit_s - self.elapsed_s)

    @property
    def limit_s(self) -> float | None:
        found = self.stage.get("time_limit_s")
        return float(found) if found is not None else None

    @property
    def limit(self) -> str:
        return "UNLIMITED" if self.limit_s is None else clock(self.limit_s)

    def start(self, missing: str) -> str:
        """When it started; while it waits, when it is expected to."""
        if self.state == "PD":
            return moment(self.stage.get("begin_at") or self.expected_at, missing)
        return moment(self.job.get("started_at"), missing)

    @property
    def expected_at(self) -> object:
        """When it is expected to start at the earliest."""
        return (self.stage.get("expected_start") or {}).get("low_at")

    def end(self, missing: str) -> str:
        """When it ended; while it runs, when its time is up."""
        if self.job.get("ended_at") or self.state == "PD":
            return moment(self.job.get("ended_at"), missing)
        begun = units.parse_time(self.job.get("started_at"))
        if begun is None or self.limit_s is None:
            return missing
        return moment((begun + timedelta(seconds=self.limit_s)).isoformat(), missing)

    # -- how it ended

    @property
    def signal(self) -> int:
        code = int(self.stage.get("exit_code") or 0)
        if code < 0:
            return -code
        for one in self.stage.get("detail_said") or []:
            if one.get("code") == "Signal" and self.stage.get("cause") == "SIGNAL":
                return _number(str((one.get("params") or {}).get("signal")))
        return 0

    @property
    def return_code(self) -> int:
        return max(0, int(self.stage.get("exit_code") or 0))

    @property
    def exit_code(self) -> str:
        """``code:signal``."""
        return f"{self.return_code}:{self.signal}"

    @property
    def steps(self) -> list[SlurmStep]:
        """Its steps: of a job with one stage that stage as ``batch``; of one with several each that has begun."""
        stages = list(self.job.get("stages") or [])
        begun = [(i, one) for i, one in enumerate(stages) if one.get("started_at") or one.get("placed")]
        if len(stages) == 1:
            return [SlurmStep(self, one, "batch", "batch") for _, one in begun if self.state != "PD"]
        return [SlurmStep(self, one, str(i), clean.line(one.get("name") or "")) for i, one in begun]

    @property
    def dependency(self) -> str:
        told = []
        for each in self.job.get("depends_on") or []:
            verdict = {"": "(unfulfilled)", "never": "(failed)"}.get(str(each.get("verdict") or ""), "")
            told.append(f"{each.get('when')}:{each.get('job')}{verdict}" if each.get("job") else str(each.get("when")))
        return clean.line(",".join(told)) or "(null)"


class SlurmStep(SlurmJob):
    """A stage of a job that has begun, as Slurm shows a step."""

    def __init__(self, job: SlurmJob, stage: Mapping[str, Any], suffix: str, name: str) -> None:
        super().__init__(job.job)
        self.of, self.stage, self.suffix, self.name = job, stage, suffix, name

    @property
    def id(self) -> str:
        return f"{self.of.id}.{self.suffix}"

    @property
    def raw_id(self) -> str:
        return f"{self.of.number}.{self.suffix}"

    @property
    def state(self) -> str:
        """Slurm's short state: a step that a signal ended is cancelled."""
        found = _CAUSES.get(str(self.stage.get("cause") or ""), "F")
        if self.stage.get("state") == "FAILED":
            return "CA" if found == "F" and self.signal else found
        return _ACTIVE.get(str(self.stage.get("state")), "R")

    @property
    def tasks(self) -> int:
        return 1 if self.suffix == "batch" else self.node_count

    @property
    def started_at(self) -> object:
        return self.stage.get("started_at") or self.job.get("started_at")

    @property
    def ended_at(self) -> object:
        return self.stage.get("ended_at") or self.job.get("ended_at")

    @property
    def elapsed_s(self) -> float:
        return (units.since(self.started_at, self.ended_at) or 0.0) if self.started_at else 0.0

    def start(self, missing: str) -> str:
        return moment(self.started_at, missing)

    def end(self, missing: str) -> str:
        return moment(self.ended_at, missing)


def together(jobs: Sequence[SlurmJob]) -> list[SlurmJob]:
    """Let waiting elements of an array stand in one line: ``42_[1-3]``."""
    found: list[SlurmJob] = []
    heads: dict[str, SlurmJob] = {}
    for job in jobs:
        array = job.job.get("array")
        if job.state != "PD" or not isinstance(array, Mapping):
            found.append(job)
            continue
        head = heads.setdefault(job.array_id, job)
        head.indexes.append(int(array["index"]))
        if head is job:
            found.append(job)
    return found


def _number(name: str) -> int:
    import signal

    found = getattr(signal, name if name.startswith("SIG") else f"SIG{name}", None)
    return int(found) if found else 0


def sort_key(job_id: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]{1,18}", job_id))


class SlurmNode:
    """A node as Slurm shows it."""

    def __init__(self, node: Mapping[str, Any]) -> None:
        self.node = node
        devices = [one for one in node.get("devices") or [] if isinstance(one, Mapping)]
        self.cores = [one for one in devices if one.get("kind") == "cpu"]
        self.others = [one for one in devices if one.get("kind") != "cpu"]

    @property
    def name(self) -> str:
        return clean.line(self.node["name"])

    @property
    def pools(self) -> list[str]:
        return [clean.line(pool) for pool in self.node.get("pools") or []]

    @property
    def cpus(self) -> int:
        return sum(int(one.get("capacity_milli") or 0) for one in self.cores) // 1000

    @property
    def cpus_held(self) -> int:
        return -(-sum(int(one.get("claimed_milli") or 0) for one in self.cores) // 1000)

    @property
    def memory_mib(self) -> int:
        return int(self.node.get("memory_bytes") or 0) >> 20

    @property
    def gres(self) -> str:
        counts: dict[str, int] = {}
        for one in self.others:
            counts[clean.line(one.get("kind"))] = counts.get(clean.line(one.get("kind")), 0) + 1
        return ",".join(f"{kind}:{count}" for kind, count in counts.items()) or "(null)"

    @property
    def features(self) -> list[str]:
        """Its labels with their values, as ``--constraint`` takes them."""
        return sorted(clean.line(f"{name}={value}") for name, value in (self.node.get("labels") or {}).items())

    @property
    def memory_held_mib(self) -> int:
        return sum(int(one.get("claimed_memory_bytes") or 0) for one in self.cores) >> 20

    @property
    def state_words(self) -> list[str]:
        """Its state as the JSON has it: a base state, and what is added to it."""
        state, held = str(self.node.get("state")), "ALLOCATED" if self.cpus_held >= self.cpus else "MIXED"
        base = held if self.cpus_held else "IDLE"
        if state in ("JOINING", "LOST"):
            base = "UNKNOWN" if state == "JOINING" else "DOWN"
        drains = ["DRAIN"] if state in ("DRAINING", "DRAINED") else []
        return [base, *drains, *(["NOT_RESPONDING"] if state in ("LOST", "SUSPECT") else [])]

    @property
    def states(self) -> tuple[str, str]:
        """Slurm's short and long state; a star where the node is not heard."""
        state = str(self.node.get("state"))
        if state in _NODES:
            short, long = _NODES[state]
        elif state == "DRAINING":
            short, long = ("drng", "draining") if self.cpus_held else ("drain", "drained")
        elif not self.cpus_held:
            short, long = "idle", "idle"
        elif self.cpus_held >= self.cpus:
            short, long = "alloc", "allocated"
        else:
            short, long = "mix", "mixed"
        star = "*" if state in ("LOST", "SUSPECT") else ""
        return short + star, long + star

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Cores that are held, idle, out of service, and all."""
        if self.states[0].startswith(("down", "drain", "unk")):
            return self.cpus_held, 0, self.cpus - self.cpus_held, self.cpus
        return self.cpus_held, self.cpus - self.cpus_held, 0, self.cpus


def local_now() -> datetime:
    return datetime.now().astimezone()
