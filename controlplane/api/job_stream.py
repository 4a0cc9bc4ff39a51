"""Server-sent events of jobs: ``upsert`` for what changed, ``leave`` for what the filters match no more.

Every event has a cursor as its id, by which a client goes on after a break (``Last-Event-ID``). It is looked once a
second what changed, with the rights that the user has then; a stream ends when they end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec
from asgiref.sync import sync_to_async
from django.db import connections
from django.utils import translation
from django.utils.translation import gettext as _

from controlplane.accounts.models import Token, User
from controlplane.api import open_streams
from controlplane.api.problem import RequestRefused
from controlplane.queries import job_watch
from controlplane.queries.job_watch import CursorGone, Looked, WatchCursor

BEAT_S: Final = 15.0
# Not by the rules of event streams, but many a client splits lines there: a label could forge an event.
_ENDS_A_LINE: Final = {chr(code).encode(): f"\\u{code:04x}".encode() for code in (0x85, 0x2028, 0x2029)}


def events(
    user: User, token: Token | None, params: Mapping[str, str], since: WatchCursor | None, language: str
) -> AsyncIterator[bytes]:
    """Return the stream of a user, which begins with all open jobs unless it goes on from ``since``.

    The first look is taken at once: raises RequestRefused with 410 for a cursor that is too old and with 429 where the
    user has too many streams, and Unanswerable for invalid filters.
    """
    open_streams.refuse_beyond(user)
    try:
        first = _changed(user, params, since)
    except CursorGone:
        detail = _("what happened since then is not known any more; begin anew, without since and Last-Event-ID")
        raise RequestRefused(410, "cursor_gone", detail) from None
    return _events(user.pk, token.pk if token else None, dict(params), first, language)


async def _events(
    user: int, token: Any, params: dict[str, str], looked: list[Looked] | None, language: str
) -> AsyncIterator[bytes]:
    told_at = 0.0
    with open_streams.counted(user):
        while looked is not None:
            for part in looked:
                since = part.cursor
                for job in part.jobs:
                    yield _event("upsert", since, job)
                for number in part.left:
                    yield _event("leave", since, {"number": number})
                if part.anew:
                    yield _event("resync", since, {})
            now = time.monotonic()
            if any(part.jobs or part.left or part.anew for part in looked):
                told_at = now
            elif now - told_at > BEAT_S:
                told_at = now
                yield _event("beat", looked[-1].cursor, {})
            await asyncio.sleep(open_streams.LOOK_S)
            looked = await sync_to_async(_look, thread_sensitive=False)(
                user, token, params, looked[-1].cursor, language
            )
        yield _event("end", None, {})


def _event(name: str, cursor: WatchCursor | None, data: object) -> bytes:
    head = f"id: {cursor}\n" if cursor is not None else ""
    text = msgspec.json.encode(data)
    for ends, escaped in _ENDS_A_LINE.items():
        text = text.replace(ends, escaped)
    return f"{head}event: {name}\ndata: ".encode() + text + b"\n\n"


def _look(user: int, token: Any, params: dict[str, str], since: WatchCursor, language: str) -> list[Looked] | None:
    """Return what changed; None where the user or the token is not valid any more, or too much time has passed."""
    try:
        person = open_streams.reader(user, token)
        if person is None:
            return None
        with translation.override(language):
            return _changed(person, params, since)
    except CursorGone:
        return None
    finally:
        connections.close_all()


def _changed(user: User, params: Mapping[str, str], since: WatchCursor | None) -> list[Looked]:
    return [job_watch.begin(user, params)] if since is None else list(job_watch.changes(user, params, since))
