"""Values of secrets on their way: out of a job file when it is submitted, into an order when a part is to start.

In between no row, message or log holds one in plain: the values of a file lie encrypted in a row of the job, those that
it names lie in the project's secrets, and only what composes the order to an agent opens either.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from agents.protocol import Clause
from controlplane.accounts.keys import KeyUnavailable
from controlplane.accounts.models import Secret
from controlplane.accounts.service import TOUCH_EVERY
from controlplane.jobs import masked
from controlplane.jobs.models import Job, JobSecrets, Stage
from scheduler.core.model.lifecycle import FINAL

# How long the sentence of an end may be that tells why nothing was opened.
LONGEST_REASON: Final = 300


class Undeliverable(Exception):
    """Raised where a part cannot have its secrets; ``why`` is what its owner is told."""

    def __init__(self, why: Clause) -> None:
        super().__init__(why[0])
        self.why = why


@dataclass(frozen=True, slots=True)
class Parted:
    """A job file and the requests of its stages without the values of secrets, and these values.

    A request that had some says in ``sealed`` for each of its alternatives which variable has which of the values.
    """

    spec: dict[str, Any]
    requests: list[dict[str, Any]]
    values: list[str]


@dataclass(frozen=True, slots=True)
class Delivered:
    """What one part gets: variables, and files by the variable that will tell where they are."""

    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def part(spec: Mapping[str, Any], requests: Sequence[Mapping[str, Any]]) -> Parted:
    """Takes the values of secret variables out of a file and of what was resolved from it."""
    marked, found = masked.marked(spec), dict[str, int]()
    return Parted(masked.shown(spec), [_without(request, marked, found) for request in requests], list(found))


def _without(request: Mapping[str, Any], marked: frozenset[str], found: dict[str, int]) -> dict[str, Any]:
    """The request with masked values; those that it had are numbered in ``found``."""
    ways = request["alternatives"]
    places = [
        {
            name: found.setdefault(word, len(found))
            for name, word in (way.get("env") or {}).items()
            if word and masked.is_secret(name, marked)
        }
        for way in ways
    ]
    if not any(places):
        return dict(request)
    closed = [
        {**way, "env": {**way["env"], **dict.fromkeys(place, masked.MASKED)}} if place else way
        for way, place in zip(ways, places, strict=True)
    ]
    return {**request, "alternatives": closed, masked.SEALED: places}


def row(job: Job, values: Sequence[str]) -> JobSecrets:
    """The row that keeps these values for a job; it is not written yet. Raises ``KeyUnavailable``."""
    kept = JobSecrets(job=job)
    kept.put(msgspec.json.encode(list(values)))
    return kept


def needs(request: Mapping[str, Any]) -> bool:
    """Whether a stage of this request gets secrets."""
    return bool(request.get("named_secrets") or request.get(masked.SEALED))


def delivered(
    job_id: uuid.UUID, project_id: uuid.UUID, project: str, request: Mapping[str, Any], alternative: int
) -> Delivered:
    """The secrets for one part of a stage that runs by this alternative. Raises :class:`Undeliverable`."""
    found = Delivered()
    try:
        if places := (request.get(masked.SEALED) or {}) and request[masked.SEALED][alternative]:
            kept = JobSecrets.objects.filter(job=job_id).first()
            if kept is None:
                raise Undeliverable(("SecretsGone", {}))
            values = msgspec.json.decode(kept.content(), type=list[str])
            found.env.update({name: values[index] for name, index in places.items()})
        if named := request.get("named_secrets"):
            _add_named(found, named, project_id, project)
    except KeyUnavailable as error:
        raise Undeliverable(("SecretsClosed", {"error": str(error)[:LONGEST_REASON]})) from error
    return found


def _add_named(found: Delivered, named: Sequence[Mapping[str, Any]], project_id: uuid.UUID, project: str) -> None:
    rows = {
        one.name: one for one in Secret.objects.filter(project=project_id, name__in=[each["name"] for each in named])
    }
    for each in named:
        kept = rows.get(each["name"])
        if kept is None:
            raise Undeliverable(("SecretMissing", {"name": each["name"], "project": project}))
        (found.files if each.get("file") else found.env)[each["env"]] = kept.content().decode()
    now = timezone.now()
    stale = Q(last_used_at=None) | Q(last_used_at__lt=now - TOUCH_EVERY)
    Secret.objects.filter(stale, id__in=[kept.id for kept in rows.values()]).update(last_used_at=now)


def forget_ended() -> int:
    """Deletes the values of jobs of which nothing can start any more; returns of how many."""
    open_ = Stage.objects.filter(job=OuterRef("job")).exclude(state__in=FINAL)
    deleted, _each = JobSecrets.objects.filter(~Exists(open_)).delete()
    return deleted
