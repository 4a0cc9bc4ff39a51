"""Logs are read by offset: every byte once, in order, and the last lines on demand."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.jobs.logs import last_lines
from tests.controlplane.people import Town, write_log


def test_a_log_is_read_piece_by_piece_without_gap(town: Town) -> None:
    job = town.running(town.machine())
    pieces = [b"one\n", b"two \xe4\xb8\xad\xe6\x96\x87\n", b"", b"three\n" * 100]
    write_log(job, *(("out", piece) for piece in pieces if piece))
    whole, offset, read = b"".join(pieces), 0, b""
    while True:
        answer = town.owner.get(f"/jobs/{job.number}/logs?stream=out&offset={offset}&limit=7")
        assert answer["Content-Type"].startswith("text/plain")
        assert answer["X-Content-Type-Options"] == "nosniff"
        assert int(answer["X-Log-Size"]) == len(whole)
        if not answer.content:
            break
        read += answer.content
        offset = int(answer["X-Log-Next-Offset"])
    assert (read, offset) == (whole, len(whole))


@pytest.mark.parametrize(
    ("asked", "begin", "end"),
    [("bytes=0-0", 0, 1), ("bytes=3-6", 3, 7), ("bytes=5-", 5, 12), ("bytes=-4", 8, 12), ("bytes=-999", 0, 12),
     ("bytes=11-99999", 11, 12)],
)  # fmt: skip
def test_a_range_of_a_log_is_sent_as_asked(town: Town, asked: str, begin: int, end: int) -> None:
    job = town.running(town.machine())
    write_log(job, ("out", b"one\n"), ("err", b"two\n"), ("out", b"end\n"))
    whole = town.owner.get(f"/jobs/{job.number}/logs")
    assert whole["Accept-Ranges"] == "bytes"
    answer = town.owner.get(f"/jobs/{job.number}/logs", Range=asked)
    content = b"".join(answer)
    assert (answer.status_code, content) == (206, whole.content[begin:end])
    assert answer["Content-Range"] == f"bytes {begin}-{end - 1}/12"
    assert answer["Content-Length"] == str(len(content))
    assert "sandbox" in answer["Content-Security-Policy"]


@pytest.mark.parametrize("asked", ["bytes=12-", "bytes=-0", "bytes=999999999999999999-"])
def test_a_range_after_the_end_is_refused_with_the_size(town: Town, asked: str) -> None:
    job = town.running(town.machine())
    write_log(job, ("out", b"one\ntwo\nend\n"))
    answer = town.owner.get(f"/jobs/{job.number}/logs", Range=asked)
    assert (answer.status_code, answer["Content-Range"]) == (416, "bytes */12")
    assert answer.json()["code"] == "range_not_satisfiable"


@pytest.mark.parametrize(
    "asked", ["bytes=", "bytes=-", "bytes=5-2", "bytes=0-1,3-4", "lines=0-1", "bytes=0x1-2", "bytes=٣-٤"]
)
def test_what_is_no_single_range_counts_as_none(town: Town, asked: str) -> None:
    job = town.running(town.machine())
    write_log(job, ("out", b"one\n"))
    answer = town.owner.get(f"/jobs/{job.number}/logs", Range=asked)
    assert (answer.status_code, answer.content) == (200, b"one\n")


def test_a_range_and_an_offset_contradict_each_other(town: Town) -> None:
    job = town.running(town.machine())
    write_log(job, ("out", b"one\n"))
    assert town.owner.get(f"/jobs/{job.number}/logs?offset=1", Range="bytes=0-").status_code == 400
    assert town.stranger.get(f"/jobs/{job.number}/logs", Range="bytes=0-").status_code == 404


def test_both_streams_come_in_the_order_of_their_arrival(town: Town) -> None:
    job = town.running(town.machine())
    write_log(job, ("out", b"a\n"), ("err", b"b\n"), ("out", b"c\n"))
    assert town.owner.get(f"/jobs/{job.number}/logs").content == b"a\nb\nc\n"
    first = town.owner.get(f"/jobs/{job.number}/logs?offset=3")
    assert (first.content, first["X-Log-Next-Offset"]) == (b"\nc\n", "6")
    write_log(job, ("err", b"d\n"))
    assert town.owner.get(f"/jobs/{job.number}/logs?offset=6").content == b"d\n"
    assert town.owner.get(f"/jobs/{job.number}/logs?stream=err").content == b"b\nd\n"
    streams = town.owner.read(f"/jobs/{job.number}/streams")["results"]
    assert [(each["stream"], each["size_bytes"], each["attempt"], each["rank"]) for each in streams] == [
        ("err", 4, 1, 0),
        ("out", 4, 1, 0),
    ]


def test_the_tail_is_the_last_lines(town: Town) -> None:
    job = town.running(town.machine())
    write_log(job, ("out", b"".join(b"%d\n" % i for i in range(1000))), ("out", b"end"))
    answer = town.owner.get(f"/jobs/{job.number}/logs?tail=3&stream=out")
    assert answer.content == b"998\n999\nend"
    assert answer["X-Log-Next-Offset"] == answer["X-Log-Size"]
    assert town.owner.get(f"/jobs/{job.number}/logs?tail=0").content == b""


def test_each_stage_and_attempt_has_its_own_log(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent, run="x", retry={"max": 2, "backoff": 0}, stages=[{"name": "a"}, {"name": "b"}])
    write_log(job, ("out", b"first a\n"), stage="a")
    write_log(job, ("out", b"first b\n"), stage="b")
    agent.end(job.stages.get(name="a"), code=1)
    job.stages.update(retry_at=None)
    town.cycle()
    agent.start()
    write_log(job, ("out", b"second a\n"), stage="a")

    def log(query: str = "") -> bytes:
        return town.owner.get(f"/jobs/{job.number}/logs?{query}").content

    assert log() == log("stage=a") == log("stage=a&attempt=2") == b"second a\n"
    assert log("stage=a&attempt=1") == b"first a\n"
    assert log("stage=b") == b"first b\n"


def test_wrong_questions_are_told_apart(town: Town) -> None:
    town.machine()
    job = town.job()
    # Nothing was tried yet: the log is empty, not missing, so that a reader may begin to follow it.
    answer = town.owner.get(f"/jobs/{job.number}/logs?stage=main")
    assert (answer.status_code, answer.content, answer["X-Log-Next-Offset"]) == (200, b"", "0")
    for query, status in {
        "stage=mian": 404, "attempt=7": 404, "stream=in": 400, "offset=-1": 400, "limit=0": 400, "tail=-1": 400,
        "rank=x": 400, "lines=3": 400,
    }.items():  # fmt: skip
        answer = town.owner.get(f"/jobs/{job.number}/logs?{query}")
        assert answer.status_code == status, query
        assert json.loads(answer.content)["detail"]
    town.cycle()
    assert town.owner.get(f"/jobs/{job.number}/logs?rank=5").status_code == 404


@given(st.lists(st.binary(max_size=4).map(lambda line: line.replace(b"\n", b"")), max_size=8), st.integers(0, 10))
def test_last_lines_are_what_splitting_gives(lines: list[bytes], count: int) -> None:
    content = b"".join(line + b"\n" for line in lines)
    wanted = lines[len(lines) - count :] if count < len(lines) else lines
    assert last_lines(content, count) == b"".join(line + b"\n" for line in (wanted if count else []))
