"""Webhooks: what is told to whom, signed and in order, again until it is accepted; and where no request ever goes."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.server
import ipaddress
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from django.core.cache import cache
from django.db import connection
from django.http import HttpResponse
from django.utils import timezone

from agents.storage import certificate
from controlplane.accounts.models import AuditEntry, Project
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.notifications import chat, outbound, tried_deliveries, webhook_delivery
from controlplane.notifications.models import TriedDelivery, Webhook, WebhookDelivery
from controlplane.notifications.outbound import NotDelivered, post
from tests.controlplane.people import Person, Town
from tests.record.yard import stage

LOCAL = (ipaddress.ip_network("127.0.0.0/8"),)


class Listener(http.server.ThreadingHTTPServer):
    """A server that keeps what it was sent, and answers what it is told to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.heard: list[tuple[str, dict[str, str], bytes]] = []
        self.status = 204
        self.location = ""
        self.says = b""
        self.url = f"http://127.0.0.1:{self.server_port}/hook?room=1"


class _Answer(http.server.BaseHTTPRequestHandler):
    server: Listener

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.heard.append((self.path, dict(self.headers.items()), body))
        self.send_response(self.server.status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()
        self.wfile.write(self.server.says)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def listener(settings: Any) -> Iterator[Listener]:
    settings.WEBHOOK_NETWORKS = LOCAL
    with Listener() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def put(person: Person, url: str, name: str = "chat", project: str = "default", **more: Any) -> HttpResponse:
    body = json.dumps({"url": url, **more})
    return person.client.put(f"/api/v1/projects/{project}/webhooks/{name}", body, content_type="application/json")


def code_of(ask: Callable[[], Any]) -> str:
    with pytest.raises(NotDelivered) as told:
        ask()
    return told.value.code


def test_chats_are_told_in_their_own_form_and_may_refuse_with_200(town: Town, listener: Listener) -> None:
    town.machine()
    forms = {
        "slack": (b"ok", lambda body: body["text"]),
        "feishu": (b'{"code": 0, "msg": "success"}', lambda body: body["content"]["text"]),
        "dingtalk": (b'{"errcode": 0, "errmsg": "ok"}', lambda body: body["text"]["content"]),
        "wecom": (b'{"errcode": 0, "errmsg": "ok"}', lambda body: body["text"]["content"]),
    }
    listener.status = 200
    for kind, (says, text) in forms.items():
        listener.says = says
        assert put(town.lead, listener.url, format=kind, states=["CANCELLED"]).status_code in {200, 201}
        job = town.job(hold=True)
        Job.objects.filter(pk=job.pk).update(name="<!channel> sft")
        town.owner.post(f"/jobs/{job.number}/cancel")
        assert webhook_delivery.send() == 1, kind
        _path, headers, body = listener.heard[-1]
        said = text(json.loads(body))
        assert said.startswith(f"Job #{job.number} !channel sft of project default: CANCELLED"), kind
        assert said.endswith(f"/jobs/{job.number}")
        assert headers["Content-Type"].startswith("application/json")
    listener.says = b'{"errcode": 93000, "errmsg": "invalid webhook url"}'
    town.owner.post(f"/jobs/{town.job(hold=True).number}/cancel")
    assert webhook_delivery.send() == 0
    (told,) = town.lead.read("/projects/default/webhooks")["results"]
    assert (told["format"], told["fault"], told["waiting"]) == ("wecom", "refused_93000", 1)
    for says in (b"", b"[]", b"<html>", b'{"errcode": "0"}', b'{"errcode": true}', b"\xff" * 9_000):
        assert code_of(lambda says=says: chat.check("wecom", says)) == "unreadable"


def test_robots_that_check_a_signature_of_their_own_get_it(town: Town, listener: Listener) -> None:
    """As Feishu and DingTalk document it, computed here once more."""
    town.machine()
    listener.status = 200
    for kind, secret in (("feishu", "its-secret"), ("dingtalk", "SEC0a")):
        listener.says = b'{"code": 0, "errcode": 0}'
        answer = put(town.lead, listener.url, format=kind, secret=secret, states=["CANCELLED"])
        assert (answer.json()["webhook"]["has_secret"], secret in answer.content.decode()) == (True, False)
        assert town.lead.patch("/projects/default/webhooks/chat", {"states": ["CANCELLED"]}).json()["has_secret"]
        town.owner.post(f"/jobs/{town.job(hold=True).number}/cancel")
        assert webhook_delivery.send() == 1, kind
        path, _headers, body = listener.heard[-1]
        query = dict(parse_qsl(urlsplit(path).query))
        told = json.loads(body) if kind == "feishu" else query
        signed = f"{told['timestamp']}\n{secret}".encode()
        own = (
            hmac.new(signed, b"", hashlib.sha256)
            if kind == "feishu"
            else hmac.new(secret.encode(), signed, hashlib.sha256)
        )
        assert told["sign"] == base64.b64encode(own.digest()).decode(), kind
        assert abs(int(told["timestamp"]) / (1 if kind == "feishu" else 1000) - time.time()) < 600, kind
        assert query["room"] == "1"
    gone = town.lead.patch("/projects/default/webhooks/chat", {"format": "wecom"}).json()
    assert not gone["has_secret"], "a format that signs nothing keeps no secret"
    key = base64.b64decode(put(town.lead, listener.url, "other", secret="", states=["CANCELLED"]).json()["key"][6:])
    assert Webhook.objects.get(name="other").content() == key


# -- who


def test_leads_and_operators_have_webhooks_and_nobody_else_sees_them(town: Town) -> None:
    for person, status in (
        (town.anonymous, 401), (town.owner, 403), (town.viewer, 403), (town.stranger, 404),
        (Person(town.lead.user, "read"), 403),
    ):  # fmt: skip
        assert put(person, "https://example.org/hook").status_code == status
    made = put(town.lead, "https://example.org/hook?token=1")
    assert made.status_code == 201
    assert json.loads(made.content)["key"].startswith("whsec_")
    again = json.loads(put(town.staff, "https://example.org/other", states=["FAILED"]).content)
    assert (again["key"], again["webhook"]["states"]) == ("", ["FAILED"])
    (listed,) = town.lead.read("/projects/default/webhooks")["results"]
    assert (listed["url"], listed["waiting"]) == ("https://example.org/other", 0)
    assert town.owner.get("/projects/default/webhooks").status_code == 403
    assert town.stranger.get("/projects/default/webhooks").status_code == 404
    assert "token=1" not in json.dumps(list(AuditEntry.objects.values_list("after", flat=True)))
    for _ in range(2):
        assert town.lead.client.delete("/api/v1/projects/default/webhooks/chat").status_code == 204
    assert not Webhook.objects.exists()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"url": "http://example.org"}, "/url"),
        ({"url": "https://me:secret@example.org"}, "/url"),
        ({"url": "https://127.0.0.1/"}, "/url"),
        ({"url": "https://[::ffff:10.0.0.1]/"}, "/url"),
        ({"url": "https://169.254.169.254/latest"}, "/url"),
        ({"url": "file:///etc/passwd"}, "/url"),
        ({"url": "https://"}, "/url"),
        ({"url": "https://example.org:99999"}, "/url"),
        ({"url": "https://example.org/\r\nHost: other"}, "/url"),
        ({"url": "https://example.org", "states": ["DONE"]}, "/states"),
        ({"url": "https://example.org", "secret": "for-a-robot"}, "/secret"),
        ({"url": "https://example.org", "format": "wecom", "secret": "x"}, "/secret"),
        ({"url": "https://example.org", "format": "feishu", "secret": "a\nb"}, "/secret"),
        ({"url": "https://example.org", "format": "feishu", "secret": "x" * 201}, "/secret"),
    ],
)
def test_what_cannot_be_told_is_refused_with_its_field(town: Town, body: dict[str, Any], field: str) -> None:
    answer = town.lead.client.put(
        "/api/v1/projects/default/webhooks/chat", json.dumps(body), content_type="application/json"
    )
    assert answer.status_code in (400, 422), answer.content
    assert json.loads(answer.content)["errors"][0]["pointer"] == field
    assert put(town.lead, "https://example.org", name="Not a slug").status_code == 422


