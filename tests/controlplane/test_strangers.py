"""Two projects on one cluster: whatever somebody asks for, no job of the other is named by its number or names."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils.translation import override

from controlplane.api import live
from controlplane.api import urls as api
from controlplane.clauses import HIDDEN
from controlplane.jobs.models import Attempt, Decision, Event, Job, Stage
from controlplane.jobs.reasons import reason_text
from controlplane.pages import urls as pages
from controlplane.scheduling import recorder as recording
from controlplane.scheduling.recorder import Recorder
from scheduler.core.model.reasons import CATALOGUE
from tests.controlplane.people import Person, Town
from tests.controlplane.test_feed import _job as watched_job
from tests.controlplane.test_feed import line, people, rows
from tests.controlplane.test_roles import somebody

__all__ = ["people"]

# What is of each project and nobody else's.
OF_OWNER, OF_STRANGER = ("880001", "canaryjob", "canarystage"), ("990001", "quarryjob", "quarrystage")
SPOKEN = "#880001 canarystage and #990001 quarrystage, #880001/canarystage too."


@dataclass
class World:
    town: Town
    of_owner: Job
    of_stranger: Job
    decision: int


def found(content: bytes | str, words: tuple[str, ...]) -> list[str]:
    text = content.decode(errors="replace") if isinstance(content, bytes) else content
    return [word for word in words if word in text]


def submit(person: Person, number: int, words: tuple[str, ...], priority: str) -> Job:
    with connection.cursor() as cursor:
        cursor.execute("SELECT setval('jobs_job_number', %s, false)", [number])
    spec = {
        "name": words[1],
        "priority": priority,
        "time_limit": "20h" if priority == "low" else "1h",
        "stages": [{"name": words[2], "run": "true", "devices": {"kind": "gpu", "count": 2}}],
    }
    answer = person.post("/jobs", spec)
    assert answer.status_code == 201, answer.content
    return Job.objects.get(number=number)


@pytest.fixture
def world(town: Town, settings: Any, tmp_path: Path) -> World:
    settings.DECISIONS = tmp_path / "decisions"
    recorder = Recorder()
    recorder._pid = -1
    agent = town.machine()
    first = submit(town.owner, 880001, OF_OWNER, "low")
    town.cycle()
    agent.start()
    second = submit(town.stranger, 990001, OF_STRANGER, "urgent")
    recorder._notes.append(recording.Noted(town.cycle(), 0.003, 1_700_000_000.0))
    recorder.flush()
    return World(town, first, second, Decision.objects.latest("id").pk)


def say_it_everywhere(world: World) -> None:
    """Every sentence that the record keeps of either job names both."""
    said = [{"code": "MakesRoom", "params": {"stage": SPOKEN, "why": {"text": SPOKEN, "said": []}}}]
    reasons = [
        {"code": each.code, "text": SPOKEN, "acts": each.acts, "params": {"promised": SPOKEN, "promised_said": said}}
        for each in CATALOGUE
    ]
    Stage.objects.update(reasons=reasons, detail=SPOKEN, said=said)
    Attempt.objects.update(why_here=SPOKEN, detail=SPOKEN, said={"why_here": said, "detail": said, "stop_note": said})
    for job in (world.of_owner, world.of_stranger):
        last = Event.objects.filter(job=job).latest("seq")  # an event never changes: another one is written
        last.pk, last._state.adding, last.seq = None, True, last.seq + 1
        last.text, last.said, last.params = SPOKEN, said, {"cause": SPOKEN}
        last.save()
        Job.objects.filter(pk=job.pk).update(event_seq=last.seq)
    said_so = Decision.objects.latest("id")
    said_so.pk, said_so._state.adding, said_so.replanned = said_so.pk + 1, True, SPOKEN
    said_so.save()


def addresses(world: World, patterns: list[Any], prefix: str) -> list[str]:
    """Every address that answers a GET, with each thing in it that either project has."""
    jobs = [str(job.number) for job in (world.of_owner, world.of_stranger)]
    fill = {
        "jobs": jobs,
        "nodes": ["n1"],
        "devices": ["GPU-n1-0", "CPU-n1"],
        "pools": ["default"],
        "projects": ["default", "other"],
        "decisions": [str(world.decision), str(world.decision + 1)],
        "attempts": [str(pk) for pk in Attempt.objects.values_list("pk", flat=True)],
        "simulations": ["1"],
        "maintenance-windows": ["1"],
    }
    wanted = []
    for each in patterns:
        path = re.sub(r"[\^$]|\(\?P<\w+>[^)]*\)", "", str(each.pattern))
        things = fill.get(path.partition("/")[0], [""]) if "<" in path else [""]
        wanted += [prefix + re.sub(r"<[^>]*>", thing, path) for thing in things]
    more = [
        "jobs?q=canary",
        f"decisions?job={jobs[0]}",
        "events?project=default",
        "decisions/%d/difference?profile=fair",
    ]
    return wanted + [prefix + (one % world.decision if "%d" in one else one) for one in more]


def everything(world: World, person: Person) -> dict[str, bytes]:
    """All that this person can be told, by address."""
    assert person.user is not None
    browser = Client()
    browser.force_login(person.user)
    # A stream has no end; what they tell is judged in test_job_stream and where logs are followed.
    paths = [path for path in addresses(world, api.urlpatterns, "/api/v1/") if not path.endswith(("/watch", "/follow"))]
    told = {path: person.client.get(path).getvalue() for path in paths}
    told |= {f"socket {path}": live.read(path, person.user)[2] for path in list(told)}
    for path in addresses(world, pages.urlpatterns, "/"):
        if not path.startswith(("/sign-", "/language")):
            told[f"page {path}"] = browser.get(path).getvalue()
    spec = {
        "name": "x",
        "run": "true",
        "priority": "urgent",
        "time_limit": "1h",
        "devices": {"kind": "gpu", "count": 2},
    }
    told["dry run"] = person.post("/jobs?dry_run=placement", spec).content
    for job in (world.of_owner, world.of_stranger):
        for act in ("hold", "release"):
            told[f"{act} {job.number}"] = person.post(f"/jobs/{job.number}/{act}", {"reason": "x"}).content
    return told


def test_the_other_projects_jobs_are_named_nowhere(world: World) -> None:
    town = world.town
    (reason,) = [
        one for one in Stage.objects.get(job=world.of_stranger).reasons if one["code"] == "WaitingForPreemption"
    ]
    assert found(reason["text"], OF_OWNER), "the record knows whom it waits for"
    for person, own, others in ((town.stranger, OF_STRANGER, OF_OWNER), (town.owner, OF_OWNER, OF_STRANGER)):
        told = everything(world, person)
        asked = {path for path in told if "880001" in path or "990001" in path or "canary" in path}
        leaks = {path: found(each, others[1:] if path in asked else others) for path, each in told.items()}
        assert not {path: words for path, words in leaks.items() if words}
        assert sum(bool(found(each, own)) for each in told.values()) > 10, "their own they do see"
    assert HIDDEN in town.stranger.read("/jobs/990001/why")["reason"]["text"]


def test_no_sentence_of_the_record_gets_past(world: World) -> None:
    say_it_everywhere(world)
    town = world.town
    for person, own, others in ((town.stranger, OF_STRANGER, OF_OWNER), (town.mate, OF_OWNER, OF_STRANGER)):
        told = everything(world, person)
        leaks = {path: found(each, others[1:]) for path, each in told.items()}
        assert not {path: words for path, words in leaks.items() if words}
        why = json.loads(told[f"/api/v1/jobs/{own[0]}/why"])
        for reason in why["stages"][0]["reasons"] if why["stages"] else ():
            assert HIDDEN in reason["text"]
            assert f"#{own[0]} {own[2]}" in reason["text"]
    assert found(town.staff.get("/jobs/990001/why").content, OF_OWNER[:1] + OF_OWNER[2:]) == ["880001", "canarystage"]


def test_a_dry_run_says_that_others_stop_and_not_who(world: World) -> None:
    spec = {
        "name": "x",
        "run": "true",
        "priority": "urgent",
        "time_limit": "1h",
        "devices": {"kind": "gpu", "count": 2},
    }
    Job.objects.filter(pk=world.of_stranger.pk).update(priority=1)
    with_names = json.loads(world.town.staff.post("/jobs?dry_run=placement", {**spec, "project": "default"}).content)
    without = json.loads(world.town.stranger.post("/jobs?dry_run=placement", spec).content)
    assert [reason["code"] for reason in without["stages"][0]["reasons"]] == [
        reason["code"] for reason in with_names["stages"][0]["reasons"]
    ]
    assert not found(json.dumps(without), OF_OWNER)


def test_what_somebody_wrote_in_their_own_job_stays_as_it_is(world: World) -> None:
    words = "echo '#880001 canarystage'"
    answer = world.town.stranger.post("/jobs", {"name": "see #880001", "run": words, "labels": {"of": "880001"}})
    assert answer.status_code == 201, answer.content
    number = json.loads(answer.content)["number"]
    assert world.town.stranger.read(f"/jobs/{number}/spec")["spec"]["run"] == words
    assert world.town.stranger.read(f"/jobs/{number}")["name"] == "see #880001"


def test_it_is_said_in_the_readers_language() -> None:
    with override("zh-hans"):
        text = reason_text({"code": "ReservedForHigher", "text": "", "params": {"promised": HIDDEN}})
    assert HIDDEN not in text
    assert text


def test_owner_mate_and_auditor_read_names_where_a_stranger_reads_how_many(world: World) -> None:
    """The record has one sentence; everybody is told it as they may see it."""
    names = f"#{OF_OWNER[0]} {OF_OWNER[2]}"
    several = f"behind {names}, #{OF_OWNER[0]}/{OF_OWNER[2]}, {names} and #{OF_STRANGER[0]} {OF_STRANGER[2]}"
    reason = {"code": "PriorityBehind", "text": several, "acts": "", "params": {"stages": several}}
    Stage.objects.update(reasons=[reason])
    town, auditor = world.town, somebody("auditor")
    Attempt.objects.update(why_here=several)
    for person in (town.owner, town.mate, auditor):
        told = person.get(f"/jobs/{OF_OWNER[0]}/attempts").content.decode()
        assert several.partition(" and ")[0] in told
        assert (OF_STRANGER[2] in told) is (person is auditor)
    assert auditor.read(f"/jobs/{OF_STRANGER[0]}")["stages"][0]["reasons"][0]["text"] == several
    told = town.stranger.read(f"/jobs/{OF_STRANGER[0]}")["stages"][0]["reasons"][0]
    assert told["text"] == f"behind 3 stages of other projects and #{OF_STRANGER[0]} {OF_STRANGER[2]}"
    assert told["params"]["stages"] == told["text"]
    with override("zh-hans"):
        read = reason_text({"code": "DependencyPending", "params": {"stages": "3 stages of other projects"}})
    assert "其他项目的 3 个阶段" in read


def test_an_auditor_sees_all_and_changes_nothing_of_it(world: World) -> None:
    auditor = somebody("auditor")
    told = everything(world, auditor)
    for path in ("decisions", "events", "timeline", "consolidation", "jobs/880001/why", "jobs/990001/counterfactuals"):
        answer = told[f"/api/v1/{path}"]
        assert b"permission_denied" not in answer, path
        assert HIDDEN.encode() not in answer, path
    assert found(told["/api/v1/events"], OF_OWNER[1:2]) or found(told["/api/v1/decisions"], OF_OWNER[2:])
    assert json.loads(told["hold 880001"])["code"] == json.loads(told["release 990001"])["code"] == "permission_denied"


async def test_a_socket_names_them_neither(people: dict[str, Any]) -> None:
    job = await rows(watched_job, people["owner"])
    await rows(Stage.objects.filter(job=job).update, reasons=[
        {"code": "PriorityBehind", "text": "behind #12 main", "acts": "", "params": {}}
    ])  # fmt: skip
    other = await rows(_beside, people["stranger"], job)
    async with line(people["stranger"]) as own:
        await own.say(op="sub", topic=f"/api/v1/jobs/{other.number}/why")
        told = await own.hear()
        assert told["data"]["reason"]["text"] == f"behind {HIDDEN}"


def _beside(user: Any, job: Job) -> Job:
    stage = job.stages.get()
    job.pk, job.number, job.user, job.project = None, 13, user, user.member_set.get().project
    job._state.adding = True
    from uuid import uuid4

    job.pk = uuid4()
    job.save()
    stage.pk, stage.job, stage._state.adding = uuid4(), job, True
    stage.save()
    return job
