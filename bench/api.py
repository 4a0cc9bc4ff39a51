"""REST and pages over a long history: 1,000,000 finished and 100,000 pending jobs on 128 nodes of 8 GPUs.

Rows are cloned in the database from those that services made; a web server and a worker for questions answer one
request at a time, over HTTP, as they do in the local stack. What is timed is a whole request.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench import part_log
from bench.figures import Figures, quantile
from bench.live import Filled, fresh_database
from deploy.local.port import free_port
from deploy.local.service import ROOT

NODES, FINISHED, PENDING, BULK = 128, 1_000_000, 100_000, 10_000
SAMPLES = {"timeline": 20, "overview": 30, "dry_run": 30}
DAYS = 60
LOG_SAMPLES = 300
# One row of each, cloned: what differs is said by column, and everything else is as it was.
_JOB = {
    "id": "md5('job' || t.id || n)::uuid",
    "number": "{first} + row_number() OVER ()",
    "submitted_at": "{begin} - interval '5 min'",
}
_STAGE = {"id": "md5('stage' || t.id || n)::uuid", "job_id": "md5('job' || t.job_id || n)::uuid"}
_ENDED = {"state": "{state}", "started_at": "{begin}", "ended_at": "{end}"}
_ATTEMPT = {
    "id": "md5('attempt' || t.id || n)::uuid",
    "stage_id": "md5('stage' || t.stage_id || n)::uuid",
    "created_at": "{begin}",
    "started_at": "{begin}",
    "ended_at": "{end}",
    "cause": "CASE WHEN n % 10 = 0 THEN 'EXIT_CODE' ELSE '' END",
}
_PART = {
    "id": "md5('part' || t.id || n)::uuid",
    "attempt_id": "md5('attempt' || t.attempt_id || n)::uuid",
    "phase": "9",
    "forgotten": "true",
    "started_at": "{begin}",
    "ended_at": "{end}",
}
_CLAIM = {"part_id": "md5('part' || t.part_id || n)::uuid", "opened_at": "{begin}", "closed_at": "{end}"}
_EVENTS = """
INSERT INTO jobs_event (job_id, project_id, seq, at, kind, stage, attempt, actor, text, said, params)
SELECT j.id, j.project_id, k.seq, j.submitted_at + k.seq * interval '1 min', k.kind, 'main', 1, 'scheduler',
       'it was so', '[]', '{}'
