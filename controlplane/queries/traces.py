"""Traces of a job: profiles of its running stages, and their files."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Final

import msgspec
from django.core.files.storage import storages
from django.utils.translation import gettext as _

from controlplane.jobs import models as rows
from controlplane.jobs import traces
from controlplane.queries.clauses import Clause, clauses
from controlplane.queries.refusals import Unseen
from controlplane.queries.untrusted import sandboxed
from controlplane.storage import Download

_NAMES: Final = {"py-spy": "speedscope.json", "torch": "trace.json.gz"}


class StageTrace(msgspec.Struct, frozen=True):
    """A profile of what a stage did on one node, that of ``rank``, for some seconds.

    ``state`` is ASKED, RUNNING, READY or FAILED. ``detail`` is why it failed, with its clauses in ``detail_said``.
    ``size_bytes`` is the size of its file, which is there once the state is READY.
    """

    id: uuid.UUID
    stage: str
    attempt: int
    rank: int
    node: str
    tool: str
    seconds: int
    state: str
    detail: str
    detail_said: list[Clause]
    size_bytes: int
    asked_by: str
    asked_at: datetime
    began_at: datetime | None
    ended_at: datetime | None


class TraceList(msgspec.Struct, frozen=True):
    """The traces of a job, newest first."""

    results: list[StageTrace]


def of_job(job: rows.Job) -> TraceList:
    """The traces of this job."""
    return TraceList([shown(row) for row in traces.of_job(job)])


def shown(row: rows.StageTrace) -> StageTrace:
    """A trace as it is told; its part, attempt and stage must be loaded."""
    part = row.part
    return StageTrace(
        id=row.id,
        stage=part.attempt.stage.name,
        attempt=part.attempt.number,
        rank=part.rank,
        node=part.node.name,
        tool=row.tool,
        seconds=row.seconds,
        state=row.state,
        detail=row.detail,
        detail_said=clauses(row.said),
        size_bytes=row.size_bytes,
        asked_by=row.asked_by.get_username(),
        asked_at=row.asked_at,
        began_at=row.began_at,
        ended_at=row.ended_at,
    )


def found(job: rows.Job, trace: uuid.UUID) -> rows.StageTrace:
    """The trace of this job with this id; raises 404 if there is none."""
    row = traces.of_job(job).filter(id=trace).first()
    if row is None:
        raise Unseen(_("trace {name}").format(name=trace))
    return row


def content(job: rows.Job, trace: uuid.UUID) -> Download:
    """The file of a trace, to be saved and never shown; raises 404 if there is none, and 409 if there is none yet."""
    row = found(job, trace)
    if row.state != rows.StageTrace.State.READY:
        said = _("this trace has no file; its state is {state}")
        raise traces.NotTraced(409, "not_ready", said.format(state=row.state))
    try:
        file = storages["traces"].open(row.place)
    except FileNotFoundError:
        raise Unseen(_("the file of trace {name}").format(name=trace)) from None
    part = row.part
    name = f"{job.number}-{part.attempt.stage.name}-{part.attempt.number}-{part.rank}.{_NAMES.get(row.tool, 'trace')}"
    response = Download(file, as_attachment=True, filename=name, content_type="application/octet-stream")
    sandboxed(response)
    return response
