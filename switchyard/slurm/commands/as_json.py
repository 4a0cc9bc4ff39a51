"""Jobs, nodes and pools in the JSON that ``squeue``, ``sinfo``, ``scontrol`` and ``sacct`` give for ``--json``.

The keys and types are those of Slurm 24.11 (``data_parser/v0.0.42``). What has no counterpart is empty, unset or 0.
Users have no numbers: ``user_id`` and ``group_id`` are 65534.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from switchyard.cli import clean, units
from switchyard.slurm.commands.records import LONG, SlurmJob, SlurmNode, SlurmStep

CLUSTER: Final = "switchyard"
NOBODY: Final = 65534
_TEXTS: Final = (
    "admin_comment", "allocating_node", "batch_features", "burst_buffer", "burst_buffer_state", "cluster_features",
    "command", "container", "container_id", "cpus_per_tres", "cron", "extra", "failed_node", "federation_origin",
    "federation_siblings_active", "federation_siblings_viable", "het_job_id_set", "licenses", "mcs_label",
    "memory_per_tres", "network", "prefer", "scheduled_nodes", "selinux_context", "state_description",
    "system_comment", "tres_bind", "tres_freq", "tres_per_job", "tres_per_socket", "tres_per_task",
)  # fmt: skip
_UNSET: Final = (
    "cores_per_socket", "cpu_frequency_minimum", "cpu_frequency_maximum", "cpu_frequency_governor", "memory_per_cpu",
    "sockets_per_node", "threads_per_core",
)  # fmt: skip
_ZERO: Final = (
    "delay_boot", "het_job_id", "het_job_offset", "max_cpus", "max_nodes", "minimum_tmp_disk_per_node", "pre_sus_time",
    "preempt_time", "preemptable_time", "resize_time", "suspend_time", "tasks_per_board", "tasks_per_node",
    "tasks_per_tres", "time_minimum",
)  # fmt: skip
_PLAIN: Final = (
    "association_id", "core_spec", "maximum_switch_wait_time", "nice", "required_switches", "sockets_per_board",
)  # fmt: skip
_LISTS: Final = ("flags", "gres_detail", "job_size_str", "mail_type", "priority_by_partition", "shared")


def number(value: float | None) -> dict[str, Any]:
    """Write a number that may be unset."""
    return {"set": value is not None, "infinite": False, "number": 0 if value is None else value}


def limit(value: float | None) -> dict[str, Any]:
    """Write a number that may be without limit."""
    return number(value) if value is not None else {"set": False, "infinite": True, "number": 0}


def moment(text: object) -> int:
    """Write a time in seconds since 1970; 0 where there is none."""
    found = units.parse_time(text)
    return int(found.timestamp()) if found else 0


def exit_code(code: int, signalled: int, is_bad: bool = False) -> dict[str, Any]:
    status = "SIGNALED" if signalled else "ERROR" if code or is_bad else "SUCCESS"
    name = signal.Signals(signalled).name.removeprefix("SIG") if signalled in list(signal.Signals) else ""
    return {
        "status": [status],
        "return_code": number(None if signalled else code),
        "signal": {"id": number(signalled or None), "name": name},
    }


def job(one: SlurmJob) -> dict[str, Any]:
    """Return a job as ``squeue --json`` and ``scontrol show job --json`` list it."""
    code, has_begun = exit_code(one.return_code, one.signal), one.state != "PD"
    begin = moment(one.job.get("started_at")) if has_begun else moment(one.stage.get("begin_at") or one.expected_at)
    ends = moment(one.job.get("ended_at")) or (int(begin + one.limit_s) if begin and one.limit_s is not None else 0)
    index = one.array_index
    is_array = index != "N/A"
    labels = one.job.get("labels") or {}
    gres = "" if one.gres == "N/A" else one.gres
    return {
        **dict.fromkeys(_TEXTS, ""),
        **{name: number(None) for name in _UNSET},
        **{name: number(0) for name in _ZERO},
        **dict.fromkeys(_PLAIN, 0),
        **{name: [] for name in _LISTS},
        "account": one.text("project"),
        "accrue_time": number(moment(one.stage.get("eligible_at"))),
        "array_job_id": number(int(one.array_id) if is_array else 0),
        "array_max_tasks": number(0),
        "array_task_id": number(int(index) if is_array and index.isdecimal() else None),
        "array_task_string": index.strip("[]") if is_array and not index.isdecimal() else "",
        "batch_flag": True,
        "batch_host": (one.nodes or [""])[0],
        "billable_tres": number(float(one.cpus)),
        "cluster": CLUSTER,
        "comment": clean.line(labels.get("comment") or ""),
        "contiguous": False,
        "cpus": number(one.cpus),
        "cpus_per_task": number(max(1, one.cpus // one.node_count)),
        "current_working_directory": "",
        "deadline": number(moment(one.stage.get("deadline_at"))),
        "dependency": "" if one.dependency == "(null)" else one.dependency,
        "derived_exit_code": code,
        "eligible_time": number(moment(one.stage.get("eligible_at"))),
        "end_time": number(ends),
        "excluded_nodes": one.avoided,
        "exit_code": code,
        "features": one.features,
        "group_id": NOBODY,
        "group_name": one.text("user"),
        "hold": one.is_held,
        "job_id": one.number,
        "job_resources": _resources(one) if has_begun else None,
        "job_state": [LONG[one.state]],
        "last_sched_evaluation": number(moment(one.stage.get("evaluated_at"))),
        "mail_user": one.text("user"),
        "memory_per_node": number(one.memory_mib or None),
        "minimum_cpus_per_node": number(max(1, one.cpus // one.node_count)),
        "name": one.text("name"),
        "node_count": number(one.node_count),
        "nodes": one.node_list,
        "partition": one.text("pool"),
        "power": {"flags": []},
        "priority": number(int(one.priority)),
        "profile": ["NOT_SET"],
        "qos": one.qos,
        "reboot": False,
        "requeue": True,
        "required_nodes": one.required,
        "restart_cnt": max(0, int(one.stage.get("attempts") or 1) - 1),
        "resv_name": one.reservation,
        "standard_error": f"yard logs {one.number} --stream err",
        "standard_input": "/dev/null",
        "standard_output": f"yard logs {one.number} --stream out",
        "start_time": number(begin),
        "state_reason": one.reason,
        "submit_time": number(moment(one.job.get("submitted_at"))),
        "tasks": number(one.node_count),
        "tasks_per_core": limit(None),
        "tasks_per_socket": limit(None),
        "thread_spec": 0,
        "time_limit": limit(None if one.limit_s is None else int(one.limit_s) // 60),
        "tres_alloc_str": one.tres if has_begun else "",
        "tres_per_node": gres,
        "tres_req_str": one.tres,
        "user_id": NOBODY,
        "user_name": one.text("user"),
        "wckey": clean.line(labels.get("wckey") or ""),
    }


def _resources(one: SlurmJob) -> dict[str, Any]:
    """Return which nodes a job holds or held, with what it asked of each; nothing of it is used once it has ended.

    Memory is in MiB, a plain number in this version of the format: 0 for a job that asks for none.
    """
    each = max(1, one.cpus // one.node_count)
    is_over = bool(one.job.get("ended_at"))
    return {
        "select_type": ["CORE"],
        "nodes": {
            "count": len(one.nodes),
            "select_type": ["ONE_ROW"],
            "list": one.node_list,
            "whole": False,
            "allocation": [
                {
                    "index": index,
                    "name": name,
                    "cpus": {"count": each, "used": 0 if is_over else each},
                    "memory": {"used": 0 if is_over else one.memory_mib, "allocated": one.memory_mib},
                    "sockets": [],
                }
                for index, name in enumerate(one.nodes)
            ],
        },
        "cpus": one.cpus,
        "threads_per_core": number(None),
    }


def accounted(one: SlurmJob) -> dict[str, Any]:
    """Return a job as ``sacct --json`` lists it, with its steps."""
    has_begun = one.state != "PD"
    begun, code = moment(one.job.get("started_at")), exit_code(one.return_code, one.signal)
    allocated = [
        *_tres(one, one.node_count),
        {"type": "billing", "name": "", "id": 5, "count": one.cpus},
    ]
    index = one.array_index
    return {
        "account": one.text("project"),
        "allocation_nodes": one.node_count if has_begun else 0,
        "array": {
            "job_id": int(one.array_id) if index != "N/A" else 0,
            "limits": {"max": {"running": {"tasks": 0}}},
            "task_id": number(int(index) if index.isdecimal() else None),
            "task": "" if index.isdecimal() or index == "N/A" else index.strip("[]"),
        },
        "association": {
            "account": one.text("project"), "cluster": CLUSTER, "partition": "", "user": one.text("user"), "id": 0,
        },
        "block": "",
        "cluster": CLUSTER,
        "comment": {
            "administrator": "", "job": clean.line((one.job.get("labels") or {}).get("comment") or ""), "system": "",
        },
        "constraints": one.features,
        "container": "",
        "derived_exit_code": code,
        "exit_code": code,
        "extra": "",
        "failed_node": "",
        "flags": [],
        "group": one.text("user"),
        "het": {"job_id": 0, "job_offset": number(None)},
        "hold": one.is_held,
        "job_id": one.number,
        "kill_request_user": "",
        "licenses": "",
        "mcs": {"label": ""},
        "name": one.text("name"),
        "nodes": one.node_list or "None assigned",
        "partition": one.text("pool"),
        "priority": number(int(one.priority)),
        "qos": one.qos,
        "qosreq": "",
        "required": {
            "CPUs": one.cpus, "memory_per_cpu": number(None), "memory_per_node": number(one.memory_mib or None),
        },
        "reservation": {"id": 0, "name": one.reservation},
        "restart_cnt": max(0, int(one.stage.get("attempts") or 1) - 1),
        "script": "",
        "state": {"current": [LONG[one.state]], "reason": one.reason},
        "stderr": "", "stderr_expanded": "", "stdin": "/dev/null", "stdin_expanded": "/dev/null", "stdout": "",
        "stdout_expanded": "",
        "steps": [_step(each) for each in one.steps],
        "submit_line": "",
        "time": {
            "elapsed": int(one.elapsed_s),
            "eligible": moment(one.stage.get("eligible_at") or one.job.get("submitted_at")),
            "end": moment(one.job.get("ended_at")),
            "limit": limit(None if one.limit_s is None else int(one.limit_s) // 60),
            "planned": number(int(one.waited_s)),
            "start": begun,
            "submission": moment(one.job.get("submitted_at")),
            "suspended": 0,
            **_NO_CPU_TIME,
        },
        "tres": {"allocated": allocated if has_begun else [], "requested": allocated},
        "used_gres": "",
        "user": one.text("user"),
        "wckey": {"wckey": clean.line((one.job.get("labels") or {}).get("wckey") or ""), "flags": []},
        "working_directory": "",
    }  # fmt: skip


_NO_CPU_TIME: Final = {kind: {"seconds": 0, "microseconds": 0} for kind in ("system", "total", "user")}


def _tres(one: SlurmJob, nodes: int) -> list[dict[str, Any]]:
    """Return what so many nodes give together; the first number of Slurm's for kinds that a site adds is 1001."""
    counts = [("cpu", "", 1, one.cpus), ("node", "", 4, nodes)]
    if one.memory_mib:
        counts.insert(1, ("mem", "", 2, one.memory_mib * nodes))
    if one.accelerators:
        kind, each = one.accelerators
        counts.append(("gres", kind, 1001, each * nodes))
    return [{"type": kind, "name": name, "id": id_, "count": count} for kind, name, id_, count in counts]


