"""A log is followed over REST: what is there, what comes, and the end of it, for those who may see the job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import AsyncClient
from django.utils import timezone

from controlplane.accounts import service
from controlplane.accounts.models import Token, User
from controlplane.api import open_streams
from controlplane.fleet.models import Node
from controlplane.jobs.models import Attempt, Job, Part, Stage
from tests.controlplane.people import write_log
from tests.controlplane.test_feed import _job, people, rows  # noqa: F401  a fixture

WAIT_S = 20


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_streams, "LOOK_S", 0.05)


async def asked(user: User, query: str = "") -> Any:
    _token, secret = await rows(service.make_token, user, "follow", scopes=["read"])
    path = f"/api/v1/jobs/12/logs/follow{query}"
    answer = await AsyncClient().get(path, headers={"authorization": f"Bearer {secret}"})
    # The thread of requests keeps its connection otherwise, beyond the last test.
    await sync_to_async(connections.close_all, thread_sensitive=True)()
    return answer


@asynccontextmanager
async def following(user: User, query: str = "") -> AsyncIterator[Any]:
    answer = await asked(user, query)
    assert (answer.status_code, answer["Content-Type"]) == (200, "text/plain; charset=utf-8")
    content = aiter(answer.streaming_content)
    try:
        yield content
    finally:
        await content.aclose()


async def piece(content: Any) -> bytes:
    async with asyncio.timeout(WAIT_S):
        return bytes(await anext(content, b"the end"))


def _started(job: Job) -> None:
    stage = Stage.objects.get(job=job)
    attempt = Attempt.objects.create(stage=stage, number=1, created_at=timezone.now())
    Part.objects.create(attempt=attempt, node=Node.objects.create(name="n1", credential_digest="x"))


def _ended(job: Job) -> None:
    Attempt.objects.filter(stage__job=job).update(ended_at=timezone.now() - timedelta(hours=1))


async def test_what_is_there_comes_first_and_then_what_is_printed(people: dict[str, User]) -> None:  # noqa: F811
    job = await rows(_job, people["owner"])
    async with following(people["owner"]) as content:
        await rows(_started, job)
        await rows(write_log, job, ("out", b"one\n"))
        assert await piece(content) == b"one\n"
        await rows(write_log, job, ("err", b"two\n"))
        assert await piece(content) == b"two\n"
        await rows(write_log, job, ("out", b"last\n"))
        await rows(_ended, job)
        assert await piece(content) == b"last\n"
        assert await piece(content) == b"the end"


@pytest.mark.parametrize(("query", "offset", "first"), [("?offset=4", "4", b"two\n"), ("?tail=1", "4", b"two\n")])
async def test_it_begins_where_it_is_asked_to(
    people: dict[str, User],  # noqa: F811
    query: str,
    offset: str,
    first: bytes,
) -> None:
    job = await rows(_job, people["owner"])
    await rows(_started, job)
    await rows(write_log, job, ("out", b"one\ntwo\n"))
    await rows(_ended, job)
    answer = await asked(people["owner"], query)
    assert answer["X-Log-Offset"] == offset
    assert b"".join([each async for each in answer.streaming_content]) == first


async def test_a_job_that_ended_without_an_attempt_has_an_empty_log(people: dict[str, User]) -> None:  # noqa: F811
    job = await rows(_job, people["owner"])
    async with following(people["owner"]) as content:
        await rows(Job.objects.filter(pk=job.pk).update, state="CANCELLED", ended_at=timezone.now())
        assert await piece(content) == b"the end"


async def test_strangers_see_nothing_and_wrong_questions_are_refused(people: dict[str, User]) -> None:  # noqa: F811
    await rows(_job, people["owner"])
    assert (await asked(people["stranger"])).status_code == 404
    for query in ("?tail=-1", "?limit=5", "?stream=all", "?offset=-1"):
        assert (await asked(people["owner"], query)).status_code == 400, query


async def test_a_stream_of_a_log_ends_with_its_token_and_counts_as_one(
    people: dict[str, User],  # noqa: F811
    settings: Any,
) -> None:
    job = await rows(_job, people["owner"])
    await rows(_started, job)
    await rows(write_log, job, ("out", b"one\n"))
    settings.SOCKETS_PER_USER = 1
    async with following(people["owner"]) as content:
        assert await piece(content) == b"one\n"
        assert (await asked(people["owner"])).status_code == 429
        await rows(Token.objects.all().delete)
        assert await piece(content) == b"the end"
