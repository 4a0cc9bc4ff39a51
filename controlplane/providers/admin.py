"""Providers in the administration: their settings are edited, what is known of them and their pilots is shown."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest

from controlplane.accounts.admin import Audited
from controlplane.providers.models import NodeProvider, Pilot


@admin.register(NodeProvider)
class NodeProviderAdmin(Audited):
    """Foreign engines that bring nodes; one can be deleted once it has no pilots."""

    list_display = ["name", "kind", "pool", "enabled", "min_nodes", "max_nodes", "condition", "looked_at"]
    list_filter = ["kind", "enabled", "pool"]
    list_select_related = ["pool"]
    search_fields = ["name"]
    readonly_fields = ["tag", "condition", "condition_at", "failures", "retry_at", "looked_at"]

    def has_delete_permission(self, request: HttpRequest, obj: NodeProvider | None = None) -> bool:
        is_empty = obj is not None and not obj.pilots.exclude(state=Pilot.PilotState.GONE).exists()
        return is_empty and super().has_delete_permission(request, obj)


@admin.register(Pilot)
class PilotAdmin(admin.ModelAdmin):
    """Allocations of foreign engines that run, or ran, this cluster's agents."""

    list_display = ["label", "provider", "shape", "state", "why", "handle", "node", "ends_at"]
    list_filter = ["state", "provider"]
    list_select_related = ["provider", "node"]
    search_fields = ["label", "handle", "node__name"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Pilot | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Pilot | None = None) -> bool:
        return False
