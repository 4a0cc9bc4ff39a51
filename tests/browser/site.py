"""A server of its own with the seeded yard behind it: what a real browser looks at in tests and for screenshots.

Everything lies in other processes, because a synchronous Playwright keeps an event loop in this one, in which Django
refuses to touch its database.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from bench import chromium
from controlplane.demo import measurements
from deploy.local.port import free_port

ROOT = Path(__file__).parents[2]
DATABASE = "yard_browser"
PASSWORD = "a-long-password-for-tests"
HOSTILE = '<img src=x onerror="alert(1)">'
LAUNCH = (*chromium.LAUNCH, "--hide-scrollbars")


@dataclass(frozen=True)
class Site:
    """A running server. ``run`` changes its rows behind its back, as the rest of the system would."""

    url: str
    database_url: str
    pid: int
    logs: Path

    def run(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            cursor = connection.execute(sql, values)
            return list(cursor) if cursor.description else []

    def pulse(self) -> None:
        """Measures every device and part again, up to now; the API shows nothing that is older than a minute."""
        self.run(measurements.DEVICES)
        self.run(measurements.PARTS)

    def append_to_log(self, number: int, content: bytes) -> None:
        """Add bytes to what the job's newest attempt has printed, as an upload does."""
        newest = """SELECT p.id, (SELECT sum(l.size)::bigint FROM jobs_logspan l WHERE l.part_id = p.id),
                           (SELECT coalesce(sum(l.size), 0)::bigint FROM jobs_logspan l
                            WHERE l.part_id = p.id AND l.stream = 'out')
                    FROM jobs_part p JOIN jobs_attempt a ON a.id = p.attempt_id JOIN jobs_stage s ON s.id = a.stage_id
                    JOIN jobs_job j ON j.id = s.job_id WHERE j.number = %s ORDER BY a.created_at DESC LIMIT 1"""
        ((part, start, end),) = self.run(newest, number)
        with (self.logs / part.hex[-2:] / str(part) / "out").open("r+b") as file:
            file.seek(end)
            file.write(content)
        self.run(
            """INSERT INTO jobs_logspan (part_id, stream, start, "offset", size) VALUES (%s, 'out', %s, %s, %s)""",
            part, start, end, len(content),
        )  # fmt: skip

    def number(self, name: str) -> int:
        """The number of the job with this name."""
        return int(str(self.run("SELECT number FROM jobs_job WHERE name = %s", name)[0][0]))


def port_to_be() -> int:
    """Return a port for a server that is yet to start.

    It is below those that systems give to outgoing connections: one of these could take it first.
    """
    return free_port(random.randrange(12_000, 18_000, 10))


@contextmanager
def serve(
    database_url: str, environment: dict[str, str], log: Path, *, written: str = HOSTILE, like: str = "template1"
) -> Iterator[Site]:
    """A site on a new database of the server at ``database_url``: a web server, and a worker for questions.

    ``written`` is what users wrote in names, notes and logs; the database begins as a copy of ``like``.
    """
    with psycopg.connect(database_url, dbname="postgres", autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {DATABASE} TEMPLATE {like}")
    base, _mark, query = database_url.partition("?")
    own = f"{base.rpartition('/')[0]}/{DATABASE}?{query}"
    environment = {**environment, "DATABASE_URL": own, "YARD_DB_POOL": "8", "YARD_LOG_LEVEL": "WARNING"}
    subprocess.run([sys.executable, "-m", "tests.browser.plant", written], cwd=ROOT, env=environment, check=True)
    port = port_to_be()
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "controlplane.asgi:application",
        "--port",
        str(port),
        "--log-level",
        "warning",
    ]
    thinks = [sys.executable, "-m", "celery", "--app", "controlplane", "--quiet", "worker", "--queues", "questions"]
    thinks += ["--pool", "threads", "--concurrency", "4", "--without-gossip", "--loglevel", "WARNING"]
    with log.open("wb") as output:
        server = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
        worker = subprocess.Popen(
            thinks, cwd=ROOT, env={**environment, "YARD_DB_POOL": "0"}, stdout=output, stderr=output
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(url, server, log)
        yield Site(url, own, server.pid, Path(environment["YARD_HOME"]) / "blobs" / "logs")
    finally:
        for process in (server, worker):
            process.terminate()
        for process in (server, worker):
            process.wait(60)


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 180
    while True:
        try:
            urllib.request.urlopen(f"{url}/sign-in", timeout=60).close()
            return
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the web server did not start:\n{log.read_text()[-2000:]}") from None
            time.sleep(0.05)


def environment_of_tests() -> dict[str, str]:
    """The environment for child processes, with the repository on the path."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}
