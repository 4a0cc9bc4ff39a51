"""Reads a service file: its own keys here, and those of a job file into the template of a replica's job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from controlplane.jobs.section import FieldError, Section
from controlplane.jobs.spec import JOB_KEYS, STAGE_DEFAULTS, InvalidSpec
from controlplane.jobs.values import choice, duration, matching, number, size, text, whole
from controlplane.services import engines

MOST_REPLICAS: Final = 256
DAY_S: Final = 86_400.0
KEYS: Final = (
    "apiVersion", "kind", "name", "project", "engine", "model", "served_name", "arguments", "template", "replicas",
    "target", "rollout", "slo", "limits", "health", "drain", "start",
)  # fmt: skip
# What a replica's job has of its own.
_OURS: Final = frozenset(
    {"name", "project", "kind", "apiVersion", "stages", "array", "depends_on", "hold", "begin", "retry", "promote"}
)
TEMPLATE_KEYS: Final = tuple(key for key in JOB_KEYS if key not in _OURS)
_NAME = matching(
    re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"), gettext_noop("1 to 63 lower-case letters, digits and hyphens")
)
_PATH = matching(re.compile(r"/[A-Za-z0-9_./-]{0,199}"), gettext_noop("a path, such as /health"))


@dataclass(frozen=True, slots=True)
class ServiceFile:
    """A service file that was read: ``template`` is the job file of a replica, ``settings`` needs no new replicas."""

    name: str
    project: str | None
    template: dict[str, Any]
    health: str
    settings: dict[str, Any]


def read(value: object) -> ServiceFile:
    """Read a service file. Raises ``InvalidSpec`` with every fault."""
    refusals: list[FieldError] = []
    top = Section(value, "", refusals, KEYS)
    top.read("apiVersion", choice("v1"), "v1")
    top.read("kind", choice("Service"), "Service")
    if not top.has("name"):
        top.refuse("name", _("a service needs a name"), "required")
    name = top.read("name", _NAME, "")
    project = top.read("project", _NAME, None)
    engine = engines.all_engines().get(top.read("engine", choice(*engines.all_engines()), ""))
    model, served = top.read("model", text(1_000), ""), top.read("served_name", text(200), "")
    arguments = top.read("arguments", text(4_000), "")
    template = Section(top.values.get("template") or {}, "/template", refusals, TEMPLATE_KEYS)
    job = {key: each for key, each in template.values.items() if key in TEMPLATE_KEYS}
    if engine is not None:
        if not model:
            top.refuse(
                "model", _("the engine {engine} needs the model to serve").format(engine=engine.name), "required"
            )
        job = engine.job(job, model, served or name, arguments)
    elif not (template.has("run") or template.has("command")):
        top.refuse("template", _("say what a replica runs: template.run, or an engine"), "required")
    health = top.read("health", _PATH, engine.health if engine else "/health")
    settings = _settings(top, refusals)
    if refusals:
        raise InvalidSpec(refusals)
    return ServiceFile(name, project, job, health, settings)


def with_promoted(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a service file that serves the promoted model: an engine is given that, a ``run`` finds it by itself."""
    return {**given, "model": engines.PROMOTED} if given.get("engine") else dict(given)


def _settings(top: Section, refusals: list[FieldError]) -> dict[str, Any]:
    low, high = _replicas(top, refusals)
    target = Section(
        top.values.get("target") or {}, "/target", refusals, ("requests", "tokens", "time_to_first_token", "idle")
    )
    rollout = Section(top.values.get("rollout") or {}, "/rollout", refusals, ("surge", "unavailable", "canary"))
    slo = Section(top.values.get("slo") or {}, "/slo", refusals, ("time_to_first_token", "share"))
    limits = Section(
        top.values.get("limits") or {},
        "/limits",
        refusals,
        ("requests_per_s", "concurrency", "queue", "body", "wait", "first_byte", "idle"),
    )
    surge = rollout.read("surge", whole(0, MOST_REPLICAS), 1)
    unavailable = rollout.read("unavailable", whole(0, MOST_REPLICAS), 0)
    if surge + unavailable == 0:
        rollout.refuse("surge", _("surge and unavailable cannot both be 0: nothing could be updated"))
    return {
        "min": low,
        "max": high,
        "target_requests": target.read("requests", number(0.1, 100_000), 8.0),
        "target_tokens": target.read("tokens", number(1, 1_000_000_000), None),
        "target_first_byte_s": target.read("time_to_first_token", duration(0.001, 600.0), None),
        "idle_s": target.read("idle", duration(1.0, 30 * DAY_S), 300.0),
        "surge": surge,
        "unavailable": unavailable,
        "canary": rollout.read("canary", percent(1, 100), 100),
        "slo_first_byte_s": slo.read("time_to_first_token", duration(0.001, 600.0), None),
        "slo_share": slo.read("share", percent(1, 100), 99),
        "requests_per_s": limits.read("requests_per_s", number(0.1, 1_000_000), 0.0),
        "concurrency": limits.read("concurrency", whole(1, 10_000), 64),
        "queue": limits.read("queue", whole(0, 10_000), 256),
        "body_bytes": limits.read("body", size(1, 64 * 2**20), 8 * 2**20),
        "wait_s": limits.read("wait", duration(0.1, 600.0), 60.0),
        "first_byte_s": limits.read("first_byte", duration(0.1, 3_600.0), 60.0),
        "read_s": limits.read("idle", duration(0.1, 3_600.0), 60.0),
        "drain_s": top.read("drain", duration(0.0, 3_600.0), 30.0),
        "start_s": top.read("start", duration(1.0, DAY_S), 600.0),
    }


def _replicas(top: Section, refusals: list[FieldError]) -> tuple[int, int]:
    given = top.values.get("replicas")
    if given is None or isinstance(given, int):
        count = top.read("replicas", whole(0, MOST_REPLICAS), 1)
        return count, count
    both = Section(given, "/replicas", refusals, ("min", "max"))
    low, high = both.read("min", whole(0, MOST_REPLICAS), 1), both.read("max", whole(1, MOST_REPLICAS), 1)
    if low > high:
        both.refuse("max", _("max must not be less than min"))
    return low, high


def percent(low: int, high: int) -> Any:
    """Return a reader of percentages: ``10%`` or a whole number."""

    def read(value: object) -> int:
        word = value.strip().removesuffix("%") if isinstance(value, str) and len(value) < 10 else value
        share = int(word) if isinstance(word, str) and word.isascii() and word.isdigit() else word
        return whole(low, high)(share)

    return read


def stage_of(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job file of a template: what concerns the stage in a stage of the kind ``serve``."""
    stage = {key: each for key, each in template.items() if key in STAGE_DEFAULTS}
    job = {key: each for key, each in template.items() if key not in STAGE_DEFAULTS}
    return {**job, "stages": [{"name": "serve", "kind": "serve", **stage}]}
