"""The browsers' door: what a socket says is what the same GET answers, to those who may see it, whenever it changed."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from allauth.usersessions.models import UserSession
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from channels.layers import channel_layers, get_channel_layer
from django.contrib.auth.models import Group, Permission
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.core.cache import cache
from django.db import connections
from django.test import Client
from django.utils import timezone

from controlplane import changes
from controlplane.accounts import permissions, service
from controlplane.accounts.models import Member, Project, User
from controlplane.jobs.models import Job, Stage
from controlplane.live import browser_socket, feeds
from controlplane.live.browser_socket import MAX_TOPICS, BrowserFeed, touched
from controlplane.pools.models import Pool
from controlplane.queries.snapshots import TopicSource

WAIT_S = 15
T = TypeVar("T")


@pytest.mark.parametrize(
    ("path", "key", "hit"),
    [
        ("/api/v1/jobs/12", "job:12", True),
        ("/api/v1/jobs/12", "job:13", False),
        ("/api/v1/jobs/12", "samples", False),
        ("/api/v1/jobs/12/metrics?since_s=900", "samples", True),
        ("/api/v1/jobs/12/streams", "logs:12", True),
        ("/api/v1/jobs/12/streams", "logs:13", False),
        ("/api/v1/jobs/0190-a-uuid", "job:12", True),
        ("/api/v1/jobs?state=waiting", "jobs", True),
        ("/api/v1/overview", "samples", True),
        ("/api/v1/nodes/g01", "fleet", True),
        ("/api/v1/timeline?from=-60", "timeline", True),
        ("/api/v1/timeline?from=-60", "samples", False),
        ("/api/v1/quotas", "jobs", True),
        ("/api/v1/quotas", "logs:3", False),
    ],
)
def test_a_hint_touches_what_it_may_have_changed(path: str, key: str, hit: bool) -> None:
    assert touched(path, [key]) is hit
    assert touched(path, ["nothing:1", key]) is hit


async def rows(work: Callable[..., T], *values: Any, **named: Any) -> T:
    """Does something with rows in a thread, which keeps no connection afterwards."""

    def done() -> T:
        try:
            return work(*values, **named)
        finally:
            connections.close_all()

    return await sync_to_async(done, thread_sensitive=False)()


class Line:
    """A browser's end of the socket."""

    def __init__(self, communicator: ApplicationCommunicator, session: SessionStore | None) -> None:
        self.communicator, self.session = communicator, session

    async def say(self, **message: Any) -> None:
        await self.send(json.dumps(message))

    async def send(self, text: str) -> None:
        await self.communicator.send_input({"type": "websocket.receive", "text": text})

    async def hear(self) -> dict[str, Any]:
        """The next message that is no beat."""
        while True:
            message = json.loads((await self.communicator.receive_output(WAIT_S))["text"])
            if message["kind"] != "beat":
                return dict(message)


@asynccontextmanager
async def line(user: User | None) -> AsyncIterator[Line]:
    session = await rows(_session, user) if user else None
    scope = {"type": "websocket", "path": "/ws/v1", "headers": [], "user": user, "session": session}
    communicator = ApplicationCommunicator(BrowserFeed.as_asgi(), scope)
    await communicator.send_input({"type": "websocket.connect"})
    assert (await communicator.receive_output(WAIT_S))["type"] == "websocket.accept"
    try:
        yield Line(communicator, session)
    finally:
        await communicator.send_input({"type": "websocket.disconnect", "code": 1000})
        await communicator.wait(WAIT_S)


def _session(user: User) -> SessionStore:
    client = Client()
    client.force_login(user)
    return SessionStore(client.session.session_key)


@pytest.fixture
def people(transactional_db: None, servers: Any) -> dict[str, User]:
    channel_layers.backends.clear()  # a layer belongs to one event loop, and each test has its own
    project, other = Project.objects.create(name="default"), Project.objects.create(name="other")
    Pool.objects.create(name="default")
    people = {name: User.objects.create(username=name) for name in ("owner", "stranger")}
    Member.objects.create(project=project, user=people["owner"])
    Member.objects.create(project=other, user=people["stranger"])
    return people


