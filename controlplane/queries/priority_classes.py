"""Priority classes: named priorities."""

from __future__ import annotations

from django.db.models import QuerySet

from controlplane.pools.models import PriorityClass


def priority_classes() -> QuerySet[PriorityClass]:
    """All classes, highest priority first."""
    return PriorityClass.objects.order_by("-value")
