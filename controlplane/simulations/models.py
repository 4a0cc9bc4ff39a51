"""Simulations that people asked for: what is asked, how far it is, and what came of it."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models
from django.db.models.signals import post_delete
from django.dispatch import receiver

from controlplane import storage
from controlplane.background import BackgroundPhase

OPEN = (BackgroundPhase.WAITING, BackgroundPhase.RUNNING)


class Simulation(models.Model):
    """One scenario of one user, lived through by a process of its own.

    ``doing_said`` and ``fault_said`` are the clauses of ``doing`` and ``fault`` (see :mod:`controlplane.clauses`).
    ``seen_at`` is when that process last showed that it lives; ``stopping`` tells it to end. The text of its trace and
    its result lie in the storage ``simulations``: ``trace`` and ``result`` are their names there, empty where there is
    none, with their sizes and digests.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="simulations")
    name = models.CharField(max_length=100)
    scenario = models.JSONField()
    source = models.CharField(max_length=20, blank=True)
    phase = models.CharField(max_length=12, choices=BackgroundPhase, default=BackgroundPhase.WAITING)
    progress = models.FloatField(default=0.0)
    doing = models.CharField(max_length=200, blank=True)
    doing_said = models.JSONField(default=list, db_default=[])
    fault = models.TextField(blank=True)
    fault_said = models.JSONField(default=list, db_default=[])
    trace = models.CharField(max_length=100, blank=True)
    trace_bytes = models.BigIntegerField(default=0)
    trace_sha256 = models.CharField(max_length=64, blank=True)
    result = models.CharField(max_length=100, blank=True)
    result_bytes = models.BigIntegerField(default=0)
    result_sha256 = models.CharField(max_length=64, blank=True)
    stopping = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    seen_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.name} ({self.pk})"


@receiver(post_delete, sender=Simulation)
def forget_bytes(instance: Simulation, **_: Any) -> None:
    """Remove what only this row pointed to, whoever deleted it."""
    storage.forget("simulations", instance.trace, instance.result)