def _job(user: User) -> Job:
    at = "2026-11-20T12:00:00Z"
    job = Job.objects.create(
        number=12, name="watched", project=Project.objects.get(name="default"), user=user, pool=Pool.objects.get(),
        priority_class="medium", priority=500, spec={}, submitted_at=at,
    )  # fmt: skip
    ask = {"kind": "cpu", "vendor": "", "model": "", "count": 1, "milli": 1000, "memory_bytes": 2**30}
    ways = [{"index": 0, "asks": [ask]}]
    request = {"alternatives": ways, "nodes": 1, "time_limit_s": 60, "preemptible": True}
    Stage.objects.create(job=job, index=0, name="main", kind="generic", request=request, eligible_at=at)
    return job


async def test_who_is_not_signed_in_is_turned_away(people: dict[str, User]) -> None:
    async with line(None) as own:
        output = await own.communicator.receive_output(WAIT_S)
        assert (output["type"], output["code"]) == ("websocket.close", 4401)


async def test_one_person_has_so_many_lines_and_others_are_let_in(people: dict[str, User], settings: Any) -> None:
    settings.SOCKETS_PER_USER = 2
    async with line(people["owner"]) as first, line(people["owner"]) as second:
        for own in (first, second):
            await own.say(op="sub", topic="/api/v1/whoami")
            assert (await own.hear())["data"]["user"] == "owner"
        async with line(people["owner"]) as third:
            output = await third.communicator.receive_output(WAIT_S)
            assert (output["type"], output["code"]) == ("websocket.close", 4429)
        async with line(people["stranger"]) as other:
            await other.say(op="sub", topic="/api/v1/whoami")
            assert (await other.hear())["data"]["user"] == "stranger"


async def test_a_topic_is_told_at_once_and_again_when_it_changed(people: dict[str, User]) -> None:
    job = await rows(_job, people["owner"])
    async with line(people["owner"]) as own:
        await own.say(op="sub", topic="/api/v1/jobs/12")
        first = await own.hear()
        assert (first["kind"], first["seq"], first["data"]["name"]) == ("snapshot", 1, "watched")
        await rows(Job.objects.filter(pk=job.pk).update, name="renamed")
        await _hint(f"job:{job.number}")
        second = await own.hear()
        assert (second["seq"], second["data"]["name"]) == (2, "renamed")
        assert second["etag"] != first["etag"]


async def test_who_wants_only_the_change_gets_only_that(people: dict[str, User]) -> None:
    await rows(_job, people["owner"])
    async with line(people["owner"]) as own:
        await own.say(op="sub", topic="/api/v1/jobs/12", want="etag")
        told = await own.hear()
        assert (told["kind"], "data" in told) == ("changed", False)
        await own.say(op="sub", topic="/api/v1/jobs/12", want="etag", etag=told["etag"])
        await own.say(op="sub", topic="/api/v1/whoami")
        assert (await own.hear())["topic"] == "/api/v1/whoami", "what the browser has already is not sent again"


async def test_a_lost_hint_only_costs_time(people: dict[str, User], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser_socket, "SAFETY_S", 0.2)
    job = await rows(_job, people["owner"])
    async with line(people["owner"]) as own:
        await own.say(op="sub", topic="/api/v1/jobs/12")
        await own.hear()
        await rows(Job.objects.filter(pk=job.pk).update, name="renamed")
        assert (await own.hear())["data"]["name"] == "renamed"


async def test_a_stranger_is_told_that_there_is_nothing(people: dict[str, User]) -> None:
    await rows(_job, people["owner"])
    async with line(people["stranger"]) as other:
        await other.say(op="sub", topic="/api/v1/jobs/12")
        assert await other.hear() == {"kind": "error", "topic": "/api/v1/jobs/12", "status": 404}


async def test_a_socket_is_bounded(people: dict[str, User]) -> None:
    async with line(people["owner"]) as own:
        for topic in ("/admin/", "https://elsewhere.example/api/v1/jobs", "/api/v1/" + "x" * 600, 7):
            await own.say(op="sub", topic=topic)
            assert (await own.hear())["status"] == 400
        await own.send("this is no JSON")
        for number in range(MAX_TOPICS):
            await own.say(op="sub", topic=f"/api/v1/jobs?limit={number + 1}", want="etag")
        await own.say(op="sub", topic="/api/v1/whoami")
        heard = [await own.hear() for _number in range(MAX_TOPICS + 1)]
        assert [m["text"] for m in heard if m["kind"] == "error"] == [f"one socket watches at most {MAX_TOPICS} topics"]
        await own.say(op="unsub", topic="/api/v1/jobs?limit=1")
        await own.say(op="sub", topic="/api/v1/whoami")
        assert (await own.hear())["data"]["user"] == "owner"


