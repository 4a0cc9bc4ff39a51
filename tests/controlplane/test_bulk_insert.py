"""Jobs that are submitted with many others are stored as those that come alone."""

from __future__ import annotations

from typing import Any

from django.db.models import Model

from controlplane.bulk_insert import MANY
from controlplane.jobs import service
from controlplane.jobs.models import Event, Job, JobSecrets, Stage
from tests.controlplane.people import Town

# Quotes, backslashes and line ends are what COPY and arrays of parameters escape.
ODD = 'a "quote", a \\backslash\\, a\ttab\nand 中文'
SPEC: dict[str, Any] = {
    "name": "odd",
    "labels": {"team": "α"},
    "env": {"ODD": ODD, "API_TOKEN": "hush"},
    "stages": [{"name": "first", "run": ODD}, {"name": "second", "run": "true", "needs": ["first"]}],
}
# Keys, numbers and moments.
OWN = {"id", "number", "job_id", "submitted_at", "state_at", "eligible_at", "at", "text", "said"}


def content(row: Model) -> dict[str, Any]:
    if isinstance(row, JobSecrets):
        return {"content": row.content()}  # encrypted anew each time
    return {
        field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields if field.attname not in OWN
    }


def test_one_of_many_is_stored_as_one_alone(town: Town) -> None:
    town.machine()
    (alone,) = service.submit_many([SPEC], town.user)
    many = service.submit_many([SPEC] * MANY, town.user)
    assert Job.objects.count() == MANY + 1
    for one in (many[0], many[-1]):
        assert content(Job.objects.get(pk=one.pk)) == content(Job.objects.get(pk=alone.pk))
        for kind in (Stage, Event, JobSecrets):
            rows, wanted = (kind._default_manager.filter(job=job).order_by("pk") for job in (one, alone))
            if kind is Stage:
                rows, wanted = rows.order_by("index"), wanted.order_by("index")
            assert [content(row) for row in rows] == [content(row) for row in wanted], kind
        first, second = one.stages.order_by("index")
        assert list(second.needs.all()) == [first]
    assert Event.objects.filter(job__in=many).count() == MANY
