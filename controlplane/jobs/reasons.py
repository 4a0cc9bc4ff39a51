"""Renders stored reasons for waiting in the reader's language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import get_language, gettext

from controlplane.clauses import ShownValues, hidden_in_words, shown
from scheduler.core.model.reasons import CATALOGUE

_TEMPLATES = {entry.code: entry.template for entry in CATALOGUE}


def reason_text(reason: Mapping[str, Any] | None) -> str:
    """Return a reason in the reader's language, or in the stored English if there is no translation."""
    if not reason:
        return ""
    text = str(reason.get("text") or reason.get("code") or "")
    template = _TEMPLATES.get(str(reason.get("code")))
    if template is None or (get_language() or "en").startswith("en"):
        return text
    translated = gettext(template)
    if translated == template:
        return text
    return hidden_in_words(translated.format_map(ShownValues(shown(reason.get("params") or {}))))
