"""How late agents' reports are answered while 50 people ask the heaviest questions without pause, with 500 nodes.

Gateway, web server and workers are processes of their own, as in production. Each node says every five seconds over its
own socket what runs on it; a report's time is from its sending to the message that answers it. All of it shares the
machine's cores, the 50 people and the 500 agents too.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from agents.protocol import Desired, InventoryRef, Report
from bench.figures import Figures, quantile
from bench.live import GPUS, Filled, _here, fresh_database
from deploy.local.port import free_port
from deploy.local.service import ROOT

NODES, PEOPLE, WARM_UP_S, MEASURE_S, REPORT_S = 500, 50, 40.0, 60.0, 5.0
LATE_S = 60.0
# As deploy/systemd has it: what people wait for gives way to what agents and the scheduler do.
_NICE = ["nice", "-n", "5"]


def measure(nodes: int = NODES) -> Figures:
    """Return ``report_p99_ms``, P50 and most with people, P99 without, and what people were answered."""
    with fresh_database():
        cluster = Filled(nodes)
        with _processes() as (web, gateway):
            alone = asyncio.run(_reports(cluster, gateway, MEASURE_S / 2))
            people = _people(cluster)
            asking = subprocess.Popen(
                [sys.executable, "-m", "bench.reports", str(web)],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert asking.stdin is not None
            asking.stdin.write(json.dumps(people).encode() + b"\n")
            asking.stdin.flush()
            among = asyncio.run(_reports(cluster, gateway, MEASURE_S))
            said, _ = asking.communicate(b"stop\n")
    answered = json.loads(said)
    return Figures(
        {
            "report_p99_ms": quantile(among, 0.99),
            "report_p50_ms": quantile(among, 0.5),
            "report_max_ms": max(among),
            "report_alone_p99_ms": quantile(alone, 0.99),
            "reports": len(among),
            "questions": sum(answered.values()),
            "nodes": nodes,
            "people": PEOPLE,
        },
        [f"answered {words}: {count}" for words, count in sorted(answered.items())],
    )


def _people(cluster: Filled) -> dict[str, Any]:
    """Tokens of people, and what they ask about."""
    from controlplane.accounts import service
    from controlplane.accounts.models import Member, User
    from controlplane.jobs.models import Decision, Job

    project, tokens = cluster.projects[0], []
    for n in range(PEOPLE):
        # Each may ask everything.
        user = User.objects.create(username=f"person-{n}", default_project=project, is_staff=True, is_superuser=True)
        Member.objects.create(project=project, user=user, role="member")
        tokens.append(service.make_token(user, "bench", scopes=service.SCOPES)[1])
    waiting = Job.objects.filter(project=project, state="PENDING").values_list("number", flat=True)[:50]
    decisions = Decision.objects.values_list("pk", flat=True)[:20]
    return {"tokens": tokens, "jobs": list(waiting), "decisions": list(decisions), "project": project.name}


@contextmanager
def _processes() -> Iterator[tuple[int, int]]:
    """Web server, gateway, scheduler, workers and beat; yields the ports of the first two."""
    web, gateway = free_port(18_480), free_port(18_490)
    common = {**os.environ, "PYTHONPATH": str(ROOT), "YARD_LOG_LEVEL": "ERROR"}
    server = ["--ws", "websockets-sansio", "--ws-per-message-deflate", "false", "--log-level", "error"]
    server += ["--http", "controlplane.request_head:BoundedHead", "--lifespan", "off", "--no-access-log"]
    celery = [sys.executable, "-m", "celery", "--app", "controlplane", "--quiet"]
    threads = ["--pool", "threads", "--concurrency", "8"]
    worker = [*celery, "worker", "--loglevel", "ERROR"]
    commands = [
        [*_NICE, sys.executable, "-m", "uvicorn", "controlplane.asgi:application", "--port", str(web), *server],
        [sys.executable, "-m", "uvicorn", "controlplane.gateway.asgi:application", "--port", str(gateway), *server],
        [*worker, "--queues", "scheduling,fleet", "--concurrency", "1", "-n", "scheduler@bench"],
        [*worker, "--queues", "maintenance", "--concurrency", "1", "-n", "maintenance@bench"],
        [*worker, "--queues", "questions,simulations", *threads, "-n", "questions@bench"],
        [*celery, "beat", "--schedule", os.path.join(os.environ["YARD_HOME"], "beat"), "--loglevel", "ERROR"],
    ]
    started = [
        subprocess.Popen(command, env={**common, "YARD_DB_POOL": "16" if "uvicorn" in command else "0"})
        for command in commands
    ]
    try:
        for port in (web, gateway):
            while not _listens(port):
                time.sleep(0.1)
        yield web, gateway
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def _listens(port: int) -> bool:
    try:
        http.client.HTTPConnection("127.0.0.1", port, timeout=5).request("GET", "/healthz")
    except OSError:
        return False
    return True


async def _reports(cluster: Filled, port: int, measure_s: float) -> list[float]:
    """Milliseconds from each report to its answer, over all nodes, once all are connected and warm."""
    from asgiref.sync import sync_to_async

    here = defaultdict(list)
    for part in cluster.going:
        here[part.node_id].append(_here(part))
    await sync_to_async(_give_credentials)(cluster)
    begin, took = time.monotonic() + WARM_UP_S, list[float]()
    async with asyncio.TaskGroup() as group:
        for number, node in enumerate(cluster.nodes):
            group.create_task(_agent(node, here[node.id], port, number, begin, begin + measure_s, took))
    print(f"  {len(took)} reports, p50 {quantile(took, 0.5):.0f} ms, p99 {quantile(took, 0.99):.0f} ms", flush=True)
    return took


def _give_credentials(cluster: Filled) -> None:
    from controlplane.accounts.service import digest
    from controlplane.fleet.models import Node

    for node in cluster.nodes:
        node.credential_digest = digest(node.name)
    Node.objects.bulk_update(cluster.nodes, ["credential_digest"], batch_size=500)


async def _agent(
    node: Any, here: list[Any], port: int, number: int, begin: float, end: float, took: list[float]
) -> None:
    """One node: it connects in its turn, reports every five seconds, and waits for the answer of each.

    As an agent does, it says again with its next report what is not answered, and connects again where it is cut off.
    A report's time goes on until one that holds it is answered.
    """
    await asyncio.sleep(WARM_UP_S / 2 * number / NODES)
    seq = int(time.time())
    pending = time.monotonic()
    while pending < end:
        try:
            async with _link(node, port) as link:
                while pending < end:
                    seq += 1
                    await link.send(_report(seq, here))
                    if not await _answered(link, seq):
                        continue
                    now = time.monotonic()
                    if pending >= begin:
                        took.append((now - pending) * 1000)
                    await asyncio.sleep(max(0.0, pending + REPORT_S - now))
                    pending = time.monotonic()
        except (OSError, ConnectionClosed, InvalidHandshake):
            if time.monotonic() > end + LATE_S:
                raise SystemExit("a report is not answered at all") from None
            await asyncio.sleep(1)


def _link(node: Any, port: int) -> Any:
    header = {"Authorization": f"Node {node.id}:{node.name}"}
    url = f"ws://127.0.0.1:{port}/agent/v1/link"
    return connect(url, additional_headers=header, compression=None, open_timeout=LATE_S, max_size=64 << 20)


def _report(seq: int, here: list[Any]) -> str:
    report = Report(
        proto=1,
        agent="1.0.0",
        boot_id="boot",
        start_seq=1,
        seq=seq,
        seen_generation=0,
        inventory=InventoryRef(hash="inventory"),
        here=here,
    )
    return msgspec.json.encode(report).decode()


async def _answered(link: Any, seq: int) -> bool:
    """Whether this report is answered before the next is due."""
    try:
        async with asyncio.timeout(REPORT_S):
            while (msgspec.json.decode(await link.recv(), type=Desired).answers_seq or 0) < seq:
                pass
    except TimeoutError:
        return False
    return True


def _ask_without_pause(port: int) -> None:
    """The 50 people, in a process of their own; what they were answered, by status, goes to standard output."""
    known = json.loads(sys.stdin.readline())
    stop, counts = threading.Event(), Counter[str]()
    people = [
        threading.Thread(target=_person, args=(port, n, token, known, stop, counts), daemon=True)
        for n, token in enumerate(known["tokens"])
    ]
    for person in people:
        person.start()
    sys.stdin.readline()
    stop.set()
    for person in people:
        person.join(60)
    print(json.dumps(counts))


def _person(port: int, n: int, token: str, known: dict[str, Any], stop: threading.Event, counts: Counter[str]) -> None:
    dice, jobs = random.Random(n), known["jobs"]
    trial = {"name": "trial", "run": "true", "project": known["project"], "devices": {"kind": "gpu", "count": GPUS}}
    spare = {"name": "spare", "trace": {"generate": {"jobs": 2_000}}, "profiles": ["hybrid", "fifo"]}
    month = 31 * 86_400
    ways = (
        ("POST", "/api/v1/jobs?dry_run=placement", trial),
        ("GET", "/api/v1/jobs/{job}/counterfactuals", None),
        ("GET", "/api/v1/consolidation", None),
        ("GET", "/api/v1/decisions/{decision}/difference?profile=fifo", None),
        ("GET", f"/api/v1/timeline?from=-{month}&to=0", None),
        ("GET", "/api/v1/overview", None),
        ("POST", "/api/v1/simulations", spare),
    )
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while not stop.is_set():
        method, path, body = dice.choice(ways)
        path = path.format(job=dice.choice(jobs), decision=dice.choice(known["decisions"]))
        name = f"{method} {path.partition('?')[0].rstrip('0123456789')}"
        name = "/".join("N" if word.isdecimal() else word for word in name.split("/"))
        try:
            link.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
            answer = link.getresponse()
            answer.read()
            counts[f"{answer.status} {name}"] += 1
        except (OSError, http.client.HTTPException):
            counts[f"none {name}"] += 1
            link.close()


if __name__ == "__main__":
    _ask_without_pause(int(sys.argv[1]))
