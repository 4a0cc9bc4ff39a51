"""Templates: a list, and for each a form of its parameters that leads to the page of a new job, filled in."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_safe

from controlplane.documents import to_yaml
from controlplane.job_templates import service
from controlplane.pages import submit
from controlplane.pages.shell import page, reader
from controlplane.queries import templates
from controlplane.queries.refusals import Unseen


@login_required
@require_safe
def show(request: HttpRequest) -> HttpResponse:
    return page(
        request,
        "templates.html",
        {"templates": templates.of_user(reader(request)).results},
        place="templates",
        crumbs=[(_("Templates"), "")],
    )


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def one(request: HttpRequest, name: str) -> HttpResponse:
    """The form; a POST leads on to the page of a new job, where it is tried and submitted."""
    template = service.find(reader(request), name, request.GET.get("project", "")[:200])
    if template is None:
        raise Unseen(_("template {name}").format(name=name))
    names = [str(each["name"]) for each in template.parameters]
    given = {name: request.POST.get(name, "") for name in names} if request.method == "POST" else {}
    faults: list[str] = []
    if request.method == "POST":
        try:
            return submit.form(request, service.fill(template, {key: value for key, value in given.items() if value}))
        except service.TemplateRefused as refused:
            faults = [each.detail for each in refused.errors]
    return page(
        request,
        "template.html",
        {
            "template": template,
            "fields": [_field(dict(each), given) for each in template.parameters],
            "file": to_yaml(dict(template.job)),
            "faults": faults,
        },
        place="templates",
        crumbs=[(_("Templates"), "/templates"), (template.title, "")],
        status=422 if faults else 200,
    )


def _field(parameter: dict[str, Any], given: dict[str, str]) -> dict[str, Any]:
    """What the form shows of a parameter."""
    kind, value = parameter.get("type", "text"), given.get(parameter["name"]) or parameter.get("default")
    choices = ["true", "false"] if kind == "boolean" else parameter.get("choices") or []
    return {
        "name": parameter["name"],
        "title": parameter.get("title") or parameter["name"],
        "kind": kind,
        "value": str(value).lower() if isinstance(value, bool) else "" if value is None else str(value),
        "choices": choices,
        "min": parameter.get("min"),
        "max": parameter.get("max"),
        "required": parameter.get("default") is None,
    }
