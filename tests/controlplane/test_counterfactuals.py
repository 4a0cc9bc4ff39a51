"""What would let a job start: tried by the engine, named only as far as it may be seen, and true when it is done."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.cache import cache

from agents import protocol
from controlplane.jobs.models import Job
from controlplane.pools.models import Pool, Quota
from controlplane.queries.words import CHANGES
from controlplane.whatif import counterfactuals
from scheduler.core.explain.counterfactual import SENTENCES
from tests.controlplane.people import Town
from tests.record.yard import GIB, cpu, gpu


def answers(town: Town, number: int) -> dict[str, dict[str, object]]:
    (stage,) = town.owner.read(f"/jobs/{number}/counterfactuals")["stages"]
    return {one["changes"][-1]["kind"]: one for one in stage["answers"]}


def test_fewer_devices_would_do_and_really_do(town: Town) -> None:
    town.running(town.machine(), devices={"kind": "gpu", "count": 1})
    waiting = town.job(devices={"kind": "gpu", "count": 2}, time_limit="1h")
    town.cycle()
    found = answers(town, waiting.number)["devices"]
    assert (found["starts"], found["allowed"], found["instead_of"]) == ("now", True, [])
    smaller = town.job(devices={"kind": "gpu", "count": 1}, time_limit="1h")
    town.owner.post(f"/jobs/{waiting.number}/cancel")
    assert [start.stage for start in town.cycle().plan.starts] == [str(smaller.stages.get().id)]


def test_a_quota_is_a_leads_to_raise(town: Town) -> None:
    town.machine()
    Quota.objects.create(project=town.project, kind="gpu", nominal=0, borrowing_limit=0)
    waiting = town.job(devices={"kind": "gpu", "count": 1})
    town.cycle()
    found = answers(town, waiting.number)["quota"]
    assert not found["allowed"]
    assert "with a quota of 1 gpu" in found["changes"][0]["text"]
    cache.clear()
    lead = town.lead.read(f"/jobs/{waiting.number}/counterfactuals")["stages"][0]["answers"]
    assert [one["allowed"] for one in lead if one["changes"][-1]["kind"] == "quota"] == [True]


def test_a_held_job_starts_when_it_is_released(town: Town) -> None:
    town.machine()
    job = town.job()
    town.owner.post(f"/jobs/{job.number}/hold")
    assert answers(town, job.number)["release"]["starts"] == "now"
    town.owner.post(f"/jobs/{job.number}/release")
    assert len(town.cycle().plan.starts) == 1


def test_rules_that_changed_after_the_submission_are_told(town: Town) -> None:
    town.machine()
    job, coded = town.job(time_limit="20h"), town.job(time_limit="600s")
    Job.objects.filter(pk=coded.pk).update(bundle="0" * 64)
    town.pool.max_limit_s = town.pool.default_limit_s = 3600
    town.pool.user_limit = 1
    town.pool.save()
    third, fourth = town.job(time_limit="600s"), town.job(time_limit="600s")
    waits = {wait.stage: wait.reasons[0].code for wait in town.cycle().plan.waits}
    ids = {str(one.stages.get().id): code for one, code in ((job, "InvalidSpec"), (coded, "BundleUnavailable"))}
    assert {name: waits.get(name) for name in ids} == ids
    assert waits[str(fourth.stages.get().id)] == "UserLimit"
    assert str(third.stages.get().id) not in waits
    town.pool.user_limit = None
    town.pool.save()
    assert answers(town, job.number)["limit"]["changes"][0]["text"] == "with a time limit of 1 h"


def test_a_job_that_does_not_wait_has_no_answers_and_a_stranger_sees_no_job(town: Town) -> None:
    job = town.running(town.machine())
    assert town.owner.read(f"/jobs/{job.number}/counterfactuals")["stages"] == []
    assert town.stranger.get(f"/jobs/{job.number}/counterfactuals").status_code == 404


def test_what_was_tried_a_moment_ago_is_not_tried_again(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    town.running(town.machine(), devices={"kind": "gpu", "count": 1})
    waiting = town.job(devices={"kind": "gpu", "count": 2})
    town.cycle()
    first = answers(town, waiting.number)
    monkeypatch.setattr(counterfactuals, "search", lambda *_: pytest.fail("it was tried again"))
    assert answers(town, waiting.number) == first


def test_a_world_with_too_many_waiting_is_not_tried(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    town.machine()
    job = town.job()
    monkeypatch.setattr(counterfactuals, "MOST_STAGES_WAITING", 0)
    body = town.owner.read(f"/jobs/{job.number}/counterfactuals")
    assert (body["too_large"], body["stages"]) == (True, [])


def test_every_change_has_words_to_translate() -> None:
    assert set(CHANGES) == {text for text, _ in SENTENCES.values()}


def test_the_part_of_the_page_says_it_in_words(town: Town) -> None:
    town.running(town.machine(), devices={"kind": "gpu", "count": 1})
    waiting = town.job(devices={"kind": "gpu", "count": 2}, time_limit="1h")
    town.cycle()
    client = town.owner.client
    client.force_login(town.owner.user)
    stage = waiting.stages.get()
    page = client.get(f"/jobs/{waiting.number}/otherwise?stage={stage.id}").content.decode()
    assert "with 1 gpu per node instead of 2" in page
    client.cookies["django_language"] = "zh-hans"
    assert (
        "每节点使用 1 个 gpu 而不是 2 个"
        in client.get(f"/jobs/{waiting.number}/otherwise?stage={stage.id}").content.decode()
    )


GPU = {"kind": "gpu", "count": 1}


@pytest.mark.parametrize(
    ("kind", "spec", "patch"),
    [
        ("devices", {"devices": {"kind": "gpu", "count": 2}}, {"devices": {"count": 1}}),
        ("nodes", {"devices": GPU, "nodes": 2}, {"nodes": 1}),
        ("begin", {"begin": "2100-01-01T00:00:00Z"}, {"begin": None}),
        ("release", {"hold": True}, {"hold": False}),
        ("avoid", {"devices": GPU, "avoid": ["n1"]}, {"avoid": None}),
        ("only", {"devices": GPU, "only_on": ["n2"]}, {"only_on": None}),
        ("pool", {"devices": {"kind": "gpu", "count": 2}, "time_limit": "10m"}, {"pool": "second"}),
        ("kind", {"devices": {"kind": "gpu", "model": "H100", "memory": "70GiB", "count": 1}},
         {"devices": {"kind": "npu", "model": None, "memory": None}}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("staged", [False, True])
def test_the_patch_of_a_counterfactual_really_lets_it_start(
    town: Town, kind: str, spec: dict[str, Any], patch: dict[str, Any], *, staged: bool
) -> None:
    """One of the two GPUs of n1 is taken; n2 is in use where the change is about size."""
    agent = town.machine()
    town.running(agent, devices=GPU, name="runs")
    second = Pool.objects.create(name="second", storage_path="/shared")
    other = town.agent("n2", cpu("n2", cores=8, memory_gib=64), gpu("n2", 0), gpu("n2", 1))
    other.node.pools.set([second] if kind == "pool" else [])
    if kind == "nodes":
        other.node.pools.set([town.pool])
        town.running(other, devices={**GPU, "count": 2}, name="fills")
    if kind in {"avoid", "only", "kind"}:
        other.node.pools.set([town.pool])
        town.running(other, devices={**GPU, "count": 2}, name="fills")
    if kind == "kind":
        town.running(agent, devices=GPU, name="fills, too")
        npu = protocol.Device(uuid="NPU-n1", kind="npu", vendor="Huawei", model="910B", index=0, memory_bytes=64 * GIB)
        agent.devices.append(npu)
        agent.report()
    waiting = town.job(**({"stages": [{"name": "fit", "run": "x", **spec}]} if staged and kind != "release" else spec))
    assert town.cycle().plan.starts == ()
    found = answers(town, waiting.number)[kind]
    in_stage = staged and kind not in {"release", "pool"}
    assert found["patch"] == ({"stages": {"fit": patch}} if in_stage else patch)
    assert found["allowed"]
    changed = town.owner.patch(f"/jobs/{waiting.number}", found["patch"])
    assert changed.status_code == 200, changed.content
    assert town.cycle().applied.started == (str(waiting.stages.get().id),)
