"""Pilots as jobs of a Ray cluster, over the REST API of its dashboard; nothing of Ray is imported here.

A job of Ray is a detached actor that holds the cores, memory and devices of a shape on one of its nodes and runs
our agent there. Its submission id is the pilot's label, and Ray refuses a second one: so a pilot cannot be doubled.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from controlplane.providers import apart, endpoint, script, typed
from controlplane.providers.engine import (
    LABEL,
    EngineFault,
    EngineRefused,
    ForeignPhase,
    ForeignPilot,
    PilotOrder,
)
from controlplane.providers.shapes import GIB

_RESOURCES: Final = 10


def _is_resources(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and 1 <= len(value) <= _RESOURCES
        and all(isinstance(name, str) and 1 <= len(name) <= 100 and name.isprintable() for name in value)
        and all(typed.is_number(0.0001, 1e6)(count) for count in value.values())
    )


SETTINGS: Final[Mapping[str, typed.Check]] = {
    **script.SETTINGS,
    "endpoint": typed.is_text(typed.NAME),
    "most": typed.is_whole(1, 10_000),
}
NEEDED: Final = ("endpoint", "python")
SHAPE: Final[Mapping[str, typed.Check]] = {"resources": _is_resources}
# Ray's own names of devices that are no GPU to it; a shape's "resources" may name any other.
_NAMES: Final = {"npu": "NPU", "tpu": "TPU"}
_PHASES: Final = {
    "PENDING": ForeignPhase.QUEUED,
    "RUNNING": ForeignPhase.RUNNING,
    "STOPPED": ForeignPhase.ENDED,
    "SUCCEEDED": ForeignPhase.ENDED,
    "FAILED": ForeignPhase.ENDED,
}
# What a stopped pilot may take beyond its stages' grace before Ray kills it, in seconds.
END_S: Final = 30.0
# Ray keeps ended jobs, with the end of what they printed, for ever. Ours are deleted after so many seconds, a few for
# each look.
KEPT_S: Final = 3_600.0
MOST_DELETED: Final = 5
_HOURS: Final = "yard-hours"
# Variables of Ray's own, the token and the address of its cluster among them, are no business of stages.
_WITHOUT_RAY: Final = """for name in $(env | sed -n 's/^\\(RAY_[A-Za-z0-9_]*\\)=.*/\\1/p'); do unset "$name"; done
"""
_IS_THERE: Final = "already exists"


class JobFound(msgspec.Struct, frozen=True):
    """One entry of Ray's list of jobs, of which there are also those of others. Times in milliseconds."""

    submission_id: str | None = None
    status: str = ""
    start_time: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    end_time: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    metadata: dict[str, str] | None = None


_jobs = msgspec.json.Decoder(list[JobFound]).decode


