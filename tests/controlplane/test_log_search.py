"""A log is searched where it lies: so many bytes and so long at a time, for one search of each person at once."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.protocol import MASK
from controlplane.api import throttle
from controlplane.jobs import log_archive, log_blocks, log_search, logs
from controlplane.jobs.models import Job, Part, PartLog
from controlplane.queries import logs as queries
from tests.controlplane.people import Person, Town, write_log


def get(person: Person, job: Job, **query: Any) -> Any:
    return person.get(f"/jobs/{job.number}/logs/search?{urlencode(query)}")


def read(person: Person, job: Job, **query: Any) -> Any:
    answer = get(person, job, **query)
    assert answer.status_code == 200, answer.content
    return answer.json()


def found(person: Person, job: Job, text: str, **query: Any) -> list[tuple[int, str]]:
    """Each match of the whole log, with as many requests as it takes."""
    offset, matches, is_end = 0, [], False
    while not is_end:
        answer = read(person, job, text=text, offset=offset, **query)
        assert answer["next_offset"] > offset or answer["is_end"], "it gets on"
        matches += [(one["offset"], one["line"]) for one in answer["results"]]
        offset, is_end = answer["next_offset"], answer["is_end"]
    return matches


@pytest.fixture
def searched(town: Town) -> Job:
    job = town.running(town.machine())
    write_log(job, ("out", b"step 1\nloss 2.5\n"), ("err", b"Warning: slow\n"), ("out", b"step 2\nloss nan\nend"))
    return job


def test_each_line_with_the_text_is_answered_with_its_place(town: Town, searched: Job) -> None:
    assert found(town.owner, searched, "loss", stream="out") == [(7, "loss 2.5"), (23, "loss nan")]
    assert found(town.owner, searched, "s", stream="out", limit=1) == [
        (0, "step 1"), (9, "loss 2.5"), (16, "step 2"), (25, "loss nan"),
    ]  # fmt: skip
    both = found(town.owner, searched, "w")
    assert both == [(28, "Warning: slow")]
    whole = town.owner.get(f"/jobs/{searched.number}/logs").content
    assert whole[both[0][0] :].startswith(b"w\n")
    assert found(town.owner, searched, "WARNING") == []
    assert found(town.owner, searched, "WARNING", ignore_case="true") == [(16, "Warning: slow")]
    assert found(town.owner, searched, "n.n", stream="out") == [], "it is no pattern"
    assert found(town.owner, searched, "end") == [(46, "end")]


def test_what_is_not_there_yet_is_found_once_it_is(town: Town, searched: Job) -> None:
    first = read(town.owner, searched, text="endless", stream="out")
    assert (first["results"], first["is_end"]) == ([], True)
    write_log(searched, ("out", b"less\n"))
    later = read(town.owner, searched, text="endless", stream="out", offset=first["next_offset"])
    assert [one["line"] for one in later["results"]] == ["endless"]
    fresh = town.job()
    assert read(town.owner, fresh, text="x") == {
        "results": [], "next_offset": 0, "size_bytes": 0, "is_end": True,
    }  # fmt: skip


def test_who_may_not_read_a_log_may_not_search_it(town: Town, searched: Job) -> None:
    search, log = f"/jobs/{searched.number}/logs/search?text=loss", f"/jobs/{searched.number}/logs"
    for person, status in ((town.mate, 200), (town.stranger, 404), (town.anonymous, 401)):
        assert (person.get(search).status_code, person.get(log).status_code) == (status, status)


def test_a_value_that_is_masked_is_not_found(town: Town, searched: Job) -> None:
    write_log(searched, ("out", b"token is " + MASK + b"\n"))
    assert [line for _, line in found(town.owner, searched, "token is")] == [f"endtoken is {MASK.decode()}"]
    assert found(town.owner, searched, "hf_") == []


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"text": ""}, 400), ({}, 400), ({"text": "a\nb"}, 400), ({"text": "a\x00b"}, 400), ({"text": "x" * 257}, 400),
        ({"text": "é" * 256}, 200), ({"text": "(a+)+$"}, 200), ({"text": " "}, 200), ({"text": "\x1b["}, 200),
        ({"text": "x", "limit": 0}, 400), ({"text": "x", "limit": 1001}, 400), ({"text": "x", "offset": -1}, 400),
        ({"text": "x", "offset": 2**63 - 1}, 200), ({"text": "x", "offset": 2**63}, 400),
        ({"text": "x", "stream": "in"}, 400), ({"text": "x", "rank": -1}, 400), ({"text": "x", "stage": "mian"}, 404),
        ({"text": "x", "regex": "1"}, 400), ({"text": "x" * 200_000}, 400),
    ],
)  # fmt: skip
def test_what_cannot_be_looked_for_is_refused(town: Town, searched: Job, query: dict[str, Any], status: int) -> None:
    answer = get(town.owner, searched, **query)
    assert answer.status_code == status, answer.content
    assert status == 200 or answer.json()["detail"]


def test_a_needle_across_pieces_and_blocks_is_found_also_in_the_archive(
    town: Town, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = town.machine()
    searched = town.running(agent)
    settings.LOG_ARCHIVE_AFTER_S = 0
    monkeypatch.setattr(log_blocks, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(log_search, "PIECE_BYTES", 1500)
    monkeypatch.setattr(log_search, "SCAN_BYTES", 6000)
    part = Part.objects.get()
    write_log(searched, ("out", b"." * 4000 + b"\n"))
    size = logs.size(part, "out")
    needles = [3 * 1500 - 4, 2 * 4096 - 3, 3 * 4096 - 1, 20_000]
    content = bytearray((b"x" * 79 + b"\n") * 400)
    for at in needles:
        content[at - size : at - size + 6] = b"NEEDLE"
    write_log(searched, ("out", bytes(content)))
    live = found(town.owner, searched, "NEEDLE", stream="out")
    assert [offset for offset, _ in live] == needles
    agent.end(searched.stages.get())
    PartLog.objects.update(written_at="2020-01-01T00:00:00Z")
    assert log_archive.move(part.id)
    assert not logs.folder(part.id).exists()
    assert found(town.owner, searched, "NEEDLE", stream="out") == live
    assert [line for _, line in found(town.owner, searched, "NEEDLE")] == [line for _, line in live]
    logs.remove([part.id])
    gone = town.owner.get(f"/jobs/{searched.number}/logs/search?text=NEEDLE")
    assert (gone.status_code, gone.json()["code"]) == (410, "log_lost")


def test_a_long_line_is_answered_around_its_match(town: Town, searched: Job) -> None:
    write_log(searched, ("err", b"\r".join(b"%7d of 999" % i for i in range(100_000))))
    answer = read(town.owner, searched, text=" 50000 of", stream="err")
    (match,) = answer["results"]
    assert (len(match["line"]), match["is_cut"]) == (200 + 9 + 800, True)
    assert match["line_offset"] == match["offset"] - 200
    many = read(town.owner, searched, text="9 of", stream="err", limit=1000)
    assert len(many["results"]) == 1000
    assert sum(len(one["line"]) for one in many["results"]) <= 1000 * 1_010


def test_each_searches_once_at_a_time_and_all_together_so_many(
    town: Town, searched: Job, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(settings.RATE_LIMITS, "search", 1_000)
    path = f"/jobs/{searched.number}/logs/search?text=x"
    with queries._turn(town.owner.user):
        others = [town.owner.get(path) for _ in range(49)]
        told = {(one.status_code, one.json()["code"], one["Retry-After"]) for one in others}
        assert told == {(429, "too_many_searches", "1")}
        assert town.owner.get(f"/jobs/{searched.number}/logs").status_code == 200, "reading goes on"
        assert town.mate.get(path).status_code == 200
        monkeypatch.setattr(queries, "SEARCHES_AT_ONCE", 1)
        assert town.mate.get(path).json()["code"] == "too_many_searches"
    assert queries._searching == set()
    assert town.mate.get(path).status_code == 200

    def fails(*args: Any, **kwargs: Any) -> log_search.Scan:
        raise log_blocks.StorageSilent("no answer")

    monkeypatch.setattr(queries.log_search, "scan", fails)
    assert [town.owner.get(path).status_code for _ in range(3)] == [503] * 3, "and its turn is over each time"


def test_searches_are_counted_apart_from_reads(town: Town, searched: Job, settings: Any, monkeypatch: Any) -> None:
    settings.RATE_LIMITS = {"read": 100, "write": 1, "search": 1, "anonymous": 1}
    monkeypatch.setattr(throttle.time, "time", lambda: 1_700_000_003.0)
    monkeypatch.setattr(throttle, "_blind_until", 0.0)
    path = f"/jobs/{searched.number}/logs/search?text=x"
    assert [town.owner.get(path).status_code for _ in range(12)] == [200] * 10 + [429] * 2
    assert town.owner.get("/whoami").status_code == 200
    assert town.mate.get(path).status_code == 200


@given(
    st.lists(st.binary(max_size=12), max_size=8).map(b"\n".join),
    st.sampled_from([b"a", b"ab", b"\xff", b"aa", b"Ab"]),
    st.integers(1, 9),
    st.booleans(),
)
def test_a_search_finds_what_splitting_into_lines_finds(content: bytes, needle: bytes, piece: int, fold: bool) -> None:
    content = content.replace(b"\x00", b"a").replace(b"\x01", b"A").replace(b"\x02", b"b")
    text, wanted = (content.lower(), needle.lower()) if fold else (content, needle)
    lines, at = [], 0
    for line in text.split(b"\n"):
        if (i := line.find(wanted)) >= 0:
            lines.append((at + i, content[at : at + len(line)]))
        at += len(line) + 1

    def piece_of(begin: int, until: int) -> bytes:
        return content[begin : min(until, begin + piece)]

    got, offset, is_end = [], 0, False
    while not is_end:
        told = log_search.scan(piece_of, len(content), needle, offset, 2, ignore_case=fold)
        got += [(one.offset, one.line) for one in told.found]
        assert told.next_offset > offset or told.is_end
        offset, is_end = told.next_offset, told.is_end
    assert got == lines
