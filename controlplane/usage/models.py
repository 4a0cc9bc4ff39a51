"""The daily ledger of device time, what was measured of each claim, and the price table.

Times are in milliseconds of a whole device, of a CPU in milliseconds of one core: the unit in which quotas count.
:mod:`controlplane.usage.meter` alone writes what was measured, :mod:`controlplane.usage.ledger` alone the days.
"""

from __future__ import annotations

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from controlplane.accounts.models import Project
from controlplane.jobs.models import Claim, Job
from controlplane.pools import kinds
from controlplane.pools.models import Pool


class DeviceTime(models.Model):
    """The device time of one UTC day on devices of one kind and model.

    ``charged_ms`` is ``allocated_ms`` weighted as for fair share. Of ``allocated_ms``, ``known_ms`` had a measured
    utilisation, which made ``busy_ms``; ``powered_ms`` had measured power, which made ``millijoules``.
    ``preempted_ms`` and ``failed_ms`` were lost. ``attempts`` began on that day with such a device as their main one.
    """

    day = models.DateField()
    kind = models.CharField(max_length=20)
    model = models.CharField(max_length=120, blank=True)
    allocated_ms = models.BigIntegerField(default=0)
    charged_ms = models.BigIntegerField(default=0)
    known_ms = models.BigIntegerField(default=0)
    busy_ms = models.BigIntegerField(default=0)
    preempted_ms = models.BigIntegerField(default=0)
    failed_ms = models.BigIntegerField(default=0)
    powered_ms = models.BigIntegerField(default=0)
    millijoules = models.BigIntegerField(default=0)
    attempts = models.PositiveIntegerField(default=0)

    class Meta:
        abstract = True


class LedgerEntry(DeviceTime):
    """The device time of one day, by project, user, pool and device model. It outlives the jobs."""

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="+")

    class Meta:
        ordering = ["-day", "project__name"]
        verbose_name_plural = "ledger entries"
        constraints = [
            models.UniqueConstraint(
                fields=["day", "project", "user", "pool", "kind", "model"], name="ledger_entry_once"
            ),
            models.CheckConstraint(
                condition=Q(busy_ms__gte=0, busy_ms__lte=models.F("known_ms"), known_ms__lte=models.F("allocated_ms")),
                name="ledger_busy_is_known_is_allocated",
            ),
        ]
        indexes = [models.Index(fields=["project", "day"], name="ledger_of_project")]

    def __str__(self) -> str:
        return f"{self.day} {self.project}"


class JobEntry(DeviceTime):
    """The device time of one job on one day, which goes with the job; entries of the ledger are sums of these.

    ``project`` and ``user`` are those of the job, for the index; the job itself protects them.
    """

    pk = models.CompositePrimaryKey("job_id", "day", "kind", "model")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, db_index=False, related_name="+")
    project = models.ForeignKey(
        Project, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )

    class Meta:
        ordering = ["-day"]
        verbose_name_plural = "job entries"
        indexes = [
            models.Index(fields=["project", "day"], name="job_entry_of_project"),
            models.Index(fields=["user", "day"], name="job_entry_of_user"),
            models.Index(fields=["day"], name="job_entry_of_day"),
        ]

    def __str__(self) -> str:
        return f"{self.day} {self.job}"


class LedgerDay(models.Model):
    """A UTC day of the ledger: as of when its entries are, and whether they are to be computed again.

    ``has_jobs`` is false of a day that was counted before there was usage by job, until that is added.
    """

    day = models.DateField(primary_key=True)
    built_at = models.DateTimeField(null=True)
    is_due = models.BooleanField(default=True)
    has_jobs = models.BooleanField(default=False, db_default=False)

    class Meta:
        ordering = ["-day"]
        indexes = [
            models.Index(fields=["day"], name="ledger_day_due", condition=Q(is_due=True)),
            models.Index(fields=["day"], name="ledger_day_without_jobs", condition=Q(has_jobs=False)),
        ]


class LedgerMark(models.Model):
    """How far the ledger has come; one row. Measurements before ``measured_until`` are in the meters, and the days of
    all claims that changed before ``changes_until`` are marked as due. ``waiting`` are the ids of projects with waiting
    jobs as of then."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    measured_until = models.DateTimeField()
    changes_until = models.DateTimeField()
    waiting = models.JSONField(default=list)


class ClaimMeter(models.Model):
    """What was measured of one claim on one UTC day, in minutes that have a measurement.

    ``most_use`` is the highest utilisation of the device as a share of 1, of a CPU the most cores that the part's
    processes used; ``most_memory_bytes`` is the most memory in use on the device, of a CPU by the processes.
    ``samples`` counts the measurements of use.
    """

    claim = models.ForeignKey(Claim, on_delete=models.CASCADE, related_name="meters")
    day = models.DateField()
    samples = models.PositiveIntegerField(default=0)
    known_ms = models.BigIntegerField(default=0)
    busy_ms = models.BigIntegerField(default=0)
    powered_ms = models.BigIntegerField(default=0)
    millijoules = models.BigIntegerField(default=0)
    most_use = models.FloatField(null=True)
    most_memory_bytes = models.BigIntegerField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["claim", "day"], name="meter_once_per_claim_and_day")]


class Price(models.Model):
    """The price of an hour of a device of a kind, or of models whose name contains ``model``, from a day on."""

    kind = models.CharField(max_length=20, help_text=_("Such as gpu; of cpu the price is for one core."))
    model = models.CharField(
        max_length=120,
        blank=True,
        help_text=_("Part of the model's name, such as H100; empty: all others of the kind."),
    )
    per_device_hour = models.DecimalField(
        max_digits=12,
        decimal_places=4,
        validators=[MinValueValidator(0)],
        help_text=_("In the currency of the installation, YARD_CURRENCY."),
    )
    valid_from = models.DateField(help_text=_("The first day, in UTC; a later price of the same takes its place."))

    class Meta:
        ordering = ["kind", "model", "-valid_from"]
        constraints = [
            models.UniqueConstraint(fields=["kind", "model", "valid_from"], name="price_once_per_day"),
            models.CheckConstraint(condition=Q(per_device_hour__gte=0), name="price_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.model}".strip() + f", {self.valid_from}"

    def clean(self) -> None:
        if fault := kinds.fault(self.kind):
            raise ValidationError({"kind": fault})
