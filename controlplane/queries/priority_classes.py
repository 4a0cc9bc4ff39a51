"""Priority classes: names for how urgent a job is."""

from __future__ import annotations

from django.db.models import QuerySet

from controlplane.pools.models import PriorityClass


def priority_classes() -> QuerySet[PriorityClass]:
    """All classes, the most urgent first."""
    return PriorityClass.objects.order_by("-value")
