"""Translates texts of other modules for answers: the engine's messages and HTTP phrases."""

from __future__ import annotations

from http import HTTPStatus

from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from scheduler.core.model.sentences import Sentence

# The HTTP phrases that an answer may have, for translators.
TITLES = (
    _("Bad Request"),
    _("Unauthorized"),
    _("Forbidden"),
    _("Not Found"),
    _("Method Not Allowed"),
    _("Not Acceptable"),
    _("Request Timeout"),
    _("Conflict"),
    _("Content Too Large"),
    _("Request Entity Too Large"),
    _("Unsupported Media Type"),
    _("Unprocessable Entity"),
    _("Too Many Requests"),
    _("Internal Server Error"),
    _("Service Unavailable"),
    _("Insufficient Storage"),
)


def title(status: int) -> str:
    """Return the phrase of an HTTP status in the reader's language."""
    return gettext(HTTPStatus(status).phrase)


def in_language(text: str) -> str:
    """Render the sentence from its template in the reader's language; other texts stay as they are."""
    if not isinstance(text, Sentence):
        return text
    fields = {name: in_language(value) if isinstance(value, str) else value for name, value in text.fields.items()}
    return gettext(text.template).format(**fields) if fields else gettext(text.template)
