"""Separates secret values from a job file at submission, and decrypts them for the order that starts a part.

In between no row, message or log has a secret in plain text: values from a file are encrypted in a row of the job,
named secrets are those of the project, and only the code that composes the order to an agent decrypts either.
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
from controlplane.jobs.models import JobSecrets, Stage
from scheduler.core.model.lifecycle import FINAL

# The maximum length of the sentence that says why secrets could not be decrypted.
LONGEST_REASON: Final = 300


class Undeliverable(Exception):
    """Raised if a part cannot get its secrets; ``why`` is the explanation for its owner."""

    def __init__(self, why: Clause) -> None:
        super().__init__(why[0])
        self.why = why


@dataclass(frozen=True, slots=True)
class Parted:
    """A job file and the requests of its stages with secret values masked, and these values.

    A request that had secret values has ``sealed``: for each of its alternatives, the index of the value of each
    variable.
    """

    spec: dict[str, Any]
    requests: list[dict[str, Any]]
    values: list[str]


@dataclass(frozen=True, slots=True)
class Delivered:
    """The secrets of one part: variables, and files by the variable that will hold their path."""

    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def part(spec: Mapping[str, Any], requests: Sequence[Mapping[str, Any]]) -> Parted:
    """Separate the values of secret variables from a job file and from the requests resolved from it."""
    marked, found = masked.marked(spec), dict[str, int]()
    return Parted(masked.shown(spec), [_without(request, marked, found) for request in requests], list(found))


def _without(request: Mapping[str, Any], marked: frozenset[str], found: dict[str, int]) -> dict[str, Any]:
    """Return the request with masked values; each value is given an index in ``found``."""
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


def row(job_id: uuid.UUID, values: Sequence[str]) -> JobSecrets:
    """Return an unsaved row with these values of a job, encrypted. Raises ``KeyUnavailable``."""
    kept = JobSecrets(job_id=job_id)
    kept.put(msgspec.json.encode(list(values)))
    return kept


def needs(request: Mapping[str, Any]) -> bool:
    """Whether a stage with this request receives secrets."""
    return bool(request.get("named_secrets") or request.get(masked.SEALED))


def delivered(
    job_id: uuid.UUID, project_id: uuid.UUID, project: str, request: Mapping[str, Any], alternative: int
) -> Delivered:
    """Decrypt the secrets for one part of a stage that runs by this alternative. Raises :class:`Undeliverable`."""
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
    """Delete the values of jobs whose stages have all ended; return how many rows were deleted."""
    open_ = Stage.objects.filter(job=OuterRef("job")).exclude(state__in=FINAL)
    deleted, _each = JobSecrets.objects.filter(~Exists(open_)).delete()
    return deleted