def _step(one: SlurmStep) -> dict[str, Any]:
    return {
        "time": {
            "elapsed": int(one.elapsed_s),
            "end": number(moment(one.ended_at)),
            "start": number(moment(one.started_at)),
            "suspended": 0,
            **_NO_CPU_TIME,
        },
        "exit_code": exit_code(one.return_code, one.signal),
        "nodes": {"count": len(one.nodes), "range": one.node_list, "list": one.nodes},
        "tasks": {"count": one.tasks},
        "pid": "",
        "CPU": {"requested_frequency": {"min": number(None), "max": number(None)}, "governor": "Unknown"},
        "kill_request_user": "",
        "state": [LONG[one.state]],
        "statistics": {"CPU": {"actual_frequency": 0}, "energy": {"consumed": number(0)}},
        "step": {"id": one.id, "name": one.name},
        "task": {"distribution": "Block"},
        "tres": {
            **{kind: {"max": [], "min": [], "average": [], "total": []} for kind in ("requested", "consumed")},
            "allocated": _tres(one, len(one.nodes)),
        },
    }


def node(one: SlurmNode) -> dict[str, Any]:
    """Return a node as ``scontrol show node --json`` lists it."""
    told = one.node
    gres = "" if one.gres == "(null)" else one.gres
    return {
        **dict.fromkeys(
            (
                "burstbuffer_network_address", "comment", "extra", "gpu_spec", "gres_used", "instance_id",
                "instance_type", "mcs_label", "owner", "reason_set_by_user", "reservation", "specialized_cpus",
            ),
            "",
        ),
        **dict.fromkeys(
            (
                "cpu_binding", "cpu_load", "port", "res_cores_per_gpu", "specialized_cores", "specialized_memory",
                "temporary_disk",
            ),
            0,
        ),
        **{name: number(0) for name in ("boot_time", "last_busy", "reason_changed_at", "resume_after")},
        "active_features": one.features,
        "address": one.name,
        "alloc_cpus": one.cpus_held,
        "alloc_idle_cpus": one.cpus - one.cpus_held,
        "alloc_memory": one.memory_held_mib,
        "architecture": clean.line(told.get("arch") or ""),
        "boards": 1,
        "cluster_name": CLUSTER,
        "cores": one.cpus,
        "cpus": one.cpus,
        "effective_cpus": one.cpus,
        "energy": {
            "average_watts": 0, "base_consumed_energy": 0, "consumed_energy": 0, "current_watts": number(None),
            "previous_consumed_energy": 0, "last_collected": 0,
        },
        "external_sensors": {},
        "features": one.features,
        "free_mem": number(None),
        "gres": gres,
        "gres_drained": "N/A",
        "hostname": clean.line(told.get("hostname") or one.name),
        "name": one.name,
        "next_state_after_reboot": ["INVALID"],
        "operating_system": clean.line(told.get("os") or ""),
        "partitions": one.pools,
        "power": {},
        "real_memory": one.memory_mib,
        "reason": clean.line(told.get("reason") or ""),
        "slurmd_start_time": number(0),
        "sockets": 1,
        "state": one.state_words,
        "threads": 1,
        "tres": f"cpu={one.cpus},mem={one.memory_mib}M,billing={one.cpus}",
        "tres_used": f"cpu={one.cpus_held},mem={one.memory_held_mib}M",
        "tres_weighted": float(one.cpus_held),
        "version": clean.line(told.get("agent_version") or ""),
        "weight": 1,
    }  # fmt: skip


