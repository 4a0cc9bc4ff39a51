"""What engine, agents and record say is Chinese on the Chinese pages, with rows that the real engine made."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from string import Formatter
from typing import Any

import msgspec
import pytest
from django.utils import timezone
from django.utils.translation import override

from agents import ends
from agents.devices import xid
from agents.ends import clause
from agents.notes import NoteText, clauses
from agents.protocol import (
    Conditions,
    DeviceError,
    Exit,
    FileSystem,
    HostSample,
    Link,
    Phase,
    Released,
    SetAside,
    noted,
)
from agents.supervisor import verdict
from agents.telemetry.machine import Machine
from controlplane.background import BackgroundPhase
from controlplane.clause_templates import FAULTS
from controlplane.clauses import TEMPLATES, Told, of_error, told
from controlplane.clauses import clause as clause_of
from controlplane.fleet import alarms
from controlplane.fleet import service as fleet
from controlplane.fleet.models import Alarm, Node
from controlplane.jobs import basis, record
from controlplane.jobs.adjust import adjust
from controlplane.jobs.models import Attempt, Decision, Job, Part, Stage
from controlplane.jobs.reasons import reason_text
from controlplane.operations import invariants
from controlplane.queries.words import told_texts
from controlplane.scheduling.recorder import Recorder
from controlplane.scheduling.store import clock
from controlplane.simulations import service as simulations
from controlplane.simulations import worker
from controlplane.whatif import consolidation
from scheduler.core.model.basis import Basis
from scheduler.core.model.clauses import plain
from scheduler.sim.traces import FORMATS
from tests.controlplane.people import Person, Town
from tests.controlplane.test_consolidation import scattered
from tests.controlplane.test_pages import browser, every_tab, text
from tests.record.yard import cpu, gpu, stage

# Three words of lower-case letters after one another are English; codes, names, units and addresses are not.
RUN = re.compile(r"\b[a-z]{2,}(?:[ ,;:]+[a-z]{2,}){2,}\b")
NOT_OURS = re.compile(r"<(script|style|pre|svg|textarea|dialog)\b.*?</\1>", re.DOTALL)


def chinese(person: Person, path: str) -> str:
    """What a reader of Chinese sees of a page, without the job's own file and log; tips count too."""
    headers = {"Accept-Language": "zh-CN"}
    job = re.fullmatch(r"/jobs/(\d+)", path)
    page = every_tab(browser(person), int(job[1]), **headers) if job else text(browser(person), path, **headers)
    page = NOT_OURS.sub(" ", page)
    tips = " | ".join(re.findall(r'(?:title|aria-label)="([^"]*)"', page))
    return html.unescape(re.sub(r"<[^>]+>", " | ", page) + tips)


def english_in(text: str) -> list[str]:
    return [found[0] for found in RUN.finditer(text)]


def check(person: Person, path: str, *told: str) -> str:
    """The page, which has no run of English words and says all of this."""
    page = chinese(person, path)
    assert english_in(page) == [], path
    for words in told:
        assert words in page, (path, words, re.sub(r"[\s|]+", " ", page))
    return page


def ended(cause: str, *said: ends.Clause, **fields: Any) -> Exit:
    return Exit(cause=cause, **ends.told(*said), **fields)


def test_the_judge_of_these_tests_sees_english() -> None:
    assert english_in("train ended after 3 s: EXIT_CODE, ended with exit code 3") == [
        "train ended after",
        "ended with exit code",
    ]
    assert english_in("train 运行 3 秒后结束：EXIT_CODE | NVIDIA H100 80GB HBM3 | #12 train | n1:gpu0") == []


def test_a_job_says_why_it_runs_here_and_what_happened(town: Town) -> None:
    for name in ("n1", "n2", "n3"):
        town.machine(name)
    job = town.job(devices={"kind": "gpu", "count": 2}, nodes=2, expected="25m", time_limit="1h")
    town.cycle()
    assert "predicted to run 25 min" in Attempt.objects.get().why_here
    check(
        town.owner,
        f"/jobs/{job.number}",
        "2 个节点各用 2 x NVIDIA H100 80GB HBM3（",
        "），是 3 个节点中最合适的；预计运行 25 分",
        f"owner 提交了 #{job.number} job",
        "main 已放置：2 个节点各用",
        "调度引擎",
    )


