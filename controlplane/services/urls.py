"""URL routes of the routers' endpoints."""

from django.urls import path

from controlplane.services import router_link

urlpatterns = [
    path("sync", router_link.sync),
    path("keys", router_link.keys),
    path("wake", router_link.wake),
    path("calls", router_link.take),
    path("results", router_link.results),
]