def partition(pool: Mapping[str, Any], nodes: Sequence[SlurmNode]) -> dict[str, Any]:
    """Return a pool as ``scontrol show partition --json`` lists it."""
    from switchyard.step import compress

    cpus = sum(one.cpus for one in nodes)
    longest, usual = pool.get("max_limit_s"), pool.get("default_limit_s")
    return {
        "accounts": {"allowed": "", "deny": ""},
        "alternate": "",
        "cluster": "",
        "cpus": {"task_binding": 0, "total": cpus},
        "defaults": {
            "job": "", "memory_per_cpu": 0, "partition_memory_per_cpu": number(None),
            "partition_memory_per_node": number(None), "time": limit(int(usual) // 60 if usual else None),
        },
        "grace_time": 0,
        "groups": {"allowed": ""},
        "maximums": {
            "cpus_per_node": limit(None), "cpus_per_socket": limit(None), "memory_per_cpu": 0, "nodes": limit(None),
            "over_time_limit": number(None), "oversubscribe": {"jobs": 1, "flags": []},
            "partition_memory_per_cpu": number(None), "partition_memory_per_node": number(0), "shares": 1,
            "time": limit(int(longest) // 60 if longest else None),
        },
        "minimums": {"nodes": 0},
        "name": clean.line(pool["name"]),
        "node_sets": "",
        "nodes": {"allowed_allocation": "", "configured": compress([one.name for one in nodes]), "total": len(nodes)},
        "partition": {"state": ["DOWN" if pool.get("stopped_by") else "UP"]},
        "priority": {"job_factor": 1, "tier": 1},
        "qos": {"allowed": "", "assigned": "", "deny": ""},
        "select_type": [],
        "suspend_time": number(None),
        "timeouts": {"resume": number(None), "suspend": number(None)},
        "tres": {
            "billing_weights": "",
            "configured": f"cpu={cpus},mem={sum(one.memory_mib for one in nodes)}M,node={len(nodes)},billing={cpus}",
        },
    }  # fmt: skip


def group(pool: Mapping[str, Any], nodes: Sequence[SlurmNode], of_pool: Sequence[SlurmNode]) -> dict[str, Any]:
    """Return nodes of one partition and state, as ``sinfo --json`` lists them."""

    def span(values: Iterable[int]) -> dict[str, int]:
        found = list(values) or [0]
        return {"minimum": min(found), "maximum": max(found)}

    held, idle, other, total = [sum(column) for column in zip(*(one.counts for one in nodes), strict=True)] or [0] * 4
    in_use = sum(one.states[0].rstrip("*") in ("alloc", "mix", "drng") for one in nodes)
    rests = sum(one.states[0] == "idle" for one in nodes)
    first = nodes[0] if nodes else None
    features = ",".join(first.features) if first else ""
    return {
        "port": 0,
        "node": {"state": first.state_words if first else []},
        "nodes": {
            "allocated": in_use, "idle": rests, "other": len(nodes) - in_use - rests, "total": len(nodes),
            "hostnames": [], "addresses": [], "nodes": [one.name for one in nodes],
        },
        "cpus": {
            "allocated": held, "idle": idle, "other": other, "total": total, **span(one.cpus for one in nodes),
            "load": {"minimum": 0, "maximum": 0}, "per_node": {"max": limit(None)},
        },
        "sockets": {"minimum": 1, "maximum": 1},
        "cores": span(one.cpus for one in nodes),
        "threads": {"minimum": 1, "maximum": 1},
        "disk": {"minimum": 0, "maximum": 0},
        "memory": {
            **span(one.memory_mib for one in nodes), "free": {"minimum": number(None), "maximum": number(None)},
            "allocated": sum(one.memory_held_mib for one in nodes),
        },
        "weight": {"minimum": 1, "maximum": 1},
        "features": {"total": features, "active": features},
        "gres": {"total": "" if first is None or first.gres == "(null)" else first.gres, "used": ""},
        "cluster": "",
        "comment": "",
        "extra": "",
        "reason": {
            "description": clean.line((first.node.get("reason") if first else "") or ""), "time": 0, "user": "",
        },
        "reservation": "",
        "resource_spec": {"cpus": "", "memory": 0},
        "partition": partition(pool, of_pool),
    }  # fmt: skip


def document(key: str, rows: Iterable[Mapping[str, Any]], command: Sequence[str], **more: Any) -> str:
    """Write what a command prints: its rows under ``key``, and what Slurm puts around them."""
    import getpass

    from switchyard import __version__

    user = getpass.getuser()
    meta = {
        "plugin": {
            "type": "", "name": "", "data_parser": "data_parser/v0.0.42", "accounting_storage": CLUSTER,
        },
        "client": {"source": "", "user": user, "group": user},
        "command": list(command),
        "slurm": {
            "version": {"major": "24", "micro": "0", "minor": "11"},
            "release": f"switchyard {__version__}",
            "cluster": CLUSTER,
        },
    }  # fmt: skip
    return json.dumps({key: list(rows), **more, "meta": meta, "errors": [], "warnings": []}, indent=2)
