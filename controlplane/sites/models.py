"""Sites, the tokens that they gave us, and our jobs there."""

from __future__ import annotations

import re
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from controlplane import addresses
from controlplane.accounts.models import Sealed, slug
from controlplane.fleet.models import Node
from controlplane.jobs.models import Part

MOST_NAMES: Final = 50
MOST_JOBS: Final = 10_000
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_FINGERPRINT: Final = RegexValidator(r"\A[0-9a-f]{64}\Z", _("the SHA-256 of its certificate: 64 hexadecimal digits"))


class Site(models.Model):
    """Another Switchyard that takes jobs of this one.

    ``node`` stands for it: what runs there is a part on that node, whose reports are made of the site's answers
    (:mod:`controlplane.sites.exchange`). A job leaves for ``pools`` of it, the one of its own name or else the first,
    and its ``project``; empty means the site's own defaults. It leaves after ``patience_s`` if it ends ``gain_s``
    earlier there. ``locations`` are the places of data that are at it besides its own name. What follows ``enabled`` is
    written by :mod:`controlplane.sites.service` only: ``condition`` is why it cannot be asked, with ``said`` in
    clauses; after ``failures`` in a row it is asked again at ``retry_at``. ``capacity`` is what it last told of itself.
    """

    name = models.CharField(max_length=40, unique=True, validators=[slug])
    url = models.CharField(max_length=300, help_text=_("Such as https://yard.example.org."))
    fingerprint = models.CharField(
        max_length=64,
        blank=True,
        default="",
        validators=[_FINGERPRINT],
        help_text=_("SHA-256 of its certificate: no other is accepted. Empty if an authority vouches for it."),
    )
    project = models.CharField(max_length=63, blank=True, default="", help_text=_("The project of our jobs there."))
    pools = models.JSONField(default=list, blank=True, help_text=_("The pools there that our jobs may use."))
    locations = models.JSONField(default=list, blank=True, help_text=_("Places whose data are at this site."))
    price = models.FloatField(
        default=0.0,
        validators=[MinValueValidator(0), MaxValueValidator(1e6)],
        help_text=_("What an hour of a device costs there, to choose between sites."),
    )
    patience_s = models.PositiveIntegerField(
        default=60, validators=[MaxValueValidator(30 * 86_400)], help_text=_("A job waits here so long at least.")
    )
    gain_s = models.PositiveIntegerField(
        default=60,
        validators=[MaxValueValidator(30 * 86_400)],
        help_text=_("It leaves only to end so much earlier there."),
    )
    most_jobs = models.PositiveIntegerField(
        default=100, validators=[MaxValueValidator(MOST_JOBS)], help_text=_("Never more of our jobs there at once.")
    )
    lost_after_s = models.PositiveIntegerField(
        default=900,
        validators=[MinValueValidator(60), MaxValueValidator(30 * 86_400)],
        help_text=_("After so long without an answer, jobs that say so start again elsewhere."),
    )
    enabled = models.BooleanField(default=True, help_text=_("If not, no further job leaves for it."))
    node = models.OneToOneField(
        Node, null=True, editable=False, on_delete=models.SET_NULL, related_name="site", db_constraint=False
    )
    capacity = models.JSONField(default=dict, editable=False)
    capacity_at = models.DateTimeField(null=True, editable=False)
    condition = models.CharField(max_length=400, blank=True, default="", editable=False)
    said = models.JSONField(default=list, editable=False)
    condition_at = models.DateTimeField(null=True, editable=False)
    failures = models.PositiveIntegerField(default=0, editable=False)
    retry_at = models.DateTimeField(null=True, editable=False)
    answered_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Refuses an address that may not be asked, names that no pool or place has, a new name, and another address
        while jobs are there."""
        wrong: dict[str, Any] = {}
        if fault := _address_fault(self.url):
            wrong["url"] = fault
        for field in ("pools", "locations"):
            if not _are_names(getattr(self, field)):
                wrong[field] = _now("must be a list of at most %(most)s names") % {"most": MOST_NAMES}
        before = Site.objects.filter(pk=self.pk).values("name", "url").first() if self.pk else None
        if before is not None and before["name"] != self.name:
            wrong["name"] = _now("A site keeps its name: job files name it.")
        if before is not None and before["url"] != self.url and self.jobs.filter(part__ended_at=None).exists():
            wrong["url"] = _now("Jobs are there: disable it, and wait until they have ended.")
        if self.name == settings.CLUSTER_NAME:
            wrong["name"] = _now("This is the name of this cluster itself.")
        if wrong:
            raise ValidationError(wrong)


def _address_fault(url: str) -> str:
    try:
        parts = addresses.parsed(url, settings.SITE_NETWORKS)
    except addresses.AddressRefused as error:
        return {
            "https_only": _now("must begin with https://"),
            "private_address": _now("must name a public host; private networks are those of YARD_SITE_NETWORKS"),
        }.get(error.code, _now("must be an address such as https://yard.example.org"))
    if parts.path.strip("/") or parts.query or parts.fragment or len(url) > 300:
        return _now("must be an address such as https://yard.example.org")
    return ""


def _are_names(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= MOST_NAMES
        and all(isinstance(one, str) and _NAME.fullmatch(one) for one in value)
    )


class SiteToken(Sealed):
    """The token that a site gave us, encrypted; its scopes there bound what we may do."""

    site = models.OneToOneField(
        Site, primary_key=True, on_delete=models.CASCADE, related_name="token", db_constraint=False
    )
    set_at = models.DateTimeField()
    set_by = models.CharField(max_length=150)

    def __str__(self) -> str:
        return f"token of {self.site}"

    def context(self) -> str:
        return f"site {self.site_id}"


class SiteJob(models.Model):
    """A part of a job of ours that runs, or ran, at a site.

    The row is committed together with the part, and ``asked_at`` before the site is asked: whatever is lost then, the
    same ``key`` is asked again. ``number`` is the job's number there, null until an answer came. ``log_attempt`` is the
    attempt there whose log is being copied, and ``log_at`` how far, by stream. ``over_at`` is when nothing more is to
    be done there.
    """

    part = models.OneToOneField(
        Part, primary_key=True, on_delete=models.CASCADE, related_name="away", db_constraint=False
    )
    site = models.ForeignKey(Site, on_delete=models.CASCADE, related_name="jobs", db_constraint=False)
    key = models.CharField(max_length=60, unique=True)
    asked_at = models.DateTimeField(null=True)
    number = models.BigIntegerField(null=True)
    state = models.CharField(max_length=10, blank=True, default="")
    reason = models.CharField(max_length=300, blank=True, default="")
    fault = models.CharField(max_length=40, blank=True, default="")
    looked_at = models.DateTimeField(null=True)
    cancelled_at = models.DateTimeField(null=True)
    log_attempt = models.PositiveIntegerField(default=0)
    log_at = models.JSONField(default=dict)
    over_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["-created_at"]
        indexes = [models.Index(fields=["site"], name="site_job_open", condition=models.Q(over_at=None))]

    def __str__(self) -> str:
        return self.key
