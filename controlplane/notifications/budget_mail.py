"""Tells the leads of a project by mail, and its webhooks, when 80 % and 100 % of a budget are used.

A level is marked as told before the mail is sent, so that two workers do not both send it; if the mail server takes
none, the mark is taken back and a later run tries again.
"""

from __future__ import annotations

import logging
from smtplib import SMTPException

from allauth.account.models import EmailAddress
from django.conf import settings
from django.core.mail import EmailMessage, get_connection
from django.db import transaction
from django.db.models import F, Q
from django.template.loader import render_to_string
from django.utils import timezone, translation

from controlplane.accounts.models import User
from controlplane.accounts.time_zones import zone_of
from controlplane.notifications import budget_webhooks
from controlplane.notifications.models import NoticeChoice
from controlplane.pools.models import BUDGET_LEVELS, Budget

log = logging.getLogger(__name__)


def send() -> int:
    """Tell the leads of all budgets that have reached a level since they were told last; return how many mails were
    taken."""
    reached = Q(
        *(Q(told__lt=level, used_hours__gte=F("hours") * level / 100) for level in BUDGET_LEVELS), _connector=Q.OR
    )
    sent = 0
    for budget in Budget.objects.filter(reached, until_at__gt=timezone.now()).select_related("project"):
        level = budget.level
        with transaction.atomic():
            if not Budget.objects.filter(pk=budget.pk, told=budget.told).update(told=level):
                continue
            budget_webhooks.tell(budget, level)
        if not settings.EMAIL_HOST:
            continue
        messages = [_message(budget, level, lead, address) for lead, address in _leads(budget)]
        try:
            sent += (get_connection().send_messages(messages) or 0) if messages else 0
        except (OSError, SMTPException) as error:
            log.warning("the mail server takes no mail: %s", type(error).__name__)
            Budget.objects.filter(pk=budget.pk, told=level).update(told=budget.told)
            break
    return sent


def _leads(budget: Budget) -> list[tuple[User, str]]:
    """Return the leads of the project who have a confirmed address, each with it."""
    found: dict[int, tuple[User, str]] = {}
    leads = Q(user__is_active=True, user__member__project=budget.project_id, user__member__role="lead")
    for address in EmailAddress.objects.filter(leads, verified=True).select_related("user").order_by("-primary", "pk"):
        found.setdefault(address.user_id, (address.user, address.email))
    return list(found.values())


def _message(budget: Budget, level: int, lead: User, address: str) -> EmailMessage:
    """Return the mail, in the lead's language and time zone."""
    language = NoticeChoice.objects.filter(user=lead).values_list("language", flat=True).first()
    values = {"budget": budget, "level": level, "url": settings.PUBLIC_URL.rstrip("/")}
    with translation.override(language or settings.LANGUAGE_CODE), timezone.override(zone_of(lead)):
        subject = render_to_string("mail/budget_subject.txt", values)
        body = render_to_string("mail/budget_message.txt", values)
    return EmailMessage(
        f"[{settings.CLUSTER_NAME}] {' '.join(subject.split())}",
        body.strip() + "\n",
        to=[address],
        headers={"Auto-Submitted": "auto-generated"},
    )
