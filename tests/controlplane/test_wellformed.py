"""Requests that no view could make sense of are refused in one place, in a sentence that names where it stands."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.test import Client

from controlplane.asgi import application
from controlplane.wellformed import LARGEST_WHOLE, fault_of, faults
from tests.controlplane.people import Town

WINDOW = {"starts_at": "2100-01-01T00:00:00Z", "ends_at": "2100-01-02T00:00:00Z", "reason": "x", "node": "n1"}


def browser(town: Town) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(town.owner.user)
    return client


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ('"\\ud800"', "/reason holds half of a surrogate pair"),
        ('"a\\u0000b"', "/reason holds the character NUL"),
        ("1e400", "1e400 is too large for a number"),
        ("Infinity", "Infinity is not JSON"),
        ("9" * 400, "is too large: a whole number may be"),
        ("[" * 60 + "]" * 60, "at most 50 levels"),
    ],
)
def test_a_body_is_refused_with_the_field(town: Town, written: str, told: str) -> None:
    town.machine()
    body = json.dumps(WINDOW).replace('"x"', written)
    answer = town.staff.post("/maintenance-windows", body)
    assert (answer.status_code, answer["Content-Type"]) == (400, "application/problem+json")
    assert told in json.loads(answer.content)["detail"]


@pytest.mark.parametrize("field", ["starts_at", "ends_at"])
@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "1969-12-31T00:00:00Z"])
def test_a_time_beyond_calendars_is_refused_by_name(town: Town, field: str, at: str) -> None:
    town.machine()
    answer = town.staff.post("/maintenance-windows", {**WINDOW, field: at})
    assert answer.status_code == 400
    assert json.loads(answer.content)["detail"] == f"{field}: must lie between 1970 and 2200"


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/jobs?q=%00", "the query parameter q holds the character NUL"),
        ("/jobs?q=%FF", "the query parameter q is not UTF-8"),
        ("/jobs?%00=1", "a query parameter holds"),
        ("/jobs?" + "a=1&" * 200, "at most 100 query parameters"),
        ("/jobs?q=" + "x" * 9_000, "at most 8,000 characters"),
        ("/decisions?job=99999999999999999999", "job"),
        ("/jobs/1/metrics?since_s=1e400", "since_s"),
        ("/jobs?cursor=WzAsMV0", "this cursor cannot be read"),
        ("/nodes?cursor=W2ZhbHNlLDFd", "this cursor cannot be read"),
        ("/jobs/%00", "the address holds the character NUL"),
    ],
)
def test_an_address_is_refused_with_the_parameter(town: Town, path: str, told: str) -> None:
    town.machine()
    job = town.job()
    answer = town.owner.get(path.replace("/1/", f"/{job.number}/"))
    assert (answer.status_code, answer["Content-Type"]) == (400, "application/problem+json")
    assert told in json.loads(answer.content)["detail"]


def test_a_page_says_it_as_a_page_in_the_readers_language(town: Town) -> None:
    client = browser(town)
    for path, told in (
        ("/jobs?q=%00", "the query parameter q holds the character NUL"),
        ("/jobs?cursor=x", "this cursor cannot be read"),
        ("/jobs?state=x", "state must be some of"),
    ):
        answer = client.get(path)
        assert (answer.status_code, answer["Content-Type"]) == (400, "text/html; charset=utf-8")
        assert told in answer.content.decode()
    said = client.get("/jobs?q=%00", headers={"accept-language": "zh-hans"}).content.decode()
    assert '<html lang="zh-hans">' in said
    assert "无法读取此请求" in said


def test_a_broken_cookie_is_passed_over(town: Town) -> None:
    client = Client(
        headers={"cookie": 'yard_session="\\000\\000\\000\\000\\000\\000\\000\\000\\000"; django_language=en'}
    )
    assert client.get("/sign-in").status_code == 200


@pytest.mark.parametrize("charset", ["utf-16", "hex", "rot13", "nothing"])
def test_no_codec_is_chosen_by_a_stranger(town: Town, charset: str) -> None:
    town.machine()
    post, kind = town.owner.client.generic, f"application/json; charset={charset}"
    answer = post("POST", "/api/v1/jobs", b"{}", content_type=kind)
    assert answer.status_code == 400
    assert "utf-8" in json.loads(answer.content)["detail"]
    assert town.owner.post("/jobs", {"run": "true"}, kind="application/json; charset=UTF-8").status_code == 201


def test_what_people_really_write_passes(town: Town) -> None:
    town.machine()
    client = browser(town)
    assert client.get("/jobs?q=%E4%BD%9C%E4%B8%9A+%F0%9F%98%80").status_code == 200
    assert town.owner.post("/jobs", {"run": "echo 😀\n\ttab", "name": "作业"}).status_code == 201
    assert town.owner.get("/jobs?q=" + "%25").status_code == 200


def test_each_value_is_judged_with_its_place() -> None:
    found = dict(faults({"a": ["x", "\0"], "b/c": {"d": 2**63}, "e": float("inf"), "\0": 1, "ok": LARGEST_WHOLE}))
    assert set(found) == {"/a/1", "/b~1c/d", "/e", "/"}
    assert fault_of(datetime(2026, 11, 23, tzinfo=UTC)) == fault_of("a\tb\n") == fault_of(True) == fault_of(None) == ""


async def asked(path: str, query: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    """The status that the whole application answers to bytes as they come from a socket."""
    scope: dict[str, Any] = {
        "type": "http", "http_version": "1.1", "method": "GET", "path": path, "raw_path": b"/", "root_path": "",
        "scheme": "http",
        "query_string": query, "headers": [(b"host", b"127.0.0.1"), *headers], "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }  # fmt: skip
    communicator = ApplicationCommunicator(application, scope)
    await communicator.send_input({"type": "http.request", "body": b"", "more_body": False})
    status = int((await communicator.receive_output(60))["status"])
    while (await communicator.receive_output(60)).get("more_body"):
        pass
    await communicator.wait(60)
    return status


@pytest.mark.parametrize(
    ("path", "query", "headers", "status"),
    [
        ("/api/v1/version", b"", [], 200),
        ("/api/v1/version", b"\xff", [], 400),
        ("/api/v1/version", b"a=%00", [], 400),
        ("/api/v1/\0", b"", [], 400),
        ("/static/\0", b"", [], 400),
        ("/api/v1/version\ufffd", b"", [], 400),
        ("/api/v1/version", b"", [(b"x-odd", b"\xff\xfe")], 200),
        ("/api/v1/version", b"", [(b"cookie", b"yard_session=\xff\xfe")], 200),
        ("/api/v1/version", b"", [(b"content-type", b"application/json; charset=\xff")], 400),
        ("/api/v1/version", b"", [(b"content-length", b"9" * 5_000)], 413),
    ],
)
async def test_bytes_from_a_socket_are_answered(
    path: str, query: bytes, headers: list[tuple[bytes, bytes]], status: int
) -> None:
    assert await asked(path, query, headers) == status
