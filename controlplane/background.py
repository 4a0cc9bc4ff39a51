"""How far something is that goes on in the background: a simulation, or an operation on many jobs."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class BackgroundPhase(models.TextChoices):
    """From waiting for a worker to one of three ends."""

    WAITING = "WAITING", _("waiting")
    RUNNING = "RUNNING", _("running")
    DONE = "DONE", _("done")
    FAILED = "FAILED", _("failed")
    CANCELLED = "CANCELLED", _("cancelled")
