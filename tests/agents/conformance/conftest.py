"""Every executor that starts real processes, each on the same ground, and the promise that nothing stays behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agents.delegated.capacity import Delegation, ForeignShape
from agents.delegated.executor import DelegatedExecutor, delegated
from agents.isolation import run_as
from agents.link.server import Server
from agents.protocol import Exit, Phase, Wanted
from agents.runtimes import Executor, Sighting
from agents.runtimes.container import ContainerExecutor
from agents.runtimes.process import Ground, ProcessExecutor
from agents.storage.bundle import BundleCache
from agents.supervisor import procfs, secret_file
from agents.supervisor.fork_client import ForkClient
from agents.supervisor.record import shim_record
from agents.tasks.journal import Intent
from tests.agents.yard import order
from tests.providers.conftest import ray as ray
from tests.providers.conftest import slurm as slurm
from tests.providers.ray_cluster import RayOnThisHost

# What an engine cannot give, by scenario: shown on the node page as well (see ``lacks`` of the engine).
_LACKING = {
    "test_somebody_who_enters_has_what_it_has_and_their_exit_code_is_told": "LacksSessions",
    "test_somebody_who_enters_ends_with_it_and_when_they_leave": "LacksSessions",
    "test_a_running_part_moves_to_other_cores_stops_and_goes_on": "LacksShares",
}
EXCEPTIONS: dict[str, dict[str, str]] = {"slurm": _LACKING, "ray": _LACKING}
STANDIN = Path(__file__).with_name("standin.py")
IMAGE = "localhost/yard-test:1"
SHAPES = [ForeignShape("small", cpus=2, memory_gib=0.5, nodes=2)]


@dataclass
class Stand:
    """One executor, and what a scenario says and sees of it."""

    kind: str
    executor: Executor
    again: Callable[[], Executor]
    folder: Path
    image: str = ""
    intents: list[Intent] = field(default_factory=list)
    parent: ForkClient | None = None

    @property
    def in_container(self) -> bool:
        return self.kind not in ("process", *EXCEPTIONS)

    def intent(self, wanted: Wanted, below: Path | None = None) -> Intent:
        folder = str((below or self.folder) / wanted.part)
        self.intents.append(Intent(wanted.part, wanted.attempt, wanted.epoch, procfs.boot_id(), folder))
        return self.intents[-1]

    def launch(self, *argv: str, **spec: Any) -> Intent:
        """Prepare and launch a part; answers its intent."""
        wanted = order(uuid.uuid4().hex, *argv, **{"image": self.image, **spec})
        intent = self.intent(wanted)
        self.executor.prepare(wanted, intent)
        self.executor.launch(intent)
        return intent

    def shell(self, script: str, **spec: Any) -> Intent:
        return self.launch("sh", "-c", script, **spec)

    async def until(self, intent: Intent, claim: Callable[[Sighting], bool]) -> Sighting:
        """The first sighting of which the claim holds; an orphan is reaped on the way, as a node does."""
        deadline = time.monotonic() + 30
        while not claim(seen := self.executor.look(intent)) or seen.is_orphan:
            assert time.monotonic() < deadline, (seen, self.said(intent), self.talk(intent))
            if seen.is_orphan:
                end = await asyncio.to_thread(self.executor.reap, intent)
                return Sighting(Phase.ENDED, exit=end)
            await asyncio.sleep(0.01)
        return seen

    async def running(self, intent: Intent) -> Sighting:
        return await self.until(intent, lambda seen: seen.phase >= Phase.RUNNING)

    async def saying(self, intent: Intent, word: str) -> None:
        """Return once the part has written a word."""
        await self.until(intent, lambda seen: word in self.said(intent) or seen.phase == Phase.ENDED)
        assert word in self.said(intent)

    async def end(self, intent: Intent) -> Exit:
        seen = await self.until(intent, lambda seen: seen.phase == Phase.ENDED)
        assert seen.exit is not None
        return seen.exit

    async def ran(self, script: str, **spec: Any) -> Exit:
        return await self.end(self.shell(script, **spec))

    def read(self, intent: Intent, name: str) -> str:
        return Path(intent.folder, name).read_text(errors="replace")

    def touch(self, intent: Intent, name: str) -> None:
        Path(intent.folder, name).touch()

    def said(self, intent: Intent, stream: str = "out") -> str:
        try:
            return Path(f"{intent.folder}/0.{stream}").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def lose_secrets(self, intent: Intent) -> None:
        """Remove the file from which a part's supervisor takes its secrets."""
        if self.kind in ("slurm", "ray"):
            Path(intent.folder, "secrets.json").unlink()
        else:
            secret_file.remove(f"{secret_file.folder(str(self.folder))}/{intent.part}.json")

    def with_word(self, intent: Intent, word: str) -> set[str]:
        """The names of the files of its run folder that hold a word."""
        files = [path for path in Path(intent.folder).rglob("*") if path.is_file()]
        return {path.name for path in files if word.encode() in path.read_bytes()}

    def talk(self, intent: Intent) -> str:
        try:
            return Path(f"{intent.folder}/engine.log").read_text()[-2000:]
        except FileNotFoundError:
            return ""

    def shim(self, intent: Intent) -> dict[str, Any]:
        return shim_record(intent.folder) or {}

    def left(self, intent: Intent) -> list[int]:
        return procfs.marked(intent.part)


