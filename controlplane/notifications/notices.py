"""Sends mail about jobs: to each user at most one mail a minute, with all that happened since the last.

A worker claims the notices of a user for one mail, and marks them as sent once the mail server has accepted it. If the
worker dies or the answer is lost in between, the mail is sent again after a while with the same Message-ID, by which
mailboxes detect duplicates. See docs/decisions/061.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from datetime import datetime, timedelta
from smtplib import SMTPDataError, SMTPException, SMTPRecipientsRefused
from typing import Any, Final
from urllib.parse import urlsplit

from allauth.account.models import EmailAddress
from django.conf import settings
from django.core.mail import EmailMessage, get_connection
from django.db import transaction
from django.db.models import QuerySet
from django.template.loader import render_to_string
from django.utils import timezone, translation

from controlplane.accounts.models import User
from controlplane.accounts.permissions import visible_jobs
from controlplane.accounts.time_zones import zone_of
from controlplane.notifications.models import ENDS, Notice, NoticeChoice

log = logging.getLogger(__name__)

LISTED: Final = 10
# Claimed but unsent notices are sent by another worker after this time, which is longer than the task's limit.
AGAIN: Final = timedelta(minutes=5)
# Older ends are not mailed any more.
TOO_OLD: Final = timedelta(days=1)
MOST_AN_HOUR: Final = 20
# How long one run starts new mails. With the duration of one mail it ends before the task's limit.
RUN_S: Final = 60.0
WAITS: Final = {"mail": None}
TAKEN: Final = {"mail__isnull": False, "sent_at": None}


def send() -> int:
    """Send all due mails; return how many the server accepted. Without a mail server notices are only deleted."""
    now = timezone.now()
    Notice.objects.filter(at__lt=now - TOO_OLD).delete()
    if not settings.EMAIL_HOST:
        return 0
    until, sent = time.monotonic() + RUN_S, 0
    connection = get_connection()
    try:
        while time.monotonic() < until and (mail := _claimed()) is not None:
            message = _message(mail)
            if message is None:
                Notice.objects.filter(mail=mail).delete()
            elif _send(message, mail, connection):
                sent += Notice.objects.filter(mail=mail).update(sent_at=timezone.now()) > 0
    except (OSError, SMTPException) as error:
        # Claimed notices are tried again after a while; the others wait for the next run.
        log.warning("the mail server takes no mail: %s", type(error).__name__)
    finally:
        connection.close()
    return sent


def _claimed() -> uuid.UUID | None:
    """Return a mail whose notices this worker has claimed: one that another worker left unsent, or that of the next
    user."""
    now = timezone.now()
    stale = Notice.objects.filter(**TAKEN, claimed_at__lt=now - AGAIN)
    for mail in stale.order_by("claimed_at").values_list("mail", flat=True)[:1]:
        # If two workers find it, the second updates nothing.
        if mail is not None and stale.filter(mail=mail).update(claimed_at=now):
            return mail
    for user_id in _next_users(now):
        mail = uuid.uuid4()
        if Notice.objects.filter(**WAITS, user=user_id).update(mail=mail, claimed_at=now):
            return mail
    return None


def _next_users(now: datetime) -> list[int]:
    """Return the users who have waited longest, without those who had the maximum of recent mails."""
    lately = Notice.objects.filter(claimed_at__gt=now - timedelta(hours=1)).values_list("user_id", "mail").distinct()
    # One a minute, because another run may be active.
    just_now = Notice.objects.filter(claimed_at__gt=now - timedelta(seconds=45)).values_list("user_id", flat=True)
    told = Counter(user_id for user_id, _mail in lately)
    sated = {user_id for user_id, mails in told.items() if mails >= MOST_AN_HOUR} | set(just_now)
    return list(
        Notice.objects.filter(**WAITS).exclude(user__in=sated).order_by("at").values_list("user_id", flat=True)[:1]
    )


def _message(mail: uuid.UUID) -> EmailMessage | None:
    """Return the mail, in the language and time zone of its user; None if it is not wanted any more."""
    user = User.objects.filter(notices__mail=mail, is_active=True).first()
    choice = NoticeChoice.objects.filter(user=user).first() if user is not None else None
    address = EmailAddress.objects.filter(user=user, verified=True).order_by("-primary", "pk").first()
    if user is None or address is None:
        return None
    notices = _wanted(Notice.objects.filter(visible_jobs(user, "job__"), mail=mail), choice)
    if not notices:
        return None
    values = {
        "notices": notices[:LISTED],
        "notice": notices[0],
        "count": len(notices),
        "ended": all(notice.event in ("", *ENDS) for notice in notices),
        "more": max(0, len(notices) - LISTED),
        "words": sorted(Counter(notice.word for notice in notices).items()),
        "url": settings.PUBLIC_URL.rstrip("/"),
        "user": user,
    }
    language = choice.language if choice is not None else settings.LANGUAGE_CODE
    with translation.override(language), timezone.override(zone_of(user)):
        subject = render_to_string("mail/jobs_ended_subject.txt", values)
        body = render_to_string("mail/jobs_ended_message.txt", values)
    return EmailMessage(
        f"[{settings.CLUSTER_NAME}] {' '.join(subject.split())}",
        body.strip() + "\n",
        to=[address.email],
        headers={
            "Message-ID": f"<{mail}@{urlsplit(settings.PUBLIC_URL).hostname}>",
            "Auto-Submitted": "auto-generated",
            "List-Unsubscribe": f"<{values['url']}/user>",
        },
    )


def _wanted(notices: QuerySet[Notice], choice: NoticeChoice | None) -> list[Notice]:
    """Return these notices, failures first: an end once, and none that only a choice named that is withdrawn."""
    found = list(
        notices.select_related("job__project").only(
            "event", "at", "job__number", "job__name", "job__state", "job__cause", "job__project__name"
        )
    )
    found = [notice for notice in found if notice.event or choice is not None]
    chosen = {notice.job_id for notice in found if not notice.event}
    found = [notice for notice in found if notice.event not in ENDS or notice.job_id not in chosen]
    return sorted(found, key=lambda notice: (notice.word != "FAILED", notice.at, notice.job.number))


def _send(message: EmailMessage, mail: uuid.UUID, connection: Any) -> bool:
    """Send the mail; return whether the server accepted it. A permanent refusal drops it, a temporary one is tried
    again.

    Raises OSError or SMTPException if the server accepts no mail at all.
    """
    connection.open()  # stays open for the next mail
    try:
        connection.send_messages([message])
    except (SMTPRecipientsRefused, SMTPDataError) as error:
        refused = error.recipients.values() if isinstance(error, SMTPRecipientsRefused) else [error.args]
        codes = [int(answer[0]) for answer in refused]
        log.warning("the mail server refuses a mail to a user: %s", codes)
        if min(codes) >= 500:
            Notice.objects.filter(mail=mail).delete()
        return False
    return True


def chosen(user: User) -> str:
    """Return which ends this user gets by mail; empty for none."""
    return NoticeChoice.objects.filter(user=user).values_list("ends", flat=True).first() or ""


def choose(user: User, ends: str, language: str) -> None:
    """Store which ends this user gets by mail; with none, unsent notices are deleted."""
    with transaction.atomic():
        if ends:
            NoticeChoice.objects.update_or_create(user=user, defaults={"ends": ends, "language": language[:10]})
        else:
            NoticeChoice.objects.filter(user=user).delete()
            Notice.objects.filter(user=user, sent_at=None, event="").delete()
