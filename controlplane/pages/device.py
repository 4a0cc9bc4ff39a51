"""A device's address leads to its row on its node's page."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from controlplane.pages.reading import read


@login_required
def show(request: HttpRequest, uuid: str) -> HttpResponse:
    device = read(request, f"/devices/{uuid}").body
    return redirect(f"/nodes/{device['node']}#{device['kind']}{device['index']}")