def test_a_failed_attempt_says_how_it_ended_and_what_follows(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent, retry={"max": 2, "on": ["exit_code"]}, devices={"kind": "gpu"})
    Attempt.objects.update(started_at=timezone.now() - timedelta(seconds=75))
    cause, said = verdict.judge(137, None, None)
    agent.set(stage(job), Phase.ENDED, exit=ended(cause, *said, code=137))
    town.cycle()
    check(
        town.owner,
        f"/jobs/{job.number}",
        "main 运行 1 分 15 秒后结束：EXIT_CODE，以退出码 137 结束；128 + 9 通常表示它自己的命令被 SIGKILL 结束",
        "EXIT_CODE：接着进行第 2/2 次尝试",
        "次尝试可在 10 秒后启动",
    )
    Stage.objects.update(retry_at=None)
    town.cycle()
    agent.start()
    agent.set(stage(job), Phase.ENDED, exit=ended("TIMEOUT", clause("TimeLimit", limit_s=7200.0), stopped=True))
    check(town.owner, f"/jobs/{job.number}", "TIMEOUT · 达到时限 2 小时")
    check(town.owner, "/jobs", "达到时限 2 小时")
    check(town.owner, "/")


def test_an_end_of_an_older_agent_is_told_in_its_own_sentence(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent)
    agent.end(stage(job), code=3, detail="something that nobody knows any more")
    Attempt.objects.update(said={})
    Stage.objects.update(said=[])
    found = english_in(chinese(town.owner, f"/jobs/{job.number}"))
    assert set(found) == {"something that nobody knows any more", "how long it will run is unknown"}


def test_of_a_gang_it_says_which_rank_failed_first(town: Town) -> None:
    agents = [town.machine("n1"), town.machine("n2")]
    job = town.job(devices={"kind": "gpu", "count": 2}, nodes=2)
    town.cycle()
    for agent in agents:
        agent.start()
    first = stage(job).attempts.get().parts.get(rank=0).node
    agents.sort(key=lambda one: one.node != first)
    used = clause("MemoryOver", used_bytes=3 << 30, asked_bytes=64 << 20)
    agents[0].set(stage(job), Phase.ENDED, exit=ended("OUT_OF_MEMORY", used, signal=9))
    lost = ended("SIGNAL", clause("Signal", signal="SIGTERM"), signal=15, stopped=True)
    agents[1].set(stage(job), Phase.ENDED, exit=lost)
    check(
        town.owner,
        f"/jobs/{job.number}",
        f"{first.name} 上的 rank 0：使用了 3 GiB，而申请的是 64 MiB",
        "main 被要求停止（OUT_OF_MEMORY）",
    )


def test_what_was_done_to_a_job_is_told(town: Town) -> None:
    agent = town.machine()
    job = town.running(
        agent,
        stages=[
            {"name": "prep", "run": "true", "devices": {"kind": "gpu"}},
            {"name": "train", "run": "true", "needs": ["prep"]},
        ],
    )
    attempt = Attempt.objects.get()
    adjust(attempt.id, "ada", cpu_weight=50, suspended=True, reason="夜间")
    adjust(attempt.id, "ada", cpu_weight=None, suspended=False)
    nobody = NoteText(clause("MemoryNotLowered", limit_bytes=5 << 20, used_bytes=9 << 20))
    agent.set(stage(job, "prep"), Phase.RUNNING, spec_rev=3, notes=[str(nobody)], notes_said=[clauses(nobody)])
    town.owner.post(f"/jobs/{job.number}/hold", {"reason": "等一等"})
    town.owner.post(f"/jobs/{job.number}/release")
    check(
        town.owner,
        f"/jobs/{job.number}",
        "内存上限未降至 5 MiB：已使用 9 MiB",
        "prep 已就地调整：cpu_weight 50，已暂停（夜间）",
        "prep 已就地调整：cpu_weight 恢复为启动时的值，已继续",
        f"owner 挂起了 #{job.number} job：等一等",
        f"owner 释放了 #{job.number} job",
    )
    before = 1 << 28
    back = Released("GPU-n1-0", before, most_bytes=31 << 30, left_bytes=before, after_s=0.3, is_back=True)
    failed = ended("EXIT_CODE", clause("ExitCode", code=1), code=1, released=[back])
    agent.set(stage(job, "prep"), Phase.ENDED, exit=failed)
    check(
        town.owner,
        f"/jobs/{job.number}",
        "prep 已归还显存：GPU-n1-0 曾占用 31 GiB，结束后 0.30 秒为 256 MiB（启动前 256 MiB）",
        "prep 未完成，而 train 依赖它",
    )
    other = town.job()
    town.owner.post(f"/jobs/{other.number}/cancel", {"reason": "不要了"})
    check(town.owner, f"/jobs/{other.number}", f"owner 取消了 #{other.number} job：不要了")