# -- what is told


def test_ends_are_told_in_order_signed_and_once(town: Town, listener: Listener) -> None:
    key = base64.b64decode(json.loads(put(town.lead, listener.url).content)["key"].removeprefix("whsec_"))
    agent = town.machine()
    jobs = [town.running(agent, name=name) for name in ("first", "second")]
    agent.end(stage(jobs[0]))
    agent.end(stage(jobs[1]), 3)
    assert webhook_delivery.send() == 2
    assert webhook_delivery.send() == 0
    told = [json.loads(body) for _, _, body in listener.heard]
    assert [(one["data"]["name"], one["data"]["state"], one["data"]["cause"]) for one in told] == [
        ("first", "COMPLETED", ""),
        ("second", "FAILED", "EXIT_CODE"),
    ]
    assert {one["specversion"] for one in told} == {"1.0"}
    assert {one["type"] for one in told} == {"switchyard.job.state_changed"}
    assert told[0]["subject"] == f"jobs/{jobs[0].number}"
    for (path, headers, body), one in zip(listener.heard, told, strict=True):
        assert path == "/hook?room=1"
        assert headers["Content-Type"].startswith("application/cloudevents+json")
        assert headers["webhook-id"] == one["id"]
        signed = f"{one['id']}.{headers['webhook-timestamp']}.".encode() + body
        signature = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{signature}"


