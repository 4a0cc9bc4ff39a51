"""Pools, quotas, budgets, limits and priority classes."""

from __future__ import annotations

import uuid
from datetime import date, timedelta

from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Lower
from django.utils.translation import gettext_lazy as _

from agents.protocol import ISOLATION
from controlplane.accounts.models import Project, User, slug
from controlplane.pools import kinds, mounts
from scheduler.core.model import retry
from scheduler.profiles import PROFILES

MOST_NAMED = 50
MOST_DEVICES = 1_000_000
MOST_HOURS = 1_000_000_000
LONGEST_BUDGET = timedelta(days=3660)
# Shares of a budget, in percent, at which the leads are told.
BUDGET_LEVELS = (80, 100)
EARLIEST, LATEST = date(2000, 1, 1), date(2999, 12, 31)


def profile_names() -> list[str]:
    """The profiles that a pool may use: built-in ones, then custom ones with an active version."""
    return [*PROFILES, *Profile.objects.exclude(active=None).order_by("name").values_list("name", flat=True)]


def known_profile(name: str) -> None:
    """Raise ValidationError if a pool cannot use a profile of that name."""
    names = profile_names()
    if name not in names:
        known = ", ".join(names[:MOST_NAMED])
        raise ValidationError(
            _("There is no profile %(name)s; there are %(all)s."), params={"name": name, "all": known}
        )


def own_name(name: str) -> None:
    """Raise ValidationError for the name of a built-in profile."""
    if name in PROFILES:
        raise ValidationError(
            _("The profile %(name)s comes along and stays as it is; copy it under another name."), params={"name": name}
        )


