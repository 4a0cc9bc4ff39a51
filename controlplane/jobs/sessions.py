"""Interactive sessions: commands run by people inside running parts. Checks rights and limits, and records events.

The opening and the end of a session are always recorded, as events of the job and in the audit log. The command is
stored only as long as the session lasts; events and entries show it with values that look like secrets masked.
"""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from agents.protocol import MASK, Phase, SessionEnd, tells_secret
from controlplane import changes
from controlplane.accounts import audit, logins, permissions
from controlplane.accounts.models import Token, User
from controlplane.clauses import Clause, Told, clause, told
from controlplane.fleet.models import Node
from controlplane.jobs import service
from controlplane.jobs.models import Job, Part, Session
from controlplane.jobs.service import Note

# A session that was not renewed for so long is considered abandoned.
LOST_S: Final = 60.0
RENEW_S: Final = 10.0
LONGEST_SHOWN: Final = 200
SCOPE: Final = "submit"


class NotOpened(Exception):
    """Raised if a session cannot be opened; the text says why."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status, self.code = status, code


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """A request for a session. Without a stage it is for the only running one."""

    command: Sequence[str] = ()
    stage: str = ""
    rank: int = 0
    tty: bool = False
    stdin: bool = False
    rows: int = 24
    columns: int = 80
    term: str = ""
    reason: str = ""
    port: int = 0
    of: str = ""


def begin(job: Job, user: User, token: Token, channel: str, wish: SessionRequest) -> Session:
    """Record a new session of this user in a running part of this job, which the user may see. Raises NotOpened."""
    check_right(job, user)
    if wish.of:
        return _connect(job, user, token, channel, wish.of)
    part = part_of(job, wish)
    sweep()
    at, actor = timezone.now(), user.get_username()
    with transaction.atomic():
        locked = service.lock([job.id])[job.id]
        check_room(user, part.node)
        session = Session.objects.create(
            part=part,
            user=user,
            token=token.digest,
            command=[] if wish.port else list(wish.command),
            tty=wish.tty,
            stdin=wish.stdin,
            rows=wish.rows,
            columns=wish.columns,
            term=wish.term,
            port=wish.port or None,
            channel=channel,
            opened_at=at,
            seen_at=at,
        )
        command = _doing(session)
        where = {"actor": actor, "stage": part.attempt.stage.name, "rank": part.rank, "node": part.node.name}
        said = [
            clause("Forwards", **where, port=wish.port) if wish.port else clause("Entered", **where, command=command)
        ]
        note_opening(locked, session, said, wish.reason)
    return session


def check_right(job: Job, user: User) -> None:
    """Raises NotOpened unless this user, who may see the job, may enter it."""
    if not permissions.may_end(user, owner_id=job.user_id, project_id=job.project_id):
        text = _("only {user}, a lead of project {project} or staff may enter this job")
        raise NotOpened(403, "permission_denied", text.format(user=job.user.get_username(), project=job.project.name))


def note_opening(job: Job, session: Session, said: list[Clause], reason: str) -> None:
    """Record that a session was opened, as an event of its locked job and in the audit log."""
    part = session.part
    params = {"session": str(session.id), "command": _doing(session), "rank": part.rank, "node": part.node.name}
    if reason:
        said, params = [*said, clause("Aside", why=reason)], {**params, "reason": reason}
    _note(job, "entered", told(*said), part, session.user.get_username(), params)
    # A request has an origin; a socket has none, and acts as the session's user.
    by = audit.current() or _origin(session)
    _record("session.open", session, by, after=params, reason=reason)


def _connect(job: Job, user: User, token: Token, channel: str, of: str) -> Session:
    """Begin a connection of an open session of this user that forwards a port of this job. Raises NotOpened."""
    try:
        asked = Session.objects.filter(id=uuid.UUID(of), of=None)
    except ValueError:
        asked = Session.objects.none()
    mine = asked.filter(user=user, token=token.digest, part__attempt__stage__job=job, port__isnull=False, ended_at=None)
    with transaction.atomic():
        whole = mine.filter(_heard()).select_related("part__node", "part__attempt__stage").first()
        if whole is None:
            raise NotOpened(409, "not_running", _("the port is not forwarded any more"))
        return _join(whole, user, channel)


def connect_web(session_id: uuid.UUID, channel: str) -> Session:
    """Begin a connection of a port that somebody opened in a browser. Raises NotOpened."""
    if standing({(session_id, False)})[session_id, False]:
        raise NotOpened(403, "not_running", _("this port is not open any more"))
    with transaction.atomic():
        held = Session.objects.filter(id=session_id, is_web=True, ended_at=None)
        whole = held.select_related("user", "part__node", "part__attempt__stage").first()
        if whole is None:
            raise NotOpened(403, "not_running", _("this port is not open any more"))
        return _join(whole, whole.user, channel)


def _join(whole: Session, user: User, channel: str) -> Session:
    """Record a connection of a session that forwards a port, within the limits. Raises NotOpened."""
    _lock()
    held = Session.objects.filter(_heard(), ended_at=None, of__isnull=False)
    if held.filter(user=user).count() >= settings.CONNECTIONS_PER_USER:
        text = ngettext(
            "you have {most} connection to ports open, which is the most; close it first",
            "you have {most} connections to ports open, which is the most; close one first",
            settings.CONNECTIONS_PER_USER,
        )
        raise NotOpened(429, "too_many", text.format(most=settings.CONNECTIONS_PER_USER))
    if held.filter(part__node=whole.part.node).count() >= settings.CONNECTIONS_PER_NODE:
        text = ngettext(
            "{most} connection to ports is open on node {node}, which is the most; wait until it has ended",
            "{most} connections to ports are open on node {node}, which is the most; wait until one has ended",
            settings.CONNECTIONS_PER_NODE,
        )
        raise NotOpened(429, "too_many", text.format(most=settings.CONNECTIONS_PER_NODE, node=whole.part.node.name))
    at = timezone.now()
    return Session.objects.create(
        of=whole, part=whole.part, user=user, token=whole.token, login=whole.login, port=whole.port, stdin=True,
        channel=channel, opened_at=at, seen_at=at,
    )  # fmt: skip


def _heard() -> Q:
    """Of open sessions those whose server has not gone; a server that went away has ended none."""
    now = timezone.now()
    return Q(seen_at__gt=now - timedelta(seconds=LOST_S)) | Q(_not_idle(now), is_web=True)


def _not_idle(now: datetime) -> Q:
    idle_s = settings.SESSION_IDLE_S
    return Q(seen_at__gt=now - timedelta(seconds=max(idle_s, LOST_S))) if idle_s else Q()


def is_used(session_id: uuid.UUID) -> bool:
    """Whether somebody is connected through a session that forwards a port."""
    return Session.objects.filter(of=session_id, ended_at=None).exists()


def part_of(job: Job, wish: SessionRequest) -> Part:
    """Return the running part that a request is about. Raises NotOpened."""
    running = Part.objects.select_related("node", "attempt__stage").filter(
        attempt__stage__job=job, ended_at=None, phase=Phase.RUNNING
    )
    names = list(running.order_by("attempt__stage__index").values_list("attempt__stage__name", flat=True).distinct())
    if wish.stage and wish.stage not in names:
        if not job.stages.filter(name=wish.stage).exists():
            raise NotOpened(404, "not_found", _("job {job} has no stage {stage}").format(job=job, stage=wish.stage))
        text = _("stage {stage} of job {job} does not run now; only what runs can be entered")
        raise NotOpened(409, "not_running", text.format(job=job, stage=wish.stage))
    if not names:
        raise NotOpened(
            409, "not_running", _("nothing of job {job} runs now; only what runs can be entered").format(job=job)
        )
    if not wish.stage and len(names) > 1:
        text = _("several stages of job {job} run; name one of them: {stages}")
        raise NotOpened(409, "ambiguous", text.format(job=job, stages=", ".join(names)))
    part = running.filter(attempt__stage__name=wish.stage or names[0], rank=wish.rank).first()
    if part is None:
        text = _("stage {stage} has no rank {rank} that runs")
        raise NotOpened(409, "not_running", text.format(stage=wish.stage or names[0], rank=wish.rank))
    return part


def check_room(user: User, node: Node) -> None:
    """Check the limits on sessions, under a lock, so that two requests do not both take the last place."""
    _lock()
    held = Session.objects.filter(ended_at=None, of=None)
    if held.filter(user=user).count() >= settings.SESSIONS_PER_USER:
        text = ngettext(
            "you have {most} session open, which is the most; end it first",
            "you have {most} sessions open, which is the most; end one first",
            settings.SESSIONS_PER_USER,
        )
        raise NotOpened(429, "too_many", text.format(most=settings.SESSIONS_PER_USER))
    if held.filter(part__node=node).count() >= settings.SESSIONS_PER_NODE:
        text = ngettext(
            "{most} session is open on node {node}, which is the most; wait until it has ended",
            "{most} sessions are open on node {node}, which is the most; wait until one has ended",
            settings.SESSIONS_PER_NODE,
        )
        raise NotOpened(429, "too_many", text.format(most=settings.SESSIONS_PER_NODE, node=node.name))


def _lock() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('jobs_session'))")


def join(session_id: uuid.UUID, node: Node) -> Session | None:
    """Return the session that this node's agent is to serve, once; None if there is none for it."""
    at = timezone.now()
    asked = Session.objects.filter(id=session_id, part__node=node, ended_at=None, joined_at=None)
    if not asked.filter(seen_at__gt=at - timedelta(seconds=LOST_S)).update(joined_at=at):
        return None
    return Session.objects.select_related("part").get(id=session_id)