def test_only_the_states_that_were_chosen_and_the_own_project_are_told(town: Town, listener: Listener) -> None:
    put(town.lead, listener.url, states=["RUNNING"])
    put(town.stranger, listener.url, project="other", states=["RUNNING", "COMPLETED"])
    agent = town.machine()
    job = town.running(agent)
    agent.end(stage(job))
    webhook_delivery.send()
    assert [json.loads(body)["data"]["state"] for _, _, body in listener.heard] == ["RUNNING"]


# -- and when it fails


def told_of(town: Town, count: int = 1) -> None:
    """So many deliveries that wait, as the trigger writes them."""
    if not Node.objects.exists():
        town.machine()
    for _ in range(count):
        job = town.job()
        Job.objects.filter(id=job.id).update(state="CANCELLED", ended_at=timezone.now())
        Job.objects.filter(id=job.id).delete()


def test_what_was_not_accepted_is_told_again_later_with_the_same_id(town: Town, listener: Listener) -> None:
    put(town.lead, listener.url)
    told_of(town, 2)
    listener.status = 503
    pauses = []
    for _ in range(3):
        before = timezone.now()
        assert webhook_delivery.send() == 0
        assert webhook_delivery.send() == 0, "it is left alone for a while"
        row = Webhook.objects.get()
        assert row.retry_at is not None
        pauses.append(round((row.retry_at - before).total_seconds() / 10))
        Webhook.objects.update(retry_at=None)
    assert (pauses, row.failures, row.fault) == ([1, 2, 4], 3, "status_503")
    listener.status = 200
    assert webhook_delivery.send() == 2
    ids = [headers["webhook-id"] for _, headers, _ in listener.heard]
    assert len(ids) == 5
    assert len(set(ids[:4])) == 1, "in order: the second waits for the first"
    (listed,) = town.lead.read("/projects/default/webhooks")["results"]
    assert (listed["failures"], listed["fault"], listed["waiting"]) == (0, "", 0)


def test_one_that_does_not_answer_delays_no_other(town: Town, listener: Listener) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = f"http://127.0.0.1:{free.getsockname()[1]}/"
    put(town.lead, closed, name="a-dead-one")
    put(town.lead, listener.url, name="b-live-one")
    told_of(town)
    assert webhook_delivery.send() == 1
    assert Webhook.objects.get(name="a-dead-one").fault == "no_answer"
    assert len(listener.heard) == 1


