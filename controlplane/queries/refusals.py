"""Reasons why a question has no answer; the API answers with a problem document, a page with an error page."""

from __future__ import annotations

from django.core.exceptions import BadRequest
from django.http import Http404
from django.utils.translation import gettext as _


class Unseen(Http404):
    """There is nothing by that name, or nothing that this user may know of."""

    def __init__(self, what: str) -> None:
        super().__init__(_("there is no {what} that you may see").format(what=what))


class Unanswerable(BadRequest):
    """The question makes no sense; the message says what would."""