def _sign_out(owner: User) -> None:
    Session.objects.all().delete()


def _expire(owner: User) -> None:
    Session.objects.update(expire_date=timezone.now() - timedelta(seconds=1))


def _deactivate(owner: User) -> None:
    User.objects.filter(pk=owner.pk).update(is_active=False)


def _change_password(owner: User) -> None:
    owner.set_password("another one altogether")
    owner.save()


def _delete(owner: User) -> None:
    Member.objects.all().delete()
    owner.delete()


def _end_from_elsewhere(owner: User) -> None:
    """As the user page of another browser does."""
    for session in Session.objects.all():
        UserSession.objects.create(user=owner, session_key=session.session_key, ip="192.0.2.7", user_agent="x").end()


def _sign_out_everywhere(owner: User) -> None:
    assert service.end_sessions(owner) == 1


@pytest.mark.parametrize(
    "act", [_sign_out, _expire, _deactivate, _change_password, _delete, _end_from_elsewhere, _sign_out_everywhere]
)
async def test_a_line_whose_user_is_not_signed_in_any_more_ends(
    people: dict[str, User], monkeypatch: pytest.MonkeyPatch, act: Callable[[User], None]
) -> None:
    # Neither the slow look nor a hint has a part in it.
    monkeypatch.setattr(browser_socket, "SAFETY_S", 3600.0)
    async with line(people["owner"]) as own:
        await own.say(op="sub", topic="/api/v1/whoami", want="etag")
        await own.hear()
        await rows(act, people["owner"])
        output = await own.communicator.receive_output(WAIT_S)
        while output["type"] != "websocket.close":
            output = await own.communicator.receive_output(WAIT_S)
        assert output["code"] == 4401


def _see_all_jobs(user: User) -> None:
    group, _made = Group.objects.get_or_create(name="watchers")
    group.permissions.add(Permission.objects.get(codename="view_job"))
    user.groups.add(group)


@pytest.mark.parametrize("was", ["member", "operator"])
async def test_whose_rights_were_taken_is_told_no_more(
    people: dict[str, User], monkeypatch: pytest.MonkeyPatch, was: str
) -> None:
    monkeypatch.setattr(browser_socket, "SAFETY_S", 3600.0)
    await rows(_job, people["owner"])
    reader = people["stranger"]
    if was == "operator":
        await rows(_see_all_jobs, reader)
    else:
        project = await rows(Project.objects.get, name="default")
        await rows(Member.objects.create, project=project, user=reader)
    await rows(reader.refresh_from_db)
    async with line(reader) as own:
        await own.say(op="sub", topic="/api/v1/jobs/12")
        assert (await own.hear())["data"]["name"] == "watched"
        if was == "operator":
            await rows(reader.groups.clear)
        else:
            await rows(Member.objects.filter(user=reader, project__name="default").delete)
        assert await own.hear() == {"kind": "error", "topic": "/api/v1/jobs/12", "status": 404}
        await rows(_see_all_jobs, reader)
        await own.say(op="unsub", topic="/api/v1/jobs/12")
        await own.say(op="sub", topic="/api/v1/jobs/12")
        while (told := await own.hear())["kind"] == "error":
            pass
        assert told["data"]["name"] == "watched", "a right that was given is seen without connecting anew"


async def test_another_role_in_one_project_is_seen_without_a_hint(
    people: dict[str, User], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser_socket, "SAFETY_S", 3600.0)
    reader = people["owner"]
    membership = await rows(Member.objects.get, user=reader)
    async with line(reader) as own:
        await own.say(op="sub", topic="/api/v1/whoami")
        told = (await own.hear())["data"]["projects"]
        assert told == [{"project": "default", "role": membership.role}]
        await rows(Member.objects.filter(pk=membership.pk).update, role="viewer")
        assert (await own.hear())["data"]["projects"] == [{"project": "default", "role": "viewer"}]


async def _hint(key: str) -> None:
    """What ``changes.announce`` sends, by this test's own loop. The socket joined before it told its first topic."""
    await get_channel_layer().group_send("changes", {"type": "changed", "keys": [key]})


