"""The router as callers see it: who may call, what is passed on, and what happens when replicas fail."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import httpx
import pytest

from tests.router.conftest import Door, Engine, until


def test_a_request_is_passed_on_with_the_key_of_the_replica_only(door: Door) -> None:
    door.serve()
    answer = door.ask({"prompt": "to be"})
    assert (answer.status_code, answer.json()) == (200, {"text": "fine"})
    (asked,) = door.engines[0].asked
    assert asked["path"] == "/v1/completions"
    assert json.loads(asked["body"]) == {"prompt": "to be"}
    assert asked["headers"]["authorization"] == "Bearer of-a-replica"
    assert "yard_a-key" not in str(asked)


@pytest.mark.parametrize(
    ("key", "status"), [("", 401), ("yard_unknown-key", 401), ("yard_of-a-stranger", 404), ("x" * 500, 401)]
)
def test_nobody_else_gets_through(door: Door, key: str, status: int) -> None:
    door.serve()
    assert door.ask(key=key).status_code == status
    assert door.engines[0].asked == []


@pytest.mark.parametrize(
    "path",
    ["/s/nlp/chat/metrics", "/s/nlp/chat/v1/../metrics", "/s/nlp/chat/v1/%2e%2e/metrics", "/s/nlp/other/v1/models"],
)
def test_only_the_paths_of_a_service_are_there(door: Door, path: str) -> None:
    door.serve()
    request = f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer yard_a-key-of-mine\r\n\r\n"
    assert raw(door, request.encode()).startswith(b"HTTP/1.1 404")


def raw(door: Door, sent: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", door.port), timeout=20) as link:
        link.sendall(sent)
        return link.recv(65_536)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 20_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 100 + b"\r\n", b"431"),
        (b"POST /s/nlp/chat/v1/completions HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n", b"413"),
        (b"POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400"),
    ],
)
def test_what_is_no_request_is_refused(door: Door, sent: bytes, status: bytes) -> None:
    door.serve()
    assert raw(door, sent).split()[1] == status
    assert door.ask().status_code == 200


def test_a_body_in_pieces_that_grows_too_large_is_refused(door: Door) -> None:
    door.serve(body_bytes=1_000)
    pieces = (b"x" * 400 for _ in range(5))
    headers = {"Authorization": "Bearer yard_a-key-of-mine"}
    answer = httpx.post(f"{door.url}/s/nlp/chat/v1/completions", content=pieces, headers=headers, timeout=60)
    assert answer.status_code == 413


def test_a_stream_arrives_piece_by_piece(door: Door) -> None:
    door.serve()
    go_on = threading.Event()

    def slowly(link: Any) -> None:
        link.send_response(200)
        link.send_header("content-type", "text/event-stream")
        link.send_header("transfer-encoding", "chunked")
        link.end_headers()
        link.wfile.write(b"6\r\ndata: \r\n")
        assert go_on.wait(30)
        link.wfile.write(b"2\r\n1\n\r\n0\r\n\r\n")

    door.engines[0].say = slowly
    headers = {"Authorization": "Bearer yard_a-key-of-mine"}
    with httpx.stream("POST", f"{door.url}/s/nlp/chat/v1/completions", json={}, headers=headers, timeout=60) as answer:
        pieces = answer.iter_raw()
        assert next(pieces) == b"data: "
        # The second half does not exist yet.
        go_on.set()
        assert b"".join(pieces) == b"1\n"


def hangs_up(link: Any) -> None:
    link.connection.shutdown(socket.SHUT_RDWR)
    link.close_connection = True


def garbage(link: Any) -> None:
    link.wfile.write(b"\0\1\2 this is not HTTP \r\n\r\n")
    link.close_connection = True


def unavailable(link: Any) -> None:
    link.whole(b"not now", 503)


def only_head(link: Any) -> None:
    link.wfile.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    hangs_up(link)


@pytest.mark.parametrize("fault", [hangs_up, garbage, unavailable, only_head])
def test_another_replica_is_asked_when_one_fails_before_its_first_byte(door: Door, fault: Any) -> None:
    door.serve(2)
    door.engines[0].say = fault
    for _ in range(6):
        assert door.ask().json() == {"text": "fine"}
    # The breaker spares the failing one.
    assert 1 <= len(door.engines[0].asked) <= 4


def test_one_that_hangs_costs_its_time_and_no_request(door: Door) -> None:
    door.serve(2, first_byte_s=0.3)
    over = threading.Event()
    door.engines[0].say = lambda link: over.wait(60)
    try:
        for _ in range(4):
            assert door.ask().json() == {"text": "fine"}
    finally:
        over.set()


def test_an_answer_that_breaks_off_is_not_told_as_whole(door: Door) -> None:
    door.serve()

    def half(link: Any) -> None:
        link.wfile.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n")
        hangs_up(link)

    door.engines[0].say = half
    with pytest.raises(httpx.RemoteProtocolError):
        door.ask()


def test_a_caller_who_goes_away_frees_the_replica(door: Door) -> None:
    door.serve(concurrency=1)
    gone = threading.Event()

    def for_ever(link: Any) -> None:
        link.wfile.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            while True:
                link.wfile.write(b"4\r\nmore\r\n")
                gone.wait(0.01)
        except OSError:
            gone.set()

    door.engines[0].say = for_ever
    headers = {"Authorization": "Bearer yard_a-key-of-mine"}
    with httpx.stream("POST", f"{door.url}/s/nlp/chat/v1/completions", json={}, headers=headers, timeout=60) as answer:
        next(answer.iter_raw())
    assert gone.wait(30)
    door.engines[0].say = door.engines[0].fine
    assert door.ask().status_code == 200


def test_too_many_requests_a_second_are_told_when_to_come_again(door: Door) -> None:
    door.serve(requests_per_s=1.0)
    answers = [door.ask() for _ in range(6)]
    refused = [one for one in answers if one.status_code == 429]
    assert refused
    assert refused[0].headers["retry-after"] == "1"
    assert refused[0].json()["error"]["type"] == "rate_limit_error"


def test_a_request_waits_for_a_replica_that_comes_and_no_longer_than_allowed(door: Door) -> None:
    door.serve(0, wait_s=0.2)
    until(lambda: door.ask().status_code == 503)
    door.tell(wait_s=50.0)
    answers: list[httpx.Response] = []
    waiting = threading.Thread(target=lambda: answers.append(door.ask()))
    waiting.start()
    until(lambda: any(one["queued"] for report in door.control.reports[-3:] for one in report["services"]))
    door.engines = [Engine()]
    door.tell(wait_s=50.0)
    waiting.join()
    assert answers[0].json() == {"text": "fine"}


def test_known_callers_go_on_while_the_control_plane_is_away(door: Door) -> None:
    door.serve()
    assert door.ask().status_code == 200
    door.control.is_away = True
    assert door.ask().status_code == 200
    assert door.ask(key="yard_never-seen-before").status_code == 503


def test_a_draining_replica_gets_nothing_new(door: Door) -> None:
    door.serve(2)
    first = door.control.services[0]["members"][0]
    first["draining"] = True
    until(lambda: any(one["draining"] for one in door.control.reports[-1]["members"]))
    for _ in range(5):
        assert door.ask().status_code == 200
    assert door.engines[0].asked == []


def test_nothing_is_sent_to_a_port_that_is_not_the_replicas_own(door: Door) -> None:
    door.serve(2)
    first = door.control.services[0]["members"][0]
    first["owned"] = False
    until(lambda: any("another process" in one["fault"] for one in door.control.reports[-1]["members"]))
    for _ in range(5):
        assert door.ask().status_code == 200
    # Not even a health check, which would show it the key.
    seen = len(door.engines[0].probed)
    count = len(door.control.reports)
    until(lambda: len(door.control.reports) > count + 2)
    assert (door.engines[0].asked, len(door.engines[0].probed)) == ([], seen)
    first["owned"] = True
    until(lambda: door.control.reports[-1]["members"][0]["fault"] == "")


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        (b"e:running 2\ne:waiting 5\n", {"running": 2, "waiting": 5}),
        (b"e:running 2\n" + b"#" * 2**20, None),
        (b"\xff\xfe e:running\n", {}),
    ],
)
def test_an_engine_is_asked_how_busy_it_is(door: Door, metrics: bytes, told: Any) -> None:
    door.serve()
    door.engines[0].metrics = metrics
    door.tell(signals={"1": {"running": ["e:running"], "waiting": ["e:waiting"]}})
    until(lambda: len([head for head in door.engines[0].probed if head["authorization"] == "Bearer of-a-replica"]) > 6)
    count = len(door.control.reports)
    until(lambda: len(door.control.reports) > count + 2)
    assert door.control.reports[-1]["members"][0]["load"] == told


def test_a_replica_is_told_of_by_what_it_answered_and_failed(door: Door) -> None:
    door.serve()
    (engine,) = door.engines
    began = len(door.control.reports)
    assert door.ask().status_code == 200
    engine.say = lambda link: link.whole(b"{}", 500)
    assert door.ask().status_code == 500
    engine.say = lambda link: link.connection.shutdown(socket.SHUT_RDWR)
    assert door.ask().status_code == 502

    def told() -> list[dict[str, Any]]:
        return [one for report in door.control.reports[began:] for one in report["members"] if one["id"] == 1]

    until(lambda: sum(one["answers"] for one in told()) >= 5)
    # Asked three times, it failed three times: the caller was told once.
    assert sum(one["answers"] for one in told()) == 5
    assert sum(one["errors"] for one in told()) == 4
    assert sum(sum(one["first_bytes"]) for one in told()) == 2
