"""Sites: other clusters with what they offer, and the jobs of ours there that the reader may see."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from controlplane.accounts.permissions import Permit, may
from controlplane.pages.shell import page, reader
from controlplane.queries import sites
from controlplane.queries.reading import redacted
from controlplane.sites.models import Site

# Of each site: the newest jobs.
MOST_JOBS = 50


@login_required
@require_safe
def show(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    found = sites.whole(user)
    jobs = [redacted(user, sites.jobs_shown(sites.jobs_of(row, user)[:MOST_JOBS], user)) for row in Site.objects.all()]
    return page(
        request,
        "sites.html",
        {
            "sites": list(zip(found.body["results"], jobs, strict=True)),
            "may_add": may(user, Permit.ADD_SITES),
            "may_change": may(user, Permit.CHANGE_SITES),
        },
        place="sites",
        topics=[found],
        every_s=4,
        crumbs=[(_("Nodes"), "/nodes"), (_("Sites"), "")],
    )