def test_a_node_that_was_lost_ends_what_ran_there(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent, on_node_lost="requeue_fast")
    Node.objects.update(state="LOST")
    assert record.give_up_lost(60.0) == 1
    check(town.owner, f"/jobs/{job.number}", "节点 n1 失联", "按 on_node_lost 的设置重新排队")


def waiting(town: Town) -> dict[str, Job]:
    """Jobs that wait, one for each reason that a small cluster can give."""
    for name in ("n1", "n2"):
        agent = town.machine(name)
        agent.container_engine = ""
        agent.devices = [*agent.devices, gpu(name, 2)]  # another inventory, so that it is read again
        agent.report()
    jobs = {"running": town.job(devices={"kind": "gpu", "count": 1}, time_limit="2h")}
    jobs["CapacityInsufficient"] = town.job(devices={"kind": "gpu", "count": 3}, nodes=2, time_limit="1h")
    jobs["cores"] = town.job(cpus=8, memory="63GiB", nodes=2, time_limit="1h")
    jobs["Held"] = town.job(hold=True, time_limit="1h")
    jobs["BeginTime"] = town.job(time_limit="1h", begin=(timezone.now() + timedelta(hours=3)).isoformat())
    jobs["InvalidSpec"] = town.job(time_limit="20h")
    jobs["BundleUnavailable"] = town.job(time_limit="1h")
    Job.objects.filter(pk=jobs["BundleUnavailable"].pk).update(bundle="0" * 64)
    jobs["ImageUnavailable"] = town.job(image="registry.local/a:1", time_limit="1h")
    jobs["DependencyPending"] = town.job(
        time_limit="1h", stages=[{"name": "a", "run": "true"}, {"name": "b", "run": "true", "needs": ["a"]}]
    )
    town.pool.max_limit_s = town.pool.default_limit_s = 10 * 3600
    town.pool.save()
    town.cycle()
    return jobs


def test_whoever_waits_is_told_why(town: Town) -> None:
    jobs = waiting(town)
    codes = {}
    for name, job in jobs.items():
        page = check(town.owner, f"/jobs/{job.number}")
        found = job.stages.order_by("index").last()
        assert found is not None
        codes[name] = [one["code"] for one in found.reasons]
        for reason in found.reasons:
            assert reason["code"] in page or name == "DependencyPending"
    assert [name for name in codes if name not in {"running", "cores"} and name not in codes[name]] == []
    limited = f"/jobs/{jobs['InvalidSpec'].number}"
    check(town.owner, limited, "其时限为 20 小时，超过资源池 default 允许的 10 小时", "可由 用户 改变")
    check(town.owner, f"/jobs/{jobs['BundleUnavailable'].number}", "已不再保存，请重新上传")
    check(town.owner, f"/jobs/{jobs['ImageUnavailable'].number}", "的节点都没有容器引擎")
    check(town.owner, "/jobs")
    check(town.owner, "/")


def test_what_would_let_it_start_is_told(town: Town) -> None:
    jobs = waiting(town)
    for job in jobs.values():
        for one in job.stages.all():
            check(town.owner, f"/jobs/{job.number}/otherwise?stage={one.id}")
    limited = jobs["InvalidSpec"]
    check(town.owner, f"/jobs/{limited.number}/otherwise?stage={stage(limited).id}", "将时限改为 ")


def test_whoever_is_resized_or_makes_room_is_told_why(town: Town, settings: Any, tmp_path: Path) -> None:
    settings.DECISIONS = tmp_path / "decisions"
    first = town.machine("n1")
    asks = {"nodes": {"min": 1, "max": 2}, "devices": {"kind": "gpu", "count": 2}}
    job = town.running(first, expected="5h", time_limit="20h", **asks)
    second = town.machine("n2")
    now = clock() + 61
    recorder = Recorder()
    recorder.note(town.cycle(now), 0.01, now)
    (grown,) = recorder.flush()
    assert grown.evicted[0]["why"] == "n2 is idle"
    check(town.owner, f"/decisions/{grown.pk}", "已抢占、调整规模或迁移", "1 → 2: n2 空闲")
    first.set(stage(job), Phase.ENDED, exit=ended("CHECKPOINTED", clause("AsksAgain"), code=85, stopped=True))
    recorder.note(town.cycle(), 0.01, clock())
    (started,) = recorder.flush()
    for agent in (first, second):
        agent.start()
    check(town.owner, f"/decisions/{started.pk}", "规模 2（1 至 2 个节点）", "预计运行")
    check(
        town.owner,
        f"/jobs/{job.number}",
        "main 被要求停止（RESIZE）：规模 1 → 2：n2 空闲",
        "规模 1 → 2：n2 空闲；RESIZE：重新排队",
        "main 规模 1 → 2 个节点（范围 1-2）",
    )


