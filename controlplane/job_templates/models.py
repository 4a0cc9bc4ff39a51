"""Templates that people made."""

from __future__ import annotations

from django.db import models

from controlplane.accounts.models import Project, slug
from controlplane.jobs.written import WrittenField


class JobTemplate(models.Model):
    """A job file with parameters. Without a project it is everybody's.

    :mod:`controlplane.job_templates.service` alone writes it.
    """

    name = models.CharField(max_length=63, validators=[slug])
    project = models.ForeignKey(
        Project, null=True, on_delete=models.CASCADE, related_name="job_templates", db_constraint=False
    )
    title = models.CharField(max_length=100)
    description = models.TextField(blank=True)
    parameters = WrittenField()
    job = WrittenField()
    made_by = models.CharField(max_length=150)
    changed_at = models.DateTimeField()

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(
                fields=["project", "name"], name="job_template_once_per_project", nulls_distinct=False
            )
        ]

    def __str__(self) -> str:
        return f"{self.project.name}/{self.name}" if self.project else self.name
