"""What the gateway answers over HTTP."""

from django.http import HttpRequest, HttpResponse
from django.urls import include, path


def alive(_request: HttpRequest) -> HttpResponse:
    """Say that the process answers; it looks at nothing else."""
    return HttpResponse("ok\n", content_type="text/plain")


handler400 = "controlplane.wellformed.said"

urlpatterns = [
    path("agent/v1/alive", alive),
    path("agent/v1/", include("controlplane.link.urls")),
]
