"""Origins of web ports: which addresses are theirs, what is separate from the dashboard, and what passes between."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from controlplane.session_origins import SessionOrigins
from controlplane.web_proxy import cookies, heads
from controlplane.web_proxy.heads import Place

ID = uuid.UUID("0123456789abcdef0123456789abcdef")


def test_an_origin_is_a_host_of_its_own_below_the_base() -> None:
    origins = SessionOrigins.read("https://*.sessions.example.org")
    assert origins.of(ID) == f"https://s-{ID.hex}.sessions.example.org"
    assert origins.session_at(f"S-{ID.hex.upper()}.sessions.example.org:443") == ID
    for host in ("", "sessions.example.org", f"{ID.hex}.sessions.example.org", f"s-{ID.hex}.example.org",
                 f"s-{ID.hex}.x.sessions.example.org", f"s-{ID.hex[:-1]}.sessions.example.org",
                 f"s-{ID.hex}.sessions.example.org:x", f"s-{ID.hex}.sessions.example.org.evil.example"):  # fmt: skip
        assert origins.session_at(host) is None, host
    assert origins.is_below("anything.sessions.example.org.")
    assert not origins.is_below("sessions.example.org")


@pytest.mark.parametrize(
    "url",
    ["", "*.x", "https://s.example.org", "ftp://*.x.org", "https://*.x.org/path", "https://u@*.x.org", "https://*.*.org",
     "https://*.", "https://x*.org"],
)  # fmt: skip
def test_what_is_no_pattern_of_origins_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not like"):
        SessionOrigins.read(url)


def test_beside_a_dashboard_on_loopback_they_are_below_localhost_and_elsewhere_nowhere() -> None:
    found = SessionOrigins.beside("http://127.0.0.1:8470")
    assert found == SessionOrigins("http", "localhost", ":8470")
    assert not found.fault("127.0.0.1", ["127.0.0.1", "localhost", "[::1]"])
    assert SessionOrigins.beside("https://yard.example.org") is None
    assert SessionOrigins.beside("http://10.1.2.3:8470") is None


def test_a_dashboard_that_trusts_them_is_not_separate() -> None:
    origins = SessionOrigins.read("https://*.sessions.example.org")
    assert not origins.fault("yard.example.org", ["yard.example.org", "https://yard.example.org"])
    for public in ("sessions.example.org", "yard.sessions.example.org"):
        assert origins.fault(public, [])
    for allowed in ("*", ".example.org", ".sessions.example.org", "https://*.example.org"):
        assert allowed in origins.fault("yard.example.org", [allowed])


def test_a_part_neither_gets_nor_sets_cookies_of_the_dashboard() -> None:
    header = b"a=1; yard_session=s; YARD_csrf=c; __Host-yard_port=p; csrftoken=t; b=2=3; messages=m"
    assert cookies.for_part(header) == b"a=1; b=2=3"
    assert cookies.from_part(b"a=1; Domain=example.org; Path=/; domain=.x") == b"a=1; Path=/"
    for each in (b"yard_session=x", b" yard_port =x; Path=/", b"__Host-yard_port=x; Secure", b"sessionid=x"):
        assert cookies.from_part(each) == b""


def scope(method: str = "GET", kind: str = "http", **headers: str) -> dict[str, Any]:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": kind, "method": method, "headers": named, "raw_path": b"/a", "query_string": b"b"}


def test_only_links_lead_here_from_elsewhere() -> None:
    own, other = "https://s-1.example.org", "https://s-2.example.org"
    fine = (scope(), scope("POST"), scope("POST", origin=own), scope(sec_fetch_site="same-origin"),
            scope(sec_fetch_site="none"), scope(kind="websocket", origin=own),
            scope(sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document"))  # fmt: skip
    foreign = (scope("POST", origin=other), scope("POST", origin="null"), scope(kind="websocket", origin=other),
               scope(origin=other), scope(sec_fetch_site="same-site"), scope(sec_fetch_site="cross-site"),
               scope("POST", sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document"),
               scope(sec_fetch_site="same-site", sec_fetch_mode="navigate", sec_fetch_dest="iframe"))  # fmt: skip
    assert [heads.is_foreign(each, own) for each in fine] == [False] * len(fine)
    assert [heads.is_foreign(each, own) for each in foreign] == [True] * len(foreign)


def test_headers_of_one_connection_and_of_other_hosts_do_not_pass() -> None:
    place = Place("https://s-1.example.org", 8888)
    asked = scope(host="s-1.example.org", connection="x-own, close", x_own="1", te="trailers", upgrade="h2c",
                  authorization="Bearer yard_secret", x_forwarded_for="1.2.3.4", accept="*/*",
                  referer="https://s-1.example.org/lab", origin="https://s-1.example.org.evil")  # fmt: skip
    assert dict(heads.to_part(asked, place)) == {
        b"Host": b"127.0.0.1:8888",
        b"accept": b"*/*",
        b"referer": b"http://127.0.0.1:8888/lab",
        b"origin": b"https://s-1.example.org.evil",
    }
    told = [
        (b"Connection", b"keep-alive"),
        (b"Alt-Svc", b"h3"),
        (b"Location", b"http://localhost:8888?x"),
        (b"ETag", b"1"),
    ]
    assert heads.from_part(told, place) == [
        (b"origin-agent-cluster", b"?1"),
        (b"location", b"https://s-1.example.org?x"),
        (b"etag", b"1"),
    ]
