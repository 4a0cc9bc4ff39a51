"""Canaries: the values of secrets of a job that runs are in its own environment, and nowhere else on the machine.

Everything is real: the stack, its database and Redis, an agent, a job. The canaries are looked for in a dump of the
database, in all that Redis was told and keeps, in every file of the state folder (logs, decisions, the agent's journal
and orders, PostgreSQL's own files), in memory file systems, and in arguments and environments of all processes.
"""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as Away

from deploy.local.postgres import binaries
from switchyard.client import JobRecord
from switchyard.problem import ApiProblem
from tests.chaos.stack import eventually, standing, words_of
from tests.chaos.test_job import Yard, on

pytestmark = pytest.mark.chaos

INLINE, NAMED, FILED = (f"canary-{word}-{secrets.token_hex(12)}" for word in ("inline", "named", "filed"))
CANARIES = (INLINE, NAMED, FILED)
MASKED = 'echo "$HF_TOKEN $NAMED $(cat "$KEY")"; ls -l "$KEY"; sleep 600'


def spellings(canary: str) -> set[bytes]:
    """A canary as it is, in an address, and in base64 at each of its three alignments."""
    coded = {base64.b64encode(b"x" * shift + canary.encode())[4:-4] for shift in range(3)}
    return {canary.encode(), quote(canary).encode(), canary.encode().hex().encode(), *coded}


ALL = set().union(*map(spellings, CANARIES))


def holds(content: bytes) -> bool:
    return any(word in content for word in ALL)


def files_with(folder: Path) -> set[Path]:
    """The files below a folder in which a canary can be read."""
    found = set()
    for top, _folders, names in os.walk(folder):
        for path in (Path(top) / name for name in names):
            try:
                if path.is_file() and not path.is_symlink() and holds(path.read_bytes()):
                    found.add(path)
            except OSError:
                continue  # it went meanwhile
    return found


class Overheard:
    """All that anybody tells Redis, and all that it keeps."""

    def __init__(self, url: str, password: str) -> None:
        self.redis, self.said = Redis.from_url(url, password=password), bytearray()
        self.monitor = self.redis.monitor().__enter__()
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def _listen(self) -> None:
        try:
            for each in self.monitor.listen():
                self.said += repr(each).encode()
        except (Away, ValueError, OSError):
            return  # it was closed

    def kept(self) -> bytes:
        return b"".join(key + (self.redis.dump(key) or b"") for key in self.redis.scan_iter(count=1000))

    def close(self) -> None:
        self.monitor.connection.disconnect()
        self.thread.join(10)
        self.redis.close()


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    with standing() as up:
        up.started()
        yield from on(up)


@pytest.fixture(scope="module")
def overheard(yard: Yard) -> Iterator[Overheard]:
    environment = yard.up.environment
    listening = Overheard(environment["REDIS_URL"], Path(environment["REDIS_PASSWORD_FILE"]).read_text().strip())
    yield listening
    listening.close()


def dump(yard: Yard) -> bytes:
    program = binaries() / "pg_dump"
    url = yard.up.environment["DATABASE_URL"]
    done = subprocess.run([program, "--dbname", url], env=yard.up.environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def seen_in_processes() -> tuple[list[psutil.Process], list[psutil.Process]]:
    """Whose arguments have a canary, and whose environment."""
    arguments, environments = [], []
    for process in psutil.process_iter():
        try:
            if holds(" ".join(process.cmdline()).encode()):
                arguments.append(process)
            if holds(" ".join(process.environ().values()).encode()):
                environments.append(process)
        except psutil.Error:
            continue
    return arguments, environments


def nowhere_but_in_the_task(yard: Yard, overheard: Overheard, job: JobRecord, *, runs: bool) -> None:
    text = dump(yard)
    assert str(job.number).encode() in text
    assert not holds(text)
    assert len(overheard.said) > 1000
    assert not holds(bytes(overheard.said))
    assert not holds(overheard.kept())
    run_folders = yard.up.home / "agents" / "local" / "parts"
    found = files_with(yard.up.home)
    delivered = {path for path in found if path.parent.name == "secrets" and run_folders in path.parents}
    assert found == delivered
    assert [path.name for path in delivered] == (["KEY"] if runs else [])
    for path in delivered:
        assert path.stat().st_mode & 0o777 == 0o400
        assert path.parent.stat().st_mode & 0o077 == 0
    assert files_with(Path("/dev/shm")) == set()
    arguments, environments = seen_in_processes()
    assert arguments == []
    assert bool(environments) is runs
    for process in environments:
        assert process.environ()["YARD_JOB_ID"] == str(job.number)


def agents_of(yard: Yard) -> list[int]:
    """The agents that the keeper has; none while it is about to start one again."""
    return [child.pid for child in yard.up.keeper().children() if "-m agents" in words_of(child)]


def test_only_the_task_has_its_secrets(yard: Yard, overheard: Overheard) -> None:
    client, project = yard.client, "default"
    assert client.secrets.set(project, "NAMED", NAMED)["version"] == 1
    assert client.secrets.set(project, "KEY", FILED)["version"] == 1
    spec = {
        "name": "canary",
        "run": MASKED,
        "env": {"HF_TOKEN": INLINE},
        "secrets": ["NAMED", {"name": "KEY", "file": True, "env": "KEY"}],
    }
    assert client.preview(spec)["verdict"] == "starts_now"
    with pytest.raises(ApiProblem):
        client.jobs.submit({**spec, "pool": "nowhere"})
    job = client.jobs.submit(spec, idempotency_key="canary")
    assert client.jobs.submit(spec, idempotency_key="canary").number == job.number
    waiting = client.jobs.submit({**spec, "hold": True})
    assert eventually(lambda: "*** *** ***" in "".join(client.jobs.logs(job)))
    assert "-r--------" in "".join(client.jobs.logs(job))
    nowhere_but_in_the_task(yard, overheard, job, runs=True)

    # An agent that was killed and comes back needs no value again, and writes none down.
    agent = yard.up.named("-m agents")
    agent.kill()
    assert eventually(lambda: [pid for pid in agents_of(yard) if pid != agent.pid])
    job.refresh()
    assert job.stages[0]["state"] == "RUNNING"
    nowhere_but_in_the_task(yard, overheard, job, runs=True)

    client.jobs.cancel(job)
    job.wait(timeout_s=240)
    client.jobs.cancel(waiting)
    assert eventually(lambda: not any(run.is_dir() for run in (yard.up.home / "agents").glob("*/parts/*")))
    nowhere_but_in_the_task(yard, overheard, job, runs=False)
