"""A clock that is far from the control plane's is told, and nothing follows from it."""

from __future__ import annotations

import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.link.server import Channel, Server
from agents.link.skew import NOTED_FROM_S, note, skew_s


@given(st.text(), st.floats(allow_nan=False, allow_infinity=False))
def test_whatever_a_date_holds_is_a_number_or_nothing(date: str, now: float) -> None:
    found = skew_s(date, now)
    assert note(found) is None or isinstance(note(found), str)


@given(st.integers(0, 4_000_000_000), st.integers(-100_000, 100_000))
def test_it_is_the_difference_of_both_clocks(now: int, ahead_s: int) -> None:
    if now - ahead_s < 0:
        return
    assert skew_s(formatdate(now - ahead_s, usegmt=True), now) == ahead_s
    assert bool(note(float(ahead_s))) is (abs(ahead_s) >= NOTED_FROM_S)


@pytest.mark.parametrize("behind_s", [0, 3600])
def test_a_channel_knows_it_from_a_real_answer(behind_s: int) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(204)
            self.end_headers()

        def date_time_string(self, timestamp: float | None = None) -> str:  # type: ignore[override]
            return formatdate(time.time() + behind_s, usegmt=True)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        channel = Channel(Server(f"http://127.0.0.1:{server.server_address[1]}"))
        channel.call("GET", "/")
        channel.close()
    assert note(channel.skew_s) == (f"its clock is about {behind_s} s behind the control plane's" if behind_s else None)
