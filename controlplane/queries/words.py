"""Texts in the reader's language: reasons for waiting by code, stored clauses, partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from django.utils.translation import get_language, gettext, gettext_lazy
from django.utils.translation import gettext_noop as _

from controlplane.clauses import ShownValues, in_words, shown
from scheduler.core.explain.counterfactual import SENTENCES

# The templates of the catalogue of reasons, for translators; a test compares them with the catalogue.
REASONS = (
    _("on hold by {who}"),
    _("stage {stage} did not complete, and this one needs it"),
    _("waits for {stages}"),
    _("waits for {jobs}"),
    _("an earlier job of {user} called {name} has not ended"),
    _("array {array} runs at most {limit} of its elements at a time"),
    _("its code is being fetched from {url} at {rev}"),
    _("not before {time}"),
    _("attempt {attempt} of {of} may start in {seconds} s"),
    _("cannot run as written: {detail}"),
    _("it cannot be planned as the record has it, and is set aside; administrators see why"),
    _("its code cannot be fetched: {detail}"),
    _("its image cannot be fetched: {detail}"),
    _("provider {provider} is bringing a node for it, asked for at {time}"),
    _("no node of pool {pool} has {asks}"),
    _("needs {asks}, more than pool {pool} has"),
    _("mounts {folders}; of the nodes that would do {nodes} have that, and it needs {needed}"),
    _("its data may not leave {site}"),
    _("avoids {avoided}; of the other nodes {nodes} would do, and it needs {needed}"),
    _("runs only on nodes with {only}; of those {nodes} would do, and it needs {needed}"),
    _("asks {asked} {kind}; the hard limit of project {project} is {limit}"),
    _("project {project} holds {held} of {nominal} {kind} and may borrow {borrow} more"),
    _(
        "project {project} has used {used} of the {hours} {kind}-hours of budget {number}; nothing more starts before "
        "{time}, unless it is raised"
    ),
    _("{user} already runs {running} of {limit} stages"),
    _("{user} runs {running} of the {limit} stages that limit {number} allows"),
    _("{user} holds {held} of the {limit} devices that limit {number} allows; asks {asked}"),
    _("pool {pool} is stopped by {who}"),
    _("may run for {lasts} and would overlap the maintenance at {time}"),
    _("reserved for project {project} from {time} until {until}"),
    _("its reservation {reservation} begins at {time}"),
    _("its reservation {reservation} has ended or was cancelled"),
    _("{nodes} matching nodes are down, draining or out of contact"),
    _("{victims} make room; up to {seconds} s left"),
    _("its earlier start was given to project {project}, which is owed more"),
    _("its time was {time}, but {devices} of its devices are still busy"),
    _("the timetable lets it start at {time}"),
    _("enough is free, but not inside one {domain}"),
    _("{free} {kind} are free, but no node has the {needed} it needs"),
    _("needs secret {secret}, which project {project} does not have"),
    _("project {project} may not use pool {pool} any more"),
    _("needs {asks}; the largest free share of a node is {free}"),
    _("what is free is promised to {promised} and would be late"),
    _("project {project} is above its fair share"),
    _("{ahead} stages are ahead"),
    _("not yet looked at"),
)


# Counterfactual changes by kind; a test compares them with those of the search.
CHANGES = (
    _("with {gib} GiB of disk per node instead of {was}"),
    _("released from its hold"),
    _("with pool {pool} started again"),
    _("without needing stage {stage}"),
    _("without its earliest start"),
    _("without its reservation"),
    _("with its code uploaded again"),
    _("with an image that can be fetched"),
    _("without an image"),
    _("with secret {secret} set again"),
    _("with pool {pool} allowed to project {project}"),
    _("with more hours in budget {number} of project {project}"),
    _("with a time limit of {limit}"),
    _("on {nodes} nodes instead of {was}"),
    _("with {count} {kind} per node instead of {was}"),
    _("with {milli}/1000 of a {kind} instead of {was}"),
    _("with {cores} cores per node instead of {was}"),
    _("on any {kind} instead of {was}"),
    _("on {count} {kind} instead of {was}"),
    _("without one {domain} for all its nodes"),
    _("with the nodes that it avoids"),
    _("on nodes without {only} too"),
    _("in pool {pool}"),
    _("without its mounts"),
    _("with its data allowed to leave {site}"),
    _("with a quota of {quota} {kind} for project {project} instead of {was}"),
    _("in priority class {name}"),
    _("with {nodes} back in service"),
    _("with the devices of {nodes} found healthy"),
)


# The system as the one who acted.
ACTORS = {"engine": gettext_lazy("engine"), "agent": gettext_lazy("agent")}

# Who can change the cause of a wait reason.
ACTS = {
    "user": gettext_lazy("user"),
    "lead": gettext_lazy("lead"),
    "admin": gettext_lazy("admin"),
    "user or admin": gettext_lazy("user or admin"),
    "lead or admin": gettext_lazy("lead or admin"),
}


def change_text(change: Mapping[str, Any]) -> str:
    """A change of a counterfactual, in the reader's language."""
    known = SENTENCES.get(str(change.get("kind")))
    if known is None or (get_language() or "en").startswith("en"):
        return str(change.get("text") or "")
    return gettext(known[0]).format_map(ShownValues(shown(change.get("params") or {})))


def told_text(one: Mapping[str, Any], name: str) -> str:
    """The text ``name`` of an object, in the reader's language if ``<name>_said`` has it in clauses."""
    return in_words(str(one.get(name) or ""), one.get(f"{name}_said"))


def told_texts(one: Mapping[str, Any], name: str) -> list[str]:
    """The sentences of the list ``name``, as :func:`told_text`."""
    said = one.get(f"{name}_said") or ()
    return [in_words(str(text), said[i] if i < len(said) else None) for i, text in enumerate(one.get(name) or ())]


def funnel_text(waiting: Mapping[str, Any]) -> list[tuple[str, int]]:
    """The number of nodes left after each filter of a search, with the filters in the reader's language."""
    funnel, said = waiting["funnel"], waiting["funnel_said"]
    if len(said) != len(funnel):
        return [(label, count) for label, count in funnel]
    return [(in_words(label, [one]), count) for (label, count), one in zip(funnel, said, strict=True)]


def partition_text(profile: str, slot: int | None, device: str = "") -> str:
    """A partition such as ``1g.10gb at slot 3 of GPU 2`` in the reader's language."""
    place = profile if slot is None else gettext("{profile} at slot {slot}").format(profile=profile, slot=slot)
    return gettext("{partition} of {device}").format(partition=place, device=device) if device else place


def division_text(division: Mapping[str, Any] | None) -> str:
    """The partitioning of a device in one line; empty if it has none."""
    if division is None:
        return ""
    times = Counter(one["profile"] for one in division["made"])
    if times:
        text = ", ".join(f"{count} × {profile}" for profile, count in sorted(times.items()))
    elif division["makes"]:
        text = gettext("divided as asked, where the pool allows it")
    else:
        text = gettext("not divided yet: nothing can run on it")
    return f"{division['mode']}: {text}"
