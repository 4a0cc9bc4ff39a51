"""Words in the reader's language: those that scripts show, reasons for waiting by their code, and the few turns of
phrase in which the engine and the API say what is asked, how far a search came and what a forecast rests on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
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
    _("Preempts"),
    _("declared limits"),
    _("expected duration"),
    _("default limit of the pool"),
    _("{n} finished stages like {stage} in {project}"),
)


# The templates of the catalogue of reasons, for the translators; a test compares them with the catalogue.
REASONS = (
    _("on hold by {who}"),
    _("stage {stage} did not complete, and this one needs it"),
    _("waits for {stages}"),
    _("not before {time}"),
    _("attempt {attempt} of {of} may start in {seconds} s"),
    _("cannot run as written: {detail}"),
    _("its code cannot be fetched: {detail}"),
    _("its image cannot be fetched: {detail}"),
    _("no node of pool {pool} has {asks}"),
    _("needs {asks}, more than pool {pool} has"),
    _("its data may not leave {site}"),
    _("asks {asked} {kind}; the hard limit of project {project} is {limit}"),
    _("project {project} holds {held} of {nominal} {kind} and may borrow {borrow} more"),
    _("{user} already runs {running} of {limit} stages"),
    _("pool {pool} is stopped by {who}"),
    _("would overlap the maintenance at {time}"),
    _("{nodes} matching nodes are down, draining or out of contact"),
    _("{victims} make room; up to {seconds} s left"),
    _("its time was {time}, but {devices} of its devices are still busy"),
    _("the timetable lets it start at {time}"),
    _("enough is free, but not inside one {domain}"),
    _("{free} {kind} are free, but no node has the {needed} it needs"),
    _("needs {asks}; the largest free share of a node is {free}"),
    _("what is free is promised to {promised} and would be late"),
    _("project {project} is above its fair share"),
    _("{ahead} stages are ahead"),
    _("not yet looked at"),
)


# How many nodes were left after each filter of a search.
FUNNEL = (
    _("nodes"),
    _("in pool {pool}"),
    _("where its data lie or not avoided"),
    _("with matching devices"),
    _("ready and healthy"),
    _("with enough free"),
    _("without delaying a promise"),
)

# What a forecast rests on.
BASES = (
    _("declared limits"),
    _("expected duration"),
    _("default limit of the pool"),
    _("{n} finished stages like {stage} in {project}"),
)

# What a stage asks, between its dots; models, kinds and units stay as they are.
ASKS = (
    _("{n} nodes x {rest}"),
    _("{n} nodes with {rest}"),
    _("1 core"),
    _("{n} cores"),
    _("1 core {rest}"),
    _("{n} cores {rest}"),
    _("{rest} of one model"),
    _("not all of it on one node"),
)
EITHER = _("{one} or {other}")


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
    if translated == template:
        return text
    params = dict(reason.get("params") or {})
    params |= {key: asks_text(str(params[key])) for key in ("asks", "free") if key in params}
    return translated.format_map(_Shown(params))


@lru_cache(maxsize=64)
def _pattern(template: str) -> re.Pattern[str]:
    """Finds the parts of a template again in a text that it made: ``n`` is a number, anything else any words."""
    pieces = re.split(r"\{(\w+)\}", template)
    inside = {name: r"[0-9.]+" if name == "n" else r".+" for name in pieces[1::2]}
    named = (f"(?P<{piece}>{inside[piece]})" if i % 2 else re.escape(piece) for i, piece in enumerate(pieces))
    return re.compile("".join(named))


def phrase_text(text: str, templates: Iterable[str]) -> str:
    """A text that one of these templates made, in the reader's language; any other as it is."""
    if (get_language() or "en").startswith("en"):
        return text
    for template in templates:
        if found := _pattern(template).fullmatch(text):
            return gettext(template).format_map(found.groupdict())
    return text


def asks_text(asks: str) -> str:
    """A demand such as ``2 nodes x 8 H100 or 4 npu · 1 core`` in the reader's language."""
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
