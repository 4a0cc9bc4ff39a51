"""Reading output: nothing is lost or doubled at the ends of pieces, and following ends when the job has."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard import ApiProblem
from switchyard.logs import LogQuery


class Streams:
    """The logs of one job behind the server: bytes by (stage, attempt, rank, stream), and a script of what appears."""

    def __init__(self, server: Any, said: Any, as_job: Any) -> None:
        self.held: dict[tuple[str, int, int, str], bytes] = {}
        self.script: list[tuple[str, dict[tuple[str, int, int, str], bytes]]] = []
        self.state = "RUNNING"
        self._said, self._job = said, as_job
        server.on("GET", "/jobs/12", self._state)
        server.on("GET", "/jobs/12/streams", self._index)
        server.on("GET", "/jobs/12/logs", self._read)

    def _state(self, asked: Any) -> Any:
        if self.script:
            self.state, more = self.script.pop(0)
            for key, text in more.items():
                self.held[key] = self.held.get(key, b"") + text
        return self._said(200, self._job(state=self.state))

    def _index(self, asked: Any) -> Any:
        names = ("stage", "attempt", "rank", "stream")
        listed = [
            dict(zip(names, key, strict=True)) | {"size_bytes": len(text)} for key, text in sorted(self.held.items())
        ]
        return self._said(200, {"results": listed, "next": None})

    def _read(self, asked: Any) -> Any:
        q = asked.query
        text = self.held[(q["stage"], int(q["attempt"]), int(q["rank"]), q["stream"])]
        if "tail" in q:
            begin, end = len(text) - len(b"".join(text.splitlines(keepends=True)[-int(q["tail"]) :])), len(text)
        else:
            begin, end = int(q["offset"]), min(len(text), int(q["offset"]) + int(q["limit"]))
        headers = {"Content-Type": "text/plain", "X-Log-Next-Offset": str(end)}
        return self._said(200, text[begin:end], headers)


@pytest.fixture
def streams(server, said, as_job):
    return Streams(server, said, as_job)


@pytest.fixture
def client(server, new_client):
    with new_client(server.url, tries=1) as made:
        yield made


OUT = ("main", 1, 0, "out")
ERR = ("main", 1, 0, "err")


def test_a_stream_longer_than_a_piece_arrives_whole(streams, client, monkeypatch):
    monkeypatch.setattr("switchyard.logs.CHUNK_BYTES", 7)
    monkeypatch.setattr("switchyard.aio.logs.CHUNK_BYTES", 7)
    text = "αβγδ — 行列\n" * 20
    streams.held[OUT] = text.encode()
    assert "".join(client.jobs.logs(12)) == text


def test_following_gives_everything_once_and_ends_with_the_job(streams, client):
    whole = "αβγ\nδεζ\n".encode()
    streams.script = [
        ("PENDING", {}),
        ("RUNNING", {OUT: whole[:3]}),
        ("RUNNING", {OUT: whole[3:9], ERR: b"careful\n"}),
        ("COMPLETED", {OUT: whole[9:]}),
    ]
    chunks = list(client.jobs.chunks(12, LogQuery(), follow=True))
    assert "".join(c.text for c in chunks if c.stream == "out").encode() == whole
    assert "".join(c.text for c in chunks if c.stream == "err") == "careful\n"


def test_output_that_arrives_after_the_end_is_still_read(streams, client):
    streams.script = [("COMPLETED", {OUT: b"a\n"}), ("COMPLETED", {OUT: b"b\n"})]
    assert "".join(client.jobs.logs(12, follow=True)) == "a\nb\n"


def test_following_goes_on_into_the_next_attempt_and_skips_earlier_ones(streams, client):
    streams.held = {OUT: b"first\n", ("main", 2, 0, "out"): b"second\n"}
    streams.script = [("RUNNING", {}), ("RUNNING", {("main", 3, 0, "out"): b"third\n"}), ("COMPLETED", {})]
    assert "".join(client.jobs.logs(12, follow=True)) == "second\nthird\n"


def test_an_attempt_a_rank_and_a_stream_can_be_chosen(streams, client):
    for attempt in (1, 2):
        for rank in (0, 1):
            for stream in ("out", "err"):
                streams.held[("main", attempt, rank, stream)] = f"{attempt}{rank}{stream}\n".encode()
    assert "".join(client.jobs.logs(12, attempt=1, rank=1, stream="err")) == "11err\n"
    assert sorted("".join(client.jobs.logs(12, rank=None)).split()) == ["20err", "20out", "21err", "21out"]


def test_a_tail_begins_near_the_end_and_following_goes_on_from_there(streams, client):
    streams.held[OUT] = b"".join(b"line %d\n" % n for n in range(100))
    streams.script = [("RUNNING", {}), ("COMPLETED", {OUT: b"line 100\n"})]
    assert "".join(client.jobs.logs(12, tail=2, follow=True)) == "line 98\nline 99\nline 100\n"


def test_following_outlives_a_control_plane_that_goes_away(streams, client, server, as_problem):
    streams.script = [("RUNNING", {OUT: b"a\n"}), ("RUNNING", {}), ("COMPLETED", {OUT: b"b\n"})]
    usual = server._answers[("GET", "/api/v1/jobs/12")][0]
    server.on("GET", "/jobs/12", usual, as_problem(503, "busy", "away"), usual)
    assert "".join(client.jobs.logs(12, follow=True)) == "a\nb\n"


def test_a_job_that_is_not_there_is_told(client):
    with pytest.raises(ApiProblem):
        list(client.jobs.logs(99))
