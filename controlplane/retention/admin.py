"""Retention in the administration: choices of projects, past removals, and a preview."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.translation import gettext as _

from controlplane.accounts.admin import Audited
from controlplane.jobs.admin import ReadOnly
from controlplane.retention import sweep
from controlplane.retention.models import Override, Removal


@admin.register(Override)
class OverrideAdmin(Audited):
    """Choices of projects, with a preview of what would be removed now."""

    list_display = ["project", "kind", "days", "log_bytes"]
    list_filter = ["kind"]
    list_select_related = ["project"]
    autocomplete_fields = ["project"]

    def get_urls(self) -> list[Any]:
        own = path("preview/", self.admin_site.admin_view(self.preview), name="retention_preview")
        return [own, *super().get_urls()]

    def preview(self, request: HttpRequest) -> HttpResponse:
        """What would be removed now, by kind and project."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        values = {
            **self.admin_site.each_context(request),
            "title": _("What retention would remove now"),
            "opts": self.model._meta,
            "rows": sweep.preview(),
        }
        return TemplateResponse(request, "admin/retention/preview.html", values)


@admin.register(Removal)
class RemovalAdmin(ReadOnly):
    """Past removals."""

    list_display = ["at", "project", "went"]
    list_select_related = ["project"]
