"""Jobs as Python objects, with the same keys as the job file.

An attribute left at ``None`` is not written, so the control plane's default applies. Sizes are texts such as
``"80GiB"`` or bytes, durations texts such as ``"12h"`` or seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from switchyard.problem import SpecError

Size = str | int
Span = str | int | float


@dataclass(slots=True)
class Devices:
    """The devices of each node: ``Devices("H100", 8)``, ``Devices(kind="npu", milli=500, memory="8GiB")``.

    ``milli`` is the share of each device in thousandths, ``partition`` asks for a partition by its profile
    (``3g.40gb``), or for the ``smallest`` that suffices; ``sharing`` is the required enforcement of memory shares on
    the device (``soft``, ``hard``). ``command`` replaces and ``env`` extends the stage's own in one of several
    alternatives, so that an NPU may run another script than a GPU.
    """

    model: str | None = None
    count: int | None = None
    kind: str | None = None
    vendor: str | None = None
    milli: int | None = None
    memory: Size | None = None
    command: str | Sequence[str] | None = None
    env: Mapping[str, str] | None = None
    image: str | None = None
    partition: str | None = None
    sharing: str | None = None


@dataclass(slots=True, kw_only=True)
class Demand:
    """The keys that a job and a stage share; those of the job are the defaults of its stages.

    ``command`` as a text is a shell script, as a list the exact arguments. Several ``devices`` are alternatives: the
    one with the earliest predicted finish is chosen. ``nodes`` as ``{"min": 1, "max": 4}`` makes the stage elastic.
    """

    name: str | None = None
    command: str | Sequence[str] | None = None
    env: Mapping[str, Any] | None = None
    nodes: int | Mapping[str, int] | None = None
    devices: Devices | Mapping[str, Any] | Sequence[Devices | Mapping[str, Any]] | None = None
    cpus: float | None = None
    memory: Size | None = None
    time_limit: Span | None = None
    expected: Span | None = None
    deadline: Span | None = None
    topology: Mapping[str, Any] | None = None
    avoid: Sequence[str | Mapping[str, str]] | None = None
    only_on: Sequence[str | Mapping[str, str]] | None = None
    constraint: str | None = None
    site: str | None = None
    sites: str | Sequence[str] | None = None
    data: Mapping[str, Any] | None = None
    on_site_lost: str | None = None
    begin: str | None = None
    retry: Mapping[str, Any] | None = None
    on_node_lost: str | None = None
    preemption: Mapping[str, Any] | None = None
    checkpoint: Mapping[str, Any] | None = None
    precision: str | None = None
    task: str | None = None
    image: str | None = None


@dataclass(slots=True, kw_only=True)
class Stage(Demand):
    """One unit that is scheduled. ``needs`` names the stages that must complete first."""

    kind: str | None = None
    needs: Sequence[str] | None = None


@dataclass(slots=True, kw_only=True)
class Job(Demand):
    """A job: one command, or ``stages``. ``workdir`` is a local folder that is sent along, or a git repository:
    ``{"git": {"url": …, "rev": …}}``."""

    project: str | None = None
    pool: str | None = None
    priority: str | int | None = None
    labels: Mapping[str, str] | None = None
    workdir: str | Mapping[str, Any] | None = None
    bundle: str | None = None
    hold: bool | None = None
    reservation: str | None = None
    kind: str | None = None
    stages: Sequence[Stage | Mapping[str, Any]] | None = None

    def to_spec(self) -> dict[str, Any]:
        """Return the equivalent job file. A job ``kind`` (train, infer, ...) makes its one stage of that kind."""
        spec = {"apiVersion": "v1", "kind": "Job", **_written(self)}
        if self.kind is not None:
            if self.stages:
                raise SpecError("a job with stages has no kind of its own; give each stage its kind")
            spec["stages"] = [{"name": self.kind, "kind": self.kind}]
        return spec


def _written(demand: Demand | Devices) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    for item in fields(demand):
        value = getattr(demand, item.name)
        if value is None or (item.name == "kind" and isinstance(demand, Job)):
            continue
        if item.name == "command":
            if isinstance(value, str):
                spec["run"] = value
            else:
                spec["command"] = [str(word) for word in value]
        elif item.name == "devices":
            spec["devices"] = _devices(value)
        elif item.name == "stages":
            spec["stages"] = [_written(stage) if isinstance(stage, Stage) else dict(stage) for stage in value]
        elif isinstance(value, Mapping):
            spec[item.name] = dict(value)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            spec[item.name] = list(value)
        else:
            spec[item.name] = value
    return spec


def _devices(
    value: Devices | Mapping[str, Any] | Sequence[Devices | Mapping[str, Any]],
) -> dict[str, Any]:
    if isinstance(value, Devices):
        return _written(value)
    if isinstance(value, Mapping):
        return dict(value)
    return {"any_of": [_devices(one) for one in value]}