def test_what_is_old_or_too_much_goes(town: Town, listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    put(town.lead, listener.url)
    monkeypatch.setattr(webhook_delivery, "MOST_WAITING", 2)
    told_of(town, 4)
    newest = list(WebhookDelivery.objects.order_by("-id").values_list("event", flat=True)[:2])
    listener.status = 500
    webhook_delivery.send()
    assert set(WebhookDelivery.objects.values_list("event", flat=True)) == set(newest)
    WebhookDelivery.objects.update(at=timezone.now() - timedelta(days=2))
    webhook_delivery.send()
    assert not WebhookDelivery.objects.exists()


def test_a_project_takes_its_webhooks_along(town: Town) -> None:
    put(town.stranger, "https://example.org", project="other")
    with connection.cursor() as cursor:  # as a release does that does not know the table
        cursor.execute(
            "DELETE FROM access_member WHERE project_id = (SELECT id FROM access_project WHERE name = 'other')"
        )
        cursor.execute("UPDATE access_user SET default_project_id = NULL")
        cursor.execute("DELETE FROM access_project WHERE name = 'other'")
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    assert not Webhook.objects.exists()
    assert not Project.objects.filter(name="other").exists()


# -- where no request goes


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::",
        "2001:0:7f00:1::", "::127.0.0.1", "fec0::1", "ff02::1",
    ],
)  # fmt: skip
def test_no_name_leads_to_a_host_that_only_the_server_should_reach(
    address: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.WEBHOOK_NETWORKS = ()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    found = [(family, socket.SOCK_STREAM, 6, "", (address, 443))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("it was connected to"))
    assert code_of(lambda: post("https://innocent.example.org/", b"{}", {})) == "private_address"


def test_what_a_name_resolves_to_is_judged_and_connected_to_once(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1" if len(asked) == 1 else "10.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    places = []

    def connect(place: tuple[str, int], **more: Any) -> socket.socket:
        places.append(place[0])
        sock = socket.socket()
        sock.connect(place)
        return sock

    monkeypatch.setattr(socket, "create_connection", connect)
    post(f"http://rebind.example.org:{listener.server_port}/", b"{}", {})
    assert (asked, places) == (["rebind.example.org"], ["127.0.0.1"])
    assert listener.heard[0][1]["Host"] == f"rebind.example.org:{listener.server_port}"


def test_redirections_lead_nowhere(listener: Listener) -> None:
    listener.status, listener.location = 307, listener.url
    assert code_of(lambda: post(listener.url, b"{}", {})) == "status_307"
    assert len(listener.heard) == 1


@contextlib.contextmanager
def odd(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that answers its one client in its own way."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client, contextlib.suppress(OSError):
                answer(client)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def test_an_answer_without_end_is_cut_off(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.WEBHOOK_NETWORKS = LOCAL
    monkeypatch.setattr(outbound, "MOST_S", 0.3)
    gone = threading.Event()

    def drip(client: socket.socket) -> None:
        client.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        while not gone.wait(0.01):
            client.sendall(b"x")

    with odd(drip) as port:
        assert code_of(lambda: post(f"http://127.0.0.1:{port}/", b"{}", {})) == "timed_out"
        gone.set()


def test_a_certificate_that_nobody_vouches_for_is_refused(settings: Any, tmp_path: Any) -> None:
    settings.WEBHOOK_NETWORKS = LOCAL
    context, _pin = certificate.serving(tmp_path)

    def shake(client: socket.socket) -> None:
        with context.wrap_socket(client, server_side=True) as tls:
            tls.recv(1)

    with odd(shake) as port:
        assert code_of(lambda: post(f"https://127.0.0.1:{port}/", b"{}", {})) == "tls_failed"


# -- tests, what was tried, and once more


def deliveries(person: Person) -> list[dict[str, Any]]:
    return list(person.read("/projects/default/webhooks/chat/deliveries")["results"])


def test_a_test_is_sent_at_once_and_shows_what_a_public_address_answers(
    town: Town, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.clear()
    put(town.lead, listener.url, active=False)
    listener.status, listener.says = 200, b"<b>taken</b>\x1b[31m" + b"x" * 3_000
    told = town.lead.post("/projects/default/webhooks/chat/test").json()
    assert (told["status"], told["fault"], told["answer"]) == (200, "", ""), "nobody reads a private network by it"
    (_path, headers, body) = listener.heard[0]
    sent = json.loads(body)
    assert (sent["type"], sent["subject"]) == ("switchyard.test", "webhooks/chat")
    assert sent["data"] == {"project": "default", "webhook": "chat"}
    assert (headers["webhook-id"], told["event"]) == (sent["id"], sent["id"])
    assert headers["webhook-signature"].startswith("v1,")
    again = town.lead.post("/projects/default/webhooks/chat/test")
    assert (again.status_code, len(listener.heard)) == (429, 1)
    cache.clear()
    monkeypatch.setattr(outbound, "_is_own", lambda _address: False)
    told = town.lead.post("/projects/default/webhooks/chat/test").json()
    assert told["answer"].startswith("<b>taken</b>[31mxxx"), "no control characters"
    assert len(told["answer"]) <= 1_000
    assert [(one["type"], one["state"], one["status"], one["job"]) for one in deliveries(town.lead)] == [
        ("switchyard.test", "delivered", 200, None)
    ] * 2
    for person, status in ((town.owner, 403), (town.viewer, 403), (town.stranger, 404)):
        for act in ("test", f"deliveries/{told['event']}/resend"):
            assert person.post(f"/projects/default/webhooks/chat/{act}").status_code == status
        assert person.get("/projects/default/webhooks/chat/deliveries").status_code == status
    assert town.lead.post("/projects/default/webhooks/none/test").status_code == 404


def test_a_chat_gets_its_test_as_a_text(town: Town, listener: Listener) -> None:
    cache.clear()
    put(town.lead, listener.url, format="wecom")
    listener.status, listener.says = 200, b'{"errcode": 93000}'
    assert town.lead.post("/projects/default/webhooks/chat/test").json()["fault"] == "refused_93000"
    said = json.loads(listener.heard[0][2])["text"]["content"]
    assert said.startswith("This is a test of webhook chat of project default.")


def test_tries_are_counted_and_a_failed_delivery_is_sent_again(town: Town, listener: Listener) -> None:
    put(town.lead, listener.url)
    told_of(town, 2)
    listener.status = 503
    for _ in range(2):
        webhook_delivery.send()
        Webhook.objects.update(retry_at=None)
    listener.status = 200
    WebhookDelivery.objects.order_by("-id")[:1].get().delete()
    webhook_delivery.send()
    listener.status = 503
    told_of(town)
    webhook_delivery.send()
    failed, accepted = deliveries(town.lead)
    assert (accepted["tries"], accepted["state"], accepted["status"], accepted["fault"]) == (3, "delivered", 200, "")
    assert (failed["tries"], failed["state"], failed["status"]) == (1, "waiting", 503)
    assert failed["next_try_at"] is not None
    assert {"data", "body"} & failed.keys() == set(), "what was sent is not shown"
    again = f"/projects/default/webhooks/chat/deliveries/{accepted['event']}/resend"
    assert town.lead.post(again).status_code == 409
    # A day later it is given up.
    WebhookDelivery.objects.update(at=timezone.now() - timedelta(days=2))
    webhook_delivery.send()
    (failed, _accepted) = deliveries(town.lead)
    assert (failed["state"], failed["next_try_at"]) == ("failed", None)
    listener.status = 200
    again = f"/projects/default/webhooks/chat/deliveries/{failed['event']}/resend"
    town.lead.client.patch("/api/v1/projects/default/webhooks/chat", '{"active": false}', "application/json")
    assert town.lead.post(again).status_code == 409, "it is switched off"
    town.lead.client.patch("/api/v1/projects/default/webhooks/chat", '{"active": true}', "application/json")
    assert town.lead.post(again).status_code == 202
    assert town.lead.post(again).status_code == 202, "twice is once"
    assert webhook_delivery.send() == 1
    assert listener.heard[-1][1]["webhook-id"] == failed["event"]
    assert deliveries(town.lead)[0]["state"] == "delivered"
    unknown = "/projects/default/webhooks/chat/deliveries/00000000-0000-4000-8000-000000000000/resend"
    assert town.lead.post(unknown).status_code == 404


def test_one_that_is_off_is_told_nothing_also_not_later(town: Town, listener: Listener) -> None:
    put(town.lead, listener.url)
    told_of(town)
    changed = town.lead.client.patch(
        "/api/v1/projects/default/webhooks/chat", '{"active": false}', content_type="application/json"
    )
    assert (changed.json()["active"], changed.json()["waiting"], changed.json()["states"][0]) == (False, 0, "CANCELLED")
    told_of(town)
    assert webhook_delivery.send() == 0
    put(town.lead, listener.url, states=["CANCELLED"])
    assert not Webhook.objects.get().is_active, "setting it anew does not switch it on"
    put(town.lead, listener.url, states=["CANCELLED"], active=True)
    assert webhook_delivery.send() == 0
    told_of(town)
    assert (webhook_delivery.send(), len(listener.heard)) == (1, 1)


def test_what_was_tried_is_bounded(town: Town, listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tried_deliveries, "MOST_KEPT", 3)
    put(town.lead, listener.url)
    told_of(town, 5)
    assert webhook_delivery.send() == 5
    assert len(deliveries(town.lead)) == 3
    TriedDelivery.objects.update(tried_at=timezone.now() - timedelta(days=8))
    webhook_delivery.send()
    assert deliveries(town.lead) == []