def test_a_decision_tells_who_started_and_who_waits(town: Town, settings: Any, tmp_path: Path) -> None:
    settings.DECISIONS = tmp_path / "decisions"
    town.machine("n1")
    town.job(devices={"kind": "gpu", "count": 1}, expected="25m")
    for _ in range(3):
        town.job(devices={"kind": "gpu", "count": 2})
    recorder = Recorder()
    recorder.note(town.cycle(), 0.01, clock())
    (row,) = recorder.flush()
    check(town.owner, f"/decisions/{row.pk}", "n1 上的 NVIDIA H100 80GB HBM3；预计运行", "前面还有")
    check(town.owner, "/decisions")
    for profile in ("fifo", "dynamic", "static"):
        check(town.owner, f"/decisions/{row.pk}?with={profile}")
    broken = told(clause_of("MorePromisesBroken", stages="#1 main, #2 main, #3 main", more=4))
    anew = Decision.objects.create(
        at=row.at, profile="hybrid", duration_ms=1, waiting=3, replanned=broken.text, replanned_said=broken.said
    )
    check(town.staff, f"/decisions/{anew.pk}", "#1 main, #2 main, #3 main 及另外 4 个阶段的承诺无法兑现")


def test_the_dry_run_says_why_in_the_readers_language(town: Town) -> None:
    town.machine("n1")

    def preview(**spec: Any) -> tuple[int, Any, str]:
        body = json.dumps({"name": "try", "run": "true", **spec})
        answer = browser(town.owner).post(
            "/api/v1/jobs?dry_run=placement",
            body,
            content_type="application/json",
            headers={"Accept-Language": "zh-CN"},
        )
        found = json.loads(answer.content)
        told = " | ".join(
            [one["why"] for one in found.get("stages", [])]
            + [reason["text"] for one in found.get("stages", []) for reason in one["reasons"]]
        )
        return answer.status_code, found, told

    status, found, told = preview(devices={"kind": "gpu"}, expected="25m")
    assert (status, found["verdict"], english_in(told)) == (200, "starts_now", [])
    assert "n1 上的 NVIDIA H100 80GB HBM3；预计运行 25 分" in told
    status, found, told = preview(devices={"kind": "gpu", "count": 2}, nodes=3)
    assert (found["verdict"], english_in(told)) == ("never", [])
    assert "资源池 default" in told
    same = town.owner.post("/jobs?dry_run=placement", {"name": "try", "run": "true"})
    assert json.loads(same.content)["stages"][0]["why"].startswith("Xeon on n1; how long it will run is unknown")
    assert json.loads(same.content)["stages"][0]["why_said"][0] == {
        "code": "Here",
        "params": {"devices": "Xeon", "node": "n1"},
    }
    assert preview(nodes=0)[0] == 422
    assert Job.objects.count() == 0


def test_a_node_tells_what_is_wrong_with_it(town: Town) -> None:
    agent = town.machine()
    sample = HostSample(pressure={"memory_full": 43.0}, free_bytes={"/": 1})
    notes = Machine.notes(sample, [FileSystem("/", "ext4", 100 << 30)])
    assert len(notes) == 2
    for number in (*xid.FAULTS, *xid.WARNINGS):
        known = xid.condition(number)
        assert known is not None
        error = DeviceError("GPU-n1-0", known.code, str(known.note), clauses(known.note))
        agent.report(conditions=noted(Conditions(device_errors=[error]), notes))
        check(
            town.staff, f"/nodes/{agent.node.name}", f"Xid {number}：", "40 % 的时间所有任务都在等待 memory", "剩余不足"
        )
    check(town.staff, "/", f"XID_{number} Xid {number}：")
    for action in range(1, 9):
        wanted = xid.recovery(action)
        assert wanted is not None
        error = DeviceError("GPU-n1-0", wanted.code, str(wanted.note), clauses(wanted.note))
        agent.report(conditions=noted(Conditions(device_errors=[error]), notes))
        check(town.staff, f"/nodes/{agent.node.name}", "其驱动要求")
    check(town.staff, "/nodes")


