"""Redirects from a device's address to its row on its node's page."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from controlplane.queries import devices


@login_required
def show(request: HttpRequest, uuid: str) -> HttpResponse:
    device = devices.found(uuid)
    return redirect(f"/nodes/{device.node.name}#{device.kind}{device.index}")
