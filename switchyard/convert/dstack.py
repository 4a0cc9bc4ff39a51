"""A task of dstack as a job file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from switchyard.convert.skypilot import CLOUD, git, prelude
from switchyard.convert.source import Conversion, Source, mapped, name, quantity, size, variables
from switchyard.problem import SpecError

REASONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "backends", "regions", "availability_zones", "instance_types", "reservation", "spot_policy", "max_price",
            "creation_policy", "idle_duration", "fleets", "instances", "single_branch",
        ),
        CLOUD,
    ),
    "ports": "`ports` of a job file are from 1024 to 65535, up to 16; `yard port-forward` reaches any",
    "volumes": "folders of the nodes become `mounts`; a volume by name has no counterpart",
    "files": "send them along with `workdir`",
    "repos": "one repository with an https:// url becomes `workdir`; send a folder along otherwise",
    "python": "name an `image`, or use the node's own",
    "nvcc": "name an `image`, or use the node's own",
    "registry_auth": "an agent has the credentials of its registries",
    "user": "a node decides as whom a stage runs",
    "privileged": "no container of a stage is privileged",
    "utilization_policy": "a least utilisation from 1 to 100 and a window from 5 minutes to a day are taken",
    "resources.shm_size": "a stage's /dev/shm is as large as its memory",
    "startup_order": "all nodes start together",
    "stop_criteria": "a stage ends when all its ranks have, or when one fails",
}  # fmt: skip
PRELUDE: Final = {
    "DSTACK_NODES_NUM": '"$YARD_NNODES"',
    "DSTACK_NODE_RANK": '"$YARD_NODE_RANK"',
    "DSTACK_GPUS_PER_NODE": '"$YARD_DEVICES_PER_NODE"',
    "DSTACK_GPUS_NUM": '"$((YARD_NNODES * YARD_DEVICES_PER_NODE))"',
    "DSTACK_MASTER_NODE_IP": '"$MASTER_ADDR"',
    "DSTACK_NODES_IPS": '"$(cut -d\' \' -f1 "${YARD_HOSTFILE:-/dev/null}")"',
    "DSTACK_RUN_NAME": '"$YARD_JOB_NAME"',
}
MOST_PORTS: Final = 16
EVENTS: Final = {"no-capacity": (), "interruption": ("node_fail", "node_reboot"), "error": ("exit_code", "signal")}


def _sources(source: Source, spec: dict[str, Any]) -> None:
    """Take one repository as the code, and folders of the nodes as mounts."""
    repos = source.document.get("repos")
    if isinstance(repos, list) and len(repos) == 1 and isinstance(repos[0], dict):
        url, rev = str(repos[0].get("url", "")), repos[0].get("hash") or repos[0].get("branch") or ""
        if url.startswith("https://"):
            source.take("repos")
            spec["workdir"] = git(url, str(rev))
    volumes = source.take("volumes")
    mounts, rest = [], []
    for each in volumes if isinstance(volumes, list) else []:
        if isinstance(each, str) and each.startswith("/") and ":" in each:
            folder, _, place = each.partition(":")
            each = {"instance_path": folder, "path": place}
        if isinstance(each, dict) and each.get("instance_path") and each.get("path"):
            mounts.append({"source": str(each["instance_path"]), "path": str(each["path"]), "readonly": False})
        else:
            rest.append(each)
    spec["mounts"] = mounts
    if rest:
        source.document["volumes"] = rest


def convert(document: object) -> Conversion:
    """Convert a task. Raises SpecError for a service or a development environment."""
    source = Source(mapped(document, "a task of dstack"))
    kind = source.text("type")
    if kind != "task":
        raise SpecError(f"a task of dstack can be converted, not {kind or 'a document without a type'}")
    spec: dict[str, Any] = {"name": name(source.text("name")), "image": source.text("image")}
    _sources(source, spec)
    nodes = source.whole("nodes")
    spec["nodes"] = nodes if nodes and nodes > 1 else None
    spec["env"] = variables(source, "env", source.take("env"))
    commands = source.take("commands")
    script = " && \\\n".join(str(each).strip() for each in commands) if isinstance(commands, list) else ""
    shell = source.text("shell") or ("sh" if spec["image"] else "bash")
    if folder := source.text("working_dir"):
        script = f"cd '{folder}' && \\\n{script}" if re.fullmatch(r"[\w./-]+", folder) else script
    if script:
        lines = prelude(PRELUDE, script)
        spec["command"] = [shell, "-c", f"{lines}\n{script}\n".lstrip("\n")]
    limit = source.take("max_duration")
    spec["time_limit"] = None if limit in ("off", False, None) else limit
    if limit in ("off", False):
        source.drop("max_duration", "the limit is the pool's")
    grace = source.take("stop_duration")
    spec["preemption"] = {"grace": grace} if grace not in ("off", False, None) else None
    number = source.whole("priority")
    if number is not None:
        spec["priority"] = "urgent" if number >= 90 else "high" if number > 50 else "medium" if number > 25 else "low"
        source.drop("priority", f"{number} of 100 is taken as {spec['priority']}")
    _retry(source, spec)
    _idle(source, spec)
    _ports(source, spec)
    _resources(source, spec)
    return source.end(spec, REASONS)


def _retry(source: Source, spec: dict[str, Any]) -> None:
    retry = source.take("retry")
    if isinstance(retry, dict):
        events = retry.get("on_events")
        causes = [cause for event in events for cause in EVENTS.get(str(event), ())] if isinstance(events, list) else []
        spec["retry"] = {"max": 10, **({"on": causes} if causes else {})}
        if "duration" in retry:
            source.drop("retry.duration", "attempts are counted, up to 10 here; change retry.max")
    elif retry is True:
        spec["retry"] = {"max": 10}


def _idle(source: Source, spec: dict[str, Any]) -> None:
    """Read at what use of its devices it is stopped."""
    policy = source.document.get("utilization_policy")
    if not isinstance(policy, dict):
        return
    least, window = policy.get("min_gpu_utilization"), policy.get("time_window")
    window_s = _seconds(window)
    if isinstance(least, int) and 1 <= least <= 100 and window_s is not None and 300 <= window_s <= 86400:
        source.take("utilization_policy")
        spec["utilization_policy"] = {"min": f"{least}%", "window": window, "action": "stop"}


def _seconds(span: Any) -> int | None:
    """Read a span such as ``90``, ``30m`` or ``1d``."""
    found = re.fullmatch(r"([0-9]{1,7})([smhdw]?)", str(span))
    return int(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}[found[2]] if found else None


def _ports(source: Source, spec: dict[str, Any]) -> None:
    """Read the ports of the task; on which port of one's own machine each is seen is chosen when it is opened."""
    listed = source.take("ports")
    ports, rest = list[dict[str, Any]](), list[Any]()
    for each in listed if isinstance(listed, list) else []:
        inner = str(each.get("container_port") if isinstance(each, dict) else each).rpartition(":")[2]
        number = int(inner) if re.fullmatch(r"[0-9]{1,5}", inner) else 0
        taken = [one["port"] for one in ports]
        if 1024 <= number <= 65535 and number not in taken and len(ports) < MOST_PORTS:
            ports.append({"name": f"port-{number}", "port": number})
        elif number not in taken:
            rest.append(each)
    spec["ports"] = ports
    if rest:
        source.document["ports"] = rest


