"""Writes a simulated cluster in the middle of its work into an empty database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from django.db import connection

from controlplane.accounts import service_accounts
from controlplane.accounts.models import Member, Project
from controlplane.accounts.service import make_token
from controlplane.demo import booked, entitled, planned, profiled, today, tuned, week
from controlplane.demo.cluster import DemoCluster
from controlplane.fleet.models import Node

NODES = ("g01", "g02", "g03", "g04", "a01", "a02", "n01", "n02", "c01")


def plant(
    *,
    seed: int = 7,
    days: int = 7,
    nodes: Sequence[str] = NODES,
    password: str | None = None,
    written: str = "named by hand",
) -> DemoCluster:
    """Write the cluster and return it. The database must be migrated and have neither nodes nor jobs.

    The same ``seed`` gives the same cluster, but for ids and for when. ``days`` is for how long before today it ran
    jobs. Users can sign in with ``password``, or not at all if it is None. ``written`` is what users wrote in names,
    notes and logs: tests write markup.
    """
    cluster = DemoCluster(seed, written)
    cluster.people(password)
    cluster.fleet(nodes)
    Node.objects.update(created_at=cluster.now - timedelta(days=days + 1))  # they were there before they ran jobs
    week.write(cluster, days)
    today.write(cluster)
    cluster.measure()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")  # else the scheduler's questions are planned for tables as empty as they were
    planned.write(cluster)
    entitled.write(cluster, days)
    booked.write(cluster)
    tuned.write(cluster)
    profiled.write(cluster)
    account = service_accounts.create(
        cluster.admin, Project.objects.get(name="vision"), "ci", Member.Role.MEMBER, "tests of the main branch"
    )
    make_token(account, "nightly")
    return cluster
