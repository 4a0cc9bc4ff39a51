"""Sessions: the ports of jobs that can be opened in a browser, and the form that opens one."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from controlplane.jobs import web_ports, web_sessions
from controlplane.jobs.sessions import NotOpened
from controlplane.pages.shell import page, reader
from controlplane.queries import jobs
from controlplane.queries import web_ports as named
from controlplane.queries.reading import API, Representation


@login_required
@require_safe
def show(request: HttpRequest) -> HttpResponse:
    return _page(request)


@login_required
@require_POST
def open_port(request: HttpRequest, number: int) -> HttpResponse:
    """Opens a port, and leads to it; or says why it cannot be."""
    row = jobs.visible(reader(request)).select_related("project", "user").filter(number=number).first()
    if row is None:
        raise Http404(_("There is no job #{number}, or you may not see it.").format(number=number))
    name, rank = request.POST.get("port", ""), request.POST.get("rank", "0")
    if not web_ports.NAME.fullmatch(name) or not (rank.isascii() and rank.isdecimal() and len(rank) <= 6):
        return _page(request, 400, _("name a port, and a rank"))
    wish = web_sessions.PortWish(name, request.POST.get("stage", "")[:63], int(rank))
    try:
        ticket = web_sessions.open_port(row, reader(request), wish, login=request.session.session_key or "")
    except NotOpened as refused:
        return _page(request, refused.status, str(refused))
    response = HttpResponseRedirect(ticket.url)
    response.status_code = 303
    response["Cache-Control"] = "no-store"
    response["Referrer-Policy"] = "no-referrer"
    return response


def _page(request: HttpRequest, status: int = 200, fault: str = "") -> HttpResponse:
    return page(
        request,
        "sessions.html",
        {
            "ports": named.of_user(reader(request)).results,
            "has_origin": settings.SESSION_ORIGINS is not None,
            "fault": fault,
        },
        place="sessions",
        topics=[Representation(f"{API}/jobs?limit=1", "", None)],
        status=status,
        every_s=5,
        crumbs=[(_("Sessions"), "")],
    )