def test_whoever_moves_for_another_is_told_who_asked(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consolidation, "ask", partial(consolidation.ask, anew=True))
    _, _, wide = scattered(town)
    (advice,) = town.staff.read("/consolidation")["advice"]
    check(town.staff, "/consolidation", f"#{wide.number} main")
    assert town.staff.post("/consolidation", {"stage": advice["id"]}).status_code == 200
    victim = Job.objects.get(stages__attempts__stop_why="MOVE")
    check(
        town.owner,
        f"/jobs/{victim.number}",
        f"main 被要求停止（MOVE）：为 #{wide.number} main 腾出资源（由 {town.user.username} 要求）",
    )


def test_every_page_of_a_busy_yard_is_chinese(town: Town) -> None:
    waiting(town)
    for path in ("/", "/jobs", "/timeline", "/nodes", "/nodes/n1", "/decisions", "/simulations"):
        check(town.staff, path)


def test_the_api_keeps_its_english_sentences_and_gives_codes_beside_them(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent, devices={"kind": "gpu"}, expected="25m")
    agent.set(stage(job), Phase.ENDED, exit=ended("EXIT_CODE", clause("ExitCode", code=3), code=3))
    chinese_reader = {"Accept-Language": "zh-CN"}

    def read(path: str) -> Any:
        return json.loads(town.owner.get(path, **chinese_reader).content)

    (attempt,) = read(f"/jobs/{job.number}/attempts")["results"]
    assert attempt["why_here"].startswith("NVIDIA H100 80GB HBM3 on n1; predicted to run")
    assert [one["code"] for one in attempt["why_here_said"]] == ["Here", "RunsFor"]
    assert attempt["detail"] == "ended with exit code 3"
    assert attempt["detail_said"] == [{"code": "ExitCode", "params": {"code": 3}}]
    (row,) = read(f"/jobs/{job.number}")["stages"]
    assert (row["detail"], row["detail_said"]) == (attempt["detail"], attempt["detail_said"])
    facts = {fact["kind"]: fact for fact in read(f"/jobs/{job.number}/events")["results"]}
    assert facts["fail"]["text"].endswith("EXIT_CODE, ended with exit code 3")
    after, detail = facts["fail"]["text_said"]
    assert (after["code"], after["params"]["cause"]) == ("EndedAfter", "EXIT_CODE")
    assert detail["params"]["detail"] == {"text": attempt["detail"], "said": attempt["detail_said"]}
    assert read("/events?kind=fail")["results"][0]["text_said"] == facts["fail"]["text_said"]


def test_a_span_that_a_reason_has_in_seconds_too_is_told_in_the_readers_units() -> None:
    lasts = {"time": "2026-01-01 00:00:00Z", "lasts": "25 min", "lasts_s": 1500.0}
    with override("zh-hans"):
        told = reason_text({"code": "MaintenanceWindow", "text": "x", "params": lasts})
    assert "25 分" in told
    assert "min" not in told


def test_whoever_waits_is_told_one_range_what_it_rests_on_and_how_many_held(town: Town) -> None:
    town.machine()
    job = town.job(name="tune", expected="8m", hold=True)
    town.cycle()

    def shown() -> str:
        page = browser(town.owner).get(f"/jobs/{job.number}").content.decode()
        return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))

    Stage.objects.filter(job=job).update(
        expected={
            "low_at": "2030-01-01T10:00:00.000Z",
            "high_at": "2030-01-01T11:00:00.000Z",
            **basis.plain(Basis.AHEAD),
            "held": 41,
            "seen": 52,
        },
        lasts={"p50": 480.0, "p90": 720.0, **basis.plain(Basis.OWN_RUNS, 4), "held": 44, "seen": 50},
    )
    read = shown()
    assert "Eight of ten starts fall within such a range. It is no promise. In this pool 41 of 52 held." in read
    assert "about 8 min, nine of ten within 12 min · from 4 runs of this stage." in read
    assert "In this pool 44 of 50 ended within it." in read
    assert english_in(chinese(town.owner, f"/jobs/{job.number}")) == []
    Stage.objects.filter(job=job).update(expected=None, lasts={"p50": None, "p90": None, **basis.plain(Basis.UNKNOWN)})
    read = shown()
    assert "unknown: no like stage has ended" in read
    assert "Nothing that is known now lets it be told." in read
    (told,) = town.owner.read(f"/jobs/{job.number}/why")["stages"]
    assert told["expected_start"] is None
    assert told["expected_s"]["p50"] is None


