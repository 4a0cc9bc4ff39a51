"""The addresses of the API, all under /api/v1."""

from __future__ import annotations

from django.urls import path, re_path
from django.utils.translation import gettext as _
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api import (
    attempts,
    bundles,
    consolidation,
    decisions,
    devices,
    events,
    fuse,
    health,
    jobs,
    maintenance,
    nodes,
    overview,
    pools,
    priority_classes,
    profiles,
    projects,
    quotas,
    simulations,
    survivors,
    timeline,
    topology,
    whoami,
)
from controlplane.api.problem import not_found
from controlplane.api.resource import Resource
from controlplane.api.routers import Router


class Nothing(Resource):
    """Answers where there is nothing, as a problem document like everywhere else."""

    schema = None

    def dispatch_any(self, request: Request, rest: str = "") -> Response:
        """Says that there is nothing here."""
        raise not_found(_("address {path}").format(path=f"/api/v1/{rest[:80]}"))

    get = post = put = patch = delete = dispatch_any


router = Router()
router.register("priority-classes", priority_classes.PriorityClassViewSet, "priority-classes")
router.register("projects", projects.ProjectViewSet, "projects")
router.register("quotas", quotas.QuotaViewSet, "quotas")
router.register("devices", devices.DeviceViewSet, "devices")
router.register("events", events.EventViewSet, "events")
router.register("fuse", fuse.FuseViewSet, "fuse")
router.register("maintenance-windows", maintenance.MaintenanceWindowViewSet, "maintenance")
router.register("nodes", nodes.NodeViewSet, "nodes")
router.register("pools", pools.PoolViewSet, "pools")
router.register("survivors", survivors.SurvivorViewSet, "survivors")
router.register("health", health.HealthViewSet, "health")
router.register("overview", overview.OverviewViewSet, "overview")
router.register("timeline", timeline.TimelineViewSet, "timeline")
router.register("topology", topology.TopologyViewSet, "topology")
router.register("version", whoami.VersionViewSet, "version")
router.register("whoami", whoami.WhoamiViewSet, "whoami")
router.register("attempts", attempts.AttemptViewSet, "attempts")
router.register("jobs", jobs.JobViewSet, "jobs")

urlpatterns = [
    *router.urls,
    path("bundles", bundles.Bundles.as_view()),
    re_path(r"^bundles/(?P<sha256>[0-9a-f]{64})$", bundles.OneBundle.as_view()),
    path("consolidation", consolidation.ConsolidationNow.as_view()),
    path("profiles", profiles.Profiles.as_view()),
    path("profiles/<str:name>", profiles.OneProfile.as_view()),
    path("profiles/<str:name>/versions", profiles.ProfileVersions.as_view()),
    path("profiles/<str:name>/versions/<int:number>/preview", profiles.ProfilePreview.as_view()),
    path("profiles/<str:name>/activate", profiles.ProfileActivation.as_view()),
    path("profiles/<str:name>/delete", profiles.ProfileDeletion.as_view()),
    path("decisions", decisions.Decisions.as_view()),
    path("decisions/<int:number>", decisions.OneDecision.as_view()),
    path("decisions/<int:number>/difference", decisions.DecisionUnder.as_view()),
    path("decisions/<int:number>/record", decisions.DecisionRecord.as_view()),
    path("simulations", simulations.Simulations.as_view()),
    path("simulations/<int:number>", simulations.OneSimulation.as_view()),
    path("simulations/<int:number>/cancel", simulations.SimulationCancel.as_view()),
    path("openapi.yaml", SpectacularAPIView.as_view(), name="schema"),
    # It renders a page, which OPTIONS would have none of.
    path("docs", SpectacularSwaggerView.as_view(url_name="v1:schema", http_method_names=["get", "head"]), name="docs"),
    re_path(r"^(?P<rest>.*)$", Nothing.as_view()),
]
