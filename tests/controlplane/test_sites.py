"""Sites over REST and on their page: who may what, what is refused, and what nobody is shown."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from django.utils import timezone

from controlplane.clauses import Told
from controlplane.fleet.models import Node
from controlplane.jobs.models import Part, Stage
from controlplane.sites import service
from controlplane.sites.models import Site, SiteJob, SiteToken
from tests.controlplane.people import Town

BERLIN = {"name": "berlin", "url": "https://yard.berlin.example.org"}
SECRET = "yard_a_token_of_berlin"


def made(town: Town, **more: Any) -> Site:
    answer = town.staff.post("/sites", {**BERLIN, **more})
    assert answer.status_code == 201, answer.content
    return Site.objects.get(name="berlin")


def put_token(person: Any, token: str = SECRET) -> Any:
    return person.client.put("/api/v1/sites/berlin/token", {"token": token}, content_type="application/json")


def delete(town: Town) -> Any:
    return town.staff.client.delete("/api/v1/sites/berlin", headers={"if-match": "*"})


def left(town: Town, site: Site) -> SiteJob:
    """A job of the owner that has left."""
    job = town.job(devices={"kind": "gpu"}, sites=["berlin"])
    row = service.leave(site, Stage.objects.get(job=job).pk, Told("for a test"))
    assert row is not None
    return row


def test_everybody_sees_them_and_only_operators_set_them_up(town: Town) -> None:
    made(town, price=1.5)
    for person in (town.owner, town.lead, town.stranger):
        assert person.get("/sites").json()["results"][0]["price"] == 1.5
        assert person.get("/sites/berlin").status_code == 200
        assert person.get("/sites/berlin/settings").status_code == 403
        assert person.post("/sites", BERLIN).status_code == 403
        assert person.patch("/sites/berlin", {"enabled": False}, **{"if-match": "*"}).status_code == 403
        assert put_token(person).status_code == 403
        assert person.post("/sites/berlin/give-up", {"reason": "x"}).status_code == 403
    assert town.anonymous.get("/sites").status_code == 401


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("url", "http://yard.example.org"),
        ("url", "https://127.0.0.1"),
        ("url", "https://169.254.169.254"),
        ("url", "https://[::ffff:10.0.0.1]"),
        ("url", "https://user:x@yard.example.org"),
        ("url", "https://yard.example.org/path"),
        ("url", "https://yard.example.org?x=1"),
        ("url", "file:///etc/passwd"),
        ("url", "https://yard.example.org\r\nX: y"),
        ("url", "https://" + "a" * 400),
        ("name", "yard"),
        ("name", "../x"),
        ("fingerprint", "zz"),
        ("pools", "default"),
        ("pools", ["a b"]),
        ("pools", ["a"] * 51),
        ("locations", [3]),
        ("price", -1),
        ("price", 1e300),
        ("most_jobs", 10**9),
        ("lost_after_s", 1),
        ("condition", "well"),
        ("node", 1),
    ],
)
def test_what_is_no_site_is_refused_with_its_field(town: Town, field: str, value: object) -> None:
    answer = town.staff.post("/sites", {**BERLIN, field: value})
    assert answer.status_code == 400, answer.content
    assert any(each["pointer"].startswith(f"/{field}") for each in answer.json()["errors"]), answer.json()
    assert not Site.objects.exists()
    assert not Node.objects.filter(is_site=True).exists()


def test_private_networks_are_those_of_the_settings(town: Town, settings: Any) -> None:
    settings.SITE_NETWORKS = (ipaddress.ip_network("10.0.0.0/8"),)
    made(town, url="http://10.1.2.3:8000")


def test_a_token_is_never_shown_and_is_kept_encrypted(town: Town) -> None:
    made(town)
    assert town.staff.get("/sites/berlin").json()["has_token"] is False
    answer = put_token(town.staff)
    assert (answer.status_code, answer.json()["has_token"]) == (200, True)
    row = SiteToken.objects.get()
    assert row.content().decode() == SECRET
    assert SECRET.encode() not in bytes(row.ciphertext)
    for path in ("/sites", "/sites/berlin", "/sites/berlin/settings", "/audit"):
        assert SECRET not in town.staff.get(path).content.decode()
    assert put_token(town.staff, "short").status_code == 400


def test_one_is_changed_as_it_was_read_and_keeps_its_name(town: Town) -> None:
    made(town)
    read = town.staff.get("/sites/berlin/settings")
    changed = town.staff.patch("/sites/berlin", {"price": 4}, **{"if-match": read["ETag"]})
    assert (changed.status_code, changed.json()["price"]) == (200, 4)
    assert town.staff.patch("/sites/berlin", {"price": 5}, **{"if-match": read["ETag"]}).status_code == 412
    assert town.staff.patch("/sites/berlin", {"name": "other"}, **{"if-match": "*"}).status_code == 400


def test_a_site_with_jobs_is_neither_deleted_nor_sent_elsewhere(town: Town) -> None:
    row = left(town, made(town))
    assert delete(town).status_code == 409
    assert (
        town.staff.patch("/sites/berlin", {"url": "https://other.example.org"}, **{"if-match": "*"}).status_code == 400
    )
    service.over(row, timezone.now())
    assert delete(town).status_code == 204
    assert Node.objects.get(name="site-berlin").state == "DRAINED"
    row.part.attempt.refresh_from_db()


def test_a_name_that_a_node_has_is_refused(town: Town) -> None:
    Node.objects.create(name="site-berlin", credential_digest="x")
    answer = town.staff.post("/sites", BERLIN)
    assert (answer.status_code, answer.json()["code"]) == (409, "in_use")
    assert not Site.objects.exists()


def test_jobs_there_are_shown_to_those_who_see_them(town: Town) -> None:
    row = left(town, made(town))
    SiteJob.objects.filter(pk=row.pk).update(number=4711, state="PENDING", reason="no device is free")
    for person in (town.owner, town.mate, town.staff):
        (shown,) = person.get("/sites/berlin/jobs").json()["results"]
        assert (shown["number"], shown["state"], shown["is_unknown"]) == (4711, "PENDING", False)
    assert town.stranger.get("/sites/berlin/jobs").json()["results"] == []
    assert row.key not in town.owner.get("/sites/berlin/jobs").content.decode()
    assert town.stranger.get("/sites/berlin").json()["our_jobs"] == {"PENDING": 1}
    Site.objects.update(failures=2, condition="it does not answer (timed_out)")
    assert town.owner.get("/sites/berlin/jobs").json()["results"][0]["is_unknown"] is True


def test_the_job_says_where_it_is(town: Town, client: Any) -> None:
    row = left(town, made(town))
    Part.objects.filter(pk=row.pk).update(substate="waits at site berlin as #4711")
    number = row.part.attempt.stage.job.number
    (stage,) = town.owner.get(f"/jobs/{number}").json()["stages"]
    there = [{"node": "site-berlin", "rank": 0, "devices": []}]
    assert (stage["placed"], stage["substate"]) == (there, "waits at site berlin as #4711")
    (attempt,) = town.owner.get(f"/jobs/{number}/attempts").json()["results"]
    assert attempt["placed"] == there
    client.force_login(town.owner.user)
    page = client.get(f"/jobs/{number}").content.decode()
    assert "site-berlin" in page
    assert "waits at site berlin as #4711" in page
    assert client.get("/nodes/site-berlin").status_code == 200


def test_what_is_at_a_site_is_given_up_only_while_it_does_not_answer_and_with_a_reason(town: Town) -> None:
    row = left(town, made(town))
    assert town.staff.post("/sites/berlin/give-up", {"reason": "x"}).status_code == 409
    Site.objects.update(failures=1)
    assert town.staff.post("/sites/berlin/give-up", {"reason": ""}).status_code in (400, 422)
    answer = town.staff.post("/sites/berlin/give-up", {"reason": "it burnt down"})
    assert answer.json() == {"given_up": 1}
    assert Stage.objects.get(pk=row.part.attempt.stage_id).state == "PENDING"


def test_the_page_shows_them_and_no_job_of_others(town: Town, client: Any) -> None:
    row = left(town, made(town))
    SiteJob.objects.filter(pk=row.pk).update(number=4711, state="PENDING", reason="<b>no device</b>")
    Site.objects.update(capacity={"devices": [{"kind": "gpu", "model": "H100", "count": 8, "free": 5}], "waiting": 3})
    number = row.part.attempt.stage.job.number
    client.force_login(town.owner.user)
    page = client.get("/sites").content.decode()
    assert "5 of 8 H100" in page
    assert f"/jobs/{number}" in page
    assert "&lt;b&gt;no device" in page
    client.force_login(town.stranger.user)
    assert f"/jobs/{number}" not in client.get("/sites").content.decode()
