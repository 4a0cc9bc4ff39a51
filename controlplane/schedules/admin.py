"""Schedules in the administration, to read: they are changed by their page, ``yard`` and REST, which check them."""

from __future__ import annotations

from django.contrib import admin

from controlplane.jobs.admin import ReadOnly
from controlplane.schedules.models import Schedule, ScheduleRun


@admin.register(Schedule)
class ScheduleAdmin(ReadOnly):
    """When job files are submitted, and as whom; the file itself is on the page of the schedule."""

    list_display = ["name", "project", "user", "cron", "zone", "is_paused", "next_at", "refusals"]
    list_filter = ["is_paused", "overlap", "catch_up"]
    list_select_related = ["project", "user"]
    search_fields = ["name", "project__name", "user__username"]
    exclude = ["job"]


@admin.register(ScheduleRun)
class ScheduleRunAdmin(ReadOnly):
    """What became of the times of schedules."""

    list_display = ["schedule", "due_at", "outcome", "number", "detail"]
    list_filter = ["outcome"]
    list_select_related = ["schedule__project"]