async def test_the_line_beats_while_a_look_takes_long_and_says_how_late_it_is(
    people: dict[str, User], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A browser must be able to tell a slow answer from a dead server."""
    monkeypatch.setattr(browser_socket, "BEAT_S", 0.05)
    going_on = threading.Event()

    def slow(path: str, user: Any) -> tuple[int, str, bytes]:
        going_on.wait(WAIT_S)
        return 200, '"a"', b"{}"

    monkeypatch.setattr(browser_socket, "_look", slow)
    async with line(people["owner"]) as tab:
        await tab.say(op="sub", topic="/api/v1/jobs", etag="")
        late: list[float] = []
        while not late or late[-1] < 0.3:
            message = json.loads((await tab.communicator.receive_output(WAIT_S))["text"])
            assert message["kind"] == "beat", "the look is not done yet"
            late.append(message["late_s"])
        going_on.set()
        assert (await tab.hear())["kind"] == "snapshot"
        while message.get("late_s") != 0:
            message = json.loads((await tab.communicator.receive_output(WAIT_S))["text"])


def test_a_beat_comes_at_least_every_two_seconds() -> None:
    """The page calls itself not live after 4.5 s of silence; one lost or late beat must not make it say so."""
    assert browser_socket.BEAT_S <= 2.0


# ---- snapshots that many share ----


async def _next_of(own: Line, topic: str) -> dict[str, Any]:
    while True:
        message = await own.hear()
        if message["topic"] == topic:
            return message


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, people: dict[str, User]) -> list[str]:
    """For whom a shared source was made; it says how many jobs that one sees."""
    cache.clear()
    made: list[str] = []

    def make(user: User) -> dict[str, str]:
        made.append(user.get_username())
        names = Job.objects.filter(permissions.visible_jobs(user)).values_list("name", flat=True)
        return {"names": json.dumps(sorted(names)), "still": "1"}

    source = TopicSource("/shared", make, ("facts",), every_s=0.05)
    monkeypatch.setattr(browser_socket, "sources", lambda: {"/shared": source})
    return made


async def test_a_shared_snapshot_comes_whole_and_then_by_what_differs(people: dict[str, User], made: list[str]) -> None:
    job = await rows(_job, people["owner"])
    async with line(people["owner"]) as own, line(people["owner"]) as second:
        await own.say(op="sub", topic="/shared")
        whole = await own.hear()
        assert (whole["kind"], "since" in whole, whole["parts"]) == ("delta", False, {"names": ["watched"], "still": 1})
        await second.say(op="sub", topic="/shared", since=whole["to"])
        await rows(Job.objects.filter(pk=job.pk).update, name="renamed")
        await rows(changes.announce, "jobs")
        for each in (own, second):
            delta = await each.hear()
            assert (delta["since"], delta["parts"]) == (whole["to"], {"names": ["renamed"]})
        await second.say(op="sub", topic="/shared", since="")
        assert (await second.hear())["parts"] == {"names": ["renamed"], "still": 1}, "who asks for the whole gets it"
    assert made == ["owner"] * 2


async def test_a_shared_snapshot_is_that_of_an_audience(people: dict[str, User], made: list[str]) -> None:
    await rows(_job, people["owner"])
    async with line(people["owner"]) as own, line(people["stranger"]) as other:
        for each in (own, other):
            await each.say(op="sub", topic="/shared")
        assert (await own.hear())["parts"]["names"] == ["watched"]
        assert (await other.hear())["parts"]["names"] == []
        # Taken out of the project, whoever still watches sees at once what is left to them.
        await rows(Job.objects.update, user=people["stranger"])
        await rows(Member.objects.filter(user=people["owner"]).delete)
        while (told := await own.hear())["parts"].get("names") != []:
            assert told["kind"] == "delta"


async def test_a_source_that_fails_ends_no_line(
    people: dict[str, User], made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(user: User) -> dict[str, str]:
        raise RuntimeError("it cannot be made")

    monkeypatch.setattr(browser_socket, "sources", lambda: {"/shared": TopicSource("/shared", fail, ("facts",))})
    monkeypatch.setattr(feeds, "FAILED_AGAIN_S", 0.05)
    async with line(people["owner"]) as own:
        await own.say(op="sub", topic="/shared")
        await own.say(op="sub", topic="/api/v1/whoami")
        assert (await own.hear())["data"]["user"] == "owner"