def test_what_is_not_there_is_told_in_the_readers_language(town: Town) -> None:
    answer = browser(town.owner).get("/simulations/999", headers={"Accept-Language": "zh-CN"})
    assert answer.status_code == 404
    assert "没有您可以查看的" in answer.content.decode()
    assert english_in(re.sub(r"<[^>]+>", " | ", answer.content.decode().split("<main", 1)[1])) == []


def swf(job: int, submit: int, run: int, processors: int) -> str:
    return " ".join(str(field) for field in (job, submit, -1, run, processors, *[-1] * 13))


def past(number: int, submitted: str, **changed: Any) -> str:
    ran = {"started_at": f"2030-01-01T{submitted}:30Z", "ended_at": "2030-01-02T00:00:00Z"}
    who = {"id": f"{number}", "submitted_at": f"2030-01-01T{submitted}:00Z", "project": "p", "user": "u"}
    return json.dumps({**who, **ran, **changed})


# For each format a head, lines that are in order, and lines each of which is noted.
FAULTY = {
    "families": (["single_share,tail,bound_share,jobs", "0.5,1,0,9"], ["", ""]),
    "generic": (
        ["id,submit_s,duration_s,gpus", "a,90,5,1"],
        ["b,10,5,1", "c,9,5,1"],
    ),
    "history": (
        [past(0, "10:00")],
        [
            *[past(1, "09:00"), past(2, "08:00")],
            *[past(3, "11:00", started_at=None), past(4, "11:00", ended_at=None)],
            *[past(5, "12:00", state="FAILED"), past(6, "12:00", state="CANCELLED")],
            *[past(7, "13:00", needs=["x"]), past(8, "13:00", needs=["y"])],
        ],
    ),
    "philly": (
        ["timestamp,duration,num_gpus,cluster", "2017-10-02 10:00:00,60,1,a"],
        [
            *["2017-10-02 10:00:00,60,1,a"] * 2,
            *["2017-10-02 09:00:00,60,2,a", "2017-10-02 09:00:00,60,3,a"],
            *["2017-10-02 11:00:00,0,1,a", "2017-10-02 11:00:00,0,2,a"],
            *["2017-10-02 12:00:00,60,0,a", "2017-10-02 12:00:00,61,0,a"],
        ],
    ),
    "slurm": (
        ["submit_s,run_s,user,nodes,tasks,limit_s", "90,5,u,1,1,60"],
        ["10,5,u,1,1,60", "9,5,u,1,1,60", "91,0,u,1,1,60", "91,0,v,1,1,60", "92,70,u,1,1,60", "92,71,u,1,1,60"],
    ),
    "swf": (
        [swf(1, 90, 5, 1)],
        [swf(2, 10, 5, 1), swf(3, 9, 5, 1), swf(4, 91, 0, 1), swf(5, 91, -1, 1), swf(6, 92, 5, 0), swf(7, 92, 5, -1)],
    ),
}


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("form", sorted(FORMATS))
def test_what_a_reader_of_traces_notes_is_told_in_the_readers_language(form: str, every: int, tmp_path: Path) -> None:
    head, noted = FAULTY[form]
    file = tmp_path / f"trace.{'jsonl' if form == 'history' else form}"
    file.write_text("\n".join([*head, *noted[::every]]) + "\n")
    trace = FORMATS[form](file)
    assert len(trace.notes) == len(noted) // 2, trace.notes
    result = {"notes": trace.notes, "notes_said": [plain(note) for note in trace.said]}
    with override("zh-hans"):
        told = told_texts(result, "notes")
    assert all(re.search("[\u4e00-\u9fff]", one) for one in told), told
    assert [english_in(one) for one in told] == [[]] * len(told)


