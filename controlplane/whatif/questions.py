"""Questions that people ask the engine: computed by a worker, so that no web server is blocked.

The same question of the same person is computed once at a time and its answer is reused for a while. The number of
questions in flight is limited per person and for the cluster. Questions and answers go through Redis: without it
nothing can be asked, and everything else goes on.
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

# How long a request waits for an answer, and how often it looks: after each tenth of the time that it has waited,
# within these bounds. Of many who wait for long, each look costs all servers time.
WAIT_S: Final = 25.0
LOOK_S: Final = (0.02, 0.5)
# Concurrent computations in the cluster and for one person, and the answers that a person may wait for.
AT_ONCE: Final = 2
AT_ONCE_EACH: Final = 1
# How long a worker's slots hold without renewal: a lost worker delays others for no longer than that.
LEASE_S: Final = 6
MOST_WAITING_EACH: Final = 8
# With more waiting stages than this an answer would keep all other questions waiting.
MOST_STAGES_WAITING: Final = 5_000


class NotAnswered(Exception):
    """Raised if there is no answer now; the message is for the person who asked, and ``status`` is the HTTP status."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.code = status, code


@dataclass(frozen=True, slots=True)
class Question(Generic[Answer]):
    """A kind of question: its name, the type of its answer, and how long an answer is reused (seconds).

    The answer to an ``is_personal`` question depends on who asks. Other answers are shared by everybody, and the code
    that shows them hides what the reader may not see.
    """

    name: str
    answer: type[Answer]
    fresh_s: int = 15
    is_personal: bool = True


_reply = msgspec.json.Decoder(Reply).decode


def ask(question: Question[Answer], params: Mapping[str, Any], user: User, *, anew: bool = False) -> Answer:
    """Return the answer; with ``anew`` no remembered answer is used. Blocks for :data:`WAIT_S` at most.

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
    """Store the reply for all who wait for it; one with a fault expires soon."""
    cache.set(key, msgspec.json.encode(reply).decode(), 2 if reply.fault else fresh_s)
    cache.delete(sent_mark(key))


def sent_mark(key: str) -> str:
    """Return the key of the mark that a question was sent to a worker, so that nobody sends it again."""
    return f"{key}:asked"


def renew(leases: list[str]) -> None:
    """Renew the slots and the sent mark of a question for :data:`LEASE_S`, while a worker computes its answer."""
    with contextlib.suppress(RedisError):  # without Redis nobody waits for the answer
        cache.set_many(dict.fromkeys(leases, 1), LEASE_S)


def release(slots: list[str]) -> None:
    """Release the slots of a question for the next one."""
    cache.delete_many(slots)


@contextlib.contextmanager
def _waiting(user: User) -> Iterator[None]:
    """Count those who wait; raise if this person already waits for too many answers."""
    key = f"questions-waiting:{user.pk}"
    cache.add(key, 0, LONGEST_S)
    try:
        count = cache.incr(key)
    except ValueError:  # the counter expired just now
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
        connection.close()  # lets other requests use it meanwhile
    began, (least_s, most_s) = time.monotonic(), LOOK_S
    while (waited_s := time.monotonic() - began) < WAIT_S:
        if (found := cache.get(key)) is not None:
            return str(found)
        if cache.add(sent_mark(key), 1, round(WAIT_S) + LEASE_S):
            if slots := _slots(user):
                _send(question, params, language, key, slots)
                continue
            cache.delete(sent_mark(key))
        time.sleep(min(max(waited_s / 10, least_s), most_s))
    detail = _("the engine is busy with other questions, or with a large world; ask again in a moment")
    raise NotAnswered(503, "busy", detail)


def _slots(user: User) -> list[str]:
    """Take one of the person's slots and one of the cluster's; return an empty list if either has none free."""
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
