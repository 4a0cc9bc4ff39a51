"""The tallies behind the counters of ``/metrics``, written by database triggers, and how far traces were sent."""

from __future__ import annotations

from django.db import models


class Tally(models.Model):
    """So many facts of one sort, such as ended jobs of a project.

    Rows are only added, by the transaction that makes the facts true, so that nobody waits for a shared row; the sum
    of all rows of a sort is its counter. :func:`controlplane.observability.tallies.fold` replaces many rows by one with
    the same sum. ``amount`` is the sum of what was measured, ``bucket`` its place among the bounds of a histogram.
    """

    id = models.BigAutoField(primary_key=True)
    series = models.CharField(max_length=20)
    pool_id = models.UUIDField(null=True)
    project_id = models.UUIDField(null=True)
    word = models.CharField(max_length=40, db_default="")
    bucket = models.PositiveSmallIntegerField(null=True)
    count = models.BigIntegerField(db_default=1)
    amount = models.FloatField(db_default=0.0)

    class Meta:
        # Whoever may view tallies may read /metrics.
        default_permissions = ("view",)
        verbose_name_plural = "tallies"


class TraceCursor(models.Model):
    """The newest event of which spans were sent (see :mod:`controlplane.observability.traces`); one row."""

    event = models.BigIntegerField()

    class Meta:
        default_permissions = ()
