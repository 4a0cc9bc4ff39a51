"""What a load balancer asks: ``/healthz`` whether the process lives, ``/readyz`` whether it serves."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from controlplane.observability.health import checks


@require_safe
def alive(_request: HttpRequest) -> HttpResponse:
    """Say that the process answers; it looks at nothing else."""
    return HttpResponse("ok\n", content_type="text/plain")


@require_safe
def ready(request: HttpRequest) -> HttpResponse:
    """Say whether all that is vital works; with ``?verbose`` a line for each check, without what staff may read."""
    found = checks()
    fails = [one.name for one in found if one.vital and not one.ok]
    lines = [f"[{'+' if one.ok else '-'}] {one.name}" for one in found] if "verbose" in request.GET else []
    text = "\n".join([*lines, f"not ready: {', '.join(fails)}" if fails else "ready", ""])
    return HttpResponse(
        text, status=503 if fails else 200, content_type="text/plain", headers={"Cache-Control": "no-store"}
    )
