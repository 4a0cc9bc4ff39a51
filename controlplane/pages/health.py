"""Faults of the installation; for staff also its queues, workers and tasks."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from controlplane.pages.shell import page, reader
from controlplane.queries import health
from controlplane.queries.reading import seen

TITLES = {
    "database": gettext_lazy("Database"),
    "tables": gettext_lazy("Tables"),
    "scheduler": gettext_lazy("Scheduler"),
    "redis": gettext_lazy("Redis"),
    "workers": gettext_lazy("Workers"),
    "beat": gettext_lazy("Periodic tasks"),
    "queues": gettext_lazy("Queues"),
    "tasks": gettext_lazy("Tasks"),
    "alarms": gettext_lazy("Alarms"),
    "storage": gettext_lazy("Storage"),
    "secrets": gettext_lazy("Secrets"),
    "nodes": gettext_lazy("Nodes"),
    "providers": gettext_lazy("Providers of nodes"),
}


@login_required
def show(request: HttpRequest) -> HttpResponse:
    answer = seen(reader(request), "/health", health.installation(reader(request)))
    checks = [{**one, "title": TITLES.get(one["name"], one["name"])} for one in answer.body["checks"]]
    tasks = [{**one, "took_ms": one["took_s"] * 1000} for one in answer.body["tasks"]]
    return page(
        request,
        "health.html",
        {"ok": answer.body["ok"], "checks": checks, "queues": answer.body["queues"], "tasks": tasks},
        place="health",
        topics=(answer,),
        crumbs=[(_("Health"), "")],
    )
