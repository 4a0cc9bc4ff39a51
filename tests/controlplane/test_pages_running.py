"""What the job page tells of running attempts, and the node page of its host."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.utils import timezone
from django.utils.translation import override

from agents.protocol import Checkpoint, Phase, Released
from controlplane.fleet.models import DeviceSample, Host, PartSample
from controlplane.jobs.adjust import adjust
from controlplane.jobs.models import Attempt, Claim, Part
from controlplane.pages.running import gets
from controlplane.queries.attempts import ReleasedDevice
from tests.controlplane.people import Town
from tests.controlplane.test_pages import HOSTILE, browser, every_tab, text
from tests.record.yard import stage


def test_a_running_attempt_tells_what_it_gets_and_what_could_not_be_applied(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent, devices={"kind": "gpu"})
    page = text(browser(town.owner), f"/jobs/{job.number}")
    assert "what it claimed" in page
    assert f'data-to="/api/v1/attempts/{Attempt.objects.get().id}/adjust"' in page
    adjust(Attempt.objects.get().id, "ada", cpu_weight=50, suspended=True)
    page = text(browser(town.owner), f"/jobs/{job.number}")
    assert "suspended, CPU weight 50" in page
    assert "not applied yet" in page
    assert 'data-dialog="ask-go-on"' in page
    agent.set(stage(job), Phase.RUNNING, spec_rev=2, notes=[HOSTILE])
    page = text(browser(town.owner), f"/jobs/{job.number}")
    assert "not applied yet" not in page
    assert "&lt;img src=x" in page
    assert HOSTILE not in page
    agent.end(stage(job))
    assert "panel-running" not in text(browser(town.owner), f"/jobs/{job.number}")


def test_who_may_not_adjust_sees_the_buttons_disabled(town: Town) -> None:
    job = town.running(town.machine())
    opens = 'data-dialog="ask-adjust" data-to="/api/v1/attempts/'
    for person, is_off in ((town.owner, False), (town.mate, True)):
        page = text(browser(person), f"/jobs/{job.number}")
        button = page[page.index(opens) :].partition(">")[0]
        assert ('aria-disabled="true"' in button) == is_off


def test_energy_and_idle_devices_are_told_on_the_page_of_the_job(town: Town) -> None:
    job = town.running(town.machine(), devices={"kind": "gpu"})
    now = timezone.now()
    PartSample.objects.create(part_id=Part.objects.get().id, at=now, energy_j={"gpu": 45_600.0})
    Claim.objects.update(opened_at=now - timedelta(hours=1))
    held = Claim.objects.exclude(device__kind="cpu").get().device
    for minutes in (1, 5, 14):
        DeviceSample.objects.create(device=held, at=now - timedelta(minutes=minutes), utilisation=0.0)
    page = text(browser(town.owner), f"/jobs/{job.number}")
    assert "gpu: 45.6 kJ drawn" in page
    assert f"Held and hardly used for a quarter of an hour: n1 gpu{held.index}." in page


@pytest.mark.parametrize(
    ("told", "fact", "line"),
    [
        (
            {"before_bytes": 1 << 28, "most_bytes": 31 << 30, "left_bytes": 1 << 28, "after_s": 0.314, "is_back": True},
            "main gave its memory back: GPU-n1-0 had 31.0 GiB in use, 0.2 GiB 0.31 s after the end (0.2 GiB",
            "n1 gpu0 gave back what it held: 31 GiB at most, 256 MiB left after 0.31 s",
        ),
        (
            {"before_bytes": 0, "most_bytes": 9 << 30, "left_bytes": 9 << 30, "after_s": 60.0, "is_back": False},
            "main did not give all memory back: GPU-n1-0 had 9.0 GiB in use, 9.0 GiB 60.00 s after the end (0.0",
            "n1 gpu0 has 9 GiB in use 60.00 s after the end (0 KiB before the start)",
        ),
        (
            {"left_bytes": 5 << 30, "after_s": 0.1},
            "main left its devices: GPU-n1-0 5.0 GiB 0.10 s after the end",
            "n1 gpu0 has 5 GiB in use 0.10 s after the end; others use it too",
        ),
        (
            {"before_bytes": 7},
            "main left its devices: GPU-n1-0 could not be measured",
            "n1 gpu0 could not be measured after the end",
        ),
    ],
)
def test_what_the_devices_gave_back_is_a_fact_of_the_job_and_on_its_page(
    town: Town, told: dict[str, Any], fact: str, line: str
) -> None:
    agent = town.machine()
    job = town.running(agent, devices={"kind": "gpu"})
    agent.end(stage(job), released=[Released("GPU-n1-0", **told)])
    facts = town.owner.read(f"/jobs/{job.number}/events")["results"]
    (found,) = [each["text"] for each in facts if each["kind"] == "released"]
    assert found.startswith(fact)
    assert line in every_tab(browser(town.owner), job.number)
    (part,) = town.owner.read(f"/jobs/{job.number}/attempts")["results"][0]["parts"]
    assert part["released"] == [msgspec.to_builtins(ReleasedDevice("GPU-n1-0", **told))]


def test_a_node_page_tells_of_interfaces_disks_and_file_systems(town: Town) -> None:
    agent = town.machine()
    Host.objects.filter(node=agent.node).update(
        at=timezone.now(),
        interfaces=[{"name": "eth0", "bits_per_s": 25 * 10**9, "is_up": True}, {"name": "eth1"}],
        disks=[{"name": "nvme0n1", "size_bytes": 2 << 40, "model": HOSTILE}],
        file_systems=[{"mount": "/data", "type": "xfs", "size_bytes": 1 << 40}],
        per_s={"received": {"eth0": 3 << 20}, "written": {"nvme0n1": 5 << 30}},
        free_bytes={"/data": 300 << 30},
    )
    page = text(browser(town.owner), "/nodes/n1")
    for word in ("eth0", "25 Gbit/s", "3 MiB/s", "nvme0n1", "5 GiB/s", "/data", "300 GiB", "1024 GiB"):
        assert word in page, word
    assert HOSTILE not in page


def test_a_share_is_spoken_in_words() -> None:
    share = {"cpus": [1, 3], "io_weight": 20, "memory_bytes": 1 << 31, "queue_class": "long", "quantum_s": 2.5}
    with override("en"):
        assert gets({}) == ""
        assert gets(share) == "cores 1,3, I/O weight 20, memory up to 2 GiB, queue class long, turns of 2.5 s"
        assert gets({"cpus_milli": 1500, "suspended": False}) == "1.5 cores"


def test_the_page_of_the_job_tells_how_often_to_save_and_why_and_what_each_save_took(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent, checkpoint={"interval_hint": "15m"})
    now = timezone.now()
    Attempt.objects.update(stop_why="PREEMPTED", stop_at=now - timedelta(seconds=30))
    kept = [Checkpoint(1, "/c/1", age_s=60.0), Checkpoint(2, "/c/2", age_s=1.0, took_s=125.0)]
    agent.set(stage(job), Phase.RUNNING, checkpoints=kept)
    page = every_tab(browser(town.owner), job.number)
    assert "To save every" in page
    assert "15 min" in page
    assert "the job file names it" in page
    assert "2 min 5 s" in page
    assert page.count("before it stopped") == 1
