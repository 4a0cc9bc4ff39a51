"""What only an engine elsewhere can do to a part: it is down and comes back, and its answers are lost."""

from __future__ import annotations

import asyncio
import shutil
import time

import pytest

from agents.protocol import Phase
from agents.tasks.journal import Intent
from tests.agents.conformance.conftest import Stand
from tests.providers.slurm_cluster import SlurmOnThisHost

pytestmark = pytest.mark.parametrize("stand", ["slurm"], indirect=True)


async def ended(stand: Stand, slurm: SlurmOnThisHost, intent: Intent) -> int | None:
    """Return the exit code of a part, of a Slurm that may have drained its nodes when it came back."""
    deadline = time.monotonic() + 90
    while (seen := stand.executor.look(intent)).phase != Phase.ENDED:
        assert time.monotonic() < deadline, (seen, slurm.jobs("all"))
        await asyncio.to_thread(slurm.resume_drained)
        await asyncio.sleep(0.2)
    assert seen.exit is not None
    return seen.exit.code


async def test_while_slurm_is_down_ends_are_told_and_starts_wait(stand: Stand, slurm: SlurmOnThisHost) -> None:
    ran = stand.folder / "ran"
    first = stand.shell("echo ready; while [ ! -e go ]; do sleep 0.02; done; exit 5")
    await stand.saying(first, "ready")
    await asyncio.to_thread(slurm.kill_controller)
    try:
        stand.touch(first, "work/go")
        assert (await stand.end(first)).code == 5
        second = stand.shell(f"echo ran >> {ran}; exit 6")
        while not stand.executor.troubles():  # type: ignore[attr-defined]
            assert stand.executor.look(second).phase == Phase.STARTING
            await asyncio.sleep(0.1)
    finally:
        await asyncio.to_thread(slurm.start_controller)
    assert await ended(stand, slurm, second) == 6
    assert ran.read_text() == "ran\n"


async def test_after_a_lost_answer_there_is_one_job(
    stand: Stand, slurm: SlurmOnThisHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real = stand.folder / "lossy", shutil.which("sbatch")
    folder.mkdir()
    lose = f"[ -e {folder}/lost ] || {{ touch {folder}/lost; echo 'Socket timed out' >&2; exit 1; }}"
    (folder / "sbatch").write_text(f'#!/bin/sh\nanswer=$({real} "$@") || exit 1\n{lose}\necho "$answer"\n')
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin:/usr/sbin")
    ran = stand.folder / "ran"
    intent = stand.shell(f"echo ran >> {ran}; exit 4")
    assert await ended(stand, slurm, intent) == 4
    assert (folder / "lost").exists()
    assert ran.read_text() == "ran\n"
    assert len([line for line in slurm.jobs("all") if intent.part in line]) == 1
