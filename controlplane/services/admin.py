"""Services in the administration, to read: they are changed by their page, ``yard`` and REST, which check them."""

from __future__ import annotations

from django.contrib import admin

from controlplane.jobs.admin import ReadOnly
from controlplane.services.models import InferenceService, Promotion, Replica, ServiceRevision


@admin.register(InferenceService)
class InferenceServiceAdmin(ReadOnly):
    """Services, and how many replicas they want."""

    list_display = ["name", "project", "user", "revision", "wanted", "queued", "active", "fault"]
    list_select_related = ["project", "user"]
    search_fields = ["name", "project__name", "user__username"]


@admin.register(ServiceRevision)
class ServiceRevisionAdmin(ReadOnly):
    """Revisions of services."""

    list_display = ["service", "number", "made_by", "made_at", "ready_at", "is_failed"]
    list_select_related = ["service__project"]
    exclude = ["file", "template"]


@admin.register(Replica)
class ReplicaAdmin(ReadOnly):
    """Replicas of services, and the numbers of their jobs."""

    list_display = ["id", "revision", "job", "port", "is_healthy", "outstanding", "made_at", "ended_at"]
    list_select_related = ["revision__service__project"]


@admin.register(Promotion)
class PromotionAdmin(ReadOnly):
    """Promotions of models to services, and what came of them."""

    list_display = ["id", "name", "project", "job", "stage", "user", "state", "revision", "made_at", "ended_at"]
    list_select_related = ["project"]
    search_fields = ["name", "project__name", "user", "job"]
