"""The sentences that scripts show, in the reader's language, and the reasons for waiting, translated by their code."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from django.utils.translation import get_language, gettext, override
from django.utils.translation import gettext_noop as _

from scheduler.core.reasons import CATALOGUE

SCRIPT = (
    _("{n} s"),
    _("{n} min"),
    _("{n} h"),
    _("{n} d"),
    _("{span} ago"),
    _("now"),
    _("Now"),
    _("Mean"),
    _("Most"),
    _("Live"),
    _("Connecting"),
    _("Paused"),
    _("Polling {n} s"),
    _("Stale {span}"),
    _("Offline, retry in {n} s"),
    _("Lane"),
    _("What"),
    _("State"),
    _("From"),
    _("To"),
    _("Node"),
    _("Device"),
    _("Utilisation"),
    _("Series"),
    _("Time"),
    _("Step"),
    _("Value"),
    _("Showing 1,000 of {n} rows."),
    _("The server answered {status}."),
    _("Copied"),
    _("Done"),
    _("core"),
    _("cores"),
    _("Following"),
    _("Follow"),
    _("attempt {n}"),
    _("rank {n}"),
    _("standard error"),
    _("standard output"),
    _("{n} found"),
    _("{n} lines"),
    _("last {n} lines"),
    _("Starts now"),
    _("Starts about {from}"),
    _("Would wait"),
    _("Cannot run as written"),
    _("No preview"),
    _("Checking…"),
    _("Valid"),
    _("{n} to correct"),
    _("after {stages}"),
    _("Submitted as #{number}"),
    _("The preview is not available; submitting still works."),
    _("Draft restored"),
)


@lru_cache(maxsize=8)
def script_words(language: str) -> Mapping[str, str]:
    """English sentence to the language's, for every sentence in a script; empty for English."""
    if language.startswith("en"):
        return {}
    with override(language):
        return {text: gettext(text) for text in SCRIPT}


_TEMPLATES = {entry.code: entry.template for entry in CATALOGUE}


class _Shown(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "?"


def reason_text(reason: Mapping[str, Any] | None) -> str:
    """A reason in the reader's language; the server's own sentence where there is no translation."""
    if not reason:
        return ""
    text = str(reason.get("text") or reason.get("code") or "")
    template = _TEMPLATES.get(str(reason.get("code")))
    if template is None or (get_language() or "en").startswith("en"):
        return text
    translated = gettext(template)
    return translated.format_map(_Shown(reason.get("params") or {})) if translated != template else text
