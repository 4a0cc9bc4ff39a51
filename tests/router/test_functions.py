"""The router before functions: who may call, how one that sleeps is woken, what is not repeated, and queued calls."""

from __future__ import annotations

import socket
import threading
from typing import Any

import httpx
import pytest

from tests.router.conftest import Door, Engine, until


def call(door: Door, event: Any = None, key: str = "yard_a-key-of-mine", path: str = "/f/nlp/chat") -> httpx.Response:
    return httpx.post(f"{door.url}{path}", json=event, headers={"Authorization": f"Bearer {key}"}, timeout=30)


def test_a_call_reaches_the_handler_with_an_id_of_its_own(door: Door) -> None:
    door.serve(is_function=True)
    assert [call(door, {"a": n}).json() for n in range(2)] == [{"text": "fine"}] * 2
    first, second = door.engines[0].asked
    assert (first["path"], first["body"]) == ("/invoke", b'{"a":0}')
    assert first["headers"]["authorization"] == "Bearer of-a-replica"
    assert first["headers"]["x-call-try"] == "1"
    assert first["headers"]["x-call-id"] != second["headers"]["x-call-id"]


@pytest.mark.parametrize(
    ("key", "path", "status"),
    [
        ("yard_of-a-stranger", "/f/nlp/chat", 404),
        ("yard_unknown-key", "/f/nlp/chat", 401),
        ("yard_a-key-of-mine", "/f/nlp/other", 404),
        ("yard_a-key-of-mine", "/f/nlp/chat/metrics", 404),
        ("yard_a-key-of-mine", "/f/nlp/chat?x=1", 404),
        ("yard_a-key-of-mine", "/s/nlp/chat/v1/completions", 404),
    ],
)
def test_nothing_else_is_reached(door: Door, key: str, path: str, status: int) -> None:
    door.serve(is_function=True)
    assert call(door, 1, key, path).status_code == status
    assert door.engines[0].asked == []


def test_whoever_has_taken_the_port_of_a_function_gets_neither_its_calls_nor_its_key(door: Door) -> None:
    door.serve(is_function=True)
    stranger, replica = Engine(), door.engines[0]
    stranger.key = "which-it-guesses"
    door.engines.append(stranger)
    door.tell(is_function=True)
    until(lambda: len(stranger.probed) > 2)
    assert [call(door, n).status_code for n in range(4)] == [200] * 4
    assert (len(replica.asked), stranger.asked) == (4, [])
    assert not [head for head in stranger.probed if "of-a-replica" in str(head)]


def test_a_function_takes_posts_and_a_service_is_none(door: Door) -> None:
    door.serve(is_function=True)
    headers = {"Authorization": "Bearer yard_a-key-of-mine"}
    assert httpx.get(f"{door.url}/f/nlp/chat", headers=headers, timeout=60).status_code == 405
    door.serve()
    assert call(door).status_code == 404


def test_an_event_that_is_too_large_is_refused_unread(door: Door) -> None:
    door.serve(is_function=True, body_bytes=1_000)
    assert call(door, "x" * 2_000).status_code == 413
    assert door.engines[0].asked == []


def test_a_sleeping_function_is_woken_at_once_and_the_call_waits(door: Door) -> None:
    door.serve(is_function=True)
    awake = door.control.services
    door.engines[0].asked.clear()
    door.control.services = [{**awake[0], "members": []}]
    # Two reports later the router has the table without a replica.
    count = len(door.control.reports)
    until(lambda: len(door.control.reports) > count + 2)
    door.control.wakes.clear()
    door.control.woken = awake
    assert call(door, 1).json() == {"text": "fine"}
    assert door.control.wakes[0]["services"] == [door.number]
    count = len(door.control.reports)
    until(lambda: len(door.control.reports) > count + 1)
    told = [one for report in door.control.reports for one in report["services"] if one["id"] == door.number]
    assert sum(one["cold"] for one in told) == 1
    assert max(one["cold_ms"] for one in told) > 0


