"""What people of the simulated cluster planned: windows and reservations, and a webhook with what it was told."""

from __future__ import annotations

import secrets
import uuid
from contextlib import suppress
from datetime import timedelta

from controlplane.accounts.keys import KeyUnavailable
from controlplane.accounts.models import Project, User
from controlplane.demo.cluster import DemoCluster
from controlplane.fleet.models import MaintenanceWindow, Node, Reservation
from controlplane.jobs.models import Job
from controlplane.notifications.models import TriedDelivery, Webhook, WebhookDelivery
from controlplane.pools.models import Pool


def write(cluster: DemoCluster) -> None:
    """Write all of them."""
    _planned(cluster)
    with suppress(KeyUnavailable):  # an installation may have no keys for secrets yet
        _told(cluster)


def _planned(cluster: DemoCluster) -> None:
    """A window of tomorrow, one that recurs each week, and two reservations."""
    noon = cluster.now.replace(hour=12, minute=0, second=0, microsecond=0)
    nodes = list(Node.objects.filter(name__startswith="g").order_by("sort_key"))
    MaintenanceWindow.objects.create(
        node=nodes[0], starts_at=noon + timedelta(days=1), ends_at=noon + timedelta(days=1, hours=4),
        reason="fan swap, ticket 311", made_by="admin",
    )  # fmt: skip
    MaintenanceWindow.objects.create(
        pool=Pool.objects.get(name="simulated"), starts_at=noon + timedelta(days=2), ends_at=noon + timedelta(days=90),
        cron="0 3 * * 0", time_zone="Europe/Berlin", lasts_s=7_200, reason="updates of the drivers", made_by="admin",
    )  # fmt: skip
    course = Reservation.objects.create(
        name="course", project=Project.objects.get(name="vision"), starts_at=noon + timedelta(days=2),
        ends_at=noon + timedelta(days=60), cron="0 13 * * 2,4", time_zone="Europe/Berlin", lasts_s=10_800,
        reason="the course on fine-tuning", made_by="admin",
    )  # fmt: skip
    course.nodes.set(nodes[1:3])
    course.users.set(User.objects.filter(username="lin.wei"))
    demo = Reservation.objects.create(
        name="demo-day", project=Project.objects.order_by("name")[0], starts_at=noon + timedelta(days=5),
        ends_at=noon + timedelta(days=8), reason="the demonstration", made_by="admin",
    )  # fmt: skip
    demo.nodes.set(nodes[3:5])


def _told(cluster: DemoCluster) -> None:
    """A webhook of a host that there is not, so that the simulated cluster tells nobody of its jobs."""
    project = Project.objects.get(name="vision")
    row = Webhook(
        project=project, name="chat", url="https://hooks.invalid/yard?room=7", states=["FAILED"], made_by="admin",
        created_at=cluster.now - timedelta(days=6), failures=2, fault="status_503",
        retry_at=cluster.now + timedelta(minutes=20), delivered_at=cluster.now - timedelta(hours=4),
    )  # fmt: skip
    row.put(secrets.token_bytes(32))
    row.save()
    number = Job.objects.filter(project=project).latest("number").number
    told = {"name": "sft", "project": "vision", "pool": "simulated", "state": "FAILED", "before": "RUNNING"}
    for hours, status, fault, tries in (
        (0.1, 503, "status_503", 2), (4, 204, "", 1), (9, 200, "", 4), (30, None, "timed_out", 27), (52, 204, "", 1),
    ):  # fmt: skip
        at, event, data = cluster.now - timedelta(hours=hours), uuid.uuid4(), told | {"number": number}
        TriedDelivery.objects.create(
            webhook=row, event=event, at=at, data=data, tries=tries, tried_at=at, status=status, fault=fault,
            took_s=5.0 if status is None else 0.04 * tries,
        )  # fmt: skip
        if hours < 1:
            WebhookDelivery.objects.create(webhook=row, event=event, at=at, data=data)
