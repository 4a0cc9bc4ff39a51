"""Pages read what the API would answer, through the same function: a page never knows more than a client does."""

from __future__ import annotations

import json
from typing import Any, cast

from django.core.exceptions import BadRequest, PermissionDenied
from django.http import Http404, HttpRequest, QueryDict
from django.utils.translation import gettext as _

from controlplane.accounts.models import User
from controlplane.queries.reading import API, Answer, cursor_of

__all__ = ["API", "Answer", "cursor_of"]


def read(request: HttpRequest, path: str) -> Answer:
    """Reads ``path``, which is below /api/v1. Raises Http404, PermissionDenied or BadRequest where the API
    refuses."""
    # Imported late: the API's modules register their resources and are heavy to load.
    from controlplane.api.live import read as answer_of

    status, etag, content = answer_of(API + path, cast(User, request.user))
    if status == 404:
        raise Http404(_("There is nothing at {path}, or you may not see it.").format(path=path.partition("?")[0]))
    if status in {401, 403}:
        raise PermissionDenied(_detail(content) or _("you may not see this"))
    if status in {400, 422}:
        raise BadRequest(_detail(content))
    if status >= 400:
        raise ValueError(f"GET {path} was refused with {status}: {_detail(content)}")
    return Answer(API + path, etag, json.loads(content))


def dry_run(request: HttpRequest) -> tuple[int, dict[str, Any]]:
    """What the API answers to this request as a submission that is only tried: the status and the body."""
    from controlplane.api.jobs import JobViewSet

    request.GET = QueryDict("dry_run=placement")
    response = JobViewSet.as_view({"post": "create"})(request)
    if hasattr(response, "render"):
        response = response.render()
    return response.status_code, json.loads(response.content)


def _detail(content: bytes) -> str:
    try:
        problem = json.loads(content)
    except ValueError:
        return ""
    return str(problem.get("detail") or problem.get("title") or "") if isinstance(problem, dict) else ""
