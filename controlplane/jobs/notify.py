"""Reads ``notify`` of a job file: which destinations are told of which events of the job.

Only the owner of the job is mailed, and only webhooks of the job's project are told. Nothing is sent here: triggers
write what is to be sent, from the stored file and together with the event (see :mod:`controlplane.notifications`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from django.conf import settings
from django.utils.translation import gettext as _

from controlplane.accounts.models import Project, User
from controlplane.jobs.section import Section
from controlplane.jobs.values import Unacceptable, nearest, shown

EVENTS: Final = (
    "started", "completed", "failed", "cancelled", "preempted", "requeued", "held_idle", "promoted", "gate_refused",
    "rolled_back",
)  # fmt: skip
MOST: Final = 16
EMAIL: Final = "email"
WEBHOOK: Final = "webhook:"

Webhooks = Callable[[Project], Collection[str]]


def check(job: Section, project: Project | None, webhooks: Webhooks) -> bool:
    """Check who is told of what; return whether the owner is to be mailed."""
    mails = False
    for place, each in enumerate(job.each("notify", MOST)):
        part = Section(each, f"/notify/{place}", job.refusals, ("on", "to"))
        if not isinstance(each, dict):
            continue
        for key, wanted in (("on", "[failed, preempted]"), ("to", "email")):
            if not part.has(key):
                detail = _("{key} is missing: write it as {example}").format(key=key, example=wanted)
                part.refuse(key, detail, "missing")
        part.read("on", _events, None)
        to = part.read("to", _destination, "")
        mails = mails or to == EMAIL
        name = to.removeprefix(WEBHOOK) if to.startswith(WEBHOOK) else ""
        if name and project is not None and name not in webhooks(project):
            # The others are not named: those who submit may not see them.
            detail = _("project {project} has no webhook {name}; its leads set webhooks")
            part.refuse("to", detail.format(project=project.name, name=shown(name)), "unknown_webhook")
    return mails


def _events(value: object) -> None:
    if not isinstance(value, list) or not value:
        detail = _("must be a list of events such as [failed, preempted], not {value}").format(value=shown(value))
        raise Unacceptable(detail, "not_a_list")
    for word in value:
        if word not in EVENTS:
            detail = _("names no event {event}; {others}").format(event=shown(word), others=nearest(str(word), EVENTS))
            raise Unacceptable(detail, "unknown_value")
    if len(set(value)) < len(value):
        raise Unacceptable(_("says the same twice; once is enough"), "duplicate")


def _destination(value: object) -> str:
    if isinstance(value, str) and len(value) <= 100 and (value == EMAIL or value.startswith(WEBHOOK)):
        return value
    detail = _("must be {mail} or {webhook} with the name of a webhook of the project, not {value}")
    raise Unacceptable(detail.format(mail=EMAIL, webhook=WEBHOOK, value=shown(value)), "unknown_value")


def no_mail(user: User) -> str:
    """Return why this user gets no mail; empty if nothing is known to be in its way."""
    from allauth.account.models import EmailAddress  # the gateway reads job files too, and knows no sign-in

    if not settings.EMAIL_HOST:
        return _("nobody is mailed: this installation has no mail server")
    if not EmailAddress.objects.filter(user=user, verified=True).exists():
        return _("you are not mailed before you have confirmed an address on your user page")
    return ""
