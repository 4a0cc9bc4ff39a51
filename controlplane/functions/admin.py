"""Functions in the administration, to read; events and results of calls are for members of the project only."""

from __future__ import annotations

from django.contrib import admin

from controlplane.functions.models import DeployedFunction, FunctionCall
from controlplane.jobs.admin import ReadOnly


@admin.register(DeployedFunction)
class DeployedFunctionAdmin(ReadOnly):
    """Functions, and the services that they are."""

    list_display = ["service", "file"]
    list_select_related = ["service__project"]
    search_fields = ["service__name", "service__project__name"]


@admin.register(FunctionCall)
class FunctionCallAdmin(ReadOnly):
    """Calls in queues, without what they say."""

    list_display = ["id", "function", "state", "tries", "made_at", "ended_at"]
    list_select_related = ["function__service__project"]
    list_filter = ["state"]
    exclude = ["event", "result"]