def _resources(source: Source, spec: dict[str, Any]) -> None:
    cpu = source.take("resources", "cpu")
    if isinstance(cpu, dict):
        cpu = cpu.get("count")
    least = _least(cpu)
    if least and re.fullmatch(r"(?:\w+:)?[0-9]{1,5}", least):
        spec["cpus"] = int(least.rpartition(":")[2])
    memory = _least(source.take("resources", "memory"))
    if memory and (count := quantity(memory, "Gi")):
        spec["memory"] = size(_binary(memory, count))
    disk = source.take("resources", "disk")
    space = _least(disk.get("size") if isinstance(disk, dict) else disk)
    if space and (count := quantity(space, "Gi")):
        spec["disk"] = size(_binary(space, count))
    elif disk is not None:
        source.drop("resources.disk", "it is no size such as 100GB..")
    gpu = source.take("resources", "gpu")
    if gpu is not None:
        _gpu(source, gpu, spec)


def _least(value: Any) -> str:
    """Return the lower end of a range such as ``24GB..80GB`` or ``4..``."""
    if isinstance(value, dict):
        value = value.get("min")
    return str(value).partition("..")[0] if value is not None else ""


def _binary(text: str, count: int) -> int:
    """Return bytes as dstack means them: its GB is 2**30."""
    found = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT])B?\s*", text, re.IGNORECASE)
    return int(float(found[1]) * (1 << {"K": 10, "M": 20, "G": 30, "T": 40}[found[2].upper()])) if found else count


def _gpu(source: Source, gpu: Any, spec: dict[str, Any]) -> None:
    """Read ``24GB``, ``H100:8``, ``nvidia:A100:80GB:4``, ``2`` and the mapping of the same."""
    ask: dict[str, Any] = {"kind": "gpu"}
    if isinstance(gpu, dict):
        names = gpu.get("name")
        words = [*(names if isinstance(names, list) else [names] if names else [])]
        words += [gpu[key] for key in ("vendor",) if gpu.get(key)]
        words += [_least(gpu[key]) for key in ("memory", "count") if gpu.get(key) is not None]
        if left := [str(key) for key in gpu if key not in ("name", "vendor", "memory", "count")]:
            source.drop("resources.gpu", f"not taken: {', '.join(left[:5])}")
    else:
        words = str(gpu).split(":")
    models: list[str] = []
    for word in map(str, words):
        least = _least(word)
        if least.isdecimal():
            ask["count"] = int(least[:6])
        elif count := quantity(least) if re.search(r"[KMGT]B$", least, re.IGNORECASE) else None:
            ask["memory"] = size(_binary(least, count))
        elif word.lower() in ("nvidia", "amd", "intel", "google", "tenstorrent"):
            ask["vendor"] = word.lower()
        else:
            models += [each for each in word.split(",") if each]
    if ask.get("count") == 0:
        return
    ways = [{**ask, "model": model} for model in models] or [ask]
    spec["devices"] = ways[0] if len(ways) == 1 else {"any_of": ways[:16]}
