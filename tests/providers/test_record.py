"""Pilots in the record and in a real Slurm agree, whatever is killed, lost or answered wrongly in between.

Here a pilot's agent is a program that waits: nothing joins. tests/providers/test_slurm.py has real agents.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from controlplane.fleet.models import Alarm, JoinToken, Node
from controlplane.operations import pilots as duty
from controlplane.providers.models import NodeProvider, Pilot
from deploy.local.service import ROOT
from tests.conftest import CLUSTER
from tests.providers.slurm_cluster import SlurmOnThisHost
from tests.record.yard import Yard

pytestmark = pytest.mark.django_db(transaction=True)

SHAPE = {"name": "small", "cpus": 1, "memory_gib": 0.25}


@pytest.fixture
def hpc(yard: Yard, slurm: SlurmOnThisHost, tmp_path: Path) -> Iterator[NodeProvider]:
    """A provider that wants one node always."""
    waits = tmp_path / "agent"
    waits.write_text("#!/bin/sh\ncase $* in *stop-all*) exit 0;; esac\nexec sleep 600\n")
    waits.chmod(0o755)
    yield NodeProvider.objects.create(
        name="hpc", kind="slurm", pool=yard.pool, shapes=[SHAPE], min_nodes=1, max_nodes=2, hours=0.5,
        settings={"python": str(waits), "state_below": str(tmp_path)},
    )  # fmt: skip
    slurm.empty()


def look() -> None:
    """Let the duty look at all providers now, also where it would wait before it asks again."""
    NodeProvider.objects.update(retry_at=None)
    duty.look()


def labels(slurm: SlurmOnThisHost) -> list[str]:
    return sorted(line.split()[2] for line in slurm.jobs())


def the_pilot() -> Pilot:
    return Pilot.objects.exclude(state="GONE").get()


def until(holds: Callable[[], bool], slurm: SlurmOnThisHost) -> None:
    def looked() -> bool:
        look()
        return holds()

    slurm.until(looked)


def test_a_pilot_is_asked_for_once_runs_and_leaves_when_its_provider_is_disabled(hpc, slurm) -> None:
    look()
    pilot = the_pilot()
    assert (pilot.state, pilot.handle != "") == ("QUEUED", True)
    until(lambda: the_pilot().state == "UP", slurm)
    pilot = the_pilot()
    assert labels(slurm) == [pilot.label]
    # Its end is a window of its node, which has the pool and the labels, and no credential before it joins.
    assert pilot.window is not None
    assert pilot.window.node == pilot.node
    assert pilot.window.starts_at < pilot.ends_at
    node = Node.objects.get(name="hpc-1")
    assert (node.state, list(node.pools.all())) == ("JOINING", [hpc.pool])
    assert node.labels == {"provider": "hpc", "pilot": str(pilot.pk)}
    assert JoinToken.objects.get(node=node).uses_left == 1
    NodeProvider.objects.update(enabled=False)
    until(lambda: not Pilot.objects.exclude(state="GONE").exists(), slurm)
    assert labels(slurm) == []
    pilot.refresh_from_db()
    assert (pilot.why, pilot.gone_at is not None) == ("disabled", True)
    node.refresh_from_db()
    assert node.state == "DRAINED"
    assert not JoinToken.objects.filter(node=node).exists()


def test_the_token_is_in_no_command_line_and_not_in_the_script(hpc, slurm, tmp_path) -> None:
    seen = tmp_path / "seen"
    _instead_of(
        "sbatch",
        tmp_path,
        f'echo "$@" >{seen}; tee {seen}.script | real --parsable "$@"; echo "$YARD_JOIN_TOKEN" >{seen}.token',
    )
    with ProgramsOf(tmp_path):
        look()
    token = (tmp_path / "seen.token").read_text().strip()
    assert len(token) > 20
    assert token not in seen.read_text()
    assert token not in (tmp_path / "seen.script").read_text()
    assert token not in slurm.say("scontrol", "show", "job", the_pilot().handle)


def _instead_of(program: str, folder: Path, script: str) -> None:
    """Put a script before a program of Slurm; ``real`` in it is the program."""
    import shutil

    place = folder / "bin"
    place.mkdir(exist_ok=True)
    file = place / program
    file.write_text(f'#!/bin/sh\nreal() {{ {shutil.which(program)} "$@"; }}\n{script}\n')
    file.chmod(0o755)


class ProgramsOf:
    """With the folder's programs first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        self.before = os.environ["PATH"]
        os.environ["PATH"] = f"{self.folder / 'bin'}:{self.before}"

    def __exit__(self, *_: Any) -> None:
        os.environ["PATH"] = self.before


