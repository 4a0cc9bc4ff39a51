"""Ports of running parts that people open in a browser: one session, and one origin, for each port and sign-in.

The dashboard or the API opens one, for those who may enter the job, and answers a ticket. The browser exchanges it on
the session's origin, once, for a signed cookie that is worth something there alone. Connections are sessions ``of`` it
(:func:`controlplane.jobs.sessions.connect_web`), which end about a second after the right, the sign-in or the part.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.core import signing
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane.accounts.models import Token, User
from controlplane.accounts.service import digest
from controlplane.clauses import clause
from controlplane.jobs import service, sessions, web_ports
from controlplane.jobs.models import Job, Part, Session
from controlplane.jobs.sessions import NotOpened, SessionRequest
from controlplane.session_origins import SessionOrigins

TICKET_S: Final = 60.0
COOKIE_S: Final = 12 * 3600
ENTRY: Final = "/.yard/enter"
_SALT: Final = "switchyard.web-session"


@dataclass(frozen=True, slots=True)
class PortWish:
    """Which port to open: its name, and the stage if several have it; and why."""

    port: str
    stage: str = ""
    rank: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ticket:
    """Where a browser goes, once and before ``expires_at``, to be let in."""

    session: uuid.UUID
    url: str
    expires_at: datetime


def origins() -> SessionOrigins:
    """Return the origins of this installation. Raises NotOpened if it has none."""
    if settings.SESSION_ORIGINS is None:
        text = _("this control plane has no origin for ports of jobs; an operator sets YARD_SESSIONS_URL")
        raise NotOpened(409, "no_origin", text)
    return settings.SESSION_ORIGINS


def open_port(job: Job, user: User, wish: PortWish, *, token: Token | None = None, login: str = "") -> Ticket:
    """Open a named port of a running part for a user who may see the job, by an access token or a sign-in.

    The same port of the same sign-in is one session, with a new ticket. Raises NotOpened.
    """
    place = origins()
    sessions.check_right(job, user)
    if not token and not login:
        raise NotOpened(403, "permission_denied", _("sign in to open a port"))
    part, port = _named(job, wish)
    sessions.sweep()
    secret, at = secrets.token_urlsafe(32), timezone.now()
    until = at + timedelta(seconds=TICKET_S)
    credential = {"token": token.digest if token else "", "login": login}
    with transaction.atomic():
        locked = service.lock([job.id])[job.id]
        held = Session.objects.filter(is_web=True, ended_at=None, part=part, user=user, port=port["port"])
        session = held.filter(**credential).select_for_update().first()
        if session is None:
            sessions.check_room(user, part.node)
            session = Session(part=part, user=user, port=port["port"], is_web=True, opened_at=at, **credential)
        session.ticket, session.ticket_until, session.seen_at = digest(secret), until, at
        is_new = session._state.adding
        session.save()
        if is_new:
            where = {"stage": part.attempt.stage.name, "rank": part.rank, "node": part.node.name}
            said = clause("OpensPort", actor=user.get_username(), name=port["name"], port=port["port"], **where)
            sessions.note_opening(locked, session, [said], wish.reason)
    return Ticket(session.id, f"{place.of(session.id)}{ENTRY}?ticket={secret}", until)


def _named(job: Job, wish: PortWish) -> tuple[Part, dict[str, Any]]:
    """Return the running part and the port of this name."""
    stages = [stage for stage in job.stages.order_by("index") if _port(stage.request, wish.port) is not None]
    if wish.stage:
        stages = [stage for stage in stages if stage.name == wish.stage]
    if not stages:
        text = _("job {job} names no port {port} in its file").format(job=job, port=wish.port[:40])
        raise NotOpened(404, "not_found", text)
    running = Part.objects.filter(attempt__stage__in=stages, ended_at=None).values_list("attempt__stage", flat=True)
    alive = [stage for stage in stages if stage.pk in set(running)] or stages
    if len(alive) > 1:
        text = _("several stages of job {job} have a port {port}; name one of them: {stages}")
        names = ", ".join(stage.name for stage in alive)
        raise NotOpened(409, "ambiguous", text.format(job=job, port=wish.port, stages=names))
    part = sessions.part_of(job, SessionRequest(stage=alive[0].name, rank=wish.rank))
    port = _port(alive[0].request, wish.port)
    assert port is not None, "stages without it were left out"
    return part, port


def _port(request: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next((port for port in request.get("ports", ()) if port["name"] == name), None)


def enter(session_id: uuid.UUID, ticket: str) -> tuple[str, str] | None:
    """Take a ticket, which is valid once; return the value of the cookie and the path where the browser begins."""
    now = timezone.now()
    asked = Session.objects.filter(id=session_id, is_web=True, ended_at=None, ticket_until__gt=now)
    if not ticket or not asked.filter(ticket=digest(ticket)).update(ticket="", ticket_until=None, seen_at=now):
        return None
    session = Session.objects.select_related("part__attempt__stage").get(id=session_id)
    if sessions.standing({(session_id, False)})[session_id, False]:
        return None
    request = session.part.attempt.stage.request
    port = next((each for each in request.get("ports", ()) if each["port"] == session.port), {"path": "/"})
    return signing.TimestampSigner(salt=_SALT).sign(session_id.hex), web_ports.path(port, session.part.attempt_id)


def is_cookie_of(session_id: uuid.UUID, value: str) -> bool:
    """Whether this value of a cookie was signed for this session, and not too long ago."""
    if len(value) > 200:
        return False
    try:
        return signing.TimestampSigner(salt=_SALT).unsign(value, max_age=COOKIE_S) == session_id.hex
    except signing.BadSignature:
        return False


def port_of(session_id: uuid.UUID) -> int:
    """Return the number of the port of a session; 0 if there is none."""
    return Session.objects.filter(id=session_id, is_web=True).values_list("port", flat=True).first() or 0


def visited(session_ids: Collection[uuid.UUID]) -> None:
    """Record that somebody uses the ports of these sessions now."""
    now = timezone.now()
    used = Session.objects.filter(id__in=session_ids, is_web=True, ended_at=None)
    Part.objects.filter(id__in=used.values("part"), ended_at=None).update(visited_at=now)
