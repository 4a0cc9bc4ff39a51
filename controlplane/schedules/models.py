"""Schedules and what became of each of their times."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from controlplane.accounts.models import Project, slug


class Schedule(models.Model):
    """A job file that is submitted as ``user`` at each time of the cron line ``cron`` in the time zone ``zone``.

    ``next_at`` is the next time, null while it is paused or after the last. ``fault`` is why the newest submission was
    refused, ``refusals`` how many in a row were; both are told in the ``language`` of who made or changed it last.
    :mod:`controlplane.schedules.service` alone writes it.
    """

    class Overlap(models.TextChoices):
        ALLOW = "allow", _("submit all the same")
        SKIP = "skip", _("skip this time")
        REPLACE = "replace", _("cancel what still runs")

    class CatchUp(models.TextChoices):
        NONE = "none", _("leave them out")
        LAST = "last", _("submit once")
        ALL = "all", _("submit for each")

    name = models.CharField(max_length=63, validators=[slug])
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="schedules", db_constraint=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="schedules", db_constraint=False
    )
    job = models.JSONField(help_text=_("The job file."))
    bundle = models.CharField(max_length=64, blank=True, editable=False)
    cron = models.CharField(max_length=100, help_text=_("Minute, hour, day of the month, month, day of the week."))
    zone = models.CharField(max_length=63, default="UTC", help_text=_("A time zone, such as Europe/Berlin."))
    overlap = models.CharField(
        max_length=8,
        choices=Overlap.choices,
        default=Overlap.SKIP,
        help_text=_("What to do where the job before has not ended."),
    )
    catch_up = models.CharField(
        max_length=8,
        choices=CatchUp.choices,
        default=CatchUp.LAST,
        help_text=_("What to do with times that were missed because the server was away."),
    )
    starts_at = models.DateTimeField(null=True, blank=True)
    ends_at = models.DateTimeField(null=True, blank=True)
    is_paused = models.BooleanField(default=False)
    next_at = models.DateTimeField(null=True, editable=False)
    fault = models.CharField(max_length=500, blank=True, editable=False)
    refusals = models.PositiveIntegerField(default=0, editable=False)
    language = models.CharField(max_length=20, db_default="en", editable=False)
    made_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="schedule_once_per_project"),
            models.CheckConstraint(
                condition=Q(overlap__in=["allow", "skip", "replace"]), name="schedule_overlap_known"
            ),
            models.CheckConstraint(condition=Q(catch_up__in=["none", "last", "all"]), name="schedule_catch_up_known"),
        ]
        indexes = [
            models.Index(fields=["next_at"], name="schedule_due", condition=Q(next_at__isnull=False)),
            models.Index(fields=["bundle"], name="schedule_of_bundle", condition=~Q(bundle="")),
        ]

    def __str__(self) -> str:
        return f"{self.project.name}/{self.name}"


class ScheduleRun(models.Model):
    """What became of one time of a schedule: a job was submitted, or ``detail`` says why none was.

    ``number`` is that of the job, or of the array if it ``is_array``; retention may have removed it.
    """

    class RunOutcome(models.TextChoices):
        SUBMITTED = "submitted", _("submitted")
        SKIPPED = "skipped", _("skipped")
        MISSED = "missed", _("missed")
        REFUSED = "refused", _("refused")

    schedule = models.ForeignKey(Schedule, on_delete=models.CASCADE, related_name="runs", db_constraint=False)
    due_at = models.DateTimeField()
    at = models.DateTimeField()
    outcome = models.CharField(max_length=10, choices=RunOutcome.choices)
    number = models.BigIntegerField(null=True)
    is_array = models.BooleanField(default=False)
    detail = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ["-due_at"]
        constraints = [
            # Two workers that look at once submit once.
            models.UniqueConstraint(fields=["schedule", "due_at"], name="schedule_run_once"),
            models.CheckConstraint(
                condition=Q(outcome__in=["submitted", "skipped", "missed", "refused"]), name="schedule_outcome_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.schedule} {self.due_at:%Y-%m-%d %H:%M}"
