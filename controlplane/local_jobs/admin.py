"""Which nodes may submit jobs themselves, in the administration; and the jobs that came so, to read."""

from __future__ import annotations

from django.contrib import admin

from controlplane.accounts.admin import Audited
from controlplane.jobs.admin import ReadOnly
from controlplane.local_jobs.models import LocalGrant, LocalJob


@admin.register(LocalGrant)
class LocalGrantAdmin(Audited):
    """For which projects jobs that are submitted on a node itself are taken, and whose jobs they are then."""

    list_display = ["node", "project", "user"]
    list_select_related = ["node", "project", "user"]
    search_fields = ["node__name", "project__name"]


@admin.register(LocalJob)
class LocalJobAdmin(ReadOnly):
    """Jobs that were submitted on a node while it was cut off."""

    list_display = ["number", "node", "account", "accepted_at", "joined_at"]
    list_select_related = ["node"]
    list_filter = ["node"]
