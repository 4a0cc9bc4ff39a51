"""A task of SkyPilot as a job file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from switchyard.convert.source import Conversion, Source, mapped, name, quantity, size, variables

CLOUD: Final = "the nodes are there; no cloud is asked for any"
REASONS: Final[Mapping[str, str]] = {
    **{
        f"resources.{key}": CLOUD
        for key in (
            "cloud", "region", "zone", "infra", "instance_type", "use_spot", "disk_size", "disk_tier", "ports",
            "labels", "autostop", "accelerator_args", "network_tier",
        )
    },
    "file_mounts": "a stage sees the storage of its pool; see `inputs` of the job file",
    "volumes": "a stage sees the storage of its pool; see `inputs` of the job file",
    "service": "a service of several replicas is no job; see `kind: serve`",
    "config": CLOUD,
    "workdir": "a repository has an https:// url, and a ref",
}  # fmt: skip
PRELUDE: Final = {
    "SKYPILOT_NUM_NODES": '"$YARD_NNODES"',
    "SKYPILOT_NODE_RANK": '"$YARD_NODE_RANK"',
    "SKYPILOT_NUM_GPUS_PER_NODE": '"$YARD_DEVICES_PER_NODE"',
    "SKYPILOT_NODE_IPS": '"$(cut -d\' \' -f1 "${YARD_HOSTFILE:-/dev/null}")"',
    "SKYPILOT_TASK_ID": '"$YARD_JOB_ID"',
}
"""SkyPilot's variables in Switchyard's; those that a script names are set before it."""


def convert(document: object) -> Conversion:
    """Convert a task. Raises SpecError if it is no mapping."""
    source = Source(mapped(document, "a task of SkyPilot"))
    spec: dict[str, Any] = {"name": name(source.text("name"))}
    folder = source.document.get("workdir")
    if isinstance(folder, str):
        spec["workdir"] = source.text("workdir")
    elif isinstance(folder, dict) and str(folder.get("url", "")).startswith("https://"):
        spec["workdir"] = git(source.text("workdir", "url"), source.text("workdir", "ref"))
    nodes = source.whole("num_nodes")
    spec["nodes"] = nodes if nodes and nodes > 1 else None
    spec["env"] = variables(source, "envs", source.take("envs"))
    wanted = source.take("secrets")
    spec["secrets"] = [str(key) for key in wanted] if isinstance(wanted, dict | list) else []
    setup, script = source.text("setup"), source.text("run")
    lines = prelude(PRELUDE, f"{setup}\n{script}")
    # SkyPilot's scripts are for bash, and stop for nothing but the last command, as they do there.
    parts = [part.rstrip("\n") for part in (lines, setup, script) if part.strip()]
    spec["command"] = ["bash", "-c", "\n".join(parts) + "\n"] if parts else None
    if setup.strip():
        source.drop("setup", "it runs before `run` in every attempt, not once for a cluster")
    _resources(source, spec)
    _job(source, spec)
    return source.end(spec, REASONS)


def git(url: str, rev: str) -> dict[str, Any]:
    """Return the workdir for a repository at a revision."""
    return {"git": {"url": url, **({"rev": rev} if rev else {})}}


def prelude(known: Mapping[str, str], script: str) -> str:
    """Return the lines that set those of the known variables that a script names."""
    return "\n".join(f"export {key}={value}" for key, value in known.items() if key in script)


def _resources(source: Source, spec: dict[str, Any]) -> None:
    several = source.take("resources", "any_of") or source.take("resources", "ordered")
    ways = [each for each in several if isinstance(each, dict)] if isinstance(several, list) else []
    asked = source.take("resources", "accelerators")
    asks = _accelerators(source, asked)
    for way in ways:
        asks += _accelerators(source, way.get("accelerators"))
        if left := [key for key in way if key != "accelerators"]:
            source.drop("resources.any_of", f"of each alternative the devices are taken, not {', '.join(left[:5])}")
    if asks:
        spec["devices"] = asks[0] if len(asks) == 1 else {"any_of": asks}
    cpus = source.text("resources", "cpus")
    if found := re.fullmatch(r"([0-9]{1,5}(?:\.[0-9]{1,3})?)\+?", cpus):
        spec["cpus"] = int(found[1]) if found[1].isdecimal() else float(found[1])
    elif cpus:
        source.drop("resources.cpus", f"{cpus[:40]!r} is no number")
    memory = source.text("resources", "memory")
    if memory:
        count = quantity(memory, "Gi")
        if count:
            spec["memory"] = size(count)
        else:
            source.drop("resources.memory", f"{memory[:40]!r} is no size; it is in GiB")
    image = source.text("resources", "image_id")
    if image.startswith("docker:"):
        spec["image"] = image.removeprefix("docker:")
    elif image:
        source.drop("resources.image_id", CLOUD)


def _accelerators(source: Source, asked: Any) -> list[dict[str, Any]]:
    """Read ``H100:8``, ``{H100: 8}`` and lists of these."""
    if asked is None:
        return []
    if isinstance(asked, list):
        return [ask for each in asked[:16] for ask in _accelerators(source, each)]
    if isinstance(asked, dict):
        return [ask for key, value in asked.items() for ask in _accelerators(source, f"{key}:{value or 1}")]
    model, _, count = str(asked).partition(":")
    if not model or not re.fullmatch(r"[0-9]{0,5}(?:\.[0-9]{1,3})?", count):
        source.drop("resources.accelerators", f"{str(asked)[:40]!r} cannot be read")
        return []
    number = float(count or 1)
    size_of = re.fullmatch(r"(.+?)-([0-9]{1,4})GB(-SXM)?", model)
    ask: dict[str, Any] = {"model": size_of[1] if size_of else model}
    if size_of:
        ask["memory"] = f"{int(size_of[2]) - 1}GiB"
        source.drop("resources.accelerators", f"{model}: taken as {size_of[1]} with {ask['memory']} of memory")
    if 0 < number < 1:
        return [{**ask, "milli": round(number * 1000)}]
    return [{**ask, "count": int(number)}]


def _job(source: Source, spec: dict[str, Any]) -> None:
    """Read how often it is tried again."""
    recovery = source.take("resources", "job_recovery")
    if isinstance(recovery, dict):
        tries = recovery.get("max_restarts_on_errors")
        if isinstance(tries, int) and 0 < tries < 1000:
            spec["retry"] = {"max": tries + 1}
    elif recovery is not None:
        source.drop(
            "resources.job_recovery", "a preempted stage is queued again always; see `retry` and `on_node_lost`"
        )
