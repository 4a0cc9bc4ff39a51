"""Who may enter a job that runs, how many at once, for how long, and what is written of it: both sockets, as opened."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from asgiref.testing import ApplicationCommunicator
from channels.layers import channel_layers
from django.core.cache import cache
from django.core.cache.backends.redis import RedisCache
from django.db import OperationalError, connections
from django.utils import timezone

from agents.protocol import (
    CLOSE_NO_SESSION,
    CLOSE_UNAUTHENTICATED,
    WINDOW_BYTES,
    Conditions,
    Desired,
    InventoryRef,
    OpenSession,
    Report,
)
from controlplane.accounts import service as access
from controlplane.accounts.models import AuditEntry, Member, Token, User
from controlplane.api import throttle
from controlplane.asgi import application
from controlplane.fleet import service as fleet
from controlplane.fleet.models import Node
from controlplane.fleet.service import digest
from controlplane.jobs import sessions
from controlplane.jobs.models import Event, Job, Part, Session
from tests.controlplane.people import Town
from tests.controlplane.test_feed import rows
from tests.record.conftest import forget
from tests.record.yard import Agent

WAIT_S = 15


class Socket:
    """One end of a WebSocket of the application."""

    def __init__(self, communicator: ApplicationCommunicator) -> None:
        self.communicator = communicator

    async def say(self, **message: Any) -> None:
        await self.communicator.send_input({"type": "websocket.receive", "text": json.dumps(message)})

    async def send(self, content: bytes) -> None:
        await self.communicator.send_input({"type": "websocket.receive", "bytes": content})

    async def hear(self) -> Any:
        """The next message: an object, bytes, or the code with which the socket was closed."""
        output = await self.communicator.receive_output(WAIT_S)
        if output["type"] == "websocket.close":
            return output.get("code", 1000)
        return output["bytes"] if output.get("bytes") is not None else json.loads(output["text"])


@asynccontextmanager
async def socket(path: str, *headers: tuple[bytes, bytes]) -> AsyncIterator[Socket]:
    scope = {"type": "websocket", "path": path, "headers": [*headers], "subprotocols": []}
    communicator = ApplicationCommunicator(application, scope)
    await communicator.send_input({"type": "websocket.connect"})
    try:
        yield Socket(communicator)
    finally:
        if not communicator.future.done():
            await communicator.send_input({"type": "websocket.disconnect", "code": 1000})
        await communicator.wait(WAIT_S)


@asynccontextmanager
async def caller(job: Job, secret: str, *headers: tuple[bytes, bytes]) -> AsyncIterator[Socket]:
    """Somebody who wants to enter."""
    bearer = (b"authorization", f"Bearer {secret}".encode())
    async with socket(f"/api/v1/jobs/{job.number}/exec", bearer, *headers) as own:
        assert (await own.communicator.receive_output(WAIT_S))["type"] == "websocket.accept"
        yield own


def agent_socket(session: Session, node: Node, secret: str = "credential") -> Any:
    header = (b"authorization", f"Node {node.id}:{secret}".encode())
    return socket(f"/agent/v1/sessions/{session.id}", header)


def secret_of(name: str, *scopes: str) -> str:
    return access.make_token(User.objects.get(username=name), "test", scopes=scopes or ("read", "submit"))[1]


class Scene:
    """A job of the owner that runs on a node whose agent this test plays."""

    def __init__(self) -> None:
        self.town = Town()
        self.machine: Agent = self.town.machine()
        self.job = self.town.running(self.machine)
        self.node = self.machine.node
        Node.objects.update(credential_digest=digest("credential"))

    def events(self) -> list[tuple[str, str, str]]:
        found = Event.objects.filter(job=self.job, kind__in=("entered", "left"))
        return list(found.values_list("kind", "actor", "text"))


@pytest.fixture
def scene(transactional_db: None, servers: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    # The threads of a server keep their connections; those of a test would outlive it.
    monkeypatch.setattr("controlplane.dispatch.agent_socket.close_old_connections", connections.close_all)
    channel_layers.backends.clear()  # a layer belongs to one event loop, and each test has its own
    forget(monkeypatch)
    return Scene()


async def entered(scene: Scene, own: Socket, **ask: Any) -> Session:
    """The session that this caller asks for, once its row is there."""
    await own.say(**ask)
    newest = Session.objects.filter(ended_at=None, of=ask.get("of")).order_by("-opened_at")
    for _ in range(WAIT_S * 20):
        if (found := await rows(newest.first)) is not None:
            return found
        assert await own.communicator.receive_nothing(0.05), "it was refused"
    raise AssertionError("no session")


async def ended(scene: Scene) -> str:
    """What is written of the end of the last session."""
    for _ in range(WAIT_S * 20):
        if left := [text for kind, _, text in await rows(scene.events) if kind == "left"]:
            return left[-1]
        await asyncio.sleep(0.05)
    raise AssertionError("no end is written")


async def test_a_port_is_held_by_one_session_and_its_connections_are_others_of_which_nothing_is_written(
    scene: Scene, settings: Any
) -> None:
    settings.CONNECTIONS_PER_USER = 1
    secret = await rows(secret_of, "owner")
    async with caller(scene.job, secret) as whole:
        session = await entered(scene, whole, port=8888, command=["sh"], reason="the notebook")
        async with agent_socket(session, scene.node) as held:
            await held.communicator.receive_output(WAIT_S)
            asked = msgspec.convert(await held.hear(), OpenSession)
            assert (asked.port, asked.argv, asked.stdin) == (8888, ["false"], False)
            assert (await whole.hear())["opened"]["session"] == str(session.id)
            assert not await rows(sessions.is_used, session.id)
            for ask, name in (
                ({"of": str(session.id)}, "mate"),
                ({"of": str(session.part_id)}, "owner"),
                ({"of": "x"}, "owner"),
            ):
                async with caller(scene.job, await rows(secret_of, name)) as other:
                    await other.say(**ask)
                    assert (await other.hear())["refused"]["status"] in (403, 409)
            async with caller(scene.job, secret) as one:
                joined = await entered(scene, one, of=str(session.id), port=22)
                assert (joined.of_id, joined.port, joined.part_id) == (session.id, 8888, session.part_id)
                assert await rows(sessions.is_used, session.id)
                async with caller(scene.job, secret) as many:
                    await many.say(of=str(session.id))
                    assert (await many.hear())["refused"]["code"] == "too_many"
                # One whose server went away takes no place.
                lost = timezone.now() - timedelta(seconds=sessions.LOST_S + 1)
                kept = Session.objects.filter(id=joined.id)
                await rows(lambda: kept.update(seen_at=lost))
                async with caller(scene.job, secret) as many:
                    await entered(scene, many, of=str(session.id))
                await rows(lambda: kept.update(seen_at=timezone.now()))
                async with agent_socket(joined, scene.node) as there:
                    await there.communicator.receive_output(WAIT_S)
                    assert msgspec.convert(await there.hear(), OpenSession).stdin
                    await one.hear()
                    await one.send(b"\0GET /")
                    assert await there.hear() == b"\0GET /"
                    await there.send(b"\1ok")
                    assert await one.hear() == b"\1ok"
                    await there.say(end={"code": 0})
                    assert (await one.hear())["end"] == {"code": 0}
            await held.say(end={"cut": "part"})
            assert (await whole.hear())["end"]["cut"] == "part"
    assert "(port 8888)" in await ended(scene)
    kinds = [(kind, text) for kind, _, text in await rows(scene.events)]
    assert [kind for kind, _ in kinds] == ["entered", "left"]
    assert "owner forwards port 8888 of main" in kinds[0][1]
    assert await rows(Session.objects.filter(of__isnull=False).count) == 0
    entries = await rows(lambda: [entry.after for entry in AuditEntry.objects.filter(action__startswith="session.")])
    assert [entry["command"] for entry in entries] == ["port 8888"] * 2


async def test_connections_through_a_port_come_only_so_fast_at_all_servers_together(
    scene: Scene, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.CONNECTIONS_PER_S = 0.3  # three in a window
    monkeypatch.setattr(throttle, "window", lambda: 7)  # which does not end
    monkeypatch.setattr(throttle, "_blind_until", 0.0)
    secret = await rows(secret_of, "owner")
    async with caller(scene.job, secret) as whole:
        session = await entered(scene, whole, port=8888)
        async with agent_socket(session, scene.node):
            await whole.hear()
            for _ in range(2):
                async with caller(scene.job, secret) as one:
                    await entered(scene, one, of=str(session.id))
            # Another server counts where this one does.
            token = (await rows(Session.objects.get, id=session.id)).token
            assert await rows(cache.incr, f"rate:connect:{token}:{session.id}:7") == 3
            async with caller(scene.job, secret) as many:
                await many.say(of=str(session.id))
                refused = (await many.hear())["refused"]
                assert (refused["status"], refused["code"]) == (429, "too_many")
                assert "new connections a second" in refused["detail"]
            # Another port is counted apart.
            async with caller(scene.job, secret) as other:
                await other.say(of=str(session.part_id))
                assert (await other.hear())["refused"]["status"] == 409
            # Without Redis nothing is counted, as of requests.
            monkeypatch.setattr(throttle, "cache", RedisCache("unix:///nowhere/valkey.sock", {}))
            async with caller(scene.job, secret) as one:
                await entered(scene, one, of=str(session.id))


async def test_an_idle_check_that_finds_no_database_is_made_again(
    scene: Scene, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SESSION_IDLE_S = 0.5
    asked = []

    def is_used(session_id: Any) -> bool:
        asked.append(session_id)
        if len(asked) == 1:
            raise OperationalError("the server closed the connection unexpectedly")
        return False

    monkeypatch.setattr(sessions, "is_used", is_used)
    async with caller(scene.job, await rows(secret_of, "owner")) as own:
        session = await entered(scene, own, port=8888)
        async with agent_socket(session, scene.node):
            assert "opened" in await own.hear()
            assert (await own.hear())["end"]["cut"] == "GuestIdle"
    assert asked == [session.id] * 2


async def test_connections_end_with_the_session_that_holds_the_port(scene: Scene) -> None:
    secret = await rows(secret_of, "owner")
    async with caller(scene.job, secret) as whole, caller(scene.job, secret) as one:
        session = await entered(scene, whole, port=8888)
        async with agent_socket(session, scene.node):
            await whole.hear()
            joined = await entered(scene, one, of=str(session.id))
            await rows(Session.objects.filter(id=session.id).update, ended_at=timezone.now())
            assert (await one.hear())["end"]["cut"] == "GuestLost"
    assert not await rows(Session.objects.filter(id=joined.id).exists)


async def test_bytes_go_both_ways_and_the_end_is_an_event(scene: Scene) -> None:
    async with caller(scene.job, await rows(secret_of, "owner")) as own:
        session = await entered(scene, own, command=["db", "--password", "hunter2", "-e", "x"], reason="look", rows=9)
        async with agent_socket(session, scene.node) as agent:
            await agent.communicator.receive_output(WAIT_S)
            asked = msgspec.convert(await agent.hear(), OpenSession)
            assert asked.argv == ["db", "--password", "hunter2", "-e", "x"]
            assert (asked.part, asked.rows) == (str(session.part_id), 9)
            assert (await own.hear())["opened"]["node"] == scene.node.name
            await own.send(b"\0typed")
            assert await agent.hear() == b"\0typed"
            await agent.say(taken=5)
            assert await own.hear() == {"taken": 5}
            await agent.send(b"\1shown")
            assert await own.hear() == b"\1shown"
            await own.say(rows=20, columns=30)
            assert await agent.hear() == {"rows": 20, "columns": 30}
            await agent.say(end={"code": 3})
            assert await own.hear() == {"end": {"code": 3}}
            assert await agent.hear() == 1000
        assert await own.hear() == 1000
    assert "ended with exit code 3" in await ended(scene)
    (entry, left) = await rows(scene.events)
    assert entry[1] == left[1] == "owner"
    assert "look" in entry[2]
    assert "hunter2" not in entry[2] + left[2]
    assert await rows(lambda: Session.objects.get().command) == []
    opened, closed = await rows(lambda: list(AuditEntry.objects.filter(kind="session").order_by("id")))
    assert (opened.action, opened.actor, opened.reason) == ("session.open", "owner", "look")
    assert (closed.action, closed.actor, closed.after["exit_code"]) == ("session.end", "owner", 3)
    for each in (opened, closed):
        assert (each.name, each.object_id) == (f"#{scene.job.number}/main", str(session.id))
        assert each.credential.startswith("token ")
        assert "db --password" in each.after["command"]
        assert "hunter2" not in str(each.after)


@pytest.mark.parametrize(
    ("name", "status"), [("viewer", 403), ("mate", 403), ("stranger", 404), ("lead", 0), ("owner", 0), ("staff", 0)]
)
async def test_who_may_end_a_job_may_enter_it_and_nobody_else(scene: Scene, name: str, status: int) -> None:
    user = scene.town.user.username if name == "staff" else name
    async with caller(scene.job, await rows(secret_of, user)) as own:
        if status:
            await own.say(command=["id"])
            assert (await own.hear())["refused"]["status"] == status
            assert await own.hear() == 1000
        else:
            await entered(scene, own, command=["id"])
    assert len(await rows(scene.events)) == (0 if status else 2)


async def test_what_is_no_token_or_no_question_is_refused(scene: Scene) -> None:
    scope = await rows(secret_of, "owner", "read")
    for secret, ask, status in (
        ("yard_nothing", {}, 401),
        ("", {}, 401),
        (scope, {"command": ["id"]}, 403),
        (await rows(secret_of, "owner"), {"command": "id"}, 400),
        (await rows(secret_of, "owner"), {"command": ["a\0b"]}, 400),
        (await rows(secret_of, "owner"), {"command": ["id"], "term": "x\x1b[31m"}, 400),
        (await rows(secret_of, "owner"), {"command": ["id"], "stage": "none"}, 404),
        (await rows(secret_of, "owner"), {"command": ["id"], "rank": 5}, 409),
    ):
        async with caller(scene.job, secret) as own:
            await own.say(**ask)
            assert (await own.hear())["refused"]["status"] == status, ask
    assert await rows(scene.events) == []


async def test_a_page_of_another_site_is_kept_out(scene: Scene) -> None:
    bearer = (b"authorization", f"Bearer {await rows(secret_of, 'owner')}".encode())
    foreign = (b"origin", b"https://evil.example")
    async with socket(f"/api/v1/jobs/{scene.job.number}/exec", bearer, foreign) as own:
        assert (await own.communicator.receive_output(WAIT_S))["type"] == "websocket.close"


async def test_only_the_nodes_own_agent_joins_and_only_once(scene: Scene) -> None:
    other = await rows(scene.town.machine, "n2")
    await rows(Node.objects.filter(id=other.node.id).update, credential_digest=digest("of another"))
    async with caller(scene.job, await rows(secret_of, "owner")) as own:
        session = await entered(scene, own, command=["id"])
        async with agent_socket(session, other.node, "of another") as agent:
            assert await agent.hear() == CLOSE_NO_SESSION
        async with agent_socket(session, scene.node, "wrong") as agent:
            assert await agent.hear() == CLOSE_UNAUTHENTICATED
        async with agent_socket(session, scene.node) as agent:
            assert (await agent.communicator.receive_output(WAIT_S))["type"] == "websocket.accept"
            async with agent_socket(session, scene.node) as again:
                assert await again.hear() == CLOSE_NO_SESSION


async def by_revoking_the_token(scene: Scene) -> None:
    await rows(Token.objects.all().delete)


async def by_leaving_the_project(scene: Scene) -> None:
    await rows(Member.objects.filter(user__username="lead").delete)


async def by_deactivation(scene: Scene) -> None:
    await rows(User.objects.filter(username="lead").update, is_active=False)


async def by_another_role_in_the_project(scene: Scene) -> None:
    await rows(Member.objects.filter(user__username="lead").update, role="member")


async def by_the_end_of_the_tokens_life(scene: Scene) -> None:
    await rows(Token.objects.update, expires_at=timezone.now())


async def by_narrowing_the_token(scene: Scene) -> None:
    await rows(Token.objects.update, scopes=["read"])


@pytest.mark.parametrize(
    "act",
    [
        by_revoking_the_token, by_leaving_the_project, by_deactivation, by_another_role_in_the_project,
        by_the_end_of_the_tokens_life, by_narrowing_the_token,
    ],
)  # fmt: skip
async def test_a_right_that_is_taken_away_ends_the_session(scene: Scene, act: Any) -> None:
    async with caller(scene.job, await rows(secret_of, "lead")) as own:
        session = await entered(scene, own, command=["id"])
        async with agent_socket(session, scene.node) as agent:
            await agent.communicator.receive_output(WAIT_S)
            assert (await agent.hear())["argv"] == ["id"]
            assert "opened" in await own.hear()
            await act(scene)
            assert (await own.hear())["end"]["cut"] == "GuestRight"
            assert await agent.hear() == 1000
    assert "was taken away" in await ended(scene)


async def test_a_credential_that_is_revoked_ends_what_it_dialled(scene: Scene) -> None:
    async with caller(scene.job, await rows(secret_of, "owner")) as own:
        session = await entered(scene, own, command=["id"])
        async with agent_socket(session, scene.node) as agent:
            await agent.communicator.receive_output(WAIT_S)
            assert (await agent.hear())["argv"] == ["id"]
            assert "opened" in await own.hear()
            await rows(fleet.revoke, scene.node)
            assert await agent.hear() == 1000
            assert (await own.hear())["end"]["cut"] == "GuestLink"


async def test_it_ends_when_nothing_moves(scene: Scene, settings: Any) -> None:
    settings.SESSION_IDLE_S = 0.5
    async with caller(scene.job, await rows(secret_of, "owner")) as own:
        session = await entered(scene, own, command=["id"])
        async with agent_socket(session, scene.node) as agent:
            await agent.communicator.receive_output(WAIT_S)
            await agent.hear()
            assert "opened" in await own.hear()
            assert (await own.hear())["end"]["cut"] == "GuestIdle"
            assert await agent.hear() == 1000
    assert "nothing was typed or shown" in await ended(scene)


async def test_an_agent_that_goes_away_ends_it_and_so_does_one_that_floods(scene: Scene) -> None:
    for flood, cut in ((False, "GuestLink"), (True, "GuestBroken")):
        async with caller(scene.job, await rows(secret_of, "owner")) as own:
            session = await entered(scene, own, command=["id"])
            async with agent_socket(session, scene.node) as agent:
                await agent.communicator.receive_output(WAIT_S)
                await agent.hear()
                assert "opened" in await own.hear()
                if flood:
                    for _ in range(WINDOW_BYTES // 16_384 + 1):
                        await agent.send(b"\1" + b"x" * 16_384)
                    assert await agent.hear() == 1000
            heard = await own.hear()
            while isinstance(heard, bytes):
                heard = await own.hear()
            assert heard["end"]["cut"] == cut


async def test_there_are_no_more_than_fit(scene: Scene, settings: Any) -> None:
    settings.SESSIONS_PER_USER, settings.SESSIONS_PER_NODE = 1, 2
    owner = await rows(secret_of, "owner")
    async with caller(scene.job, owner) as first, caller(scene.job, await rows(secret_of, "lead")) as second:
        for own in (first, second):
            await entered(scene, own, command=["id"])
        while await rows(Session.objects.filter(ended_at=None).count) < 2:
            pass
        async with caller(scene.job, owner) as third:
            await third.say(command=["id"])
            assert (await third.hear())["refused"]["status"] == 429
        async with caller(scene.job, await rows(secret_of, scene.town.user.username)) as third:
            await third.say(command=["id"])
            assert "2 sessions are open on node" in (await third.hear())["refused"]["detail"]


async def test_one_whose_server_is_gone_is_ended_by_the_next_look(scene: Scene) -> None:
    async with caller(scene.job, await rows(secret_of, "owner")) as own:
        session = await entered(scene, own, command=["id"])
        long_ago = timezone.now() - timedelta(seconds=sessions.LOST_S + 5)

        def go_on_without_a_server() -> None:
            part = Part.objects.get()
            Session.objects.create(
                part=part, user=session.user, token="x", channel="y", opened_at=long_ago, seen_at=long_ago
            )
            sessions.sweep()

        await rows(go_on_without_a_server)
        assert "lost sight" in await ended(scene)
        entry = await rows(AuditEntry.objects.filter(action="session.end").get)
        assert (entry.actor, entry.credential) == ("owner", ""), "the token may be gone"
        assert await rows(Session.objects.filter(ended_at=None).count) == 1


@pytest.mark.parametrize("knows", [True, False])
async def test_an_agent_is_told_at_once_and_one_that_knows_no_sessions_is_named(scene: Scene, knows: bool) -> None:
    header = (b"authorization", f"Node {scene.node.id}:credential".encode())
    async with socket("/agent/v1/link", header) as link:
        assert (await link.communicator.receive_output(WAIT_S))["type"] == "websocket.accept"
        machine = scene.machine
        report = Report(
            proto=1, agent="0.9", boot_id=machine.boot_id, start_seq=1, seq=1_000, seen_generation=0,
            inventory=InventoryRef(hash="x"), here=list(machine.here.values()), conditions=Conditions(),
            incarnation=machine.incarnation, machine_id=machine.machine_id, sessions=knows,
        )  # fmt: skip
        await link.say(**msgspec.to_builtins(report))
        assert msgspec.convert(await link.hear(), Desired).answers_seq == 1_000
        async with caller(scene.job, await rows(secret_of, "owner")) as own:
            if knows:
                session = await entered(scene, own, command=["id"])
                heard = msgspec.convert(await link.hear(), Desired)
                while not heard.sessions:
                    heard = msgspec.convert(await link.hear(), Desired)
                assert [(each.id, each.part) for each in heard.sessions] == [(str(session.id), str(session.part_id))]
            else:
                await own.say(command=["id"])
                assert "upgrade" in (await own.hear())["end"]["error"]