FROM jobs_job j CROSS JOIN (VALUES (1, 'submitted'), (2, 'placed'), (3, 'started'), (4, 'completed')) AS k(seq, kind)
WHERE j.state IN ('COMPLETED', 'FAILED') ORDER BY j.submitted_at
"""


def measure(finished: int = FINISHED, pending: int = PENDING) -> Figures:
    """Return the P95 of each kind of request in ms, ``api_bulk_s``, and how logs do at length."""
    with fresh_database():
        cluster = Filled(NODES)
        began = time.monotonic()
        clone(finished, pending)
        rows_s = time.monotonic() - began
        asker = Asker(cluster)
        with servers() as port:
            figures = _asked(port, asker) | _scraped(port, asker)
        figures |= _logs(cluster)
    return Figures({**figures, "finished": finished, "pending": pending}, [f"rows were made in {rows_s:.0f} s"])


def clone(finished: int, pending: int) -> None:
    """Clone what runs into finished jobs over the last ``DAYS``, and what waits."""
    from django.db import connection

    from controlplane.jobs.models import Job

    running, waiting = Job.objects.filter(state="RUNNING").count(), Job.objects.filter(state="PENDING").count()
    times = finished // running
    span = f"interval '1 second' * {DAYS * 86_400 / times}"
    ended = {"state": "CASE WHEN n % 10 = 0 THEN 'FAILED' ELSE 'COMPLETED' END", "begin": f"now() - (n + 1) * {span}"}
    ended |= {"end": f"now() - n * {span}", "first": "10000"}
    waits = {"begin": "now() - interval '1 second' * n", "first": str(20_000 + times * running)}
    with connection.cursor() as cursor:
        # No trigger looks at what is only cloned.
        cursor.execute("SET session_replication_role = replica; SET statement_timeout = 0")
        _copy(cursor, "jobs_job", "t.state = 'RUNNING'", times, _JOB | _ENDED, ended)
        _copy(cursor, "jobs_stage", "t.state = 'RUNNING'", times, _STAGE | _ENDED, ended)
        _copy(cursor, "jobs_attempt", "t.ended_at IS NULL", times, _ATTEMPT, ended)
        _copy(cursor, "jobs_part", "t.ended_at IS NULL", times, _PART, ended)
        _copy(cursor, "jobs_claim", "t.closed_at IS NULL", times, _CLAIM, ended, but=("id",))
        _copy(cursor, "jobs_job", "t.state = 'PENDING'", pending // waiting, _JOB, waits)
        _copy(cursor, "jobs_stage", "t.state = 'PENDING'", pending // waiting, _STAGE, waits)
        cursor.execute(_EVENTS)
        cursor.execute("SELECT setval('jobs_job_number', (SELECT max(number) + 1 FROM jobs_job))")
        cursor.execute("SET session_replication_role = DEFAULT")
        cursor.execute("VACUUM ANALYZE")


def _copy(
    cursor: Any,
    table: str,
    which: str,
    times: int,
    other: dict[str, str],
    values: dict[str, str],
    but: tuple[str, ...] = (),
) -> None:
    """Clone the rows of a table ``times`` times; what was cloned already is not."""
    cursor.execute("SELECT column_name FROM information_schema.columns WHERE table_name = %s", [table])
    columns = [name for (name,) in cursor.fetchall() if name not in but]
    chosen = [other[name].format(**values) if name in other else f't."{name}"' for name in columns]
    named = ", ".join(f'"{name}"' for name in columns)
    cursor.execute(
        f"INSERT INTO {table} ({named}) SELECT {', '.join(chosen)} "
        f"FROM generate_series(1, {times}) n, {table} t WHERE {which} ORDER BY n DESC"
    )


def _logs(cluster: Filled) -> dict[str, float | int | str]:
    """How much longer an append and a tail of 64 KiB take at a gigabyte of log than at a megabyte."""
    from django.db import transaction

    from controlplane.jobs import logs

    piece = (b"x" * 127 + b"\n") * 512
    took: dict[str, list[float]] = {}
    for number, (name, megabytes) in enumerate((("short", 1), ("long", 1_000))):
        part = cluster.going[number]
        count = megabytes * 16 // 2
        part_log.write(part, [piece] * count, logs.STREAMS)
        for n in range(LOG_SAMPLES):
            began = time.perf_counter()
            with transaction.atomic():
                logs.append([logs.Piece(part.id, logs.STREAMS[n % 2], (count + n // 2) * len(piece), piece)])
            between = time.perf_counter()
            if logs.tail(part, "both", 512) != piece:
                raise SystemExit("the tail is not what was appended")
            took.setdefault(f"append {name}", []).append(between - began)
            took.setdefault(f"tail {name}", []).append(time.perf_counter() - between)
    middle = {name: quantile(samples, 0.5) * 1000 for name, samples in took.items()}
    print("  " + ", ".join(f"{name} {value:.2f} ms" for name, value in middle.items()), flush=True)
    return {f"log_{what}_ratio": middle[f"{what} long"] / middle[f"{what} short"] for what in ("append", "tail")}


class Asker:
    """Who asks: a member of one project, a stranger to all, and a browser that is signed in."""

    def __init__(self, cluster: Filled) -> None:
        from django.test import Client

        from controlplane.accounts import service
        from controlplane.accounts.models import Member, Project, User

        project = cluster.projects[0]
        self.project = project.name
        member = User.objects.create(username="member", default_project=project)
        Member.objects.create(project=project, user=member, role="member")
        stranger = User.objects.create(username="stranger")
        Member.objects.create(project=Project.objects.create(name="elsewhere"), user=stranger, role="member")
        self.member = {"Authorization": f"Bearer {service.make_token(member, 'bench', scopes=service.SCOPES)[1]}"}
        self.stranger = {"Authorization": f"Bearer {service.make_token(stranger, 'bench', scopes=service.SCOPES)[1]}"}
        browser = Client()
        browser.force_login(member)
        operator = User.objects.create(username="operator", is_superuser=True)
        self.operator = {"Authorization": f"Bearer {service.make_token(operator, 'bench', scopes=['read'])[1]}"}
        self.browser = {"Cookie": f"yard_session={browser.cookies['yard_session'].value}"}

    def numbers(self, state: str, count: int) -> list[int]:
        from controlplane.jobs.models import Job

        chosen = Job.objects.filter(project__name=self.project, state=state).order_by("id")
        return list(chosen.values_list("number", flat=True)[:count])


@contextmanager
def servers() -> Iterator[int]:
    """A web server and a worker for questions; yields the port."""
    port = free_port(18_470)
    web = [sys.executable, "-m", "uvicorn", "controlplane.asgi:application", "--port", str(port)]
    web += ["--log-level", "warning", "--lifespan", "off", "--no-access-log"]
    worker = [sys.executable, "-m", "celery", "--app", "controlplane", "--quiet", "worker", "--queues", "questions"]
    worker += ["--pool", "threads", "--concurrency", "8", "--loglevel", "ERROR"]
    common = {**os.environ, "PYTHONPATH": str(ROOT), "YARD_LOG_LEVEL": "ERROR"}
    started = [
        subprocess.Popen(web, env={**common, "YARD_DB_POOL": "8"}),
        subprocess.Popen(worker, env={**common, "YARD_DB_POOL": "0"}),
    ]
    try:
        for _ in range(600):
            try:
                request(http.client.HTTPConnection("127.0.0.1", port), "GET", "/api/v1/version", {})
                break
            except OSError:
                time.sleep(0.1)
        yield port
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def _send(
    link: http.client.HTTPConnection, method: str, path: str, headers: dict[str, str], body: Any = None
) -> tuple[int, bytes]:
    sent = None if body is None else json.dumps(body).encode()
    link.request(method, path, body=sent, headers={**headers, "Content-Type": "application/json"})
    answer = link.getresponse()
    return answer.status, answer.read()


def request(
    link: http.client.HTTPConnection, method: str, path: str, headers: dict[str, str], body: Any = None
) -> bytes:
    """The body of an answer that must be no refusal."""
    status, content = _send(link, method, path, headers, body)
    if status >= 400:
        raise SystemExit(f"{method} {path} was answered {status}: {content[:300]!r}")
    return content


def _scraped(port: int, asker: Asker) -> dict[str, float | int | str]:
    """How long a scrape of Prometheus takes that nobody asked for in the last seconds."""
    from django.core.cache import cache

    link = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    took, content = [], b""
    for _ in range(21):
        cache.delete("metrics:prometheus")
        began = time.perf_counter()
        content = request(link, "GET", "/metrics", asker.operator)
        took.append((time.perf_counter() - began) * 1000)
    lines = sum(not line.startswith(b"#") for line in content.splitlines())
    print(f"  scrape     p50 {quantile(took[1:], 0.5):9.1f} ms   first {took[0]:9.1f} ms, {lines} series", flush=True)
    return {"api_scrape_p95_ms": quantile(took[1:], 0.95)}


def _until_known(link: http.client.HTTPConnection, path: str, headers: dict[str, str], body: Any) -> None:
    """Ask until the worker has read the world for the first time; meanwhile it says that it is busy."""
    began = time.perf_counter()
    for _ in range(10):
        if _send(link, "POST", path, headers, body)[0] != 503:
            break
    print(f"  the worker knew the world after {time.perf_counter() - began:.1f} s", flush=True)


def _asked(port: int, asker: Asker) -> dict[str, float | int | str]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    ended, waiting = asker.numbers("COMPLETED", 50), asker.numbers("PENDING", 50)
    one = {"name": "family-7", "run": "true", "project": asker.project, "devices": {"kind": "gpu"}, "time_limit": "1h"}
    days = 31 * 86_400
    ways: dict[str, tuple[str, Callable[[int], str], dict[str, str], Any]] = {
        "list": ("GET", lambda n: "/api/v1/jobs?limit=50", asker.member, None),
        "filter": ("GET", lambda n: f"/api/v1/jobs?limit=50&state=FAILED&q=family-{n}", asker.member, None),
        "show": ("GET", lambda n: f"/api/v1/jobs/{ended[n % 50]}", asker.member, None),
        "why": ("GET", lambda n: f"/api/v1/jobs/{waiting[n % 50]}/why", asker.member, None),
        "events": ("GET", lambda n: f"/api/v1/events?project={asker.project}", asker.stranger, None),
        "timeline": ("GET", lambda n: f"/api/v1/timeline?from=-{days}&to=0", asker.member, None),
        "overview": ("GET", lambda n: "/", asker.browser, None),
        "submit": ("POST", lambda n: "/api/v1/jobs", asker.member, one),
        "dry_run": ("POST", lambda n: "/api/v1/jobs?dry_run=placement", asker.member, one),
    }
    figures: dict[str, float | int | str] = {}
    for name, (method, path, headers, body) in ways.items():
        took: list[float] = []
        if name == "dry_run":
            _until_known(link, path(0), headers, body)
        for n in range(-1, SAMPLES.get(name, 100)):
            began = time.perf_counter()
            request(link, method, path(n), headers, body)
            took.append((time.perf_counter() - began) * 1000)
        # The first of each kind warms what any server has warm after a moment.
        figures[f"api_{name}_p95_ms"] = quantile(took[1:], 0.95)
        print(f"  {name:<10} p50 {quantile(took[1:], 0.5):9.1f} ms   first {took[0]:9.1f} ms", flush=True)
        if name == "submit":
            began = time.perf_counter()
            request(link, "POST", "/api/v1/jobs/batch", asker.member, {"jobs": [one] * BULK})
            figures["api_bulk_s"] = time.perf_counter() - began
    return figures
