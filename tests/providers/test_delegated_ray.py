"""Stages run as jobs of a real Ray through one agent, with a whole control plane."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.stack import eventually
from tests.providers.ray_cluster import RayOnThisHost
from tests.providers.test_delegated import LoginNode, login_node

pytestmark = pytest.mark.chaos
DELEGATION = """
engine = "ray"
[options]
url = "{url}"
token_file = "{token}"
python = "{python}"
[[shape]]
name = "small"
nodes = 1
cpus = 16
memory_gib = 16
"""


@pytest.fixture(scope="module")
def login(ray: RayOnThisHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoginNode]:
    said = DELEGATION.format(url=ray.url, token=ray.folder / "token", python=sys.executable)
    with login_node(ray, tmp_path_factory.mktemp("login"), said) as made:
        yield made


def test_a_stage_is_a_job_of_ray_and_the_node_says_what_is_not_given(login: LoginNode, ray: RayOnThisHost) -> None:
    job = login.submit('echo "hello, without $RAY_ADDRESS"; exit 0')
    assert login.ended(job) == "COMPLETED"
    assert "hello, without \n" in "".join(login.client.jobs.logs(job))
    node = login.node()
    assert node["executor"] == "Ray"
    assert "it runs no containers" in node["lacks"]
    failed = login.submit("exit 7", retry={"max": 0})
    assert login.ended(failed) == "FAILED"
    (attempt,) = login.client.jobs.attempts(failed)
    assert attempt["exit_code"] == 7, attempt
    waits = login.submit("sleep 300")
    assert eventually(lambda: bool(ray.jobs("RUNNING")))
    login.client.jobs.cancel(waits)
    assert login.ended(waits) == "CANCELLED"
    assert eventually(lambda: ray.live() == []), ray.live()


@pytest.mark.long
def test_an_agent_that_is_killed_again_and_again_loses_and_doubles_nothing(
    login: LoginNode, ray: RayOnThisHost, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    ran.write_text("")
    told = f'echo "$YARD_JOB_ID-$YARD_EPOCH" >> {ran}; sleep 1; echo "$YARD_JOB_ID" >> {ran}'
    jobs = [login.submit(told) for _ in range(12)]
    for least in (2, 8, 16):
        assert eventually(lambda least=least: len(ran.read_text().split()) >= least)  # type: ignore[misc]
        login.kill()
        login.start()
    assert [login.ended(job) for job in jobs] == ["COMPLETED"] * len(jobs)
    # No attempt began twice, and no job was done twice.
    assert set(Counter(ran.read_text().split()).values()) == {1}


@pytest.mark.long
def test_a_head_that_is_killed_is_a_condition_and_nothing_runs_twice_at_once(
    login: LoginNode, ray: RayOnThisHost, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    ran.write_text("")
    job = login.submit(f'echo "$YARD_EPOCH" >> {ran}; sleep 600')
    assert eventually(lambda: bool(ran.read_text()))
    ray.kill_head()
    assert eventually(
        lambda: any("Ray does not answer" in said for said in login.node()["conditions"].get("unfit", []))
    )
    job.refresh()
    assert job.state == "RUNNING", "silence is no end"
    ray.start_head()
    assert eventually(lambda: not login.node()["conditions"].get("unfit"))
    quick = login.submit("true")
    assert login.ended(quick) == "COMPLETED"
    login.client.jobs.cancel(job)
    assert ran.read_text().split() == ["1"]
