"""Stages run on pilots inside a real Ray, with a whole control plane and real agents."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.stack import eventually
from tests.providers.ray_cluster import RayOnThisHost
from tests.providers.site import Site, over

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def site(ray: RayOnThisHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("YARD_PROVIDER_ENDPOINTS", str(ray.endpoints))
        with over(ray, "ray", tmp_path_factory.mktemp("pilots"), endpoint="ray") as made:
            yield made


def test_a_stage_runs_on_a_pilot_in_ray_and_the_idle_pilot_is_given_back(site: Site, ray: RayOnThisHost) -> None:
    site.client.change_provider("trial", {"idle_s": 5})
    job = site.submit(name="hello", run="env | grep -c ^RAY_; echo hello from a pilot")
    assert site.ended(job) == "COMPLETED"
    assert "".join(site.client.jobs.logs(job)).split("\n")[:2] == ["0", "hello from a pilot"]
    assert eventually(lambda: not site.pilots()), site.pilots()
    (pilot,) = site.pilots("GONE")
    assert (pilot["why"], pilot["handle"]) == ("idle", pilot["label"])
    assert ray.live() == []


@pytest.mark.long
def test_when_somebody_stops_the_job_in_ray_the_stage_starts_again_elsewhere(
    site: Site, ray: RayOnThisHost, tmp_path: Path
) -> None:
    site.empty()
    mark = tmp_path / "began"
    job = site.submit(name="again", run=f"[ -e {mark} ] && exit 0; touch {mark}; sleep 600")
    site.runs(job)
    assert eventually(mark.exists)
    (pilot,) = site.pilots()
    ray.ask("POST", f"/api/jobs/{pilot['handle']}/stop")
    state, attempts = site.ended(job), list(site.client.jobs.attempts(job))
    assert state == "COMPLETED", attempts
    assert len(attempts) == 2, attempts


@pytest.mark.long
def test_workers_that_are_killed_again_and_again_double_and_leak_no_pilot_in_ray(
    site: Site, ray: RayOnThisHost
) -> None:
    site.empty()
    before = set(ray.jobs() or [])
    jobs = [site.submit(name=f"job-{n}", cpus=2, run="sleep 4") for n in range(6)]
    for _round in range(5):
        looked = site.client.provider("trial")["looked_at"]
        assert eventually(lambda looked=looked: site.client.provider("trial")["looked_at"] != looked)  # type: ignore[misc]
        workers = site.workers()
        assert workers
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
        assert len(ray.live()) <= 2
    assert [site.ended(job) for job in jobs] == ["COMPLETED"] * 6
    labels = {each["label"] for each in site.client.pilots("trial")}
    assert set(ray.jobs() or []) - before <= labels
    site.empty()


@pytest.mark.long
def test_a_head_that_is_killed_and_comes_back_loses_no_job(site: Site, ray: RayOnThisHost, tmp_path: Path) -> None:
    site.empty()
    mark = tmp_path / "began"
    job = site.submit(name="outlives", run=f"[ -e {mark} ] && exit 0; touch {mark}; sleep 600")
    site.runs(job)
    assert eventually(mark.exists)
    ray.kill_head()
    assert eventually(lambda: "ray" in site.client.provider("trial")["condition"])
    ray.start_head()
    # The new head knows nothing of the pilot, whose processes went with the old one.
    assert site.ended(job) == "COMPLETED"
    assert site.client.provider("trial")["condition"] == ""
    site.empty()
