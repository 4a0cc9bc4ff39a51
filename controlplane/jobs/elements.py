"""Inserts the elements of an array: copies of the first in the database, which has what they have in common already."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db import connection, models

from controlplane.clauses import Told, clause, told
from controlplane.jobs.models import Event, Job, Stage

_JOBS: Final = """
INSERT INTO jobs_job ({columns}) SELECT {values}
FROM jobs_job t CROSS JOIN unnest(%s::uuid[], %s::bigint[], %s::int[], %s::text[])
    AS v(id, number, index, parameters)
WHERE t.id = %s
"""
_STAGES: Final = """
INSERT INTO jobs_stage ({columns}) SELECT {values}
FROM jobs_stage t CROSS JOIN unnest(%s::uuid[]) AS v(job) WHERE t.job_id = %s
"""
_NEEDS: Final = """
INSERT INTO jobs_stage_needs (from_stage_id, to_stage_id) SELECT f.id, o.id
FROM jobs_stage_needs n JOIN jobs_stage needing ON needing.id = n.from_stage_id
     JOIN jobs_stage needed ON needed.id = n.to_stage_id
     JOIN jobs_stage f ON f.job_id = ANY(%s) AND f.index = needing.index
     JOIN jobs_stage o ON o.job_id = f.job_id AND o.index = needed.index
WHERE needing.job_id = %s
"""

_EVENTS: Final = """
INSERT INTO jobs_event ({columns}) SELECT {values}
FROM jobs_event t CROSS JOIN unnest(%s::uuid[], %s::text[], %s::text[]) AS v(job, text, said) WHERE t.job_id = %s
"""


@dataclass(frozen=True, slots=True)
class Element:
    """What an element has of its own: id, number, index, and in a sweep its parameters."""

    number: int
    name: str
    index: int
    parameters: dict[str, Any] | None
    id: uuid.UUID = field(default_factory=uuid.uuid4)

    def __str__(self) -> str:
        return f"#{self.number} {self.name}"


def submitted(job: Job, actor: str, at: datetime) -> Event:
    """Return the first event of a job."""
    what = _what(job, actor)
    return Event(job=job, seq=1, at=at, kind="submitted", actor=actor, text=what.text, said=what.said)


def _what(job: Job | Element, actor: str) -> Told:
    return told(clause("Submitted", job=str(job), actor=actor))


def insert_like(first: Job, others: Sequence[Element], actor: str) -> None:
    """Insert these elements, with stages and an event like those of the first, which are stored already."""
    if not others:
        return
    ids = [one.id for one in others]
    points = [None if one.parameters is None else json.dumps(one.parameters) for one in others]
    whats = [_what(one, actor) for one in others]
    with connection.cursor() as cursor:
        own = {"id": "v.id", "number": "v.number", "array_index": "v.index", "parameters": "v.parameters::json"}
        rows: list[Any] = [ids, [one.number for one in others], [one.index for one in others], points]
        cursor.execute(_filled(_JOBS, Job, own), [*rows, first.id])
        cursor.execute(_filled(_STAGES, Stage, {"id": "gen_random_uuid()", "job_id": "v.job"}), [ids, first.id])
        if first.stages.filter(needs__isnull=False).exists():
            cursor.execute(_NEEDS, [ids, first.id])
        own = {"job_id": "v.job", "text": "v.text", "said": "v.said::jsonb"}
        told_ = [[what.text for what in whats], [json.dumps(what.said) for what in whats]]
        cursor.execute(_filled(_EVENTS, Event, own), [ids, *told_, first.id])


def _filled(statement: str, model: type[models.Model], own: dict[str, str]) -> str:
    """Return the statement with all columns of a table: those in ``own`` by their expressions, the others copied."""
    fields = [one for one in model._meta.concrete_fields if not isinstance(one, models.AutoField)]
    columns = [str(one.column) for one in fields]
    quoted = {column: connection.ops.quote_name(column) for column in columns}
    values = [own.get(column, f"t.{quoted[column]}") for column in columns]
    return statement.format(columns=", ".join(quoted.values()), values=", ".join(values))