async def _clear(stand: Stand) -> None:
    for intent in stand.intents:
        stand.executor.stop(intent, 0.0, "TEST_ENDED")
    for intent in stand.intents:
        await asyncio.to_thread(stand.executor.reap, intent)
    # A foreign job ends when its supervisor has looked for the order.
    deadline = time.monotonic() + (30 if stand.kind in EXCEPTIONS else 0)
    while left := {intent.part: found for intent in stand.intents if (found := stand.left(intent))}:
        if time.monotonic() >= deadline:
            break
        await asyncio.sleep(0.1)
    assert not left, f"these parts left processes behind: {left}"


def _real_image() -> str:
    """The image for the tests with a real engine: named by a person, for no test pulls anything from anywhere."""
    return os.environ.get("YARD_TEST_CONTAINER_IMAGE", "")


@pytest.fixture(params=["process", "standin", "podman", "slurm", "ray"])
async def stand(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stand]:
    """An executor of each kind. ``podman`` needs the program and YARD_TEST_CONTAINER_IMAGE, an image with a shell, and
    ``slurm`` and ``ray`` the programs of these."""
    kind: str = request.param
    if why := EXCEPTIONS.get(kind, {}).get(request.function.__name__):
        pytest.skip(f"NAMED EXCEPTION of {kind}: {why}")
    image = ""
    foreign: Delegation | None = None
    if kind == "slurm":
        request.getfixturevalue("slurm")
        foreign = Delegation("slurm", SHAPES)
    if kind == "ray":
        cluster: RayOnThisHost = request.getfixturevalue("ray")
        options = {"url": cluster.url, "token_file": f"{cluster.folder}/token", "python": sys.executable}
        foreign = Delegation("ray", SHAPES, options)
    if kind == "standin":
        install_standin(tmp_path / "bin", "podman")
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        image = IMAGE
    elif kind == "daemon":
        install_standin(tmp_path / "bin", "docker")
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        monkeypatch.setenv("YARD_CONTAINER_ENGINE", "docker")
        image = IMAGE
    elif kind == "podman":
        image = _real_image()
        if not image or not shutil.which("podman"):
            pytest.skip("needs podman, and an image with a shell that YARD_TEST_CONTAINER_IMAGE names")
    parent = ForkClient(tmp_path / "shim.log")
    parent.start()
    ground = Ground(
        boot_id=procfs.boot_id(),
        bell=tmp_path / "bell",
        lease=tmp_path / "lease",
        fork_client=parent,
        bundles=BundleCache(tmp_path / "bundles", Server("http://127.0.0.1:1")),
        run_as=run_as.parse(str(os.geteuid())),
    )

    def again() -> Executor:
        """The executor of an agent that has just been started on the same ground."""
        if foreign is not None:
            for former in delegates:
                former.close()
            delegates.append(foreign_executor(foreign, ground, tmp_path))
            return delegates[-1]
        return ProcessExecutor(ground) if kind == "process" else ContainerExecutor(ground)

    delegates: list[DelegatedExecutor] = []
    made = Stand(kind, again(), again, tmp_path, image, parent=parent)
    yield made
    await _clear(made)
    for each in delegates:
        each.close()
    parent.close()


def foreign_executor(delegation: Delegation, ground: Ground, state: Path) -> DelegatedExecutor:
    """An executor over a foreign engine, which has begun."""
    state.chmod(0o755)
    executor = delegated(delegation, ground, "login", str(state))
    executor.begin()
    return executor


def install_standin(folder: Path, name: str) -> None:
    """Put the stand-in engine into a folder of PATH under an engine's name."""
    folder.mkdir()
    program = folder / name
    program.write_text(f"#!{sys.executable} -IS\n{STANDIN.read_text()}")
    program.chmod(0o755)


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def mounted(folder: Path, size: str) -> bool:
    """Mount a small tmpfs; only root can."""
    folder.mkdir()
    asked = ["mount", "-t", "tmpfs", "-o", f"size={size}", "yard-test", str(folder)]
    return os.geteuid() == 0 and subprocess.run(asked, capture_output=True, check=False).returncode == 0


def unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], check=False)