_WORKER = """
import django; django.setup()
from controlplane.operations import pilots
pilots.look()
"""


@pytest.mark.parametrize(
    "moment",
    ["after the submission", pytest.param("before it", marks=pytest.mark.long)],
)
def test_a_worker_that_is_killed_around_sbatch_doubles_and_leaks_nothing(hpc, slurm, tmp_path, moment) -> None:
    submits = 'real "$@" >/dev/null; ' if moment == "after the submission" else ""
    _instead_of("sbatch", tmp_path, f"{submits}kill -9 $PPID")
    with ProgramsOf(tmp_path):
        name = connection.settings_dict["NAME"]
        url = f"postgresql://switchyard@/{name}?host={CLUSTER.sockets}&passfile={CLUSTER.password_file}"
        worker = subprocess.run(
            [sys.executable, "-c", _WORKER], cwd=ROOT, check=False, capture_output=True, text=True,
            env={**os.environ, "DATABASE_URL": url, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    assert worker.returncode == -signal.SIGKILL, worker.stderr
    written = the_pilot()
    assert (written.state, written.handle) == ("ASKED", "")
    look()
    if moment == "after the submission":
        assert [the_pilot().label] == [written.label] == labels(slurm)
        assert the_pilot().handle
    else:
        # Nobody knows whether it will still come: nothing else is asked for meanwhile.
        assert labels(slurm) == []
        assert the_pilot() == written
        Pilot.objects.update(created_at=timezone.now() - timedelta(minutes=5))
        look()
        written.refresh_from_db()
        assert (written.state, written.why) == ("GONE", "never_came")
        Pilot.objects.filter(pk=written.pk).update(gone_at=timezone.now() - timedelta(minutes=1))
        until(lambda: labels(slurm) == [the_pilot().label] != [written.label], slurm)


@pytest.mark.long
def test_a_slurm_that_is_down_is_a_condition_and_changes_nothing_else(hpc, slurm) -> None:
    until(lambda: the_pilot().state == "UP", slurm)
    before = the_pilot()
    slurm.kill_controller()
    try:
        for failures in (1, 2, 3):
            look()
            hpc.refresh_from_db()
            assert hpc.failures == failures
        assert "Slurm:" in hpc.condition
        assert hpc.retry_at - hpc.looked_at == timedelta(seconds=20)
        assert Alarm.objects.get(kind="provider").subject == "hpc"
        # It is not asked again before its time.
        duty.look()
        hpc.refresh_from_db()
        assert hpc.failures == 3
        assert the_pilot() == before
    finally:
        slurm.start_controller()
    look()
    hpc.refresh_from_db()
    assert (hpc.condition, hpc.failures, hpc.retry_at) == ("", 0, None)
    assert not Alarm.objects.filter(kind="provider").exists()
    assert labels(slurm) == [before.label]


@pytest.mark.parametrize(
    "answer",
    [
        "one|two",
        "7|FLYING|N/A|yard-{tag}-{id}|x",
        "7|RUNNING|yesterday|yard-{tag}-{id}|x",
        "7;rm|RUNNING|N/A|yard-{tag}-{id}|x",
        "\\377\\376",
    ],
)
def test_nonsense_changes_nothing_but_the_condition(hpc, slurm, tmp_path, answer) -> None:
    look()
    before = the_pilot()
    said = answer.format(tag=hpc.tag, id=before.pk.hex)
    _instead_of("squeue", tmp_path, f"printf '{said}\\n'")
    _instead_of("sbatch", tmp_path, f"touch {tmp_path}/submitted")
    with ProgramsOf(tmp_path):
        look()
    hpc.refresh_from_db()
    assert hpc.condition == "squeue answered what cannot be understood"
    assert Pilot.objects.get().state == before.state
    assert not (tmp_path / "submitted").exists()


def test_a_refusal_is_said_and_what_was_written_down_is_over(hpc, slurm) -> None:
    NodeProvider.objects.update(settings={**hpc.settings, "partition": "nowhere"})
    look()
    hpc.refresh_from_db()
    assert "invalid partition" in hpc.condition.lower()
    assert (Pilot.objects.get().state, Pilot.objects.get().why) == ("GONE", "refused")
    assert Node.objects.get(name="hpc-1").state == "DRAINED"


def test_what_nobody_knows_is_stopped_and_a_strangers_job_is_left_alone(hpc, slurm) -> None:
    stray = f"yard-{hpc.tag}-{'0' * 32}"
    other = f"yard-{'a' * 12}-{'0' * 32}"
    for name in (stray, other, "mine"):
        slurm.say("sbatch", f"--job-name={name}", f"--comment={name}", "--output=/dev/null", "--wrap=exec sleep 600")
    NodeProvider.objects.update(enabled=False)
    Pilot.objects.create(
        provider=hpc, shape="small", hours=1, label=f"yard-{hpc.tag}-{'1' * 32}", created_at=timezone.now()
    )
    until(lambda: stray not in labels(slurm), slurm)
    assert set(labels(slurm)) == {other, "mine"}


@pytest.mark.long
def test_one_that_a_stranger_cancelled_is_gone_and_another_takes_its_node(hpc, slurm) -> None:
    until(lambda: the_pilot().state == "UP", slurm)
    first = the_pilot()
    slurm.say("scancel", first.handle)
    slurm.until(lambda: labels(slurm) == [])
    look()
    first.refresh_from_db()
    assert (first.state, first.why) == ("GONE", "ended")
    # It had not joined: the next waits a moment.
    Pilot.objects.update(gone_at=timezone.now() - timedelta(minutes=1))
    until(lambda: the_pilot().state == "UP", slurm)
    assert the_pilot().node == first.node
    assert labels(slurm) == [the_pilot().label]


def test_pilots_that_never_join_are_asked_for_ever_later(hpc) -> None:
    now = timezone.now()
    for minutes in (3, 2, 1):
        Pilot.objects.create(
            provider=hpc, shape="small", hours=1, label=f"gone-{minutes}", state="GONE", why="ended", created_at=now,
            gone_at=now - timedelta(seconds=minutes),
        )  # fmt: skip
    look()
    assert not Pilot.objects.exclude(state="GONE").exists()
    hpc.refresh_from_db()
    assert hpc.condition == "the last 3 pilots ended before their agents joined; see what they printed"
    assert Alarm.objects.filter(kind="provider", subject="hpc").exists()
    Pilot.objects.filter(label="gone-1").update(joined_at=now)
    look()
    assert Pilot.objects.exclude(state="GONE").count() == 1


def test_the_budget_is_of_thirty_days_and_counts_what_may_still_be_used(hpc) -> None:
    now = timezone.now()
    NodeProvider.objects.update(budget_node_hours=1.2, min_nodes=2)
    Pilot.objects.create(
        provider=hpc, shape="small", hours=9, label="old", state="GONE", why="idle", created_at=now,
        up_at=now - timedelta(hours=30 * 24 + 5), gone_at=now - timedelta(hours=30 * 24 - 0.5), joined_at=now,
    )  # fmt: skip
    look()
    # Half an hour is used; of the 0.7 left one pilot of half an hour can be paid.
    assert Pilot.objects.exclude(state="GONE").count() == 1
    look()
    assert Pilot.objects.exclude(state="GONE").count() == 1
