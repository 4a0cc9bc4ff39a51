"""Notify in a job file: webhooks of the project and the owner's mail are told of the events that the file names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from django.utils import timezone

from controlplane.accounts.models import Project, User
from controlplane.jobs import service
from controlplane.jobs.models import Job
from controlplane.notifications import notices, webhook_delivery
from controlplane.notifications.models import Notice, Webhook, WebhookDelivery
from scheduler.core.model.lifecycle import Cause
from tests.controlplane.people import Town
from tests.controlplane.smtp_server import Sink
from tests.controlplane.test_notices import OWN, mail
from tests.controlplane.test_webhooks import Listener, listener, put
from tests.record.yard import stage

__all__ = ["listener", "mail"]

CHAT = {"on": ["started", "preempted", "failed"], "to": "webhook:chat"}


@pytest.fixture
def owner(town: Town, mail: Sink) -> User:
    """Who has an address, and did not choose any mail."""
    user = town.owner.user
    assert user is not None
    EmailAddress.objects.create(user=user, email=OWN, verified=True, primary=True)
    return user


def preempted(job: Job) -> None:
    at = timezone.now()
    locked = service.lock([job.id])[job.id]
    notes = service.stop([locked], [stage(job)], Cause.PREEMPTED, at)
    service.settle([locked], notes, at)


def test_a_webhook_is_told_of_what_the_file_names(town: Town, listener: Listener) -> None:
    agent = town.machine()
    put(town.lead, listener.url, states=["FAILED"])
    job = town.running(agent, notify=[CHAT])
    preempted(job)
    agent.end(stage(job), cause="PREEMPTED", stopped=True)
    service.cancel(job, "owner")
    told = [(row.data["state"], row.data.get("event"), row.data.get("stage")) for row in deliveries()]
    assert told == [("RUNNING", None, None), ("RUNNING", "preempted", "main")]
    WebhookDelivery.objects.all().delete()
    failed, quiet = (town.running(agent, **more) for more in ({"notify": [CHAT]}, {}))
    WebhookDelivery.objects.all().delete()
    for each in (failed, quiet):
        agent.end(stage(each), 1)
    assert [row.data["number"] for row in deliveries()] == [failed.number, quiet.number], "each failure once"


def deliveries() -> list[WebhookDelivery]:
    return list(WebhookDelivery.objects.order_by("id"))


def test_a_chat_and_an_envelope_name_the_event(town: Town, listener: Listener) -> None:
    agent = town.machine()
    listener.status = 200
    for name, kind in (("chat", "slack"), ("events", "cloudevents")):
        put(town.lead, listener.url, name=name, format=kind, states=["CANCELLED"])
    wishes = [{"on": ["preempted"], "to": f"webhook:{name}"} for name in ("chat", "events")]
    preempted(town.running(agent, notify=wishes))
    assert webhook_delivery.send() == 2
    bodies = {json.loads(body).get("type"): json.loads(body) for _path, _headers, body in listener.heard}
    assert "PREEMPTED" in bodies[None]["text"]
    assert bodies["switchyard.job.preempted"]["data"]["stage"] == "main"


def test_the_owner_is_mailed_what_the_file_names_and_an_end_once(town: Town, owner: User, mail: Sink) -> None:
    agent = town.machine()
    wish = [{"on": ["preempted", "failed"], "to": "email"}]
    job = town.running(agent, notify=wish)
    preempted(job)
    assert notices.send() == 1
    (sent,) = mail.mails()
    assert sent["Subject"] == f"[yard] #{job.number} job: PREEMPTED"
    Notice.objects.all().delete()
    notices.choose(owner, "all", "en")
    agent.end(stage(job), cause="PREEMPTED", stopped=True)
    other = town.running(agent, notify=wish)
    agent.end(stage(other), 1)
    assert notices.send() == 1
    assert mail.mails()[-1]["Subject"] == f"[yard] #{other.number} job: FAILED"


@pytest.mark.parametrize(
    ("wish", "pointer"),
    [
        ({"on": ["failed"], "to": "webhook:theirs"}, "/notify/0/to"),
        ({"on": ["failed"], "to": "boss@example.org"}, "/notify/0/to"),
        ({"on": ["failed"], "to": "https://example.org"}, "/notify/0/to"),
        ({"on": ["exploded"], "to": "email"}, "/notify/0/on"),
        ({"on": [], "to": "email"}, "/notify/0/on"),
        ({"on": ["failed"]}, "/notify/0/to"),
        ({"to": "email"}, "/notify/0/on"),
    ],
)
def test_only_events_and_destinations_that_there_are_for_the_submitter(town: Town, wish: Any, pointer: str) -> None:
    town.machine()
    other, _made = Project.objects.get_or_create(name="other")
    Webhook.objects.create(
        project=other, name="theirs", url="https://example.org", states=["FAILED"], created_at=timezone.now(),
        ciphertext=b"x", wrapped_key=b"x", key_id="k", made_by="x",
    )  # fmt: skip
    answer = town.owner.post("/jobs", {"run": "x", "notify": [wish]})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
    assert not Job.objects.exists()


def test_the_dry_run_warns_who_would_get_no_mail(town: Town) -> None:
    town.machine()
    answer = town.owner.post("/jobs?dry_run=validate", {"run": "x", "notify": [{"on": ["failed"], "to": "email"}]})
    assert answer.status_code == 200
    assert "no mail server" in json.dumps(answer.json()["warnings"])