class Profile(models.Model):
    """A custom profile: a name for versions. Pools that use it run the ``active`` one; without one no pool may use it.
    Built-in profiles are in the code and have no row."""

    name = models.CharField(max_length=40, unique=True, validators=[slug, own_name])
    description = models.CharField(max_length=200, blank=True)
    active = models.ForeignKey("ProfileVersion", null=True, blank=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class ProfileVersion(models.Model):
    """A version of a profile; immutable. ``preview`` is the simulation that compared it with its predecessor; empty if
    it was activated without one."""

    profile = models.ForeignKey(Profile, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    spec = models.JSONField()
    note = models.CharField(max_length=200, blank=True)
    made_by = models.CharField(max_length=150)
    made_at = models.DateTimeField(auto_now_add=True)
    preview = models.ForeignKey("simulations.Simulation", null=True, on_delete=models.SET_NULL, related_name="+")
    activated_by = models.CharField(max_length=150, blank=True)
    activated_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-number"]
        constraints = [models.UniqueConstraint("profile", "number", name="profile_version_once")]

    def __str__(self) -> str:
        return f"{self.profile}@{self.number}"


class Pool(models.Model):
    """A named set of nodes with its own profile, limits and storage.

    ``storage_path`` is a folder that all nodes of the pool share, or empty: then stages that need each other's files
    stay on one node.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=63, unique=True, validators=[slug])
    profile = models.CharField(max_length=40, default="hybrid", validators=[known_profile])
    shadow_profile = models.CharField(
        max_length=40,
        blank=True,
        validators=[known_profile],
        help_text=_("Thinks beside the profile without deciding anything; shown with each decision."),
    )
    storage_path = models.CharField(max_length=400, blank=True)
    mounts = models.JSONField(
        default=list,
        db_default=[],
        blank=True,
        validators=[mounts.valid],
        help_text=_("Folders of the nodes of which jobs may mount what is in them: [{path, writable}]."),
    )
    default_limit_s = models.PositiveIntegerField(default=86_400, validators=[MinValueValidator(1)])
    max_limit_s = models.PositiveIntegerField(default=30 * 86_400, validators=[MinValueValidator(1)])
    user_limit = models.PositiveIntegerField(
        null=True, blank=True, help_text=_("How many stages of one user may run here at once; empty means any number.")
    )
    min_runtime_s = models.PositiveIntegerField(
        default=0,
        validators=[MaxValueValidator(30 * 86_400)],
        help_text=_("For so many seconds after its start no stage here is stopped for another; 0 protects nobody."),
    )
    on_node_lost = models.CharField(
        max_length=20,
        default="wait",
        choices=[(word, word) for word in retry.ON_NODE_LOST],
        help_text=_("What happens to a stage here whose node is silent, where its job file does not say it."),
    )
    stopped_by = models.CharField(max_length=150, blank=True, help_text=_("Set to stop all starts in this pool."))
    isolation = models.CharField(
        max_length=10,
        default="none",
        choices=[(word, word) for word in ISOLATION],
        help_text=_("Nodes that keep projects less apart than this run nothing of this pool."),
    )
    measure_links = models.BooleanField(
        default=False,
        db_default=False,
        help_text=_("Idle nodes here measure the bandwidth from each other now and then, with 64 MiB each time."),
    )
    repartition = models.BooleanField(
        default=False,
        help_text=_("Devices here may be divided for stages that ask for a partition, where their agent can do that."),
    )
    restricted = models.BooleanField(
        default=False,
        db_default=False,
        help_text=_(
            "Only jobs of the projects and groups below may use this pool; where none is left, nobody's. Always so "
            "where one is chosen."
        ),
    )
    allowed_projects = models.ManyToManyField(
        Project, blank=True, related_name="+", help_text=_("Whose jobs may use this pool, where it is restricted.")
    )
    allowed_groups = models.ManyToManyField(
        Group, blank=True, related_name="+", help_text=_("Whose members' jobs may use this pool, in any project.")
    )

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(condition=Q(default_limit_s__lte=F("max_limit_s")), name="pool_limit_in_range")
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Refuses a usual time limit above the highest, and mounts that reach the files of all jobs."""
        storage = self.storage_path.rstrip("/")
        declared = self.mounts if storage else []
        try:
            mounts.valid(declared)
        except ValidationError:
            declared = []  # the field says what is wrong
        for each in declared:
            if mounts.is_below(each["path"], storage) or mounts.is_below(storage, each["path"]):
                said = _("%(path)s reaches into storage_path, where the files of all jobs lie") % {"path": each["path"]}
                raise ValidationError({"mounts": said})
        if self.default_limit_s and self.max_limit_s and self.default_limit_s > self.max_limit_s:
            raise ValidationError(
                {"default_limit_s": _("must be at most max_limit_s, which is %(most)s") % {"most": self.max_limit_s}}
            )


class PriorityClass(models.Model):
    """A named number; bigger is more urgent. Preemptible is a separate flag."""

    name = models.CharField(max_length=40, primary_key=True, validators=[slug])
    value = models.IntegerField(validators=[MinValueValidator(0), MaxValueValidator(10_000)])
    preemptible = models.BooleanField(default=True)
    staff_only = models.BooleanField(
        default=False, help_text=_("Only leads of a project may use it there, and who may use any priority.")
    )
    projects_only = models.BooleanField(
        default=False,
        db_default=False,
        help_text=_(
            "Only jobs of the projects below may use this class; where none is left, nobody's. Always so where one is "
            "chosen. Waiting jobs keep the class that they have."
        ),
    )
    allowed_projects = models.ManyToManyField(
        Project, blank=True, related_name="+", help_text=_("Whose jobs may use this class, where it is for some only.")
    )

    class Meta:
        ordering = ["-value"]
        permissions = [("use_any_priority", "Can submit with a number, and with classes that are for staff only")]
        verbose_name_plural = _("priority classes")

    def __str__(self) -> str:
        return f"{self.name} ({self.value})"


class Quota(models.Model):
    """A project's quota of devices of a kind, or of one model of it, in whole and fractional devices (CPU: cores).
    Empty is unlimited. A normalised one counts devices in A100 equivalents.

    Unused quota may be borrowed by other projects of the cohort, and is reclaimed when needed. An unlimited quota lends
    nothing, because what it leaves unused is undefined.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="quotas")
    kind = models.CharField(max_length=20)
    model = models.CharField(
        max_length=80,
        blank=True,
        help_text=_("Only devices whose model has this in its name, in whatever case; empty means all of the kind."),
    )
    normalised = models.BooleanField(
        default=False,
        help_text=_("Counts devices by what they are worth beside an A100: an H100 as more than one, a T4 as less."),
    )
    cohort = models.CharField(
        max_length=63,
        blank=True,
        help_text=_("Quotas of one cohort lend each other what is not used, and take it back when they need it."),
    )
    nominal = models.FloatField(null=True, blank=True, validators=[MinValueValidator(0)])
    borrowing_limit = models.FloatField(null=True, blank=True, validators=[MinValueValidator(0)])
    lending_limit = models.FloatField(null=True, blank=True, validators=[MinValueValidator(0)])

    class Meta:
        ordering = ["project__name", "kind", "model", "normalised"]
        constraints = [
            models.UniqueConstraint(
                "project",
                "kind",
                Lower("model"),
                "normalised",
                name="quota_once_per_sort",
                violation_error_message=_("This project has a quota of this kind and model already; change that one."),
            )
        ]

    def __str__(self) -> str:
        return f"{self.project}: {self.kind} {self.model}".rstrip()

    def clean(self) -> None:
        """Refuses an unknown kind of device, whose quota would limit nothing."""
        if fault := kinds.fault(self.kind):
            raise ValidationError({"kind": fault})


class Budget(models.Model):
    """How many device-hours a project may use in a period of whole UTC days, and what happens once they are used up.

    Without a ``kind`` all devices other than CPUs count; of ``cpu``, hours of one core. The last four fields are what a
    worker counted last, for the scheduler: the hours used in the period that ends at ``until_at``, and of how many
    percent of them the leads have been told.
    """

    class Period(models.TextChoices):
        MONTH = "month", _("each month")
        QUARTER = "quarter", _("each quarter")
        DATES = "dates", _("from a day to a day")

    class AtEnd(models.TextChoices):
        NOTIFY = "notify", _("leads are told")
        HOLD = "hold", _("nothing more starts")
        STOP = "stop", _("nothing more starts, and what runs is stopped")

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+", db_constraint=False)
    kind = models.CharField(
        max_length=20, blank=True, help_text=_("Such as gpu; empty for all devices other than CPUs.")
    )
    normalised = models.BooleanField(
        default=False,
        help_text=_("Counts devices by what they are worth beside an A100: an H100 as more than one, a T4 as less."),
    )
    period = models.CharField(max_length=8, choices=Period.choices, default=Period.MONTH)
    first_day = models.DateField(null=True, blank=True, help_text=_("Only from a day to a day: the first, in UTC."))
    last_day = models.DateField(null=True, blank=True, help_text=_("Only from a day to a day: the last, in UTC."))
    hours = models.FloatField(
        validators=[MinValueValidator(0), MaxValueValidator(MOST_HOURS)],
        help_text=_("Device-hours in the period; of cpu, hours of one core."),
    )
    at_end = models.CharField(
        max_length=8,
        choices=AtEnd.choices,
        default=AtEnd.NOTIFY,
        help_text=_("What happens when they are used up. What runs is asked to save before it is stopped."),
    )
    used_hours = models.FloatField(default=0, editable=False)
    counted_at = models.DateTimeField(null=True, editable=False)
    until_at = models.DateTimeField(null=True, editable=False)
    told = models.PositiveSmallIntegerField(default=0, editable=False)

    class Meta:
        ordering = ["project__name", "kind", "normalised", "period", "first_day"]
        constraints = [
            models.UniqueConstraint(
                fields=["project", "kind", "normalised", "period", "first_day", "last_day"],
                nulls_distinct=False,
                name="budget_once",
            )
        ]

    def __str__(self) -> str:
        return f"budget {self.pk}"

    @property
    def level(self) -> int:
        """The highest level that is reached; 0 for none."""
        return max((one for one in BUDGET_LEVELS if self.used_hours >= self.hours * one / 100), default=0)

    def clean(self) -> None:
        """Refuses an unknown kind of device, and days that are no period."""
        if self.kind and (fault := kinds.fault(self.kind)):
            raise ValidationError({"kind": fault})
        if self.period != self.Period.DATES:
            if self.first_day or self.last_day:
                raise ValidationError({"first_day": _("Only a budget of period dates has days.")})
        elif not (self.first_day and self.last_day):
            raise ValidationError({"first_day": _("A budget of period dates needs first_day and last_day.")})
        elif not (EARLIEST <= self.first_day <= self.last_day <= min(LATEST, self.first_day + LONGEST_BUDGET)):
            raise ValidationError(
                {"last_day": _("The last day must not be before the first, nor more than ten years after it.")}
            )


class Limit(models.Model):
    """How much one user may have at once, in a pool and a project; without one it counts in all of them.

    Without a ``user`` it limits every user, each for themselves; one of a user takes its place for them. An empty
    number is unlimited.
    """

    # The migration makes the constraints, which delete by themselves.
    pool = models.ForeignKey(
        Pool, null=True, blank=True, on_delete=models.CASCADE, related_name="+", db_constraint=False
    )
    project = models.ForeignKey(
        Project, null=True, blank=True, on_delete=models.CASCADE, related_name="+", db_constraint=False
    )
    user = models.ForeignKey(
        User, null=True, blank=True, on_delete=models.CASCADE, related_name="+", db_constraint=False
    )
    running = models.PositiveIntegerField(
        null=True, blank=True, help_text=_("How many stages may run at once; others wait.")
    )
    waiting = models.PositiveIntegerField(
        null=True, blank=True, help_text=_("How many stages may wait; a submission beyond that is refused.")
    )
    devices = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(0), MaxValueValidator(MOST_DEVICES)],
        help_text=_("How many devices other than CPUs may be held at once; stages beyond that wait."),
    )

    class Meta:
        ordering = ["pool__name", "project__name", "user__username"]
        constraints = [
            models.UniqueConstraint(fields=["pool", "project", "user"], nulls_distinct=False, name="limit_once"),
        ]

    def __str__(self) -> str:
        return f"limit {self.pk}"
