"""Pools, quotas and priority classes."""

from __future__ import annotations

import uuid

from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Lower
from django.utils.translation import gettext_lazy as _

from agents.protocol import ISOLATION
from controlplane.accounts.models import Project, User, slug
from controlplane.pools import kinds
from scheduler.core.model import retry
from scheduler.profiles import PROFILES

MOST_NAMED = 50
MOST_DEVICES = 1_000_000


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


class PriorityClass(models.Model):
    """A named number; bigger is more urgent. Preemptible is a separate flag."""

    name = models.CharField(max_length=40, primary_key=True, validators=[slug])
    value = models.IntegerField(validators=[MinValueValidator(0), MaxValueValidator(10_000)])
    preemptible = models.BooleanField(default=True)
    staff_only = models.BooleanField(default=False)

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
            models.UniqueConstraint("project", "kind", Lower("model"), "normalised", name="quota_once_per_sort")
        ]

    def __str__(self) -> str:
        return f"{self.project}: {self.kind} {self.model}".rstrip()

    def clean(self) -> None:
        """Refuses an unknown kind of device, whose quota would limit nothing."""
        if fault := kinds.fault(self.kind):
            raise ValidationError({"kind": fault})


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
