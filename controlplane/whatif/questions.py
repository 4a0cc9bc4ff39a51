"""Questions to the engine that people ask: a worker thinks about them, so that no server does.

The same question of the same person is thought about once at a time, its answer is given again for a while, and both a
person and the cluster have only so many in flight. Question and answer go through Redis: without it nothing can be
asked, and all else goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec
from django.core.cache import cache
from django.db import connection
from django.utils import translation
from django.utils.translation import gettext as _
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from controlplane.accounts.models import User
from controlplane.whatif.messages import LONGEST_S, Reply

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

# How long a request waits for an answer, and how often it looks.
WAIT_S: Final = 25.0
LOOK_S: Final = 0.02
# How many are thought about at once in the cluster and for one person, and how many a person may wait for.
AT_ONCE: Final = 2
AT_ONCE_EACH: Final = 1
# A worker says so often that it is at a question. One that is gone holds up whoever asks for no longer than that.
LEASE_S: Final = 6
MOST_WAITING_EACH: Final = 8
# Thinking about a world in which more wait would keep everybody else who asks waiting.
MOST_STAGES_WAITING: Final = 5_000


class NotAnswered(Exception):
    """Raised where there is no answer now; the message is for whoever asked. ``status`` is that of HTTP."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.code = status, code


@dataclass(frozen=True, slots=True)
class Question(Generic[Answer]):
    """A kind of question: its name, the type of its answer, and how long an answer is given again (seconds).

    An answer is asked for by people, who look at it for a while. One that ``is_personal`` depends on who asks; others
    are given to everybody, and whoever shows them hides what this person may not see.
    """

    name: str
    answer: type[Answer]
    fresh_s: int = 15
    is_personal: bool = True


_reply = msgspec.json.Decoder(Reply).decode


def ask(question: Question[Answer], params: Mapping[str, Any], user: User, *, anew: bool = False) -> Answer:
    """The answer; ``anew`` for one that is not remembered from before. Blocks for :data:`WAIT_S` at most.

    Raises :class:`NotAnswered`.
    """
    language = translation.get_language() or "en"
    asker = user.pk if question.is_personal else None
    asked = msgspec.json.encode([question.name, params, asker, language], order="deterministic")
    key = f"question:{hashlib.sha256(asked).hexdigest()}{uuid.uuid4() if anew else ''}"
    try:
        if (found := cache.get(key)) is None:
            with _waiting(user):
                found = _wait(question, params, user, language, key)
    except (RedisError, OperationalError) as error:
        log.warning("the engine could not be asked: %s", error)
        detail = _("the engine cannot be asked now, because the message broker does not answer; try again")
        raise NotAnswered(503, "unavailable", detail) from None
    reply = _reply(found)
    if reply.fault:
        raise NotAnswered(503, "not_answered", _("the engine has no answer to this: {fault}").format(fault=reply.fault))
    return msgspec.json.decode(reply.answer, type=question.answer)


def put(key: str, reply: Reply, fresh_s: int) -> None:
    """Leaves the reply for all who wait for it; one that says a fault is soon asked again."""
    cache.set(key, msgspec.json.encode(reply).decode(), 2 if reply.fault else fresh_s)
    cache.delete(sent_mark(key))


def sent_mark(key: str) -> str:
    """Where it says that a question was sent to a worker, so that nobody sends it again."""
    return f"{key}:asked"


def renew(leases: list[str]) -> None:
    """Says that a worker is at the question: its slots, and that it was sent, hold for :data:`LEASE_S` from now."""
    with contextlib.suppress(RedisError):  # then nobody waits for the answer
        cache.set_many(dict.fromkeys(leases, 1), LEASE_S)


def release(slots: list[str]) -> None:
    """Makes room for the next question."""
    cache.delete_many(slots)


@contextlib.contextmanager
def _waiting(user: User) -> Iterator[None]:
    """Counts those who wait; who waits for many already waits for no more."""
    key = f"questions-waiting:{user.pk}"
    cache.add(key, 0, LONGEST_S)
    try:
        count = cache.incr(key)
    except ValueError:  # it expired just now
        count = 1
    try:
        if count > MOST_WAITING_EACH:
            detail = _("you wait for {most} answers of the engine already; ask again when they are there")
            raise NotAnswered(429, "too_many_questions", detail.format(most=MOST_WAITING_EACH))
        yield
    finally:
        with contextlib.suppress(ValueError):
            cache.decr(key)


def _wait(question: Question[Any], params: Mapping[str, Any], user: User, language: str, key: str) -> str:
    if not connection.in_atomic_block:
        connection.close()  # others may have it meanwhile
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        if (found := cache.get(key)) is not None:
            return str(found)
        if cache.add(sent_mark(key), 1, round(WAIT_S) + LEASE_S):
            if slots := _slots(user):
                _send(question, params, language, key, slots)
                continue
            cache.delete(sent_mark(key))
        time.sleep(LOOK_S)
    detail = _("the engine is busy with other questions, or with a large world; ask again in a moment")
    raise NotAnswered(503, "busy", detail)


def _slots(user: User) -> list[str]:
    """A place among the person's questions and one among all; empty where there is none now."""
    taken: list[str] = []
    for name, most in ((f"questions-of:{user.pk}", AT_ONCE_EACH), ("questions", AT_ONCE)):
        key = next((one for n in range(most) if cache.add(one := f"{name}:{n}", 1, round(WAIT_S) + LEASE_S)), None)
        if key is None:
            release(taken)
            return []
        taken.append(key)
    return taken


def _send(question: Question[Any], params: Mapping[str, Any], language: str, key: str, slots: list[str]) -> None:
    from controlplane.whatif.tasks import answer

    try:
        args = (question.name, dict(params), language, key, question.fresh_s, slots)
        answer.apply_async(args, retry=False, expires=WAIT_S)
    except Exception:
        release([*slots, sent_mark(key)])
        raise
