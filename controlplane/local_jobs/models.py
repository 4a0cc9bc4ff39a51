"""For which projects a node may submit jobs itself, and which of its jobs are in the record."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from controlplane.accounts.models import Project
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job


class LocalGrant(models.Model):
    """That jobs which are submitted on a node for a project are taken into the record, as jobs of ``user``."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="local_grants", db_constraint=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+", db_constraint=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_constraint=False)

    class Meta:
        ordering = ["node", "project"]
        constraints = [models.UniqueConstraint(fields=["node", "project"], name="local_grant_once")]

    def __str__(self) -> str:
        return f"{self.project} on {self.node}"


class LocalJob(models.Model):
    """A job that was submitted on a node itself. Its id was chosen there; the row outlives the job, so that the id is
    taken into the record once."""

    id = models.UUIDField(primary_key=True, editable=False)
    job = models.OneToOneField(
        Job, null=True, on_delete=models.SET_NULL, related_name="submitted_locally", db_constraint=False
    )
    number = models.BigIntegerField(help_text=_("The number of the job."))
    node = models.ForeignKey(Node, null=True, on_delete=models.SET_NULL, related_name="local_jobs", db_constraint=False)
    account = models.CharField(max_length=64, help_text=_("The account of the node that submitted it."))
    accepted_at = models.DateTimeField(help_text=_("When the node accepted it, by the age that the node told."))
    joined_at = models.DateTimeField(help_text=_("When it came into the record."))

    class Meta:
        ordering = ["-joined_at"]

    def __str__(self) -> str:
        return f"#{self.number}"
