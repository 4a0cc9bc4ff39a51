"""The addresses of the API, all under /api/v1."""

from __future__ import annotations

from typing import Final

from django.urls import path, re_path, register_converter
from django.utils.translation import gettext as _
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api import (
    arrays,
    attempts,
    audit,
    budgets,
    bundles,
    consolidation,
    decisions,
    device_codes,
    devices,
    events,
    functions,
    fuse,
    hardware,
    health,
    jobs,
    limits,
    maintenance,
    nodes,
    operations,
    overview,
    pools,
    priority_classes,
    profiles,
    projects,
    providers,
    queue,
    quotas,
    reservations,
    retention,
    schedules,
    schemas,
    search,
    service_accounts,
    services,
    sessions,
    simulations,
    sites,
    survivors,
    templates,
    timeline,
    tokens,
    topology,
    usage,
    whoami,
)
from controlplane.api.problem import not_found
from controlplane.api.routers import Router
from controlplane.api.viewsets import ResourceViewSet

METHODS: Final = ("get", "post", "put", "patch", "delete")


class UnknownAddressViewSet(ResourceViewSet):
    """Answers unknown addresses with a problem document."""

    schema = None  # type: ignore[assignment]  # it is no part of the description

    def refuse(self, request: Request, rest: str = "") -> Response:
        """Answers 404."""
        raise not_found(_("address {path}").format(path=f"/api/v1/{rest[:80]}"))


class Sha256Converter:
    """The digest of a bundle in an address."""

    regex = "[0-9a-f]{64}"

    def to_python(self, value: str) -> str:
        return value

    to_url = to_python


register_converter(Sha256Converter, "sha256")
router = Router()
router.register("arrays", arrays.ArrayViewSet, "arrays")
router.register("attempts", attempts.AttemptViewSet, "attempts")
router.register("audit", audit.AuditViewSet, "audit")
router.register("budgets", budgets.BudgetViewSet, "budgets")
router.register("bundles", bundles.BundleViewSet, "bundles")
router.register("calendar", reservations.CalendarViewSet, "calendar")
router.register("consolidation", consolidation.ConsolidationViewSet, "consolidation")
router.register("decisions", decisions.DecisionViewSet, "decisions")
router.register("device-codes", device_codes.DeviceCodeViewSet, "device-codes")
router.register("devices", devices.DeviceViewSet, "devices")
router.register("events", events.EventViewSet, "events")
router.register("fuse", fuse.FuseViewSet, "fuse")
router.register("hardware", hardware.HardwareViewSet, "hardware")
router.register("health", health.HealthViewSet, "health")
router.register("jobs", jobs.JobViewSet, "jobs")
router.register("limits", limits.LimitViewSet, "limits")
router.register("maintenance-windows", maintenance.MaintenanceWindowViewSet, "maintenance")
router.register("nodes", nodes.NodeViewSet, "nodes")
router.register("overview", overview.OverviewViewSet, "overview")
router.register("overview/gangs", overview.GangsViewSet, "overview-gangs")
router.register("overview/history", overview.CapacityHistoryViewSet, "overview-history")
router.register("overview/loads", overview.LoadsViewSet, "overview-loads")
router.register("pools", pools.PoolViewSet, "pools")
router.register("priority-classes", priority_classes.PriorityClassViewSet, "priority-classes")
router.register("profiles", profiles.ProfileViewSet, "profiles")
router.register("projects", projects.ProjectViewSet, "projects")
router.register("providers", providers.NodeProviderViewSet, "providers")
router.register("queue", queue.QueueViewSet, "queue")
router.register("quotas", quotas.QuotaViewSet, "quotas")
router.register("reservations", reservations.ReservationViewSet, "reservations")
router.register("retention", retention.RetentionViewSet, "retention")
router.register("schedules", schedules.ScheduleViewSet, "schedules")
router.register("search", search.SearchViewSet, "search")
router.register("services", services.ServiceViewSet, "services")
router.register("functions", functions.FunctionViewSet, "functions")
router.register("sites", sites.SiteViewSet, "sites")
router.register("service-accounts", service_accounts.ServiceAccountViewSet, "service-accounts")
router.register("sessions", sessions.SessionViewSet, "sessions")
router.register("operations", operations.OperationViewSet, "operations")
router.register("simulations", simulations.SimulationViewSet, "simulations")
router.register("survivors", survivors.SurvivorViewSet, "survivors")
router.register("templates", templates.TemplateViewSet, "templates")
router.register("timeline", timeline.TimelineViewSet, "timeline")
router.register("tokens", tokens.TokenViewSet, "tokens")
router.register("tokens/current", device_codes.OwnTokenViewSet, "token")
router.register("topology", topology.TopologyViewSet, "topology")
router.register("usage", usage.UsageViewSet, "usage")
router.register("version", whoami.VersionViewSet, "version")
router.register("whoami", whoami.WhoamiViewSet, "whoami")

urlpatterns = [
    *router.urls,
    path("schemas/job.json", schemas.JobSchemaViewSet.as_view({"get": "retrieve"}), name="job-schema"),
    path("openapi.yaml", SpectacularAPIView.as_view(), name="schema"),
    # It renders a page, which has no OPTIONS.
    path("docs", SpectacularSwaggerView.as_view(url_name="v1:schema", http_method_names=["get", "head"]), name="docs"),
    re_path(r"^(?P<rest>.*)$", UnknownAddressViewSet.as_view(dict.fromkeys(METHODS, "refuse"))),
]
