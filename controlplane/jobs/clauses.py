"""Stored sentences about jobs: English text, and the clauses from which it is rendered in any language.

Clauses come from the engine, from agents and from the control plane itself. A clause is stored as a code and its
values; a value may itself be a sentence with clauses (:class:`Told`), for example the reason inside a longer sentence.
A sentence without clauses was written by a person, or is older than clauses are, and is shown unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django.utils.translation import get_language, gettext

from agents.protocol import ENDS
from controlplane.jobs.amounts import gib, span
from scheduler.core.model import clauses as engine
from scheduler.core.model import times
from scheduler.core.model.clauses import _

# Bounds of what an agent may say about one end; the clauses of a longer sentence are dropped.
MOST_CLAUSES: Final = 16
LONGEST: Final = 2000
# Replaces the name of a stage whose job the reader may not see.
HIDDEN: Final = _("another project's stage")
# Replaces a list of several such names.
HIDDEN_SEVERAL: Final = _("{n} stages of other projects")
_SEVERAL: Final = re.compile(r"([0-9]+) stages of other projects")

RECORD: Final[Mapping[str, str]] = {
    "Comma": _(", "),
    "Because": _(": {why}"),
    "Aside": _(" ({why})"),
    "Then": _("; {what}"),
    "Submitted": _("{job} submitted by {actor}"),
    "JobState": _("{job} {state}"),
    "InAdministration": _("from the administration"),
    "CancelledBy": _("{actor} cancelled {job}"),
    "HeldBy": _("{actor} put on hold {job}"),
    "ReleasedBy": _("{actor} released {job}"),
    "MayStart": _("{stage} may start: all it needs has completed"),
    "NeedFailed": _("{need} did not complete, and {stage} needs it"),
    "Placed": _("{stage} placed: {why}"),
    "GoesOnWith": _("{stage} resized {was} -> {now} nodes of {within}"),
    "Runs": _("{stage} runs"),
    "AskedToStop": _("{stage} was asked to stop ({cause})"),
    "Resized": _("resized {was} -> {now}: {why}"),
    "AsAsked": _("{why}, as {actor} asked"),
    "Completed": _("{stage} completed"),
    "Ended": _("{stage} ended: {cause}"),
    "EndedAfter": _("{stage} ended after {ran_s}: {cause}"),
    "Detail": _(", {detail}"),
    "QueuedOnceMore": _("; queued again"),
    "OnRank": _("rank {rank} on {node}: {detail}"),
    "NodeLost": _("node {node} was lost"),
    "GaveBack": _("{stage} gave its memory back: {devices}"),
    "KeptMemory": _("{stage} did not give all memory back: {devices}"),
    "LeftDevices": _("{stage} left its devices: {devices}"),
    "Unmeasured": _("{device} could not be measured"),
    "Left": _("{device} {left_bytes} {after} s after the end"),
    "LeftOf": _("{device} had {most_bytes} in use, {left_bytes} {after} s after the end"),
    "LeftBefore": _(" ({before_bytes} before the start)"),
    "Adjusted": _("{stage} adjusted in place: {changes}"),
    "Suspended": _("suspended"),
    "GoesOn": _("resumed"),
    "AsStarted": _("{name} as it started"),
    "SetTo": _("{name} {value}"),
    "LogCut": _("the log of {stage}, rank {rank}, reached {limit_bytes}: what comes after is dropped"),
    "Entered": _("{actor} entered {stage} (rank {rank} on {node}): {command}"),
    "WentOut": _("{actor} left {stage} ({command}): {how}"),
    "GuestCode": _("ended with exit code {code}"),
    "GuestSignal": _("ended by signal {signal}"),
    "GuestPart": _("the stage ended, and with it whoever was inside"),
    "GuestGone": _("the caller went away"),
    "GuestIdle": _("nothing was typed or shown for {idle_s}"),
    "GuestRight": _("the right to be there was taken away"),
    "GuestLink": _("the connection to the node was lost"),
    "GuestLost": _("the control plane lost sight of it"),
    "GuestSilent": _("the node did not answer"),
    "GuestOld": _("the agent of the node knows no sessions; upgrade it"),
    "GuestBroken": _("what was sent was no session"),
    "SaveAsAsked": _("the job file names it"),
    "SaveMeasured": _("its saves took {save_s}"),
    "SaveAlike": _("saves of stages like it took {save_s}"),
    "SaveAssumed": _("no save was measured, {save_s} are assumed"),
    "InterruptedEvery": _("; what it holds is interrupted about every {between_s}"),
    # What a forecast rests on, by scheduler.core.model.basis, and what advice on memory does.
    "BasisLimits": _("declared limits"),
    "BasisDeclared": _("as declared"),
    "BasisOwnRun": _("from {runs} run of this stage"),
    "BasisOwnRuns": _("from {runs} runs of this stage"),
    "BasisOtherRequest": _("from {runs} run of this stage with another request"),
    "BasisOtherRequests": _("from {runs} runs of this stage with another request"),
    "BasisNamesakes": _("from stages of this name by others"),
    "BasisAhead": _("from what runs and waits ahead"),
    "BasisTrace": _("a trace"),
    "BasisTruth": _("the truth"),
    "UnknownNoneLikeIt": _("unknown: no like stage has ended"),
    "UnknownTooWide": _("unknown: like stages differ too much"),
    "UnknownUneven": _("unknown: starts like this one came too unevenly"),
    "BasisPeaks": _("peaks of {seen} finished stages like it"),
    "BasisRanOut": _("; {ran_out} of them ran out of memory"),
    # How many nodes were left after each filter of a search, by scheduler.core.model.funnel.
    "FunnelAll": _("nodes"),
    "FunnelInPool": _("in pool {pool}"),
    "FunnelAllowed": _("where its data lie or not avoided"),
    "FunnelMatching": _("with matching devices"),
    "FunnelWithEngine": _("with a container engine"),
    "FunnelReady": _("ready and healthy"),
    "FunnelEnoughFree": _("with enough free"),
    "FunnelNoPromiseDelayed": _("without delaying a promise"),
    # What a stage asks of each of its nodes; with clauses of the engine between.
    "OnNodes": _("{nodes} nodes x "),
    "Either": _(" or "),
    "OneShare": _("{share} {device}"),
    "Shares": _("{count} x {share} {device}"),
    "OnePartition": _("{partition} of {device}"),
    "Partitions": _("{count} x {partition} of {device}"),
    "Kind": _("{kind}"),
}
TEMPLATES: Final[Mapping[str, str]] = {**engine.TEMPLATES, **ENDS, **RECORD}

Clause = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Told:
    """A sentence in English and its clauses; there are none if a person wrote the sentence."""

    text: str = ""
    said: list[Clause] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        return {"text": self.text, "said": self.said}


def clause(code: str, /, **params: Any) -> Clause:
    return {"code": code, "params": {name: _stored(value) for name, value in params.items()}}


def told(*said: Clause) -> Told:
    """Render clauses as one sentence."""
    pieces = (TEMPLATES[each["code"]].format_map(_english(each["params"])) for each in said)
    return Told("".join(pieces), list(said))


def joined(sentences: Sequence[Told], code: str) -> Told:
    """Join sentences into one, with the clause of this code between them."""
    said: list[Clause] = []
    for each in sentences:
        said += [*([clause(code)] if said else []), *each.said]
    return Told(TEMPLATES[code].join(each.text for each in sentences), said)


def of_engine(text: str, said: engine.Said) -> Told:
    return Told(text, engine.plain(said))


def of_agent(exit_: Mapping[str, Any]) -> Told:
    """Return what an agent said about an end, in the form that is stored; too many or too long clauses are dropped."""
    said = [clause(code, **params) for code, params in exit_.get("said") or ()]
    much = len(said) > MOST_CLAUSES or any(len(str(each["params"])) > LONGEST for each in said)
    return Told(str(exit_.get("detail", "")), [] if much else said)


def kept(text: str, said: Any) -> Told:
    """Return the sentence that is stored in these two columns of a row."""
    return Told(text, said if isinstance(said, list) else [])


def _stored(value: Any) -> Any:
    return value.plain() if isinstance(value, Told) else value


def _english(params: Mapping[str, Any]) -> dict[str, str]:
    shown: dict[str, str] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            shown[name] = str(value["text"])
        elif name.endswith("_s"):
            shown[name] = times.span(value)
        else:
            shown[name] = f"{value / 2**30:.1f} GiB" if name.endswith("_bytes") else str(value)
    return shown


# -- in the reader's language


def in_words(text: str, said: Sequence[Mapping[str, Any]] | None) -> str:
    """Render a sentence in the reader's language.

    It stays English if it has no clauses, or one that only a later version knows.
    """
    if not said or (get_language() or "en").startswith("en") or any(each.get("code") not in TEMPLATES for each in said):
        return text
    pieces = (
        gettext(TEMPLATES[each["code"]]).format_map(ShownValues(shown(each.get("params") or {}))) for each in said
    )
    return hidden_in_words("".join(pieces).lstrip(",;，；、 "))


def hidden_in_words(text: str) -> str:
    """Translate the placeholders for hidden stages in a text into the reader's language."""
    several = gettext(HIDDEN_SEVERAL)
    return _SEVERAL.sub(lambda found: several.format(n=found[1]), text.replace(HIDDEN, gettext(HIDDEN)))


def shown(params: Mapping[str, Any]) -> dict[str, str]:
    """Format values for display: durations, sizes and times by suffix of their names, nested sentences translated."""
    return {name: _value(name, value, params) for name, value in params.items()}


def _value(name: str, value: Any, params: Mapping[str, Any]) -> str:
    if isinstance(value, Mapping):
        return in_words(str(value.get("text", "")), value.get("said"))
    if f"{name}_said" in params:
        return in_words(str(value), params[f"{name}_said"])
    if isinstance(value, str) and isinstance(params.get(f"{name}_s"), int | float):
        return span(params[f"{name}_s"])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name.endswith("_s"):
        return span(value) if value >= 10 or value == int(value) else gettext("{n} s").format(n=f"{value:.2g}")
    return gib(value) if name.endswith("_bytes") else str(value)


class ShownValues(dict[str, str]):
    """Values for a template; a missing one is rendered as a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"
