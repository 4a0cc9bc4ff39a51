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