class RayCluster:
    """The Ray cluster at one endpoint."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, secret: str = ""
    ) -> endpoint.EndpointAnswer:
        return endpoint.of(self.given["endpoint"]).ask(method, path, body, secret=secret)

    def up(self, order: PilotOrder) -> str:
        answer = self._ask("POST", "/api/jobs/", self._order(order), order.token)
        # Whoever asks again for the same label has what was asked for.
        if answer.is_well or (order.label in answer.said and _IS_THERE in answer.said):
            return order.label
        # Of a fault of its own Ray may say so and have started the job all the same.
        raise (EngineRefused if 400 <= answer.status < 500 else EngineFault)("RaySaid", _told(answer))

    def _order(self, order: PilotOrder) -> dict[str, Any]:
        grace_s = float(self.given.get("grace_s", script.GRACE_S)) + END_S
        lasts = ["timeout", "--foreground", f"--kill-after={grace_s:.0f}", f"{order.hours * 3600:.0f}"]
        runs = [self.given["python"], "-c", Path(apart.__file__).read_text(), *lasts, "sh", "-c"]
        return {
            "submission_id": order.label,
            "entrypoint": f"exec {shlex.join([*runs, _WITHOUT_RAY + script.of(order, self.given)])}",
            "entrypoint_num_cpus": order.shape["cpus"],
            "entrypoint_memory": int(order.shape["memory_gib"] * GIB),
            **_devices(order.shape),
            "metadata": {_HOURS: f"{order.hours:.6f}"},
            "runtime_env": {
                "env_vars": {script.TOKEN: order.token, "RAY_JOB_STOP_WAIT_TIME_S": f"{grace_s:.0f}"},
            },
        }

    def down(self, handles: Sequence[str], *, force: bool = False) -> None:
        # Ray has one way to stop: the job is told, and killed once the wait that was set for it is over.
        for label in handles:
            answer = self._ask("POST", f"/api/jobs/{label}/stop")
            if not answer.is_well and answer.status != 404:
                raise EngineFault("RaySaid", _told(answer))

    def list(self, tag: str) -> list[ForeignPilot]:
        answer = self._ask("GET", "/api/jobs/")
        if not answer.is_well:
            raise EngineFault("RaySaid", _told(answer))
        try:
            jobs = _jobs(answer.body)
        except (msgspec.DecodeError, RecursionError):
            raise EngineFault("AnswerUnreadable", "GET /api/jobs/") from None
        mine = [job for job in jobs if (job.submission_id or "").startswith(f"yard-{tag}-")]
        found = [_read(job) for job in mine if LABEL.fullmatch(job.submission_id or "")]
        for label in _old(mine)[:MOST_DELETED]:
            self._ask("DELETE", f"/api/jobs/{label}")
        return found

    def price(self, shape: Mapping[str, Any]) -> float:
        return float(shape.get("price", 0.0))

    def limits(self) -> int | None:
        most: int | None = self.given.get("most")
        return most


def _devices(shape: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Ray is to reserve beside cores and memory: GPUs, and resources that it has under other names."""
    resources: dict[str, float] = {}
    gpus = 0
    for device in shape.get("devices", ()):
        count = device.get("count", 1)
        if name := _NAMES.get(device["kind"]):
            resources[name] = resources.get(name, 0) + count
        elif device["kind"] == "gpu":
            gpus += count
    resources |= shape.get("resources", {})
    return {
        **({"entrypoint_num_gpus": gpus} if gpus else {}),
        **({"entrypoint_resources": resources} if resources else {}),
    }


def _old(mine: Sequence[JobFound]) -> Sequence[str]:
    """Return our jobs that ended long before the newest began, by Ray's clock, which may not be this host's."""
    newest_ms = max((job.start_time or 0 for job in mine), default=0)
    ended = [job for job in mine if _PHASES.get(job.status) is ForeignPhase.ENDED]
    old = [job for job in ended if (job.end_time or job.start_time or 0) < newest_ms - KEPT_S * 1_000]
    return [job.submission_id for job in old if job.submission_id and LABEL.fullmatch(job.submission_id)]


def _told(answer: endpoint.EndpointAnswer) -> str:
    return f"{answer.status} {answer.said}"


def _read(job: JobFound) -> ForeignPilot:
    """Read one of our jobs. Raises EngineFault for one that makes no sense."""
    label, phase = str(job.submission_id), _PHASES.get(job.status)
    if phase is None:
        raise EngineFault("AnswerUnreadable", "GET /api/jobs/")
    return ForeignPilot(label, label, phase, _ends_at(job) if phase is ForeignPhase.RUNNING else None)


def _ends_at(job: JobFound) -> float | None:
    """Return when a job ends by itself, or a little before: its hours count from when Ray took it."""
    try:
        hours = float((job.metadata or {})[_HOURS])
    except (KeyError, ValueError):
        return None
    return job.start_time / 1_000 + hours * 3_600 if job.start_time and 0 < hours <= 1_000 else None


def engine(given: Mapping[str, Any]) -> RayCluster:
    return RayCluster(given)