def end(session_id: uuid.UUID, how: Told, params: dict[str, Any]) -> None:
    """Record the end of a session, once; of a connection nothing is recorded."""
    if Session.objects.filter(id=session_id, of__isnull=False).delete()[0]:
        return
    named = Session.objects.filter(id=session_id, ended_at=None)
    job_id = named.values_list("part__attempt__stage__job_id", flat=True).first()
    if job_id is None:
        return
    with transaction.atomic():
        locked = service.lock([job_id])[job_id]
        session = named.select_for_update(of=("self",)).select_related("part__attempt__stage__job", "user").first()
        if session is None:
            return
        command, actor, at = _doing(session), session.user.get_username(), timezone.now()
        session.ended_at, session.command, session.ticket = at, [], ""
        session.save(update_fields=["ended_at", "command", "ticket"])
        what = told(clause("WentOut", actor=actor, stage=session.part.attempt.stage.name, command=command, how=how))
        more = {
            "session": str(session.id),
            "command": command,
            "open_s": round((at - session.opened_at).total_seconds()),
        }
        _note(locked, "left", what, session.part, actor, more | params)
        _record("session.end", session, _origin(session), after=more | params | {"how": how.text})


def _origin(session: Session) -> audit.Origin:
    """Return the origin of what a server does for a session: its user, by what opened it."""
    if session.login:
        credential = audit.of_login(session.login)
    else:
        token = Token.objects.filter(digest=session.token).first()
        credential = audit.of_token(token) if token else ""
    via = audit.Via.PAGE if session.login else audit.Via.API
    return audit.Origin(session.user.get_username(), via, session.user_id, credential)


