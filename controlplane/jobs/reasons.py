"""Renders stored reasons for waiting in the reader's language."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from django.utils.translation import get_language, gettext

from controlplane.jobs.clauses import ShownValues, hidden_in_words, shown
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


@cache
def _pattern(template: str) -> re.Pattern[str]:
    """Compile a pattern that finds the fields of a template in a text made from it.

    The field ``n`` matches a number or a range, every other field any words.
    """
    pieces = re.split(r"\{(\w+)\}", template)
    inside = {name: r"[0-9.]+(?:-[0-9]+)?" if name == "n" else r".+" for name in pieces[1::2]}
    named = (f"(?P<{piece}>{inside[piece]})" if i % 2 else re.escape(piece) for i, piece in enumerate(pieces))
    return re.compile("".join(named))


def phrase_text(text: str, templates: Sequence[str], inner: Collection[str] = ()) -> str:
    """Translate a text that one of these templates made; return any other text unchanged.

    The value of a field named in ``inner`` may itself be such a text, and is translated too.
    """
    if (get_language() or "en").startswith("en"):
        return text
    for template in templates:
        if found := _pattern(template).fullmatch(text):
            fields = found.groupdict()
            fields |= {name: phrase_text(fields[name], templates, inner) for name in inner if name in fields}
            return gettext(template).format_map(fields)
    return text
