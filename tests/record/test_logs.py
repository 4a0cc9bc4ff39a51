"""Logs: bytes once, in order, found by their offset however many there are, and gone with their part."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from agents.protocol import LogChunk
from controlplane.api.problem import refusal
from controlplane.dispatch import uploads
from controlplane.jobs import log_limit, logs
from controlplane.jobs.models import Event, LogSpan, Part, PartLog
from controlplane.operations import invariants
from controlplane.queries.logs import LogGone, LogQuery
from controlplane.queries.logs import read as asked
from tests.record.yard import Agent, Yard, cpu


@pytest.fixture
def agent(yard: Yard, settings: Any, tmp_path: Path) -> Agent:
    settings.LOGS = tmp_path / "logs"
    agent = yard.agent("a", cpu("a"))
    yard.submit()
    yard.cycle()
    agent.start()
    return agent


def part_of(agent: Agent) -> Part:
    return Part.objects.get(id=next(iter(agent.here)))


def send(agent: Agent, *chunks: tuple[str, int, bytes]) -> dict[str, int]:
    part = next(iter(agent.here))
    commits = uploads._append(agent.node, [LogChunk(part, 1, 0, stream, at, data) for stream, at, data in chunks])
    return {each.stream: each.committed for each in commits}


def whole(part: Part, stream: str) -> bytes:
    return b"".join(logs.pieces(part, stream))


def test_whatever_comes_twice_late_or_torn_is_there_once_and_in_order(agent: Agent) -> None:
    """What an agent sends again after an answer that was lost overlaps what is here; what it sends too early waits."""
    part, dice = part_of(agent), random.Random(7)
    truth = {stream: bytes(dice.randrange(256) for _ in range(3_000)) for stream in logs.STREAMS}
    for _ in range(300):
        stream = dice.choice(logs.STREAMS)
        have = logs.size(part, stream)
        at = max(0, have + dice.choice((0, 0, 0, -40, 25)))
        send(agent, (stream, at, truth[stream][at : at + dice.randrange(1, 60)]))
    rest = {stream: logs.size(part, stream) for stream in logs.STREAMS}
    send(agent, *((stream, at, truth[stream][at:]) for stream, at in rest.items()))
    assert {stream: whole(part, stream) for stream in logs.STREAMS} == truth
    both = whole(part, "both")
    assert len(both) == 6_000
    assert invariants.broken() == []
    for _ in range(50):
        begin, length = dice.randrange(6_100), dice.randrange(1, 500)
        assert logs.read(part, "both", begin, length) == both[begin : begin + length]
    spans = list(LogSpan.objects.order_by("start").values_list("stream", flat=True))
    assert all(one != other for one, other in pairwise(spans)), "a run of one stream is one row"


@given(st.text(alphabet="ab\n\r", max_size=60).map(str.encode), st.integers(0, 8))
def test_the_last_lines_are_those_that_splitting_gives(content: bytes, count: int) -> None:
    lines = content.split(b"\n")
    pieces = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    assert logs.last_lines(content, count) == b"".join(pieces[max(0, len(pieces) - count) :])


def test_a_tail_reads_as_much_as_its_lines_need(agent: Agent) -> None:
    part = part_of(agent)
    lines = b"".join(b"line %06d\n" % n for n in range(60_000))
    for at in range(0, len(lines), 200_000):
        send(agent, ("out", at, lines[at : at + 200_000]))
    assert logs.tail(part, "out", 3) == b"line 059997\nline 059998\nline 059999\n"
    assert logs.tail(part, "both", 20_000) == b"".join(b"line %06d\n" % n for n in range(40_000, 60_000))
    assert asked(part, LogQuery(tail=1, stream="out"))[1:] == (len(lines), len(lines))


def test_an_append_and_a_read_ask_the_same_however_long_the_log_is(agent: Agent) -> None:
    part = part_of(agent)

    def statements(act: Callable[[], object]) -> int:
        with CaptureQueriesContext(connection) as asked:
            act()
        return len(asked)

    def counted(at: int) -> tuple[int, int]:
        return (
            statements(lambda: send(agent, ("out", at, b"more"))),
            statements(lambda: logs.read(part, "both", at, 4)),
        )

    send(agent, ("out", 0, b"more"))
    short = counted(4)
    end = 8
    for _ in range(40):
        send(agent, ("err", logs.size(part, "err"), b"e" * 1_000), ("out", end, b"o" * 1_000))
        end += 1_000
    assert counted(end) == short


def test_what_a_crash_left_beyond_the_rows_is_written_over(agent: Agent) -> None:
    part = part_of(agent)
    send(agent, ("out", 0, b"here "))
    with (logs.folder(part.id) / "out").open("ab") as file:
        file.write(b"never committed, and longer than what comes")
    assert whole(part, "out") == b"here "
    send(agent, ("out", 5, b"now"))
    assert whole(part, "out") == b"here now"


def test_a_full_disk_takes_nothing_and_loses_nothing(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    part = part_of(agent)
    send(agent, ("out", 0, b"first "))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(logs.os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            send(agent, ("out", 6, b"second"))
    assert logs.size(part, "out") == 6
    assert send(agent, ("out", 6, b"second")) == {"out": 12}
    assert whole(part, "out") == b"first second"


def test_bytes_that_are_no_more_are_said_to_be(agent: Agent) -> None:
    part = part_of(agent)
    send(agent, ("out", 0, b"text"))
    (logs.folder(part.id) / "out").unlink()
    with pytest.raises(LogGone) as gone:
        asked(part, LogQuery())
    assert refusal(gone.value).status == 410


def test_a_file_goes_with_its_part_and_no_other_does(agent: Agent) -> None:
    part = part_of(agent)
    send(agent, ("out", 0, b"text"))
    other = logs.folder(part.id).with_name("00000000-0000-4000-8000-0000000000" + part.id.hex[-2:])
    other.mkdir()
    (other / "out").write_bytes(b"of a part that is no more")
    assert logs.sweep(int(part.id.hex[-2:], 16)) == 1
    assert not other.exists()
    assert whole(part, "out") == b"text"


def test_a_link_in_the_place_of_a_file_is_not_followed(agent: Agent, tmp_path: Path) -> None:
    part = part_of(agent)
    (tmp_path / "elsewhere").write_bytes(b"untouched")
    logs.folder(part.id).mkdir(parents=True)
    (logs.folder(part.id) / "out").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        send(agent, ("out", 0, b"text"))
    assert (tmp_path / "elsewhere").read_bytes() == b"untouched"


def test_a_log_that_is_too_long_is_cut_with_a_word_and_nothing_more_is_taken(agent: Agent, settings: Any) -> None:
    settings.LOG_MAX_BYTES = 100
    part = part_of(agent)

    def answered(*chunks: tuple[str, int, bytes]) -> dict[str, tuple[int, str]]:
        told = [LogChunk(str(part.id), 1, 0, stream, at, data) for stream, at, data in chunks]
        return {each.stream: (each.committed, each.refused) for each in uploads._append(agent.node, told)}

    assert answered(("out", 0, b"o" * 60), ("err", 0, b"e" * 40)) == {"out": (60, ""), "err": (40, "")}
    word = log_limit.cut_here()
    assert answered(("out", 60, b"more")) == {"out": (60 + len(word), "full")}
    assert answered(("err", 40, b"more"))["err"] == (40, "full")
    assert answered(("out", 60 + len(word), b"more"))["out"] == (60 + len(word), "full")
    assert whole(part, "both") == b"e" * 40 + b"o" * 60 + word
    assert log_limit.is_cut(logs.size(part, "both"))
    assert PartLog.objects.get(part=part).size_bytes == 100 + len(word)
    (event,) = Event.objects.filter(kind="log_cut")
    assert (event.stage, event.attempt, event.params["rank"], event.params["limit_bytes"]) == ("main", 1, 0, 100)
    assert "what comes after is dropped" in event.text
    assert invariants.broken() == []


def test_the_event_of_a_cut_log_is_written_later_where_the_server_was_killed(
    agent: Agent, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.LOG_MAX_BYTES = 100

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(log_limit, "note", killed)
        with pytest.raises(KeyboardInterrupt):
            send(agent, ("out", 0, b"o" * 200))
    assert not Event.objects.filter(kind="log_cut").exists()
    for _ in range(2):
        send(agent, ("out", 0, b"o" * 200))
    assert Event.objects.filter(kind="log_cut").count() == 1
    assert invariants.broken() == []


def test_a_chunk_that_reaches_over_the_end_is_kept_up_to_it(agent: Agent, settings: Any) -> None:
    settings.LOG_MAX_BYTES = 100
    send(agent, ("out", 0, b"a" * 90), ("out", 90, b"b" * 40), ("out", 130, b"c" * 40))
    assert whole(part_of(agent), "out") == b"a" * 90 + b"b" * 10 + log_limit.cut_here()


def test_a_log_that_went_is_not_begun_again(agent: Agent) -> None:
    part = part_of(agent)
    send(agent, ("out", 0, b"here"))
    logs.remove([part.id])
    (commit,) = uploads._append(agent.node, [LogChunk(str(part.id), 1, 0, "out", 4, b"more")])
    assert (commit.committed, commit.refused) == (0, "gone")
    assert not LogSpan.objects.filter(part=part).exists()
