"""Tells webhooks what happened: in order, each as a signed CloudEvent or a message for a chat, again until it is
accepted or a day old.

Requests are made in a few threads, one webhook in one of them; a webhook that fails is left alone for a while, longer
each time, so one that does not answer delays nobody else for long. See docs/decisions/079.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import msgspec
from django.conf import settings
from django.core.cache import cache
from django.db import connection, transaction
from django.db.models import Exists, F, OuterRef, Q
from django.db.models.functions import Coalesce
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane.accounts import audit
from controlplane.accounts.keys import KeyUnavailable
from controlplane.notifications import chat, outbound, tried_deliveries
from controlplane.notifications.models import Webhook, WebhookDelivery
from controlplane.notifications.tried_deliveries import DeliveryTry, webhook_named
from controlplane.notifications.webhooks import KEY_BYTES

log = logging.getLogger(__name__)

TYPE: Final = "switchyard.job.state_changed"
AT_ONCE: Final = 4
MOST_IN_A_RUN: Final = 16
# What one webhook is sent in one run, and how long that may take before the next has its turn.
MOST_OF_ONE: Final = 20
TURN_S: Final = 15.0
# Longer than the task may take: a worker that died is followed by another one.
CLAIMED_S: Final = 150
RUNS: Final = "webhooks:sending"
# A webhook is tested once in this time: whoever waits for the answer holds a thread of the web server.
TEST_S: Final = 10
TEST: Final = "switchyard.test"
BUDGET: Final = "switchyard.budget.reached"
TOO_OLD: Final = timedelta(days=1)
MOST_WAITING: Final = 1_000
FIRST_S: Final = 10.0
LONGEST_S: Final = 3_600.0

_CROWDED = """
DELETE FROM notifications_webhookdelivery WHERE id IN (
    SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY webhook_id ORDER BY id DESC) AS place
                    FROM notifications_webhookdelivery) ranked WHERE place > %s)
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one webhook is to be sent now."""

    webhook: Webhook
    content: bytes
    due: list[WebhookDelivery]


class TestedBefore(Exception):
    """A webhook was tested a moment ago."""


def send() -> int:
    """Deliver what is due; return how many deliveries were accepted. One run at a time: slow addresses take no more
    than one thread of the workers from other tasks."""
    if not cache.add(RUNS, 1, CLAIMED_S):
        return 0
    try:
        return _send()
    finally:
        cache.delete(RUNS)


def _send() -> int:
    since = Coalesce("resent_at", "at")
    WebhookDelivery.objects.alias(since=since).filter(since__lt=timezone.now() - TOO_OLD).delete()
    WebhookDelivery.objects.filter(webhook__is_active=False).delete()
    tried_deliveries.forget_old()
    with connection.cursor() as cursor:
        cursor.execute(_CROWDED, [MOST_WAITING])
    turns = [turn for turn in map(_claimed, _due()) if turn is not None]
    if not turns:
        return 0
    accepted = 0
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for turn, tried in zip(turns, threads.map(_deliver, turns), strict=True):
            ids = [one.row.pk for one in tried if not one.fault]
            with transaction.atomic():
                WebhookDelivery.objects.filter(id__in=ids).delete()
                tried_deliveries.note(turn.webhook, tried)
            accepted += len(ids)
            _note(turn.webhook, bool(ids), tried[-1].fault if tried else "")
    return accepted


def _due() -> list[Webhook]:
    """Return the webhooks with something to tell that may be tried now, those first that waited longest for a try."""
    waiting = WebhookDelivery.objects.filter(webhook=OuterRef("pk"))
    due = Webhook.objects.filter(Exists(waiting), is_active=True).filter(
        Q(retry_at=None) | Q(retry_at__lte=timezone.now())
    )
    return list(due.order_by(F("tried_at").asc(nulls_first=True))[:MOST_IN_A_RUN])


def _claimed(webhook: Webhook) -> Turn | None:
    """Claim a webhook for this worker, and return what it is to be sent; None if another worker was quicker."""
    now = timezone.now()
    same = Webhook.objects.filter(pk=webhook.pk, tried_at=webhook.tried_at, retry_at=webhook.retry_at)
    if not same.update(tried_at=now, retry_at=now + timedelta(seconds=CLAIMED_S)):
        return None
    try:
        content = webhook.content()
    except KeyUnavailable:
        _note(webhook, False, "key_unavailable")
        return None
    return Turn(webhook, content, list(WebhookDelivery.objects.filter(webhook=webhook).order_by("id")[:MOST_OF_ONE]))


def _envelope(row: WebhookDelivery) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": str(row.event),
        "source": settings.PUBLIC_URL,
        "type": type_of(row.data),
        "subject": _subject(row.data),
        "time": row.at,
        "datacontenttype": "application/json",
        "data": row.data,
    }


def _subject(data: Mapping[str, Any]) -> str:
    for what, name in (("jobs", "number"), ("budgets", "budget")):
        if name in data:
            return f"{what}/{data[name]}"
    return f"webhooks/{data['webhook']}"


def type_of(data: Mapping[str, Any]) -> str:
    """Return the type of an event."""
    if "budget" in data:
        return BUDGET
    if "number" not in data:
        return TEST
    return f"switchyard.job.{data['event']}" if "event" in data else TYPE


def _deliver(turn: Turn) -> list[DeliveryTry]:
    """Send in order until one fails or the turn is over; return how it went."""
    tried: list[DeliveryTry] = []
    until = time.monotonic() + TURN_S
    for row in turn.due:
        if time.monotonic() > until:
            break
        tried.append(_tried(turn.webhook, turn.content, row))
        if tried[-1].fault:
            break
    return tried


def _tried(webhook: Webhook, content: bytes, row: WebhookDelivery) -> DeliveryTry:
    key, secret, at = content[:KEY_BYTES], content[KEY_BYTES:], time.time()
    url = webhook.url
    if webhook.format == Webhook.Format.CLOUDEVENTS:
        sent = _envelope(row)
    else:
        sent = chat.message(webhook.format, row.data)
        if secret:
            url, sent = chat.signed(webhook.format, url, sent, secret, at)
    body = msgspec.json.encode(sent)
    fault, answer, began = "", None, time.monotonic()
    try:
        told = headers(key, str(row.event), body, int(at), webhook.format)
        answer = outbound.post(url, body, told)
        if webhook.format != Webhook.Format.CLOUDEVENTS:
            chat.check(webhook.format, answer.body)
    except outbound.NotDelivered as error:
        fault, answer = error.code, error.answer or answer
    return DeliveryTry(row, fault, answer, time.monotonic() - began)


def test(webhook: Webhook) -> DeliveryTry:
    """Send one event to a webhook now, also where it is switched off, and return how it went.

    One that is accepted ends the pause after failures before. Raises :class:`TestedBefore`, and ``KeyUnavailable``.
    """
    content = webhook.content()
    if not cache.add(f"webhooks:test:{webhook.pk}", 1, TEST_S):
        raise TestedBefore(_("webhook {name} was tested a moment ago; wait ten seconds").format(name=webhook.name))
    data = {"project": webhook.project.name, "webhook": webhook.name}
    row = WebhookDelivery(webhook=webhook, event=uuid.uuid4(), at=timezone.now(), data=data)
    tried = _tried(webhook, content, row)
    tried_deliveries.note(webhook, [tried])
    if not tried.fault:
        _note(webhook, True, "")
    audit.record("webhook.test", webhook_named(webhook), after={"fault": tried.fault})
    return tried


def headers(key: bytes, event: str, body: bytes, at: int, kind: str = "cloudevents") -> dict[str, str]:
    """Return the headers of a delivery, with its signature over id, time and body."""
    media_type = "application/cloudevents+json" if kind == Webhook.Format.CLOUDEVENTS else "application/json"
    signed = hmac.new(key, f"{event}.{at}.".encode() + body, hashlib.sha256).digest()
    return {
        "Content-Type": f"{media_type}; charset=utf-8",
        "User-Agent": f"switchyard/{settings.VERSION}",
        "Connection": "close",
        "webhook-id": event,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
    }


def _note(webhook: Webhook, has_delivered: bool, fault: str) -> None:
    """Write down how it went: after a fault the webhook is left alone, for twice as long each time."""
    now = timezone.now()
    failures = (0 if has_delivered else webhook.failures) + (1 if fault else 0)
    pause_s = min(LONGEST_S, FIRST_S * 2 ** min(failures - 1, 20)) if fault else 0.0
    written: dict[str, Any] = {
        "failures": failures,
        "fault": fault[:40],
        "retry_at": now + timedelta(seconds=pause_s) if fault else None,
    }
    if has_delivered:
        written["delivered_at"] = now
    # Not if it was set anew meanwhile.
    Webhook.objects.filter(pk=webhook.pk, url=webhook.url).update(**written)
