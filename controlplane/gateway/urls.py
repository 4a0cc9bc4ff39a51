"""The HTTP addresses of the gateway."""

from django.urls import include, path

from controlplane.observability.probes import alive, ready

handler400 = "controlplane.wellformed.bad_request_page"

urlpatterns = [
    path("healthz", alive),
    path("readyz", ready),
    path("agent/v1/", include("controlplane.dispatch.urls")),
]
