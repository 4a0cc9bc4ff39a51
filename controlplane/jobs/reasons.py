"""Translates stored reasons for waiting and demands of stages, which are English, into the reader's language."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from django.utils.translation import get_language, gettext
from django.utils.translation import gettext_noop as _

from controlplane.jobs.clauses import Shown, hidden_in_words, shown
from scheduler.core.model.reasons import CATALOGUE

# Templates of details in reasons that come from the snapshot.
DETAILS = (_("it is no longer kept; upload it again"),)

# Templates of the pieces of a demand between its dots; models, kinds and units are not translated.
ASKS = (
    _("{n} nodes x {rest}"),
    _("{n} nodes with {rest}"),
    _("1 core"),
    _("{n} cores"),
    _("1 core {rest}"),
    _("{n} cores {rest}"),
    _("{rest} of one model"),
    _("{rest} inside one {domain}"),
    _("not all of it on one node"),
)
EITHER = _("{one} or {other}")

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
    given = reason.get("params") or {}
    params = shown(given)
    params |= {key: asks_text(params[key]) for key in ("asks", "free") if key in params and f"{key}_said" not in given}
    if "detail" in params:
        params["detail"] = phrase_text(params["detail"], DETAILS)
    return hidden_in_words(translated.format_map(Shown(params)))


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


def asks_text(asks: str) -> str:
    """Translate a demand such as ``2 nodes x 8 H100 or 4 npu · 1 core``."""
    if (get_language() or "en").startswith("en"):
        return asks
    return " · ".join(_part(part) for part in asks.split(" · "))


def _part(part: str) -> str:
    one, word, other = part.partition(", or " if ", or " in part else " or ")
    if word:
        return gettext(EITHER).format(one=_part(one), other=_part(other))
    for template in ASKS:
        if found := _pattern(template).fullmatch(part):
            named = found.groupdict()
            return gettext(template).format_map(named | ({"rest": _part(named["rest"])} if "rest" in named else {}))
    return part
