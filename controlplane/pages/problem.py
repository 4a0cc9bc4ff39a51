"""The pages for what went wrong: refused, not found, broken."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _


def _page(request: HttpRequest, status: int, title: str, detail: str) -> HttpResponse:
    return render(request, "problem.html", {"status": status, "title": title, "detail": detail}, status=status)


def refused(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _page(request, 403, _("Not allowed"), str(exception) or _("You may not see this."))


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    said = exception.args[0] if exception and exception.args and isinstance(exception.args[0], str) else ""
    return _page(request, 404, _("Not found"), said or _("There is no page at this address."))


def broken(request: HttpRequest) -> HttpResponse:
    """Says as little as it can: nothing that it needs may be broken too."""
    detail = _("The server could not answer. Its log says why; the jobs are not affected.")
    return _page(request, 500, _("Something broke"), detail)
