"""Retention choices of projects, and past removals."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import models
from django.utils.translation import gettext_lazy as _

from controlplane.accounts.models import Project


class Override(models.Model):
    """The retention of one kind of records of one project; for logs also their size."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="retention")
    kind = models.CharField(max_length=20)
    days = models.PositiveIntegerField(null=True, blank=True, help_text=_("Empty: as for all projects."))
    log_bytes = models.BigIntegerField(
        null=True, blank=True, help_text=_("Of logs: how many bytes the project may have of ended stages.")
    )

    class Meta:
        ordering = ["project__name", "kind"]
        constraints = [models.UniqueConstraint(fields=["project", "kind"], name="retention_once")]

    def __str__(self) -> str:
        return f"{self.project}: {self.kind}"

    def clean(self) -> None:
        from controlplane.retention import rules

        if fault := rules.fault(self.kind, self.days, self.log_bytes):
            raise ValidationError(fault)


class Removal(models.Model):
    """What one run removed of a project, or of the cluster without one: by kind, the numbers of rows and bytes, and the
    age of the oldest."""

    at = models.DateTimeField(auto_now_add=True, db_index=True)
    project = models.ForeignKey(Project, null=True, on_delete=models.CASCADE, related_name="+")
    went = models.JSONField()

    class Meta:
        ordering = ["-id"]
