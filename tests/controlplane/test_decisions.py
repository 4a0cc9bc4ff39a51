"""What was decided is written down off the scheduler's way, can be read by those who may, and decided once more."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as live

from controlplane.clauses import HIDDEN
from controlplane.jobs import service
from controlplane.jobs.models import Decision, Shadow
from controlplane.retention import sweep
from controlplane.scheduling import recorder as recording
from controlplane.scheduling import shadow
from controlplane.scheduling.recorder import Recorder
from controlplane.scheduling.store import clock
from scheduler.decisions import log, replay
from tests.controlplane.people import Person, Town
from tests.record.yard import cpu


@pytest.fixture
def recorder(settings: Any, tmp_path: Path) -> Recorder:
    settings.DECISIONS = tmp_path / "decisions"
    found = Recorder()
    found._pid = -1
    return found


def decide(town: Town, recorder: Recorder, at: float | None = None) -> list[Decision]:
    """A cycle, noted and written."""
    cycle = town.cycle(at)
    recorder._notes.append(recording.Noted(cycle, 0.003, at or 1_700_000_000.0))
    return recorder.flush()


def test_a_start_has_a_row_and_a_record_that_decides_the_same(town: Town, recorder: Recorder) -> None:
    town.machine()
    number = town.job().number
    (row,) = decide(town, recorder)
    assert row.started[0]["stage"] == f"#{number}/main"
    record = log.find(live.DECISIONS, row.pk)
    assert record is not None
    assert record.started == tuple(start.stage for start in record.plan.starts)
    done = replay.replay(record)
    assert (done.same, done.same_code) == (True, True)


def test_nothing_is_written_while_nothing_is_news(town: Town, recorder: Recorder) -> None:
    town.agent("small", cpu("small", cores=1))
    town.job(name="first", cpus=1, time_limit="1h")
    second = town.job(name="second", cpus=1, time_limit="1h")
    (first,) = decide(town, recorder)
    assert first.waits == {"CapacityInsufficient": 1}
    assert first.head["stage"] == f"#{second.number}/main"
    assert decide(town, recorder) == []
    town.job(name="third", cpus=1, time_limit="1h")
    (news,) = decide(town, recorder)
    assert (news.started, sum(news.waits.values())) == ([], 2)
    assert decide(town, recorder) == []
    assert Decision.objects.count() == 2
    assert len(list(log.read(live.DECISIONS))) == 2


def test_what_a_planner_remembered_is_in_the_record(town: Town, recorder: Recorder) -> None:
    town.agent("small", cpu("small", cores=1))
    town.agent("large", cpu("large", cores=4))
    first = town.job(name="first", cpus=1, time_limit="1h")
    town.job(name="second", cpus=4, time_limit="1h")
    town.job(name="third", cpus=4, time_limit="1h")
    decide(town, recorder)
    service.cancel(first, "owner")
    town.cycle()
    town.job(name="fourth", cpus=4, time_limit="1h")
    now = clock()
    recorder._notes.append(recording.Noted(town.cycle(now), 0.003, now))
    (row,) = recorder.flush()
    record = log.find(live.DECISIONS, row.pk)
    assert record is not None
    assert record.snapshot.given_back is not None, "a cycle before had looked"
    assert replay.replay(record).same


def test_a_note_costs_its_cycle_no_statement(town: Town, recorder: Recorder, django_assert_num_queries: Any) -> None:
    town.machine()
    town.job()
    cycle = town.cycle()
    with django_assert_num_queries(0):
        recorder._pid = os.getpid()  # no thread: only the handing over
        recorder.note(cycle, 0.001, 1_700_000_000.0)
    assert len(recorder._notes) == 1


def test_a_folder_that_cannot_be_written_loses_the_record_and_not_the_row(
    town: Town, settings: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    settings.DECISIONS = tmp_path / "file"
    town.machine()
    town.job()
    (row,) = decide(town, Recorder())
    body = town.owner.read(f"/decisions/{row.pk}")
    assert (body["recorded"], body["decision"]["started"][0]["stage"]) == (False, row.started[0]["stage"])


def test_the_detail_shows_the_plan_to_those_who_may_see_it(town: Town, recorder: Recorder) -> None:
    town.agent("small", cpu("small", cores=1))
    town.job(name="first", cpus=1)
    town.job(name="second", cpus=1)
    (row,) = decide(town, recorder)
    mine = town.mate.read(f"/decisions/{row.pk}")
    assert [one["stage"] for one in mine["starts"]] == [row.started[0]["stage"]]
    assert mine["starts"][0]["nodes"] == ["small"]
    (wait,) = mine["waits"]
    assert wait["reasons"][0]["text"]
    assert dict(wait["funnel"])["nodes"] == 1
    assert (mine["hidden"], mine["recorded"], mine["reproducible"]) == (0, True, True)
    theirs = town.stranger.read(f"/decisions/{row.pk}")
    assert (theirs["starts"], theirs["waits"], theirs["hidden"]) == ([], [], 2)
    assert "#" not in str(theirs)
    for rest in ("", "/difference?profile=fifo", "/record"):
        assert town.anonymous.get(f"/decisions/{row.pk}{rest}").status_code == 401
    assert town.owner.get("/decisions/999999").status_code == 404


def test_a_stage_is_not_named_either_where_its_job_is_gone(town: Town, recorder: Recorder) -> None:
    gone = "#424242/quarry"
    entry = {"stage": gone, "why": "canary", "price": 2.0, "blocks": gone}
    Decision.objects.create(
        at="2026-01-01T00:00:00Z", profile="hybrid", duration_ms=1, waiting=1, started=[entry], skipped=[gone]
    )
    (told,) = town.stranger.read("/decisions")["results"]
    assert told["started"] == [{"stage": HIDDEN, "price": 2.0}]
    assert told["skipped"] == [HIDDEN]
    assert town.staff.read("/decisions")["results"][0]["started"] == [entry]


def test_decisions_are_found_by_what_they_did_and_by_job(town: Town, recorder: Recorder) -> None:
    town.agent("small", cpu("small", cores=1))
    first = town.job(name="first", cpus=1)
    decide(town, recorder)
    town.job(name="second", cpus=1)
    decide(town, recorder)

    def ids(query: str, who: Person = town.owner) -> list[int]:
        return [one["id"] for one in who.read(f"/decisions?{query}")["results"]]

    newest, oldest = ids("limit=9")
    assert ids("did=start") == [oldest]
    assert ids("did=wait") == [newest]
    assert ids(f"job={first.number}") == [oldest]
    assert ids(f"job={first.number}", town.stranger) == []
    assert town.owner.get("/decisions?did=nothing").status_code == 400


def test_another_profile_is_asked_about_the_same_world(town: Town, recorder: Recorder) -> None:
    town.machine()
    town.job()
    (row,) = decide(town, recorder)
    same = town.owner.read(f"/decisions/{row.pk}/difference?profile=hybrid")
    assert not same["differs"]
    refused = town.owner.get(f"/decisions/{row.pk}/difference?profile=guess")
    assert refused.status_code == 400
    assert b"hybrid" in refused.content


def test_a_record_can_be_taken_by_staff_and_replayed(town: Town, recorder: Recorder, tmp_path: Path) -> None:
    town.machine()
    town.job()
    (row,) = decide(town, recorder)
    assert town.owner.get(f"/decisions/{row.pk}/record").status_code == 403
    answer = town.staff.get(f"/decisions/{row.pk}/record")
    taken = tmp_path / "taken.decisions"
    taken.write_bytes(answer.content)
    (record,) = log.read(taken)
    assert replay.replay(record).same


def test_a_shadow_profile_thinks_beside_and_decides_nothing(town: Town, recorder: Recorder) -> None:
    town.machine()
    town.job(name="wide", devices={"kind": "gpu", "count": 2}, time_limit="2h")
    town.job(name="late", devices={"kind": "gpu"}, time_limit="1h")
    (row,) = decide(town, recorder)
    assert shadow.evaluate_shadows(row.pk) is None  # no pool has one
    town.pool.shadow_profile = "fifo"
    town.pool.save()
    before = Decision.objects.count()
    found = shadow.evaluate_shadows(row.pk)
    assert isinstance(found, Shadow)
    assert (found.profile, Decision.objects.count()) == ("fifo", before)
    assert shadow.evaluate_shadows(row.pk) is None  # once only
    shown = town.owner.read("/decisions")["results"][0]["shadow"]
    assert (shown["profile"], shown["differs"]) == ("fifo", found.differs)


def test_old_decisions_go(town: Town, recorder: Recorder) -> None:
    town.machine()
    town.job()
    (row,) = decide(town, recorder)
    Decision.objects.create(at="2020-01-01T00:00:00Z", profile="hybrid", duration_ms=1, waiting=0)
    sweep.sweep()
    assert list(Decision.objects.values_list("pk", flat=True)) in ([row.pk], [])
