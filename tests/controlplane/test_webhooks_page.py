"""The pages of webhooks: adding, changing, switching off, testing and deleting one, and sending again what failed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from controlplane.notifications import webhook_delivery
from controlplane.notifications.models import TriedDelivery, Webhook, WebhookDelivery
from tests.controlplane.people import Person, Town
from tests.controlplane.test_webhooks import Listener, listener, told_of

__all__ = ["listener"]
URL = "https://example.org/hook?token=1"


def browser(person: Person) -> Client:
    client = Client()
    assert person.user is not None
    client.force_login(person.user)
    return client


def add(client: Client, url: str = URL, **more: Any) -> Any:
    asked = {"project": "default", "name": "chat", "url": url, "format": "cloudevents", "states": ["FAILED"], **more}
    return client.post("/webhooks/add", asked)


def test_one_is_added_with_its_key_shown_once_changed_and_deleted(town: Town) -> None:
    lead = browser(town.lead)
    assert "None yet." in lead.get("/webhooks").content.decode()
    made = add(lead)
    assert made.status_code == 200
    assert "whsec_" in made.content.decode()
    assert "no-store" in made["Cache-Control"]
    shown = lead.get("/webhooks/default/chat").content.decode()
    assert "whsec_" not in shown
    assert "/webhooks/default/chat" in lead.get("/webhooks?project=default").content.decode()
    assert add(lead).status_code == 409
    asked = {"url": "https://example.org/other", "format": "slack", "states": ["RUNNING", "COMPLETED"]}
    assert lead.post("/webhooks/default/chat/change", asked).status_code == 302
    row = Webhook.objects.get()
    assert (row.url, row.format, row.states) == (asked["url"], "slack", ["COMPLETED", "RUNNING"])
    lead.post("/webhooks/default/chat/off")
    assert not Webhook.objects.get().is_active
    lead.post("/webhooks/default/chat/on")
    assert Webhook.objects.get().is_active
    assert lead.post("/webhooks/default/chat/delete").status_code == 302
    assert not Webhook.objects.exists()
    assert lead.get("/webhooks/default/chat").status_code == 404


def test_errors_stand_beside_their_fields_and_what_was_typed_stays(town: Town) -> None:
    lead = browser(town.lead)
    for wrong, field in (
        ({"url": "http://10.0.0.1/"}, "url"), ({"name": "Not a slug"}, "name"), ({"states": []}, "states"),
        ({"format": "fax"}, "format"),
    ):  # fmt: skip
        answer = add(lead, **wrong)
        assert answer.status_code == 422
        assert list(answer.context["faults"]) == [field]
        assert 'class="err"' in answer.content.decode()
        assert (wrong.get("url") or URL).replace("&", "&amp;") in answer.content.decode()
    add(lead)
    answer = lead.post("/webhooks/default/chat/change", {"url": "ftp://x", "format": "slack", "states": ["FAILED"]})
    assert (answer.status_code, list(answer.context["faults"])) == (422, ["url"])


def test_only_leads_and_operators_open_them(town: Town) -> None:
    add(browser(town.lead))
    for person, status in ((town.owner, 403), (town.viewer, 403), (town.stranger, 404)):
        mine = browser(person)
        for path in ("/webhooks?project=default", "/webhooks/default/chat"):
            assert mine.get(path).status_code == status, path
        assert add(mine).status_code == status
        for verb in ("change", "on", "off", "test", "delete"):
            assert mine.post(f"/webhooks/default/chat/{verb}").status_code == status, verb
    assert Webhook.objects.get().is_active
    assert "you lead none" in browser(town.owner).get("/webhooks").content.decode()
    assert browser(town.staff).get("/webhooks/default/chat").status_code == 200


def test_a_test_shows_its_answer_escaped_and_a_failed_delivery_is_sent_again(
    town: Town, listener: Listener, monkeypatch: Any
) -> None:
    cache.clear()
    lead = browser(town.lead)
    add(lead, listener.url, states=["CANCELLED"])
    monkeypatch.setattr("controlplane.notifications.outbound._is_own", lambda _address: False)
    listener.status, listener.says = 500, b"<script>alert(1)</script>"
    shown = lead.post("/webhooks/default/chat/test").content.decode()
    assert "status_500" in shown
    assert "&lt;script&gt;alert(1)" in shown
    assert "<script>alert" not in shown
    assert "<script>alert" not in lead.get("/webhooks/default/chat").content.decode()
    assert "alert(1)" not in lead.get("/webhooks/default/chat").content.decode(), "it is not kept"
    assert lead.post("/webhooks/default/chat/test").status_code == 429
    town.machine()
    told_of(town)
    webhook_delivery.send()
    WebhookDelivery.objects.update(at=timezone.now() - timedelta(days=2))
    webhook_delivery.send()
    event = TriedDelivery.objects.get(data__has_key="number").event
    assert "given up" in lead.get("/webhooks/default/chat").content.decode()
    listener.status = 200
    assert lead.post(f"/webhooks/default/chat/deliveries/{event}/resend").status_code == 302
    assert webhook_delivery.send() == 1
    assert lead.post(f"/webhooks/default/chat/deliveries/{event}/resend").status_code == 409
