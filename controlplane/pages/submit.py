"""The form and the file of a new job, side by side. The API validates, previews and accepts; this page only shows
it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.request import RawPostDataException
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from controlplane.accounts.permissions import submittable, visible_jobs
from controlplane.documents import Unreadable, from_yaml
from controlplane.jobs import masked
from controlplane.jobs.models import Job
from controlplane.jobs.spec import STAGE_DEFAULTS
from controlplane.pages.shell import page, reader, title_of
from controlplane.queries import overview, pools
from controlplane.queries.priority_classes import usable_names

KINDS = ("preprocess", "extract", "load", "train", "validate", "infer", "serve", "render", "generic")
SAMPLE: dict[str, Any] = {"name": "hello", "run": "echo hello from $(hostname)", "time_limit": "10m"}


def _start(request: HttpRequest) -> tuple[dict[str, Any], int | None, list[str]]:
    """The initial content of the form: the file of the job that ``?from=`` names, if it may be seen, or a small
    example.

    Values of secrets are not copied, not even for their owner: the last item lists the variables to enter again, and
    the API refuses a file with a masked one.
    """
    row = copied_job(request)
    return (masked.shown(row.spec), row.number, masked.names(row.spec)) if row else (SAMPLE, None, [])


def copied_job(request: HttpRequest) -> Job | None:
    """The job that ``?from=`` names, if it may be seen."""
    wanted = request.GET.get("from", "")
    if not re.fullmatch(r"[0-9]{1,18}", wanted):
        return None
    return Job.objects.filter(visible_jobs(reader(request)), number=int(wanted)).first()


def job_file(content: bytes) -> dict[str, Any]:
    """A job file of this YAML; raises Unreadable."""
    spec = from_yaml(content)
    if not isinstance(spec, dict):
        raise Unreadable(_("A job file is a mapping of keys to values."))
    return spec


@login_required
def show(request: HttpRequest) -> HttpResponse:
    return form(request, *_start(request))


def form(
    request: HttpRequest, spec: dict[str, Any], source: int | None = None, secrets: Sequence[str] = ()
) -> HttpResponse:
    """The page with this job file in the form; nothing is submitted yet."""
    tiles = overview.now(reader(request)).tiles
    models = sorted({(tile.kind, tile.model) for tile in tiles if tile.kind != "cpu" and tile.model})
    known = {"spec": spec, "source": source, "inherited": STAGE_DEFAULTS}
    return page(
        request,
        "submit.html",
        {
            "known": known,
            "source": source,
            "secrets": secrets,
            "stage_kinds": KINDS,
            "projects": list(submittable(reader(request)).values_list("name", flat=True)),
            "pools": pools.usable_names(reader(request)),
            "classes": usable_names(reader(request)),
            "models": models,
            "device_kinds": sorted({kind for kind, _model in models} | {"gpu", "npu"}),
        },
        place="submit",
        crumbs=[(title_of("jobs"), "/jobs"), (_("New"), "")],
    )


def _content(request: HttpRequest) -> bytes:
    """The job file that was sent. Raises BadRequest for a multipart form, whose body has been read already."""
    try:
        return request.body
    except RawPostDataException:
        raise BadRequest(_("Send the job file itself, not a form.")) from None


@login_required
@require_POST
def parse(request: HttpRequest) -> JsonResponse:
    """Returns a job file's YAML as JSON, parsed by the API's parser, or its errors.

    ``draft`` is a copy without secret values that a browser may store; null if there are none.
    """
    try:
        spec = job_file(_content(request))
    except Unreadable as error:
        return JsonResponse({"detail": str(error)}, status=400)
    draft = masked.shown(spec)
    response = JsonResponse({"spec": spec, "draft": None if draft == spec else draft})
    response["Cache-Control"] = "no-store"
    return response