def test_a_simulation_of_many_nodes_says_that_it_draws_the_first(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulations, "ask_to_run", lambda _: None)
    asked = {
        "trace": {"generate": {"jobs": 5, "per_hour": 60, "median_s": 300}, "first": 3},
        "world": {"nodes": "41x8"},
        "profiles": ["fifo"],
    }
    body = town.owner.post("/simulations", asked).json()
    worker.run(body["id"])
    path = f"/simulations/{body['id']}"
    assert "the first 40 of 41 nodes" in browser(town.owner).get(path).content.decode()
    check(town.owner, path, "41 个节点中的前 40 个", "轨迹的前 3 个阶段")


def test_why_a_node_is_silent_or_drained_is_told_in_the_readers_language(town: Town) -> None:
    town.machine("n1")
    town.machine("n2")
    Node.objects.filter(name="n1").update(last_report_at=timezone.now() - timedelta(minutes=1))
    fleet.silent_nodes(30, 3600, amnesty=True)
    fleet.drain(Node.objects.get(name="n2"), "root", told(clause_of("InAdministration")))
    for path in ("/", "/nodes", "/nodes/n1"):
        check(town.owner, path, "UTC 起没有报告")
    check(town.owner, "/nodes/n2", "来自管理后台（root）")


def test_a_part_that_was_set_aside_is_shown_with_a_way_out(town: Town) -> None:
    agent = town.machine("n1")
    agent.report(conditions=Conditions(aside=[SetAside("p1", "/state/parts/p1", "Undecodable: torn", age_s=60.0)]))
    shown = browser(town.owner).get("/nodes/n1").content.decode()
    assert "Part p1 could not be taken over by the agent and is set aside" in shown
    assert "yard nodes quarantine n1 release p1" in shown
    check(town.owner, "/nodes/n1", "代理无法接管部分 p1", "Undecodable: torn", "/state/parts/p1")
    fleet.decide_aside(Node.objects.get(name="n1"), "p1", "discard", "root", "the disk is lost")
    check(town.owner, "/nodes/n1", "root 正让它结束。")


def test_a_node_shows_how_its_devices_are_linked(town: Town) -> None:
    near = [Link("GPU-n1-1", "NVLINK", 900.0)], [Link("GPU-n1-0", "NVLINK", 450.0)]
    cards = [msgspec.structs.replace(gpu("n1", i), links=links, numa=i) for i, links in enumerate(near)]
    agent = town.agent("n1", cpu("n1"), *cards)
    check(town.owner, "/nodes/n1", "互连组 0: gpu0, gpu1 · NVLINK · 450 GB/s")
    Node.objects.filter(id=agent.node.id).update(labels={"rack": "r1"}, fetch_gbps=8.0, load=0.5)
    check(town.owner, "/nodes/n1", "rack=r1 · 8 Gbit/s (实测) · 负载 0.5")


def an_alarm_of_each_code() -> Iterator[Told]:
    """What the control plane says of a fault, with a value for each name and a fault inside where there is one."""
    inside = told(clause_of("DeviceFieldIs", device="gpu-0", field="model", value="x", fault=told(clause_of("NoNul"))))
    for code, template in FAULTS.items():
        values: dict[str, Any] = {name: 7 for _, name, _, _ in Formatter().parse(template) if name}
        for name in values.keys() & {"fault", "rule", "why"}:
            values[name] = told(clause_of("OneFinalEvent")) if name == "rule" else inside
        yield told(clause_of(code, **values))
    yield invariants.INVARIANTS[0].broken_by(["GPU-1", "GPU-2"])
    yield of_error(OverflowError("node"))


@pytest.mark.parametrize("says", list(an_alarm_of_each_code()), ids=lambda says: str(says.said[0]["code"]))
def test_what_an_alarm_says_is_told_in_the_readers_language(town: Town, says: Told) -> None:
    town.machine("n1")
    alarms.raised(alarms.NODE, {"n1": says})
    page = check(town.staff, "/")
    if re.search("[a-z]{3}", re.sub(r"\{\w+\}", "", TEMPLATES[says.said[0]["code"]])):
        assert says.text not in page
    check(town.staff, "/nodes/n1")
    (node,) = town.staff.read("/nodes")["results"]
    assert (node["alarms"], node["alarms_said"][0][0]["code"]) == ([says.text], says.said[0]["code"])


def test_an_alarm_of_before_there_were_clauses_is_shown_as_it_was_written(town: Town) -> None:
    town.machine("n1")
    now = timezone.now()
    Alarm.objects.create(kind=alarms.NODE, subject="n1", says="some former words of an alarm", since=now, at=now)
    page = browser(town.staff).get("/nodes/n1", headers={"Accept-Language": "zh-CN"}).content.decode()
    assert "some former words of an alarm" in page


