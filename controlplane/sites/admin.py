"""Sites in the administration: their settings are edited, what is known of them and of our jobs there is shown."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest

from controlplane.accounts.admin import Audited
from controlplane.sites.models import Site, SiteJob


@admin.register(Site)
class SiteAdmin(Audited):
    """Other clusters; one can be deleted once no job of ours is there. Tokens are set by the REST interface."""

    list_display = ["name", "url", "enabled", "price", "condition", "answered_at"]
    list_filter = ["enabled"]
    search_fields = ["name", "url"]
    readonly_fields = ["node", "condition", "condition_at", "failures", "retry_at", "answered_at"]

    def has_delete_permission(self, request: HttpRequest, obj: Site | None = None) -> bool:
        is_empty = obj is not None and not obj.jobs.filter(over_at=None).exists()
        return is_empty and super().has_delete_permission(request, obj)


@admin.register(SiteJob)
class SiteJobAdmin(admin.ModelAdmin):
    """Parts of our jobs that run, or ran, at sites."""

    list_display = ["key", "site", "number", "state", "reason", "fault", "asked_at", "over_at"]
    list_filter = ["site", "state"]
    list_select_related = ["site"]
    search_fields = ["key", "number"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: SiteJob | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: SiteJob | None = None) -> bool:
        return False
