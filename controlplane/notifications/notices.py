"""Sends mail about ended jobs: to each user one mail a minute at most, which tells of all that ended since the last.

A worker takes the notices of a user for one mail, and marks them as sent once the mail server has taken it. What lies
between, a worker that dies or an answer that never comes, is sent again after a while: as the same mail, with the same
Message-ID, by which mailboxes know a mail that they have. See docs/decisions/061.
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
from django.template.loader import render_to_string
from django.utils import timezone, translation

from controlplane.accounts.models import User
from controlplane.accounts.permissions import visible_jobs
from controlplane.accounts.time_zones import zone_of
from controlplane.jobs.models import Job
from controlplane.notifications.models import Notice, NoticeChoice

log = logging.getLogger(__name__)

LISTED: Final = 10
# What a worker has taken and not sent by then is sent by another one; longer than its task may take.
AGAIN: Final = timedelta(minutes=5)
# Nobody wants to be told after that.
TOO_OLD: Final = timedelta(days=1)
MOST_AN_HOUR: Final = 20
# How long one run begins new mails. With the time that one takes it ends before the task's limit.
RUN_S: Final = 60.0
WAITS: Final = {"mail": None}
TAKEN: Final = {"mail__isnull": False, "sent_at": None}


def send() -> int:
    """Sends what there is to tell; returns how many mails the server took. Without a mail server it only forgets."""
    now = timezone.now()
    Notice.objects.filter(at__lt=now - TOO_OLD).delete()
    if not settings.EMAIL_HOST:
        return 0
    until, sent = time.monotonic() + RUN_S, 0
    connection = get_connection()
    try:
        while time.monotonic() < until and (mail := _taken()) is not None:
            message = _message(mail)
            if message is None:
                Notice.objects.filter(mail=mail).delete()
            elif _handed_in(message, mail, connection):
                sent += Notice.objects.filter(mail=mail).update(sent_at=timezone.now()) > 0
    except (OSError, SMTPException) as error:
        # What was taken is tried again in a while; what was not waits for the next run.
        log.warning("the mail server takes no mail: %s", type(error).__name__)
    finally:
        connection.close()
    return sent


def _taken() -> uuid.UUID | None:
    """A mail whose notices this worker has taken: one that another left unsent, or the next user's."""
    now = timezone.now()
    stale = Notice.objects.filter(**TAKEN, claimed_at__lt=now - AGAIN)
    for mail in stale.order_by("claimed_at").values_list("mail", flat=True)[:1]:
        # Of two workers that find it, the second updates nothing.
        if mail is not None and stale.filter(mail=mail).update(claimed_at=now):
            return mail
    for user_id in _next_users(now):
        mail = uuid.uuid4()
        if Notice.objects.filter(**WAITS, user=user_id).update(mail=mail, claimed_at=now):
            return mail
    return None


def _next_users(now: datetime) -> list[int]:
    """Who has waited longest to be told, less those who had as many mails of late as anybody gets."""
    lately = Notice.objects.filter(claimed_at__gt=now - timedelta(hours=1)).values_list("user_id", "mail").distinct()
    # One a minute: another run may be at work.
    just_now = Notice.objects.filter(claimed_at__gt=now - timedelta(seconds=45)).values_list("user_id", flat=True)
    told = Counter(user_id for user_id, _mail in lately)
    sated = {user_id for user_id, mails in told.items() if mails >= MOST_AN_HOUR} | set(just_now)
    return list(
        Notice.objects.filter(**WAITS).exclude(user__in=sated).order_by("at").values_list("user_id", flat=True)[:1]
    )


def _message(mail: uuid.UUID) -> EmailMessage | None:
    """The mail, in the language and time zone of its user; None where nobody is to be told any more."""
    user = User.objects.filter(notices__mail=mail, is_active=True).first()
    choice = NoticeChoice.objects.filter(user=user).first() if user is not None else None
    address = EmailAddress.objects.filter(user=user, verified=True).order_by("-primary", "pk").first()
    if user is None or choice is None or address is None:
        return None
    jobs = list(
        Job.objects.filter(visible_jobs(user), notice__mail=mail)
        .select_related("project")
        .only("number", "name", "state", "cause", "started_at", "ended_at", "project__name")
    )
    if not jobs:
        return None
    jobs.sort(key=lambda job: (job.state != "FAILED", job.ended_at, job.number))
    values = {
        "jobs": jobs[:LISTED],
        "job": jobs[0],
        "count": len(jobs),
        "more": max(0, len(jobs) - LISTED),
        "states": sorted(Counter(job.state for job in jobs).items()),
        "url": settings.PUBLIC_URL.rstrip("/"),
        "user": user,
    }
    with translation.override(choice.language), timezone.override(zone_of(user)):
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


def _handed_in(message: EmailMessage, mail: uuid.UUID, connection: Any) -> bool:
    """Whether the server took it. What it will never take is dropped, what it does not take now is tried again.

    Raises OSError or SMTPException where the server takes nobody's.
    """
    connection.open()  # once: it stays so for the next one
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
    """Which ends this user is told of; empty where it is none."""
    return NoticeChoice.objects.filter(user=user).values_list("ends", flat=True).first() or ""


def choose(user: User, ends: str, language: str) -> None:
    """Keeps which ends this user is told of; with none, what they have not been told yet is forgotten."""
    with transaction.atomic():
        if ends:
            NoticeChoice.objects.update_or_create(user=user, defaults={"ends": ends, "language": language[:10]})
        else:
            NoticeChoice.objects.filter(user=user).delete()
            Notice.objects.filter(user=user, sent_at=None).delete()
