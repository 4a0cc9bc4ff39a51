"""Exceptions of queries without an answer; the API returns a problem document, a page an error page."""

from __future__ import annotations

from django.core.exceptions import BadRequest
from django.http import Http404
from django.utils.translation import gettext as _


class Unseen(Http404):
    """There is no such object, or the user may not see it."""

    def __init__(self, what: str) -> None:
        super().__init__(_("there is no {what} that you may see").format(what=what))


class Unanswerable(BadRequest):
    """The query is invalid; the message says what would be accepted."""
