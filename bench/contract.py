"""What the contract promises: usage over a long history, arrays, logs, ``yard``, pages, and expected starts.

The rows of the first are those of ``bench api``: 1,000,000 finished and 100,000 pending jobs on 128 nodes of 8 GPUs
over 60 days. The ledger is filled by its own task; what is timed is a whole request over HTTP, of a member and an
accountant in turn.
"""

from __future__ import annotations

import http.client
import multiprocessing
import time
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from typing import Any

from bench import (
    contract_arrays,
    contract_commands,
    contract_logs,
    contract_pages,
    contract_queries,
    contract_starts,
)
from bench.api import FINISHED, NODES, PENDING, Asker, clone, request, servers
from bench.figures import Figures, quantile
from bench.live import Filled, fresh_database
from switchyard.client import Client

SAMPLES = 100


def measure(
    finished: int = FINISHED, pending: int = PENDING, *, only: Collection[str] = (), small: bool = False
) -> Figures:
    """Return the figures of all parts, or of those named in ``only``; ``small`` is quick, for a laptop."""
    parts: dict[str, Callable[[], Figures]] = {
        "arrays": contract_arrays.measure,
        "history": lambda: _history(finished, pending),
        "pages": lambda: _apart(contract_pages.measure, small),
        "starts": lambda: contract_starts.measure(40 if small else contract_starts.SAMPLES),
    }
    if unknown := set(only) - set(parts):
        raise SystemExit(f"no part is called {', '.join(sorted(unknown))}; accepted are {', '.join(parts)}")
    figures, remarks = dict[str, float | int | str](), list[str]()
    for name, part in parts.items():
        if not only or name in only:
            found = part()
            figures |= found.values
            remarks += found.remarks
    return Figures(figures, remarks)


def _apart(measure: Callable[..., Figures], *arguments: Any) -> Figures:
    """Measure in a process of its own: Django knows one database in each."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()


def _history(finished: int, pending: int) -> Figures:
    """Usage, lists, ``yard`` and a search of a log, over a long history."""
    with fresh_database():
        cluster = Filled(NODES)
        began = time.monotonic()
        clone(finished, pending)
        rows_s = time.monotonic() - began
        filled_s, again_s = _count()
        asker = Asker(cluster)
        with servers() as port:
            p95_ms = _usage(port, asker)
            parts = [contract_queries.measure(asker.operator)]
            token = asker.operator["Authorization"].removeprefix("Bearer ")
            url = f"http://127.0.0.1:{port}"
            parts.append(contract_commands.measure(url, token))
            with Client(url, token) as client:
                parts.append(contract_logs.measure(client))
    remarks = [
        f"rows were made in {rows_s:.0f} s, the ledger filled in {filled_s:.0f} s; a later run took {again_s:.2f} s"
    ]
    figures: dict[str, float | int | str] = {"usage_p95_ms": p95_ms, "finished": finished, "pending": pending}
    for part in parts:
        figures |= part.values
        remarks += part.remarks
    return Figures(figures, remarks)


def _count() -> tuple[float, float]:
    """Fill the ledger as its task does, run by run; return how long that took, and one run once it is filled."""
    from django.utils import timezone

    from controlplane.usage import days, ledger, meter

    began = time.monotonic()
    ledger.refresh(timezone.now())
    while len(days.due(now := timezone.now())) > 1 or meter.is_behind(now):
        ledger.refresh(now)
    filled = time.monotonic()
    ledger.refresh(timezone.now())
    return filled - began, time.monotonic() - filled


def _usage(port: int, asker: Asker) -> float:
    from django.contrib.auth.models import Group
    from django.utils import timezone

    from controlplane.accounts import roles, service
    from controlplane.accounts.models import User

    accountant = User.objects.create(username="accountant")
    accountant.groups.add(Group.objects.get(name=roles.ACCOUNTANT))
    secret = service.make_token(accountant, "bench", scopes=service.SCOPES)[1]
    people: list[Any] = [{"Authorization": f"Bearer {secret}"}, asker.member]
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    last = timezone.now().date()
    took: list[float] = []
    for n in range(-2, SAMPLES):
        month = f"from={last - timedelta(days=29 + n % 28)}&to={last - timedelta(days=n % 28)}"
        began = time.perf_counter()
        request(link, "GET", f"/api/v1/usage?{month}&by=project", people[n % 2])
        took.append((time.perf_counter() - began) * 1000)
    # The first of each person warms what any server has warm after a moment.
    print(f"  usage      p50 {quantile(took[2:], 0.5):9.1f} ms   first {took[0]:9.1f} ms", flush=True)
    return quantile(took[2:], 0.95)
