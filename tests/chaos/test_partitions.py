"""Partitions through a running stack: on simulated H100s, and on the real probe above a stand-in of NVIDIA's NVML."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.service import ROOT
from switchyard.client import ApiProblem, JobRecord
from tests.chaos.stack import eventually, standing
from tests.chaos.test_job import TIMERS, Yard, on

pytestmark = pytest.mark.chaos

STANDIN = ROOT / "tests" / "agents" / "nvml_standin.c"
SHOW = 'echo "sees $CUDA_VISIBLE_DEVICES holds $YARD_DEVICE_PARTITION"'


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    with pytest.MonkeyPatch.context() as environment, standing() as up:
        environment.setenv("YARD_TIMERS", TIMERS)
        up.started("--simulate", "dgx-h100-mig")
        for one in on(up):
            found = lambda one=one: [device["division"] for device in one.client.devices(kind="gpu")]  # noqa: E731
            assert eventually(lambda found=found: len(found()) == 8)
            yield one


def submit(yard: Yard, partition: str, run: str = SHOW, pool: str = "simulated") -> JobRecord:
    small = {"pool": pool, "cpus": 0.1, "memory": "64MiB"}
    return yard.client.jobs.submit({"name": partition, "run": run, "devices": {"partition": partition}, **small})


def accepted(yard: Yard, partition: str, run: str = SHOW, pool: str = "simulated") -> JobRecord:
    """Submitted as soon as it is not refused: what could never start is judged by what was there a moment ago."""
    jobs: list[JobRecord] = []

    def tried() -> bool:
        try:
            jobs.append(submit(yard, partition, run, pool))
        except ApiProblem:
            return False
        return True

    assert eventually(tried)
    return jobs[0]


def held(yard: Yard, job: JobRecord) -> dict[str, Any]:
    """What the job holds of an accelerator, once it runs."""
    stage = yard.until(job, "main", lambda s: s["state"] == "RUNNING")
    (found,) = (device for rank in stage["placed"] for device in rank["devices"] if device["kind"] == "gpu")
    return dict(found)


def log_of(yard: Yard, job: JobRecord) -> str:
    job.wait(timeout_s=240)
    job.refresh()
    assert job.state == "COMPLETED", [(s["state"], s["cause"], s["detail"]) for s in job.stages]
    return "".join(yard.client.jobs.logs(job))


def allow(yard: Yard, repartition: bool) -> None:
    """What an administrator does to the pool."""
    words = f"from controlplane.pools.models import Pool; Pool.objects.update(repartition={repartition})"
    command = [sys.executable, "manage.py", "shell", "-c", words]
    environment = yard.up.environment
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)


def test_an_instance_that_its_operator_made_is_held_by_one_at_a_time(yard: Yard) -> None:
    wide = [accepted(yard, "3g.40gb", "sleep 600") for _ in range(4)]
    places = [held(yard, job) for job in wide]
    assert len({place["uuid"] for place in places}) == 4
    assert {(place["partition"], place["slot"], place["simulated"]) for place in places} == {("3g.40gb", 0, True)}
    fifth = submit(yard, "3g.40gb")
    yard.until(fifth, "main", lambda s: [each["code"] for each in s["reasons"][:1]] == ["CapacityInsufficient"])
    beside = submit(yard, "1g.10gb")
    assert "holds 1g.10gb" in log_of(yard, beside)
    wide[0].cancel()
    assert "holds 3g.40gb" in log_of(yard, fifth)
    for job in wide[1:]:
        job.cancel()


def test_cards_are_divided_as_asked_once_an_administrator_allows_it(yard: Yard) -> None:
    with pytest.raises(ApiProblem) as refused:
        submit(yard, "7g.80gb")
    assert "4 could be divided so if an administrator allowed it" in str(refused.value)
    allow(yard, True)
    whole = accepted(yard, "7g.80gb", "sleep 600")
    assert held(yard, whole)["partition"] == "7g.80gb"
    small = [submit(yard, "1g.20gb", "sleep 600") for _ in range(12)]
    layouts: dict[str, list[int]] = {}
    for job in small:
        place = held(yard, job)
        layouts.setdefault(place["uuid"], []).append(place["slot"])
    assert {slot for slots in layouts.values() for slot in slots} <= {0, 2, 4, 6}
    assert all(len(slots) == len(set(slots)) for slots in layouts.values()), layouts
    for job in [whole, *small]:
        job.cancel()
    allow(yard, False)


def cards(tmp_path: Path, compiler: str, monkeypatch: pytest.MonkeyPatch, *lines: str) -> Path:
    """The state of a stand-in of NVIDIA's library that agents started from now on find on their host."""
    library, state = tmp_path / "libnvidia-ml.so.1", tmp_path / "cards"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(STANDIN)], check=True)
    state.write_text("".join(f"{line}\n" for line in ("count 1", "0.mig 1", *lines)))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("NVML_STANDIN", str(state))
    return state


def made_on(yard: Yard, uuid: str) -> list[str] | None:
    """The profiles of the partitions that are told of a device; None before it is told of."""
    found = next((device for device in yard.client.devices() if device["uuid"] == uuid), None)
    return [one["profile"] for one in found["division"]["made"]] if found else None


def test_a_process_sees_the_instance_that_it_holds(
    yard: Yard, compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ("0.uuid GPU-real", "0.name NVIDIA A100-SXM4-40GB", "0.memory 42949672960")
    state = cards(tmp_path, compiler, monkeypatch, *lines, "0.made 3g.20gb 0 4 0,2g.10gb 4 2 0")
    yard.agent("cards")
    assert eventually(lambda: made_on(yard, "GPU-real") == ["3g.20gb", "2g.10gb"])
    assert "sees MIG-GPU-real-4 holds 2g.10gb" in log_of(yard, accepted(yard, "2g.10gb", pool="default"))
    keeper = submit(yard, "3g.20gb", f"{SHOW}; sleep 600", "default")
    assert held(yard, keeper)["slot"] == 0
    # The operator divides the card anew: what was there is gone, and what is there now can be asked for.
    keeper.cancel()
    keeper.wait(timeout_s=240)
    anew = state.read_text().replace("3g.20gb 0 4 0,2g.10gb 4 2 0", "1g.5gb 6 1 0")
    state.with_suffix(".new").write_text(anew)
    state.with_suffix(".new").rename(state)
    assert eventually(lambda: made_on(yard, "GPU-real") == ["1g.5gb"])
    assert "sees MIG-GPU-real-6 holds 1g.5gb" in log_of(yard, accepted(yard, "1g.5gb", pool="default"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make instances")
def test_an_agent_that_is_root_makes_instances_where_the_pool_allows_it(
    yard: Yard, compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = cards(tmp_path, compiler, monkeypatch, "0.uuid GPU-free")
    yard.agent("free")
    assert eventually(lambda: made_on(yard, "GPU-free") == [])
    with pytest.raises(ApiProblem, match="1 could be divided so if an administrator allowed it"):
        submit(yard, "3g.40gb", pool="default")
    allow(yard, True)
    log = log_of(yard, accepted(yard, "3g.40gb", pool="default"))
    assert "sees MIG-GPU-free-4 holds 3g.40gb" in log
    assert "0.made 3g.40gb 4 4 0" in state.read_text(), "it stays until its slots are needed"
    assert "sees MIG-GPU-free-0 holds 7g.80gb" in log_of(yard, accepted(yard, "7g.80gb", pool="default"))
    assert "0.made 7g.80gb 0 8 0" in state.read_text()
    assert made_on(yard, "GPU-free") == [], "what the agent made itself is nobody's layout"
    allow(yard, False)