def _record(action: str, session: Session, by: audit.Origin, *, after: Mapping[str, Any], reason: str = "") -> None:
    """Write the audit entry of a session, also where there is no request: a server may end one."""
    stage = session.part.attempt.stage
    with audit.acting(by):
        audit.record(action, ("session", session.id, f"#{stage.job.number}/{stage.name}"), after=after, reason=reason)


def _note(job: Job, kind: str, what: Told, part: Part, actor: str, params: dict[str, Any]) -> None:
    stage = part.attempt.stage
    service.settle([job], [Note(job, kind, what, actor, stage.name, part.attempt.number, params)], timezone.now())
    transaction.on_commit(lambda: changes.announce(f"job:{job.number}"))


def of_end(found: SessionEnd) -> tuple[Told, dict[str, Any]]:
    """Describe how a command ended, from the agent's message."""
    if found.cut == "part":
        return told(clause("GuestPart")), {}
    if found.error:
        return Told(found.error[:500]), {}
    if found.signal is not None:
        return told(clause("GuestSignal", signal=found.signal)), {"signal": found.signal}
    return told(clause("GuestCode", code=found.code or 0)), {"exit_code": found.code or 0}


def sweep() -> None:
    """End sessions whose server has gone."""
    now = timezone.now()
    held = Session.objects.filter(ended_at=None)
    lost = held.filter(seen_at__lt=now - timedelta(seconds=LOST_S), is_web=False)
    for session_id in lost.values_list("id", flat=True)[:100]:
        end(session_id, told(clause("GuestLost")), {})
    web = held.filter(is_web=True)
    for session_id in web.filter(part__ended_at__isnull=False).values_list("id", flat=True)[:100]:
        end(session_id, told(clause("GuestPart")), {})
    idle = web.exclude(_not_idle(now)) if settings.SESSION_IDLE_S else web.none()
    for session_id in idle.values_list("id", flat=True)[:100]:
        end(session_id, told(clause("GuestIdle", idle_s=settings.SESSION_IDLE_S)), {})