def test_a_call_that_may_have_run_is_not_repeated(door: Door) -> None:
    door.serve(2, is_function=True)

    def dies(link: Any) -> None:
        link.connection.shutdown(socket.SHUT_RDWR)

    for engine in door.engines:
        engine.say = dies
    answer = call(door, 1)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "broken")
    assert sum(len(engine.asked) for engine in door.engines) == 1


def test_a_call_that_a_replica_does_not_take_is_asked_of_another(door: Door) -> None:
    door.serve(2, is_function=True)
    door.engines[0].say = door.engines[1].say = _refuses_once()
    assert [call(door, n).status_code for n in range(4)] == [200] * 4


def _refuses_once() -> Any:
    lock, said = threading.Lock(), []

    def say(link: Any) -> None:
        with lock:
            is_first = not said
            said.append(1)
        link.whole(b"{}", 503) if is_first else Engine.fine(link)

    return say


def test_a_failing_handler_is_an_answer_and_counted(door: Door) -> None:
    door.serve(is_function=True)
    door.engines[0].say = lambda link: link.whole(b'{"error": {"code": "handler_raised"}}', 500)
    assert call(door, 1).status_code == 500
    assert len(door.engines[0].asked) == 1
    until(lambda: _sum(door, "errors") == 1)
    assert _sum(door, "failed") == 0


def _sum(door: Door, name: str) -> int:
    return sum(one[name] for report in door.control.reports for one in report["services"] if one["id"] == door.number)


def ended(door: Door, count: int) -> list[dict[str, Any]]:
    until(lambda: len(door.control.ends) >= count)
    found, door.control.ends = door.control.ends, []
    return sorted(found, key=lambda one: one["id"])


def queued(number: int, event: str = "1", name: str = "chat") -> dict[str, Any]:
    return {"id": number, "number": 2, "project": "nlp", "name": name, "event": event}


def test_queued_calls_are_delivered_and_told_of(door: Door) -> None:
    door.serve(is_function=True)
    door.control.calls = [queued(7, '{"a":1}'), queued(8, name="gone")]
    done, gone = ended(door, 2)
    assert (done["id"], done["number"], done["status"], done["body"]) == (7, 2, 200, '{"text": "fine"}')
    assert (gone["id"], gone["status"]) == (8, 0)
    (asked,) = door.engines[0].asked
    assert (asked["path"], asked["body"]) == ("/invoke", b'{"a":1}')
    assert (asked["headers"]["x-call-id"], asked["headers"]["x-call-try"]) == ("7", "2")


def test_what_failed_is_told_apart_from_what_nobody_ran(door: Door) -> None:
    door.serve(is_function=True, wait_s=0.5)
    door.engines[0].say = lambda link: link.whole(b"no", 500)
    door.control.calls = [queued(1)]
    assert ended(door, 1)[0]["status"] == 500
    door.engines[0].say = lambda link: link.connection.shutdown(socket.SHUT_RDWR)
    door.control.calls = [queued(2)]
    assert ended(door, 1)[0]["status"] == 502
    door.engines[0].say = lambda link: link.whole(b"x" * 300_000)
    door.control.calls = [queued(3)]
    (large,) = ended(door, 1)
    assert (large["id"], large["status"]) == (3, 413), large["body"][:200]
    door.control.services = [{**door.control.services[0], "members": []}]
    count = len(door.control.reports)
    until(lambda: len(door.control.reports) > count + 2)
    door.control.calls = [queued(4)]
    assert ended(door, 1)[0]["status"] == 0


def test_queued_calls_that_hang_hold_up_no_caller(door: Door) -> None:
    door.serve(is_function=True, concurrency=200)
    go = threading.Event()

    def say(link: Any) -> None:
        if b"hang" in door.engines[0].asked[-1]["body"]:
            go.wait(30)
        Engine.fine(link)

    door.engines[0].say = say
    door.control.calls = [queued(number, '"hang"') for number in range(20)]
    until(lambda: len(door.engines[0].asked) >= 20)
    assert call(door, 1).status_code == 200
    assert not door.control.ends
    go.set()
    assert [one["status"] for one in ended(door, 20)] == [200] * 20
