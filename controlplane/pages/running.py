"""The running attempts of a job, as its page shows them: revisions, faults, and resource use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.utils.translation import gettext as _

from controlplane.amounts import cores, gib
from scheduler.core.model.lifecycle import State


def running(attempts: Iterable[Mapping[str, Any]], state_of: Mapping[str, str], api: str) -> list[dict[str, Any]]:
    """The attempts that have not ended. ``state_of`` has the states of the stages by name."""
    return [
        {
            **attempt,
            "paused": state_of.get(attempt["stage"]) == State.SUSPENDED,
            "adjust": f"{api}/attempts/{attempt['id']}/adjust",
            "adjustable": not attempt["stop_why"],
            "idle": [name for uuid, name in _devices(attempt).items() if uuid in attempt["idle_devices"]],
            "parts": [{**part, "gets": gets(part["share"])} for part in attempt["parts"]],
        }
        for attempt in attempts
        if not attempt["ended_at"]
    ]


def _devices(attempt: Mapping[str, Any]) -> dict[str, str]:
    """The devices of the attempt by uuid, as ``g03 gpu0``."""
    return {
        device["uuid"]: f"{rank['node']} {device['kind']}{device['index']}"
        for rank in attempt["placed"]
        for device in rank["devices"]
    }


def released(attempt: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The memory left on its devices at its end: sentences, and whether each is a fault."""
    names = _devices(attempt)
    return [
        {"text": _returned(names.get(memory["uuid"], memory["uuid"]), memory), "is_late": memory["is_back"] is False}
        for part in attempt["parts"]
        for memory in part["released"]
    ]


def _returned(device: str, memory: Mapping[str, Any]) -> str:
    if memory["left_bytes"] is None:
        return _("{device} could not be measured after the end").format(device=device)
    if memory["is_back"]:
        text = _("{device} gave back what it held: {most} at most, {after} left after {n} s")
    elif memory["is_back"] is False:
        text = _("{device} has {after} in use {n} s after the end ({before} before the start)")
    else:
        text = _("{device} has {after} in use {n} s after the end; others use it too")
    return text.format(
        device=device,
        most=gib(memory["most_bytes"]),
        after=gib(memory["left_bytes"]),
        before=gib(memory["before_bytes"]),
        n=f"{memory['after_s'] or 0:.2f}",
    )


def gets(share: Mapping[str, Any]) -> str:
    """The changed resources of a revision as text; empty if there are none."""
    said: list[str] = []
    if share.get("suspended"):
        said.append(_("suspended"))
    if share.get("cpus") is not None:
        said.append(_("cores {cores}").format(cores=",".join(map(str, share["cpus"]))))
    elif share.get("cpus_milli") is not None:
        said.append(cores(share["cpus_milli"]))
    if share.get("cpu_weight") is not None:
        said.append(_("CPU weight {n}").format(n=share["cpu_weight"]))
    if share.get("io_weight") is not None:
        said.append(_("I/O weight {n}").format(n=share["io_weight"]))
    if share.get("memory_bytes") is not None:
        said.append(_("memory up to {size}").format(size=gib(share["memory_bytes"])))
    if share.get("queue_class"):
        said.append(_("queue class {name}").format(name=share["queue_class"]))
    if share.get("quantum_s") is not None:
        said.append(_("turns of {n} s").format(n=f"{share['quantum_s']:g}"))
    return ", ".join(said)
