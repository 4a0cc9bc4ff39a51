"""Read-only administration pages of jobs and their facts. Cancelling a job goes through the same service as elsewhere.

Values of secrets are masked here too: operators of the cluster have no need to read them.
"""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from controlplane.clauses import clause, told
from controlplane.jobs import masked, service
from controlplane.jobs.models import Attempt, Bundle, Decision, Event, Job, Stage


class ReadOnly(admin.ModelAdmin):
    """Admin for rows that only the control plane itself writes: no adding, changing or deleting."""

    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def _text(asked: dict[str, Any]) -> SafeString:
    """Format a job file or a resolved demand for display."""
    return format_html("<pre>{}</pre>", json.dumps(masked.shown(asked), indent=2, ensure_ascii=False))


@admin.register(Job)
class JobAdmin(ReadOnly):
    """Jobs."""

    list_display = ["number", "name", "project", "user", "pool", "priority", "state", "submitted_at", "ended_at"]
    list_filter = ["state", "pool", "project"]
    list_select_related = ["project", "user", "pool"]
    search_fields = ["number", "name"]
    exclude = ["spec"]
    readonly_fields = ["job_file"]
    actions = ["cancel"]

    @admin.display(description=_("Job file"))
    def job_file(self, job: Job) -> SafeString:
        """Return the job file as it was submitted, with secret values masked."""
        return _text(job.spec)

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Whether this user may operate the cluster, and therefore cancel jobs."""
        return bool(request.user.has_perm("jobs.change_job"))

    @admin.action(description=_("Cancel"), permissions=["cancel"])
    def cancel(self, request: HttpRequest, chosen: QuerySet[Job]) -> None:
        """Cancel the selected jobs."""
        for job in chosen:
            service.cancel(job, str(request.user), told(clause("InAdministration")))
        self.message_user(request, _("Cancelled: %(count)d") % {"count": len(chosen)}, messages.SUCCESS)


@admin.register(Stage)
class StageAdmin(ReadOnly):
    """Stages."""

    list_display = ["__str__", "kind", "state", "cause", "attempt_count", "started_at", "ended_at"]
    list_filter = ["state", "kind", "cause"]
    list_select_related = ["job"]
    search_fields = ["name", "job__number"]
    exclude = ["request"]
    readonly_fields = ["demand"]

    @admin.display(description=_("Demand"))
    def demand(self, stage: Stage) -> SafeString:
        """Return the resolved demand of the stage."""
        return _text(stage.request)


@admin.register(Attempt)
class AttemptAdmin(ReadOnly):
    """Attempts."""

    list_display = ["__str__", "cause", "exit_code", "created_at", "started_at", "ended_at"]
    list_filter = ["cause"]
    list_select_related = ["stage__job"]


@admin.register(Event)
class EventAdmin(ReadOnly):
    """Events of jobs."""

    list_display = ["at", "job", "kind", "stage", "actor", "text"]
    list_filter = ["kind"]
    list_select_related = ["job"]
    ordering = ["-id"]


@admin.register(Decision)
class DecisionAdmin(ReadOnly):
    """Decisions of the scheduler."""

    list_display = ["at", "profile", "duration_ms", "waiting", "replanned"]
    ordering = ["-id"]


@admin.register(Bundle)
class BundleAdmin(ReadOnly):
    """Uploaded bundles."""

    list_display = ["sha256", "size_bytes", "user", "created_at"]
    list_select_related = ["user"]
