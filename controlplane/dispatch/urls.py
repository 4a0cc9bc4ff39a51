"""URL routes of the agents' HTTP endpoints; their WebSocket is routed in ``controlplane.asgi``."""

from django.urls import path

from controlplane.dispatch import traces, uploads

urlpatterns = [
    path("enrol", uploads.enrol),
    path("logs", uploads.logs),
    path("telemetry", uploads.telemetry),
    path("sources", uploads.sources),
    path("traces/<uuid:trace>", traces.news),
    path("traces/<uuid:trace>/content", traces.content),
    path("bundles/<str:sha256>", uploads.bundle),
]
