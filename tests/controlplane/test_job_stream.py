"""Watching jobs by server-sent events: what changed is told once it is committed, to those who may see it, and a break
loses nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import AsyncClient
from django.utils import timezone

from controlplane.accounts import service
from controlplane.accounts.models import Token, User
from controlplane.api import job_stream, open_streams
from controlplane.jobs.models import Job, Stage
from controlplane.queries import job_watch
from tests.controlplane.test_feed import _job, people, rows  # noqa: F401  a fixture

WAIT_S = 20


class Stream:
    """The events of one response, one by one."""

    def __init__(self, content: AsyncIterator[bytes]) -> None:
        self._content = content

    async def next(self) -> tuple[str, str, Any]:
        """The next event that is no beat: its name, id and data."""
        while True:
            async with asyncio.timeout(WAIT_S):
                text = (await anext(self._content)).decode()
            fields = dict(line.split(": ", 1) for line in text.strip().splitlines())
            if fields["event"] != "beat":
                return fields["event"], fields.get("id", ""), json.loads(fields["data"])


async def asked(secret: str, query: str = "", **headers: str) -> Any:
    path = f"/api/v1/jobs/watch{query}"
    answer = await AsyncClient().get(path, headers={"authorization": f"Bearer {secret}", **headers})
    # The thread of requests keeps its connection otherwise, beyond the last test.
    await sync_to_async(connections.close_all, thread_sensitive=True)()
    return answer


@asynccontextmanager
async def watching(user: User, query: str = "", **headers: str) -> AsyncIterator[Stream]:
    _token, secret = await rows(service.make_token, user, "watch", scopes=["read"])
    answer = await asked(secret, query, **headers)
    assert (answer.status_code, answer["Content-Type"]) == (200, "text/event-stream")
    content = aiter(answer.streaming_content)
    try:
        yield Stream(content)
    finally:
        await content.aclose()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_streams, "LOOK_S", 0.05)


def _end(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(state="CANCELLED", ended_at=timezone.now())
    Stage.objects.filter(job=job).update(state="CANCELLED", ended_at=timezone.now())


async def test_what_changes_is_told_and_a_break_loses_nothing(people: dict[str, User]) -> None:  # noqa: F811
    job = await rows(_job, people["owner"])
    async with watching(people["owner"], "?state=waiting") as stream:
        name, since, data = await stream.next()
        assert (name, data["number"], data["state"]) == ("upsert", 12, "PENDING")
        await rows(Job.objects.filter(pk=job.pk).update, name="renamed")
        name, since, data = await stream.next()
        assert (name, data["name"]) == ("upsert", "renamed")
    await rows(_end, job)
    async with watching(people["owner"], "?state=waiting", **{"last-event-id": since}) as stream:
        assert [(await stream.next())[0::2]] == [("leave", {"number": 12})]


async def test_one_job_is_followed_by_its_number_to_its_end_as_it_is_read(people: dict[str, User]) -> None:  # noqa: F811
    job = await rows(_job, people["owner"])
    async with watching(people["owner"], f"?number={job.number}&state=active,ended") as stream:
        assert (await stream.next())[2]["state"] == "PENDING"
        await rows(_end, job)
        name, _cursor, data = await stream.next()
    assert (name, data["state"]) == ("upsert", "CANCELLED")
    _token, secret = await rows(service.make_token, people["owner"], "read", scopes=["read"])
    headers = {"authorization": f"Bearer {secret}"}
    answer = await AsyncClient().get(f"/api/v1/jobs/{job.number}", headers=headers)
    assert data == answer.json()
    listed = await AsyncClient().get(f"/api/v1/jobs?number=7,{job.number}", headers=headers)
    assert [one["number"] for one in listed.json()["results"]] == [job.number]
    await sync_to_async(connections.close_all, thread_sensitive=True)()


async def test_others_are_told_nothing_of_it(people: dict[str, User]) -> None:  # noqa: F811
    async with watching(people["stranger"]) as other, watching(people["owner"]) as own:
        job = await rows(_job, people["owner"])
        assert (await own.next())[2]["number"] == job.number
        foreign = asyncio.ensure_future(other.next())
        await rows(User.objects.filter(username="stranger").update, is_active=False)
        assert (await foreign)[0] == "end"


async def test_a_stream_ends_with_its_token(people: dict[str, User]) -> None:  # noqa: F811
    async with watching(people["owner"]) as own:
        heard = asyncio.ensure_future(own.next())
        await rows(Token.objects.all().delete)
        assert (await heard)[0] == "end"


async def test_one_person_has_so_many_streams(people: dict[str, User], settings: Any) -> None:  # noqa: F811
    settings.SOCKETS_PER_USER = 1
    await rows(_job, people["owner"])
    async with watching(people["owner"]) as own:
        await own.next()
        _token, secret = await rows(service.make_token, people["owner"], "two", scopes=["read"])
        assert (await asked(secret)).status_code == 429
    async with asyncio.timeout(WAIT_S):  # it is closed by the event loop, in its time
        while (await asked(secret)).status_code == 429:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("?since=1.1", 410),
        ("?since=9999999999999999.9999999999", 410),
        ("?since=x", 400),
        ("?colour=red", 400),
        ("?state=ASLEEP", 400),
        ("?number=one", 400),
        ("?number=" + ",".join(["1"] * 501), 400),
    ],
)
async def test_a_cursor_that_is_too_old_and_filters_that_are_none_are_refused(
    people: dict[str, User],  # noqa: F811
    query: str,
    status: int,
) -> None:
    _token, secret = await rows(service.make_token, people["owner"], "watch", scopes=["read"])
    assert (await asked(secret, query)).status_code == status


async def test_many_changes_are_told_in_parts_and_the_last_has_the_cursor(
    people: dict[str, User],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_watch, "AT_ONCE", 1)
    first = await rows(_job, people["owner"])

    def again() -> tuple[list[job_watch.Looked], job_watch.WatchCursor]:
        since = job_watch.begin(people["owner"], {}).cursor
        for number in (13, 14):
            fields = {"number": number, "name": "more", "id": None}
            copy = Job(**{**{f.attname: getattr(first, f.attname) for f in Job._meta.concrete_fields}, **fields})
            copy.id = Job._meta.pk.get_default()
            copy.save(force_insert=True)
            stage = Stage.objects.get(job=first)
            stage.pk, stage.job = Stage._meta.pk.get_default(), copy
            stage.save(force_insert=True)
        return list(job_watch.changes(people["owner"], {}, since)), since

    parts, since = await rows(again)
    assert sorted(job.number for part in parts for job in part.jobs) == [13, 14]
    assert [part.cursor == since for part in parts[:-1]] == [True] * (len(parts) - 1)
    assert parts[-1].cursor.xact > since.xact


def test_no_label_ends_a_line_by_any_rule() -> None:
    told = job_stream._event("upsert", None, {"label": "a\u2028b\u2029c\x85d"}).decode()
    assert len(told.splitlines()) == 3
    assert json.loads(told.splitlines()[1].removeprefix("data: ")) == {"label": "a\u2028b\u2029c\x85d"}
