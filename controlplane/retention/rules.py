"""The retention of each kind: by the settings, the project's own choice, and legal minimums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import EllipsisType

from django.conf import settings
from django.db.models import Sum
from django.utils.translation import gettext as _

from controlplane.accounts.models import Project
from controlplane.jobs.models import PartLog
from controlplane.retention.kinds import NAMED, Kind
from controlplane.retention.models import Override


@dataclass(frozen=True, slots=True)
class Rule:
    """The days that a kind is kept, 0 for ever; and for logs, the most bytes of a project, 0 without limit."""

    days: int
    log_bytes: int = 0

    def before(self, now: datetime) -> datetime | None:
        """The time before which records are removed."""
        return now - timedelta(days=self.days) if self.days else None


class InvalidChoice(Exception):
    """Raised for an invalid choice; ``kind`` is the kind concerned."""

    def __init__(self, kind: str, says: str) -> None:
        super().__init__(says)
        self.kind = kind[:20]


def rule_of(kind: Kind, project: Project | None) -> Rule:
    """The rule for a kind, of a project if the kind has projects."""
    own = Override.objects.filter(project=project, kind=kind.name).first() if project else None
    days = settings.RETENTION_DAYS[kind.name] if own is None or own.days is None else own.days
    if kind.name != "logs":
        return Rule(days)
    usual = settings.LOG_BYTES_PER_PROJECT
    return Rule(days, usual if own is None or own.log_bytes is None else own.log_bytes)


def excess(kind: Kind, project: Project | None, rule: Rule) -> int:
    """How many bytes a project is above its limit."""
    if kind.name != "logs" or project is None or not rule.log_bytes:
        return 0
    held = PartLog.objects.filter(project=project, gone_at=None).aggregate(sum=Sum("size_bytes"))["sum"] or 0
    return max(0, held - rule.log_bytes)


def fault(kind: str, days: int | None, log_bytes: int | None) -> str:
    """Return what is invalid about a project's own choice; empty if nothing is."""
    if kind not in NAMED or not NAMED[kind].has_projects:
        named = ", ".join(name for name, each in NAMED.items() if each.has_projects)
        return _("{kind!r} is no kind that projects may choose for; there are {named}").format(
            kind=kind[:20], named=named
        )
    least = settings.RETENTION_LEAST_DAYS[kind]
    if days is not None and (days < least or days > 36_500):
        return _("{kind} must be kept for {least} days at least, and for 36,500 at most").format(kind=kind, least=least)
    if log_bytes is not None and (kind != "logs" or not 2**20 <= log_bytes <= 2**60):
        return _("only logs have a limit of bytes, and it is 1 MiB at least")
    return ""


def choose(project: Project, days: Mapping[str, int | None], log_bytes: int | EllipsisType | None) -> list[Override]:
    """Return the unsaved rows of a project's choice; absent kinds stay as they are. Raises :class:`InvalidChoice`."""
    found = []
    for kind in sorted({*days, *([] if log_bytes is ... else ["logs"])}):
        row = Override.objects.filter(project=project, kind=kind[:20]).first() or Override(project=project, kind=kind)
        if kind in days:
            row.days = days[kind]
        if kind == "logs" and not isinstance(log_bytes, EllipsisType):
            row.log_bytes = log_bytes
        if says := fault(kind, row.days, row.log_bytes):
            raise InvalidChoice(kind, says)
        found.append(row)
    return found


def lengthens(kind: str, days: int | None, log_bytes: int | None) -> bool:
    """Whether a choice keeps more than the settings do, which a project's lead may not."""
    usual, most = settings.RETENTION_DAYS[kind], settings.LOG_BYTES_PER_PROJECT
    longer = days is not None and bool(usual) and days > usual
    return longer or (log_bytes is not None and bool(most) and log_bytes > most)
