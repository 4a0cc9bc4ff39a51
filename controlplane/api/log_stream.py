"""The log of one attempt as it grows, as text: what is there, and then what comes, until the attempt has ended.

It is looked once a second what is new, with the rights that the user has then; a stream ends when they end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections
from django.http import Http404

from controlplane.accounts.models import Token, User
from controlplane.api import open_streams
from controlplane.queries import jobs
from controlplane.queries.logs import Followed, LogGone, LogQuery, follow, followed


def text(user: User, token: Token | None, name: str, wanted: LogQuery) -> tuple[int, AsyncIterator[bytes]]:
    """Return the offset of the first byte, and the pieces of the log from there on.

    The first look is taken at once: raises RequestRefused with 429 where the user has too many streams, and what a
    look at the log raises.
    """
    open_streams.refuse_beyond(user)
    first = follow(jobs.found(user, name), wanted)
    return first.next_offset - len(first.content), _pieces(user.pk, token.pk if token else None, name, wanted, first)


async def _pieces(user: int, token: Any, name: str, wanted: LogQuery, looked: Followed | None) -> AsyncIterator[bytes]:
    with open_streams.counted(user):
        while looked is not None:
            if looked.content:
                yield looked.content
            elif looked.is_over:
                return
            else:
                await asyncio.sleep(open_streams.LOOK_S)
            looked = await sync_to_async(_look, thread_sensitive=False)(user, token, name, wanted, looked)


def _look(user: int, token: Any, name: str, wanted: LogQuery, last: Followed) -> Followed | None:
    """Return what is new; None where the user, the token or the log is not there any more."""
    try:
        person = open_streams.reader(user, token)
        return followed(jobs.found(person, name), wanted, last) if person is not None else None
    except (Http404, LogGone):
        return None
    finally:
        connections.close_all()