def test_the_notes_of_an_older_agent_are_shown_as_they_came(town: Town) -> None:
    agent = town.machine("n1")
    error = DeviceError("GPU-n1-0", "XID_48", "Xid 48: double-bit memory error")
    agent.report(conditions=Conditions(device_errors=[error], notes=["some words of a former agent"]))
    page = browser(town.staff).get("/nodes/n1", headers={"Accept-Language": "zh-CN"}).content.decode()
    assert "some words of a former agent" in page
    assert "Xid 48: double-bit memory error" in page
    (node,) = town.staff.read("/nodes")["results"]
    as_told = [{"code": "AsTold", "params": {"words": "some words of a former agent"}}]
    assert node["conditions"]["notes_said"] == [as_told]
    device = next(one for one in node["devices"] if one["uuid"] == "GPU-n1-0")
    assert device["health_reason"] == "XID_48 Xid 48: double-bit memory error"
    assert device["health_reason_said"][0]["code"] == "Coded"


def test_what_an_agent_notes_of_a_part_is_told_in_the_readers_language(town: Town) -> None:
    agent = town.machine("n1")
    job = town.running(agent)
    cores, outside = clause("CoresNotSet", cores="3", error="EPERM"), clause("CheckpointOutside", path="/x")
    notes = [NoteText(cores), NoteText(outside), NoteText(clause("MemoryNotWatched", limit_bytes=1 << 30))]
    agent.set(stage(job), Phase.RUNNING, notes=[str(note) for note in notes], notes_said=[clauses(n) for n in notes])
    check(town.owner, f"/jobs/{job.number}", "无法设置核 3：EPERM", "检查点 /x 位于", "无法设置内存上限 1 GiB")
    part = Part.objects.get()
    assert part.notes[2] == "the memory limit of 1024 MiB could not be set: nobody watches it"
    assert [said[0]["code"] for said in part.notes_said] == ["CoresNotSet", "CheckpointOutside", "MemoryNotWatched"]


def test_what_a_part_does_now_is_told_in_the_readers_language(town: Town) -> None:
    agent = town.machine("n1")
    job = town.running(agent)
    note = NoteText(clause("NotFreeYet", kept_gib=1.5))
    agent.set(stage(job), Phase.STOPPING, substate=str(note), substate_said=clauses(note))
    check(town.owner, f"/jobs/{job.number}", "其设备仍有 1.5 GiB 未释放")
    (row,) = town.owner.read(f"/jobs/{job.number}")["stages"]
    assert (row["substate"], row["substate_said"][0]["code"]) == (str(note), "NotFreeYet")


def test_an_agent_that_sends_endless_clauses_is_told_in_its_words(town: Town) -> None:
    agent = town.machine("n1")
    long = [("AsTold", {"words": "x" * 10_000})], [("ProcessPid", {"pid": 7})] * 60, [("Unheard", {"of": 1})]
    agent.report(conditions=Conditions(notes=["some own words"] * 3, notes_said=[*long]))
    page = browser(town.staff).get("/nodes/n1", headers={"Accept-Language": "zh-CN"}).content.decode()
    assert page.count("some own words") == 3
    (node,) = town.staff.read("/nodes")["results"]
    as_told = [{"code": "AsTold", "params": {"words": "some own words"}}]
    assert node["conditions"]["notes_said"] == [as_told, as_told, [{"code": "Unheard", "params": {"of": 1}}]]


@pytest.mark.parametrize("code", ["BrokerSilent", "NotStarted", "ProcessEnded", "ProcessGone", "TookTooLong"])
def test_why_a_simulation_failed_is_told_in_the_readers_language(
    town: Town, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(simulations, "ask_to_run", lambda _: None)
    asked = {"trace": {"generate": {"jobs": 5}}, "world": {"nodes": "4x8"}, "profiles": ["fifo"]}
    number = town.owner.post("/simulations", asked).json()["id"]
    values = {name: 7 for _, name, _, _ in Formatter().parse(FAULTS[code]) if name}
    fault = told(clause_of(code, **values))
    simulations.end(number, BackgroundPhase.FAILED, fault)
    for path in (f"/simulations/{number}", "/simulations"):
        assert fault.text not in check(town.owner, path)
    shown = town.owner.read(f"/simulations/{number}")["simulation"]
    assert (shown["fault"], shown["fault_said"][0]["code"]) == (fault.text, code)
