"""A real agent process against the model control plane, and the promise that no process stays behind."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agents import stop_all
from agents.supervisor import procfs
from agents.supervisor.record import shim_record
from agents.tasks import journal
from tests.agents.yard import TOKEN, Side, Yard, yard

ROOT = Path(__file__).resolve().parents[2]


class Hands:
    """One agent on one state folder; it may be killed and started again."""

    def __init__(self, model: Yard, folder: Path, name: str) -> None:
        self.yard = model
        self.state = folder / "state"
        self.name = name
        self.environment = dict(os.environ)
        self.options: list[str] = []
        self._token = folder / "token"
        self._token.write_text(TOKEN)
        self._log = folder / "agent.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        """Start and wait until the agent of this start has reported."""
        before = {side.name: side.connections for side in self.sides}
        self.launch(*options)
        self.yard.wait(lambda: self.sides and all(self._is_up(side, before.get(side.name, 0)) for side in self.sides))

    def launch(self, *options: str) -> None:
        """Start, and wait for nothing."""
        self.options = list(options) or self.options
        command = [sys.executable, "-m", "agents", "--url", self.yard.url, "--state", str(self.state)]
        command += ["--name", self.name, "--join-token-file", str(self._token), *self.options]
        if not {"--run-as", "--uid-range"} & {*self.options}:
            command += ["--run-as", str(os.geteuid())]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=self.environment, stdout=log, stderr=log)

    @property
    def sides(self) -> list[Side]:
        """The control plane's side of every node that this agent is."""
        return [side for side in self.yard.sides.values() if side.name.startswith(self.name)]

    @staticmethod
    def _is_up(side: Side, connections: int) -> bool:
        return side.connections > connections and side.report is not None

    @property
    def log(self) -> str:
        return self._log.read_text()

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.process = None
        return code

    def shim_of(self, part: str) -> dict[str, int]:
        record = shim_record(f"{self.state}/parts/{part}")
        assert record is not None
        return record

    def parts(self) -> list[str]:
        past, _ = journal.read(self.state / "journal.jsonl")
        return [*past.intents, *past.gone]

    def clear(self) -> None:
        """End the agent and all that it started; whatever survives that fails the test."""
        if self.process is not None:
            self.end()
        with pytest.MonkeyPatch.context() as patch:
            if boot := self.environment.get("AGENT_BOOT_ID_PATH"):
                patch.setenv("AGENT_BOOT_ID_PATH", boot)
            stop_all.main(["--state", str(self.state), "--grace", "0"])
        left = {part: found for part in self.parts() if (found := procfs.marked(part))}
        for pid in itertools.chain(*left.values()):
            procfs.send(pid, signal.SIGKILL)
        assert not left, f"these parts left processes behind: {left}"


@pytest.fixture(scope="session")
def model() -> Iterator[Yard]:
    with yard() as made:
        yield made


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that every user may reach; those of pytest are closed again by whichever run begins next."""
    made = Path(tempfile.mkdtemp(prefix="yard-open-"))
    made.chmod(0o755)
    yield made
    subprocess.run(["rm", "-rf", made], check=True)  # however deep it has become


@pytest.fixture
def hands(model: Yard, tmp_path: Path) -> Iterator[Hands]:
    """An agent of its own, not started yet."""
    made = Hands(model, tmp_path, f"node-{uuid.uuid4().hex[:8]}")
    made.state.mkdir()
    yield made
    made.clear()


@pytest.fixture
def root_agent(model: Yard, open_path: Path) -> Iterator[Hands]:
    """An agent that is root, on a state folder that its stages can reach."""
    made = Hands(model, open_path, f"root-{uuid.uuid4().hex[:8]}")
    made.state.mkdir()
    made.start("--run-as", "nobody")
    yield made
    made.clear()


@pytest.fixture(scope="module")
def shared(model: Yard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hands]:
    """A running agent for all tests of a module that do not kill it."""
    made = Hands(model, tmp_path_factory.mktemp("shared"), f"shared-{uuid.uuid4().hex[:8]}")
    made.start()
    yield made
    made.clear()


@pytest.fixture
def part() -> Callable[[], str]:
    """Names for parts, each new."""
    return lambda: uuid.uuid4().hex
