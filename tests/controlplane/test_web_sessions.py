"""Who may open a port of a job in a browser, by what and for how long, and the end of stages that nobody uses."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.accounts.models import AuditEntry, Member, Token, User
from controlplane.jobs import sessions, web_ports, web_sessions
from controlplane.jobs.models import Attempt, Event, Job, Part, Session, Stage
from controlplane.jobs.sessions import NotOpened
from controlplane.jobs.web_sessions import PortWish
from controlplane.session_origins import SessionOrigins
from controlplane.usage import ports_idle
from tests.controlplane.people import Town

PORTS = [{"name": "lab", "port": 8888, "path": "/lab?token={token}"}]
LAB = PortWish("lab")


@pytest.fixture
def origins(settings: Any) -> SessionOrigins:
    settings.SESSION_ORIGINS = SessionOrigins("https", "sessions.example.org", "")
    return SessionOrigins("https", "sessions.example.org", "")


@pytest.fixture
def town(db: None) -> Town:
    return Town()


@pytest.fixture
def job(town: Town) -> Job:
    """A job of the owner that runs and names a port."""
    made = town.running(town.machine())
    stage = made.stages.get()
    stage.request = {**stage.request, "ports": PORTS, "idle_timeout_s": 600.0}
    stage.save()
    return made


def ticket_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["ticket"][0]


def browser(name: str) -> Client:
    client = Client()
    client.force_login(User.objects.get(username=name), "controlplane.accounts.guard.GuardedBackend")
    return client


def opened(job: Job, name: str = "owner") -> tuple[Client, Session, str]:
    """The browser, the session and the ticket of somebody who opened the port from the dashboard."""
    client = browser(name)
    answer = client.post(f"/jobs/{job.number}/open", {"port": "lab", "stage": "main", "rank": "0"})
    assert answer.status_code == 303, answer.content
    return client, Session.objects.get(is_web=True, user__username=name), ticket_of(answer["Location"])


def stands(session: Session) -> bool:
    return not sessions.standing({(session.id, False)})[session.id, False]


@pytest.mark.usefixtures("origins")
@pytest.mark.parametrize(
    ("name", "status"),
    [("viewer", 403), ("mate", 403), ("stranger", 404), ("lead", 303), ("owner", 303), ("staff", 303)],
)
def test_who_may_enter_a_job_may_open_its_ports_and_nobody_else(town: Town, job: Job, name: str, status: int) -> None:
    client = browser(town.user.username if name == "staff" else name)
    answer = client.post(f"/jobs/{job.number}/open", {"port": "lab"})
    assert answer.status_code == status
    assert Session.objects.count() == (status == 303)


def test_a_ticket_lets_in_once_and_not_late_and_its_cookie_is_of_one_session(job: Job, origins: SessionOrigins) -> None:
    _client, session, ticket = opened(job)
    assert web_sessions.enter(session.id, "x" * 43) is None
    assert web_sessions.enter(uuid.uuid4(), ticket) is None
    let_in = web_sessions.enter(session.id, ticket)
    assert let_in is not None
    value, path = let_in
    assert path == f"/lab?token={web_ports.token(session.part.attempt_id)}"
    assert web_sessions.enter(session.id, ticket) is None
    assert web_sessions.is_cookie_of(session.id, value)
    assert not web_sessions.is_cookie_of(uuid.uuid4(), value)
    for other in (value[:-1], f"{session.id.hex}:x:y", "", "é" * 30, "x" * 999):
        assert not web_sessions.is_cookie_of(session.id, other)
    late = web_sessions.open_port(job, session.user, LAB, login=session.login)
    assert late.session == session.id
    Session.objects.update(ticket_until=timezone.now())
    assert web_sessions.enter(session.id, ticket_of(late.url)) is None


@pytest.mark.usefixtures("origins")
def test_it_ends_with_the_sign_in_the_right_and_the_part(job: Job) -> None:
    client, session, _ticket = opened(job)
    assert stands(session)
    client.post("/sign-out")
    assert not stands(session)
    with pytest.raises(NotOpened):
        sessions.connect_web(session.id, "channel")
    _client, lead, _ticket = opened(job, "lead")
    connection = sessions.connect_web(lead.id, "channel")
    assert stands(connection)
    Member.objects.filter(user__username="lead").delete()
    assert not stands(connection)
    owner = User.objects.get(username="owner")
    token = Token.objects.create(
        user=owner, name="t", digest="d" * 64, scopes=["submit"], expires_at=timezone.now() + timedelta(hours=1)
    )
    by_token = Session.objects.get(id=web_sessions.open_port(job, owner, LAB, token=token).session)
    assert stands(by_token)
    Part.objects.update(ended_at=timezone.now())
    assert not stands(by_token)
    sessions.sweep()
    assert not Session.objects.filter(is_web=True, ended_at=None).exists()


@pytest.mark.usefixtures("origins")
def test_opening_and_end_are_events_and_entries_without_the_ticket(job: Job, settings: Any) -> None:
    client, session, ticket = opened(job)
    client.post(f"/jobs/{job.number}/open", {"port": "lab"})
    Session.objects.update(seen_at=timezone.now() - timedelta(seconds=settings.SESSION_IDLE_S + 1))
    sessions.sweep()
    told = list(Event.objects.filter(job=job, kind__in=("entered", "left")).values_list("kind", "text"))
    assert [kind for kind, _text in told] == ["entered", "left"]
    assert "opens port lab (8888) of main" in told[0][1]
    entries = AuditEntry.objects.filter(kind="session", object_id=str(session.id)).order_by("id")
    assert [entry.action for entry in entries] == ["session.open", "session.end"]
    assert all(entry.credential.startswith("session ") for entry in entries)
    assert ticket not in str([entry.after for entry in entries]) + str(told)
    session.refresh_from_db()
    assert session.ticket == ""


@pytest.mark.usefixtures("origins")
def test_what_is_not_there_is_not_opened(job: Job, settings: Any) -> None:
    owner = User.objects.get(username="owner")
    client = browser("owner")
    for asked, status in (
        ({"port": "none"}, 404),
        ({"port": "LAB"}, 400),
        ({"port": "lab", "rank": "7"}, 409),
        ({}, 400),
    ):
        assert client.post(f"/jobs/{job.number}/open", asked).status_code == status
    assert client.get(f"/jobs/{job.number}/open").status_code == 405
    with pytest.raises(NotOpened, match="sign in"):
        web_sessions.open_port(job, owner, LAB)
    settings.SESSION_ORIGINS = None
    assert client.post(f"/jobs/{job.number}/open", {"port": "lab"}).status_code == 409
    assert "YARD_SESSIONS_URL" in client.get("/sessions").content.decode()


def test_the_api_lists_ports_and_opens_them_by_token(job: Job, origins: SessionOrigins) -> None:
    client = browser("owner")
    Part.objects.update(listens=[8888])
    (port,) = client.get(f"/api/v1/jobs/{job.number}/ports").json()["results"]
    assert (port["name"], port["listens"], port["may_open"], port["rank"]) == ("lab", True, True, 0)
    assert client.get("/api/v1/sessions").json()["results"] == [port]
    assert browser("stranger").get("/api/v1/sessions").json()["results"] == []
    assert not browser("mate").get("/api/v1/sessions").json()["results"][0]["may_open"]
    answer = client.post(f"/api/v1/jobs/{job.number}/ports", {"port": "lab"}, content_type="application/json")
    assert answer.status_code == 201
    assert answer.json()["url"].startswith(f"{origins.of(uuid.UUID(answer.json()['session']))}/.yard/enter?ticket=")
    assert answer["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("used", "inside", "stopped"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_a_stage_whose_ports_nobody_uses_is_stopped(job: Job, used: bool, inside: bool, stopped: bool) -> None:
    now = timezone.now()
    assert ports_idle.judge(now) == 0
    Stage.objects.update(state_at=now - timedelta(seconds=601))
    part = Part.objects.get()
    if used:
        Part.objects.update(visited_at=now - timedelta(seconds=599))
    if inside:
        Session.objects.create(
            part=part, user=job.user, token="t", channel="c", opened_at=now, seen_at=now, command=["sh"]
        )
    assert ports_idle.judge(now) == stopped
    assert Attempt.objects.get().stop_why == ("HELD_IDLE" if stopped else "")
    if stopped:
        assert "nobody used its ports" in Event.objects.get(job=job, kind="held_idle").text
        assert ports_idle.judge(now) == 0
