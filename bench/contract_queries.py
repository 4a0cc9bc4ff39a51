"""Whether the number of queries of a list grows with its rows: each list of the API with 2 and with 40 on a page."""

from __future__ import annotations

from typing import Final

from bench.figures import Figures

FEW, MANY = 2, 40
# The lists in pages; the others answer with all there is, and are counted as they are by the tests of each.
LISTS: Final = (
    "jobs", "jobs?state=FAILED", "jobs?state=PENDING", "arrays", "queue", "nodes", "devices", "events", "decisions",
    "simulations", "schedules", "audit",
)  # fmt: skip


def measure(headers: dict[str, str]) -> Figures:
    """Return how many lists ask the database more often for more rows; which ones stand in the remarks."""
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    client = Client(headers=headers, SERVER_NAME="127.0.0.1")
    counted: dict[str, tuple[list[int], list[int]]] = {}
    skipped = []
    for path in LISTS:
        rows, queries = [], []
        for limit in (FEW, FEW, MANY):  # the first fills what is cached for a moment
            mark = "&" if "?" in path else "?"
            with CaptureQueriesContext(connection) as captured:
                answer = client.get(f"/api/v1/{path}{mark}limit={limit}")
            if answer.status_code != 200:
                raise SystemExit(f"{path} was answered {answer.status_code}: {answer.content[:300]!r}")
            rows.append(len(answer.json()["results"]))
            queries.append(len(captured))
        if rows[2] > rows[1]:
            counted[path] = rows[1:], queries[1:]
        else:
            skipped.append(path)
    grown = {path: queries for path, (_rows, queries) in counted.items() if queries[1] > queries[0]}
    remarks = [f"{path}: {few} queries for {FEW} rows, {many} for {MANY}" for path, (few, many) in grown.items()]
    remarks.append(f"{len(counted)} lists counted; too few rows in {', '.join(skipped) or 'none'}")
    return Figures({"queries_grow": len(grown)}, remarks)