Key = tuple[uuid.UUID, bool]


def standing(keys: AbstractSet[Key]) -> dict[Key, str]:
    """Return for each session the code of the reason why it must end; empty if it may go on.

    A key is a session's id, and whether the caller's socket asks for it; asking by the caller's socket renews the
    session.
    """
    now = timezone.now()
    callers = [session for session, is_caller in keys if is_caller]
    stale = Session.objects.filter(id__in=callers, ended_at=None, seen_at__lt=now - timedelta(seconds=RENEW_S))
    stale.update(seen_at=now)
    held = Session.objects.filter(connections__in=callers, is_web=True, ended_at=None)
    held.filter(seen_at__lt=now - timedelta(seconds=RENEW_S)).update(seen_at=now)
    rows = Session.objects.select_related("user", "of", "part__attempt__stage__job").in_bulk({key[0] for key in keys})
    valid = {
        token.digest
        for token in Token.objects.filter(digest__in={row.token for row in rows.values()}, expires_at__gt=now)
        if SCOPE in token.scopes
    }
    signed_in = logins.signed_in({row.login for row in rows.values() if row.login})
    may = {
        row.id: (signed_in.get(row.login) == row.user_id if row.login else row.token in valid) and _may(row)
        for row in rows.values()
    }
    found: dict[Key, str] = {}
    for key in keys:
        row = rows.get(key[0])
        gone = row is None or row.ended_at is not None or (row.of is not None and row.of.ended_at is not None)
        patience_s = max(settings.SESSION_IDLE_S, LOST_S) if row is not None and row.is_web else LOST_S
        is_lasting = row is not None and row.is_web and not settings.SESSION_IDLE_S
        if row is None or gone or (not is_lasting and (now - row.seen_at).total_seconds() > patience_s):
            found[key] = "GuestLost"
        elif row.part.ended_at is not None:
            found[key] = "GuestPart"
        else:
            found[key] = "" if may[row.id] else "GuestRight"
    return found


def _may(session: Session) -> bool:
    job = session.part.attempt.stage.job
    user = session.user
    return user.is_active and permissions.may_end(user, owner_id=job.user_id, project_id=job.project_id)


def _doing(session: Session) -> str:
    return f"port {session.port}" if session.port else shown(session.command)


def shown(command: Sequence[str]) -> str:
    """Return a command as typed, for events: one line of bounded length, with values that look like secrets masked."""
    if not command:
        return "a shell"
    words: list[str] = []
    hides = False
    for word in command:
        name, equals, value = word.partition("=")
        if hides and not word.startswith("-"):
            word = MASK.decode()
        elif equals and value and tells_secret(name.lstrip("-").replace("-", "_")):
            word = f"{name}={MASK.decode()}"
        hides = not equals and word.startswith("-") and tells_secret(word.lstrip("-").replace("-", "_"))
        words.append("".join(each if each.isprintable() else " " for each in word))
    line = shlex.join(words)
    return line if len(line) <= LONGEST_SHOWN else line[: LONGEST_SHOWN - 1] + "…"
