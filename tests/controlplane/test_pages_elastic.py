"""The size of an elastic stage, and why it was resized, where people look."""

from __future__ import annotations

from agents.protocol import Exit, Phase
from controlplane.jobs.models import Job
from controlplane.scheduling.store import clock
from tests.controlplane.people import Town
from tests.controlplane.test_pages import browser, every_tab, text

CHINESE = {"Accept-Language": "zh-CN"}


def grown(town: Town) -> Job:
    """An elastic stage that ran on one node and was stopped to go on with two."""
    first = town.machine("n1")
    asks = {"nodes": {"min": 1, "max": 2}, "devices": {"kind": "gpu", "count": 2}}
    job = town.running(first, expected="5h", time_limit="20h", **asks)
    page = text(browser(town.owner), f"/jobs/{job.number}")
    assert "size 1 of 1–2 nodes" in page
    assert "规模 1（1–2 个节点）" in text(browser(town.owner), f"/jobs/{job.number}", **CHINESE)
    second = town.machine("n2")
    town.cycle(clock() + 61)
    first.set(job.stages.get(), Phase.ENDED, exit=Exit(code=85, cause="CHECKPOINTED", stopped=True))
    town.cycle()
    for agent in (first, second):
        agent.start()
    return job


def test_the_job_page_tells_the_size_and_why_it_changed(town: Town) -> None:
    job = grown(town)
    page = every_tab(browser(town.owner), job.number)
    assert "size 2 of 1–2 nodes" in page
    assert "1-2 nodes x 2 gpu" in page
    assert "resized 1 -&gt; 2: n2 is idle" in page
    page = every_tab(browser(town.owner), job.number, **CHINESE)
    assert "1-2 节点 × 2 gpu" in page
    assert "规模 1 → 2：n2 空闲" in page


def test_the_api_tells_the_size_and_what_it_may_be(town: Town) -> None:
    job = grown(town)
    (stage,) = town.owner.read(f"/jobs/{job.number}")["stages"]
    assert (stage["nodes"], stage["least_nodes"], stage["most_nodes"], stage["max_attempts"]) == (2, 1, 2, 1)
    first, _ = town.owner.read(f"/jobs/{job.number}/attempts")["results"]
    assert (first["cause"], first["detail"]) == ("RESIZE", "resized 1 -> 2: n2 is idle")
    waiting = town.job(nodes={"min": 2, "max": 3}, devices={"kind": "gpu"})
    (stage,) = town.owner.read(f"/jobs/{waiting.number}")["stages"]
    assert (stage["nodes"], stage["least_nodes"], stage["most_nodes"]) == (2, 2, 3)
    rigid = town.job(nodes=2)
    (stage,) = town.owner.read(f"/jobs/{rigid.number}")["stages"]
    assert (stage["nodes"], stage["least_nodes"], stage["most_nodes"]) == (2, 2, 2)


def test_the_decision_tells_it_too(town: Town) -> None:
    from controlplane.scheduling.recorder import Recorder

    first = town.machine("n1")
    asks = {"nodes": {"min": 1, "max": 2}, "devices": {"kind": "gpu"}}
    job = town.running(first, expected="5h", time_limit="20h", **asks)
    town.machine("n2")
    recorder = Recorder()
    now = clock() + 61
    recorder.note(town.cycle(now), 0.01, now)
    (row,) = recorder.flush()
    (told,) = row.evicted
    assert (told["stage"], told["sizes"], told["why"]) == (f"#{job.number}/main", [1, 2], "n2 is idle")
    page = text(browser(town.staff), f"/decisions/{row.pk}")
    assert "1 → 2: n2 is idle" in page
