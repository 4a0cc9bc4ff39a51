"""Reads the job file of a local job: one stage, whose code lies on the node; what needs the control plane is refused.

Durations and sizes are written as in every job file: ``90s``, ``1h30m``, ``8GiB``.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from agents.edge.allowance import GIB, Allowance
from agents.masking import tells_secret
from agents.protocol import LOCAL_SPEC_BYTES

KEYS: Final = (
    "apiVersion", "kind", "name", "project", "run", "command", "env", "cpus", "memory", "devices", "time_limit",
)  # fmt: skip
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_SPAN: Final = re.compile(r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9})s)?")
_SIZE: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(MiB|GiB|TiB|MB|GB|TB)")
_UNITS: Final = {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "MB": 10**6, "GB": 10**9, "TB": 10**12}
GRACE_S: Final = 30.0


class JobRefused(ValueError):
    """The job is not accepted; the message tells why, for who submits it."""


class LocalDemand(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a local job runs and asks for. Without a ``kind`` it asks for cores alone."""

    argv: list[str]
    env: dict[str, str]
    cpus_milli: int
    memory_bytes: int
    time_limit_s: float
    disk_bytes: int
    kind: str = ""
    model: str = ""
    count: int = 0
    uuids: list[str] = msgspec.field(default_factory=list)


def chosen(spec: dict[str, Any], allowed: list[Allowance]) -> Allowance:
    """Return the allowance for the project that the file names, or the only one. Raises JobRefused."""
    project = spec.get("project")
    found = [each for each in allowed if project is None or each.project == project]
    projects = list(dict.fromkeys(each.project for each in allowed))
    if not found:
        raise JobRefused(f"you may not submit to project {str(project)[:60]!r} here, only to {', '.join(projects)}")
    if project is None and len(projects) > 1:
        raise JobRefused(f"name a project: you may submit to {', '.join(projects)} here")
    return found[0]


def demand(spec: dict[str, Any], allowed: Allowance) -> LocalDemand:
    """Return what the file asks for, within what is allowed. Raises JobRefused with a sentence."""
    if len(msgspec.json.encode(spec)) > LOCAL_SPEC_BYTES:
        raise JobRefused(f"the file of a local job has {LOCAL_SPEC_BYTES >> 10} KiB at most")
    if unknown := [key for key in spec if key not in KEYS]:
        raise JobRefused(
            f"{', '.join(sorted(map(str, unknown))[:8])}: not for a local job, which may have {', '.join(KEYS[2:])}; "
            "its code and files lie on the node already"
        )
    if spec.get("apiVersion", "v1") != "v1" or spec.get("kind", "Job") != "Job":
        raise JobRefused("only a job (apiVersion v1, kind Job) is accepted here")
    if not isinstance(spec.get("name", "job"), str) or not _NAME.fullmatch(spec.get("name", "job")):
        raise JobRefused("name: up to 100 letters, digits, points, dashes and underscores, the first a letter or digit")
    cpus_milli = round(_number(spec, "cpus", 1.0) * 1000)
    memory_bytes = _size(spec.get("memory", "1GiB"))
    limit_s = _span(spec["time_limit"]) if "time_limit" in spec else allowed.hours * 3600
    for what, asked, most, unit in (
        ("cpus", cpus_milli / 1000, allowed.cpus, "cores"),
        ("memory", memory_bytes / GIB, allowed.memory_gib, "GiB"),
        ("time_limit", limit_s / 3600, allowed.hours, "h"),
    ):
        if asked > most:
            raise JobRefused(f"{what}: {asked:g} {unit} are more than the {most:g} that you may have here")
    kind, model, count, uuids = _devices(spec.get("devices"), allowed)
    return LocalDemand(
        argv=_argv(spec),
        env=_env(spec.get("env", {})),
        cpus_milli=max(1, cpus_milli),
        memory_bytes=memory_bytes,
        time_limit_s=limit_s,
        disk_bytes=round(allowed.disk_gib * GIB),
        kind=kind,
        model=model,
        count=count,
        uuids=uuids,
    )


def _argv(spec: dict[str, Any]) -> list[str]:
    run, words = spec.get("run"), spec.get("command")
    if (run is None) == (words is None):
        raise JobRefused("give run (a script) or command (a list of words)")
    if run is not None:
        if not isinstance(run, str) or not run.strip() or "\0" in run:
            raise JobRefused("run: must be a script")
        return ["/bin/sh", "-c", run]
    if not isinstance(words, list) or not words or not all(isinstance(w, str) and "\0" not in w for w in words):
        raise JobRefused("command: must be a list of words")
    if len(words) > 1_024 or not words[0]:
        raise JobRefused("command: up to 1024 words, the first the program to start")
    return list(words)


def _env(found: Any) -> dict[str, str]:
    if not isinstance(found, dict) or len(found) > 256:
        raise JobRefused("env: must map up to 256 names to values")
    env: dict[str, str] = {}
    for name, value in found.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name) or name.startswith("YARD_"):
            raise JobRefused(f"env: {str(name)[:60]!r} cannot name a variable")
        if isinstance(value, bool) or not isinstance(value, str | int | float) or "\0" in str(value):
            raise JobRefused(f"env: the value of {name} must be a text or a number")
        if tells_secret(name):
            raise JobRefused(f"env: {name} looks like a secret; keep it in a file of the node that only you may read")
        env[name] = str(value)
    return env


def _devices(found: Any, allowed: Allowance) -> tuple[str, str, int, list[str]]:
    if found is None:
        return "", "", 0, []
    if not isinstance(found, dict) or set(found) - {"kind", "model", "count"}:
        raise JobRefused("devices: may have kind, model and count")
    kind, model, count = found.get("kind", "gpu"), found.get("model", ""), found.get("count", 1)
    if not isinstance(kind, str) or not isinstance(model, str) or len(model) > 80:
        raise JobRefused("devices: kind and model are texts")
    if kind not in allowed.kinds:
        raise JobRefused(f"devices: you may use {', '.join(allowed.kinds)} here, not {kind[:20]!r}")
    if kind == "cpu":
        return "", "", 0, []
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= allowed.most_devices:
        raise JobRefused(f"devices: count must be from 1 to {allowed.most_devices} here")
    return kind, model, count, allowed.devices


def _number(spec: dict[str, Any], key: str, usual: float) -> float:
    value = spec.get(key, usual)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 4_096:
        raise JobRefused(f"{key}: must be a number above 0")
    return float(value)


def _size(value: Any) -> int:
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise JobRefused("memory: write it as 512MiB or 8GiB")
    return round(float(found[1]) * _UNITS[found[2]])


def _span(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value <= 366 * 86_400:
        return float(value)
    found = _SPAN.fullmatch(value) if isinstance(value, str) and value else None
    seconds = 0.0
    if found is not None:
        seconds = sum(int(n or 0) * each for n, each in zip(found.groups(), (86_400, 3_600, 60, 1), strict=True))
    if seconds < 1:
        raise JobRefused("time_limit: write it as 90s or 1h30m")
    return seconds
