"""The addresses of the API, all under /api/v1."""

from __future__ import annotations

from django.urls import path, re_path
from django.utils.translation import gettext as _
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api import (
    adjustments,
    attempts,
    audit,
    bundles,
    consolidation,
    counterfactuals,
    decisions,
    device_codes,
    devices,
    events,
    fuse,
    health,
    jobs,
    logs,
    maintenance,
    metrics,
    nodes,
    overview,
    pools,
    priority_classes,
    profiles,
    projects,
    quarantine,
    quotas,
    secrets,
    simulations,
    survivors,
    timeline,
    topology,
    values,
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

urlpatterns = [
    path("audit", audit.AuditLog.as_view()),
    *router.urls,
    path("bundles", bundles.Bundles.as_view()),
    re_path(r"^bundles/(?P<sha256>[0-9a-f]{64})$", bundles.OneBundle.as_view()),
    path("jobs", jobs.Jobs.as_view()),
    path("jobs/batch", jobs.JobBatch.as_view()),
    path("jobs/<str:name>", jobs.OneJob.as_view()),
    path("jobs/<str:name>/cancel", jobs.JobCancel.as_view()),
    path("jobs/<str:name>/hold", jobs.JobHold.as_view()),
    path("jobs/<str:name>/release", jobs.JobRelease.as_view()),
    path("jobs/<str:name>/spec", jobs.JobSpec.as_view()),
    path("jobs/<str:name>/why", jobs.JobReasons.as_view()),
    path("jobs/<str:name>/counterfactuals", counterfactuals.CounterfactualsOfJob.as_view()),
    path("jobs/<str:name>/events", attempts.JobFacts.as_view()),
    path("jobs/<str:name>/attempts", attempts.JobAttempts.as_view()),
    path("jobs/<str:name>/checkpoints", attempts.JobCheckpoints.as_view()),
    path("jobs/<str:name>/streams", logs.JobStreams.as_view()),
    path("jobs/<str:name>/logs", logs.JobLogs.as_view()),
    path("jobs/<str:name>/metrics", metrics.JobMetrics.as_view()),
    path("jobs/<str:name>/values", values.JobValues.as_view()),
    path("attempts/<uuid:name>", adjustments.OneAttempt.as_view()),
    path("attempts/<uuid:name>/adjust", adjustments.AttemptAdjust.as_view()),
    path("nodes", nodes.Nodes.as_view()),
    path("nodes/<str:name>", nodes.OneNode.as_view()),
    path("nodes/<str:name>/drain", nodes.NodeDrain.as_view()),
    path("nodes/<str:name>/lost", nodes.NodeLost.as_view()),
    path("nodes/<str:name>/rotate", nodes.NodeRotate.as_view()),
    path("nodes/<str:name>/quarantine", quarantine.NodeQuarantine.as_view()),
    path("nodes/<str:name>/resume", nodes.NodeResume.as_view()),
    path("health", health.HealthNow.as_view()),
    path("fuse", fuse.MassLossFuse.as_view()),
    path("fuse/release", fuse.FuseRelease.as_view()),
    path("survivors", survivors.Survivors.as_view()),
    path("survivors/<str:name>/stop", survivors.SurvivorStop.as_view()),
    path("survivors/<str:name>/forget", survivors.SurvivorForget.as_view()),
    path("consolidation", consolidation.ConsolidationNow.as_view()),
    path("maintenance-windows", maintenance.MaintenanceWindows.as_view()),
    path("maintenance-windows/<int:number>", maintenance.OneMaintenanceWindow.as_view()),
    path("maintenance-windows/<int:number>/cancel", maintenance.MaintenanceCancel.as_view()),
    path("topology", topology.Topologies.as_view()),
    path("devices", devices.Devices.as_view()),
    path("devices/<path:name>/cordon", devices.DeviceCordon.as_view()),
    path("devices/<path:name>/uncordon", devices.DeviceUncordon.as_view()),
    path("devices/<path:name>", devices.OneDevice.as_view()),
    path("pools", pools.Pools.as_view()),
    path("pools/<str:name>", pools.OnePool.as_view()),
    path("pools/<str:name>/profile", pools.PoolProfile.as_view()),
    path("profiles", profiles.Profiles.as_view()),
    path("profiles/<str:name>", profiles.OneProfile.as_view()),
    path("profiles/<str:name>/versions", profiles.ProfileVersions.as_view()),
    path("profiles/<str:name>/versions/<int:number>/preview", profiles.ProfilePreview.as_view()),
    path("profiles/<str:name>/activate", profiles.ProfileActivation.as_view()),
    path("profiles/<str:name>/delete", profiles.ProfileDeletion.as_view()),
    path("projects/<str:name>/secrets", secrets.Secrets.as_view()),
    path("projects/<str:name>/secrets/<str:secret>", secrets.OneSecret.as_view()),
    path("overview", overview.OverviewNow.as_view()),
    path("timeline", timeline.TimelineNow.as_view()),
    path("events", events.Facts.as_view()),
    path("decisions", decisions.Decisions.as_view()),
    path("decisions/<int:number>", decisions.OneDecision.as_view()),
    path("decisions/<int:number>/difference", decisions.DecisionUnder.as_view()),
    path("decisions/<int:number>/record", decisions.DecisionRecord.as_view()),
    path("simulations", simulations.Simulations.as_view()),
    path("simulations/<int:number>", simulations.OneSimulation.as_view()),
    path("simulations/<int:number>/cancel", simulations.SimulationCancel.as_view()),
    path("device-codes", device_codes.DeviceCodes.as_view()),
    path("device-codes/token", device_codes.DeviceTokens.as_view()),
    path("tokens/current", device_codes.OwnToken.as_view()),
    path("version", whoami.ServerVersion.as_view()),
    path("whoami", whoami.WhoAmI.as_view()),
    path("openapi.yaml", SpectacularAPIView.as_view(), name="schema"),
    # It renders a page, which OPTIONS would have none of.
    path("docs", SpectacularSwaggerView.as_view(url_name="v1:schema", http_method_names=["get", "head"]), name="docs"),
    re_path(r"^(?P<rest>.*)$", Nothing.as_view()),
]
