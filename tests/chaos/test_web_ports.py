"""Ports of a running stage in a browser: a real stack, a real agent, and what goes through to the part and back."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from deploy.local.port import free_port
from deploy.local.service import ROOT
from switchyard.client import Client, JobRecord
from switchyard.problem import ApiProblem
from tests.chaos.stack import WEB, eventually, standing
from tests.chaos.test_job import TIMERS, Yard, on

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    with pytest.MonkeyPatch.context() as environment, standing() as up:
        environment.setenv("YARD_TIMERS", TIMERS)
        up.started()
        yield from on(up)


@pytest.fixture
def job(yard: Yard) -> Iterator[JobRecord]:
    """A job that listens on two ports which its file names."""
    web, raw = free_port(18_100), free_port(18_500)
    ports = [{"name": "lab", "port": web, "path": "/echo?token={token}"}, {"name": "raw", "port": raw}]
    command = [sys.executable, "-m", "tests.chaos.web_app", str(web), str(raw)]
    made = yard.client.jobs.submit(
        {"name": "notebook", "command": command, "env": {"PYTHONPATH": str(ROOT)}, "ports": ports, "memory": "2GiB"}
    )
    assert eventually(lambda: all(each["listens"] for each in yard.client.jobs.ports(made)))
    yield made
    if not made.refresh().is_final:
        yard.client.jobs.cancel(made)
        made.wait(timeout_s=240)


class Browser(httpx.Client):
    """A client at the origin of a session. Names below localhost lead to this machine, as in browsers."""

    def __init__(self, url: str) -> None:
        self.origin = "://".join(urlsplit(url)[:2])
        self.host = urlsplit(url).netloc
        address = f"http://127.0.0.1:{urlsplit(url).port}"
        super().__init__(base_url=address, headers={"host": self.host}, timeout=240)

    def enter(self, url: str) -> httpx.Response:
        parts = urlsplit(url)
        return self.get(f"{parts.path}?{parts.query}")

    def let_in(self, url: str) -> str:
        """Exchange a ticket; return where the browser begins."""
        answer = self.enter(url)
        assert answer.status_code == 303, answer.text
        name, _, value = answer.headers["set-cookie"].partition(";")[0].partition("=")
        self.headers["cookie"] = f"{name}={value}"
        return str(answer.headers["location"])

    def socket(self, path: str, **more: Any) -> ClientConnection:
        there = socket.create_connection(("127.0.0.1", int(self.base_url.port or 0)))
        headers = {"cookie": self.headers["cookie"]}
        return connect(
            f"ws://{self.host}{path}", sock=there, additional_headers=headers, compression=None, max_size=None, **more
        )


@pytest.fixture
def lab(yard: Yard, job: JobRecord) -> Iterator[Browser]:
    opened = yard.client.jobs.open_port(job, "lab")
    with Browser(opened["url"]) as found:
        found.let_in(opened["url"])
        yield found


def test_requests_and_sockets_go_through_and_nothing_of_the_dashboard_with_them(yard: Yard, job: JobRecord) -> None:
    opened = yard.client.jobs.open_port(job, "lab", reason="a look")
    with Browser(opened["url"]) as lab:
        assert lab.get("/echo").status_code == 401
        begin = lab.let_in(opened["url"])
        cookie = lab.headers["cookie"]
        lab.headers["cookie"] = f"yard_session=secret; a=1; {cookie}; yard_csrf=secret; sessionid=s; b"
        told = lab.get(
            begin, headers={"origin": lab.origin, "referer": f"{lab.origin}/x", "x-forwarded-for": "1.2.3.4"}
        ).json()
        headers = dict(told["headers"])
        port = port_of(yard, job)
        assert headers["host"] == f"127.0.0.1:{port}"
        assert (headers["origin"], headers["referer"]) == (f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port}/x")
        assert headers["cookie"] == "a=1; b"
        assert "x-forwarded-for" not in headers
        assert "secret" not in json.dumps(told)
        assert told["query"]["token"] == lab.get("/token", headers={"cookie": cookie}).text
        lab.headers["cookie"] = cookie
        whole = os.urandom(3_000_000)
        expected = f"{len(whole)} {hashlib.sha256(whole).hexdigest()}"
        assert lab.post("/digest", content=whole).text == expected
        assert lab.post("/digest", content=iter([whole[:7], whole[7:]])).text == expected
        assert lab.get("/a%2Fb%20c?d=%26").status_code == 200
        answer = lab.get("/cookies")
        assert answer.headers.get_list("set-cookie") == ["_xsrf=z"]
        assert not {"strict-transport-security", "clear-site-data"} & set(answer.headers)
        assert lab.get("/moved").headers["location"] == f"{lab.origin}/echo"
        with lab.socket("/ws", subprotocols=["v1.kernel"], origin=lab.origin) as there:
            assert there.subprotocol == "v1.kernel"
            there.send("hello")
            assert there.recv() == "hello"
            there.send(whole)
            assert there.recv() == whole
            there.send("headers")
            assert "yard_port" not in json.loads(there.recv()).get("cookie", "")
            there.send("leave")
            with pytest.raises(ConnectionClosed) as left:
                there.recv()
            assert left.value.rcvd is not None
            assert (left.value.rcvd.code, left.value.rcvd.reason) == (4321, "asked")
    entered = [
        each for each in yard.client.wire.get(f"/jobs/{job.number}/events")["results"] if each["kind"] == "entered"
    ]
    assert [each["params"]["reason"] for each in entered] == ["a look"]


def test_a_ticket_and_a_cookie_let_in_once_and_at_one_origin(yard: Yard, job: JobRecord) -> None:
    first = yard.client.jobs.open_port(job, "lab")
    with Browser(first["url"]) as lab, Browser(first["url"]) as again:
        lab.let_in(first["url"])
        assert lab.get("/").text.startswith("<!doctype html>")
        assert again.enter(first["url"]).status_code == 403
        assert again.get("/.yard/enter").status_code == 403
        assert again.get("/", headers={"accept": "text/html", "accept-language": "zh-CN"}).status_code == 401
        # The same port is the same origin, whatever ticket leads there; at another the cookie is worth nothing.
        assert yard.client.jobs.open_port(job, "lab")["session"] == first["session"]
        other = yard.client.jobs.open_port(job, "raw")
        with Browser(other["url"]) as raw:
            assert raw.get("/", headers={"cookie": lab.headers["cookie"]}).status_code == 401
            assert raw.get("/", headers={"cookie": lab.headers["cookie"][:-2]}).status_code == 401
        # A host below the base that is no session is not the dashboard's either.
        for host in ("s-0.localhost", "x.localhost", f"s-{'0' * 32}.localhost"):
            assert lab.get("/api/v1/version", headers={"host": f"{host}:{yard.up.port}"}).status_code in (401, 404)
        assert lab.get("/api/v1/version").text.startswith("<!doctype html><title>notebook")


def test_pages_of_other_origins_ask_nothing(lab: Browser) -> None:
    foreign = {"origin": "http://evil.example"}
    assert lab.post("/digest", headers=foreign).status_code == 403
    assert lab.post("/digest", headers={"origin": "null"}).status_code == 403
    assert lab.get("/", headers={"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}).status_code == 403
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert lab.get("/", headers=link).status_code == 200
    assert lab.get("/", headers={**link, "sec-fetch-dest": "iframe"}).status_code == 403
    with pytest.raises(InvalidStatus), lab.socket("/ws", origin="http://evil.example"):
        pass


def test_what_a_part_answers_badly_ends_there(yard: Yard, job: JobRecord, lab: Browser) -> None:
    assert lab.get("/lines?count=200").headers["x-199"] == "1"
    assert lab.get("/lines?count=10000").status_code == 502
    assert lab.get("/", headers=[(f"x-{n}", "1") for n in range(300)]).status_code == 431
    with socket.create_connection(("127.0.0.1", yard.up.port)) as many:
        many.sendall(f"GET / HTTP/1.1\r\nHost: {lab.host}\r\n".encode() + b"x: 1\r\n" * 15_000)
        assert many.recv(100).startswith(b"HTTP/1.1 431")
    opened = yard.client.jobs.open_port(job, "raw")
    with Browser(opened["url"]) as raw:
        raw.let_in(opened["url"])
        assert raw.get("/nonsense").status_code == 502
        with pytest.raises(httpx.RemoteProtocolError):
            raw.get("/cut")
    assert lab.get("/").status_code == 200


def test_the_end_of_the_job_or_of_the_token_ends_what_is_open(yard: Yard, job: JobRecord, lab: Browser) -> None:
    made = yard.client.tokens.create("short", scopes=["read", "submit"])
    with Client(yard.client.url, made["secret"]) as other:
        opened = other.jobs.open_port(job, "lab")
    with Browser(opened["url"]) as mine:
        mine.let_in(opened["url"])
        with mine.socket("/ws") as there, lab.socket("/ws") as kept:
            for each in (there, kept):
                each.send("hello")
                assert each.recv() == "hello"
            yard.client.tokens.revoke(str(made["id"]))
            with pytest.raises(ConnectionClosed):
                there.recv(timeout=240)
            kept.send("still")
            assert kept.recv() == "still"
            assert mine.get("/").status_code == 403
            yard.client.jobs.cancel(job)
            with pytest.raises(ConnectionClosed):
                kept.recv(timeout=240)
    job.wait(timeout_s=240)
    assert lab.get("/").status_code == 403
    with pytest.raises(ApiProblem, match="does not run"):
        yard.client.jobs.open_port(job, "lab")


def test_a_reader_that_takes_nothing_holds_up_the_part_and_costs_no_memory(yard: Yard, lab: Browser) -> None:
    web = yard.up.named(WEB)
    before = web.memory_info().rss
    pieces = 3_000  # 197 MB
    with lab.stream("GET", f"/large?pieces={pieces}") as answer:
        whole = answer.iter_raw(65_536)
        taken = next(whole)
        # Others are answered meanwhile, so that what follows was not read because nobody took it.
        for _ in range(20):
            assert lab.get("/").status_code == 200
        grown = web.memory_info().rss - before
        assert grown < 64 * 2**20, grown
        assert len(taken) + sum(len(piece) for piece in whole) == pieces * 65_536


def test_the_command_lists_sessions_and_opens_and_ends_one(yard: Yard, job: JobRecord) -> None:
    def yard_(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "YARD_URL": yard.client.url, "YARD_TOKEN": yard.client.wire.address[1]}
        command = [sys.executable, "-m", "switchyard", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)

    listed = {(each["job"], each["name"]) for each in json.loads(yard_("session", "-o", "json").stdout)}
    assert {(job.number, "lab"), (job.number, "raw")} <= listed
    assert "has the ports lab, raw; name one" in yard_("session", "open", str(job.number)).stderr
    url = yard_("session", "open", str(job.number), "lab", "--no-browser").stdout.strip()
    with Browser(url) as lab:
        lab.let_in(url)
        assert lab.get("/").status_code == 200
    asked = subprocess.run(
        [sys.executable, "-m", "switchyard", "port-forward", "--stdio", str(job.number), str(port_of(yard, job))],
        env={**os.environ, "YARD_URL": yard.client.url, "YARD_TOKEN": yard.client.wire.address[1]},
        input=b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", capture_output=True, timeout=240, check=False,
    )  # fmt: skip
    assert asked.stdout.startswith(b"HTTP/1.1 200 OK")
    assert yard_("session", "stop", str(job.number)).returncode == 0
    assert job.wait(timeout_s=240)["state"] == "CANCELLED"


def port_of(yard: Yard, job: JobRecord) -> int:
    return next(each["port"] for each in yard.client.jobs.ports(job) if each["name"] == "lab")
