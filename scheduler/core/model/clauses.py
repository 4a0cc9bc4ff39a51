"""The engine's messages as clauses: a code and named values, from which a sentence is rendered in any language.

A sentence is the concatenation of its clauses; each includes the punctuation that joins it to the previous one. Codes
and the names of their values are stable, because programs read them. Values are plain JSON, and the name of a measured
value tells its unit: ``_s`` are seconds, ``_bytes`` are bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from scheduler.core.model.times import span


@dataclass(frozen=True, slots=True)
class Clause:
    code: str
    params: Mapping[str, object] = field(default_factory=dict)


Said = tuple[Clause, ...]


def _(template: str) -> str:
    """Marks a template for the translators, whose tools look for this name."""
    return template


TEMPLATES: Final[Mapping[str, str]] = {
    # Why a stage runs where it does.
    "Here": _("{devices} on {node}"),
    "HereEach": _("{devices} on each of {count} nodes ({nodes})"),
    "BestFit": _(", the best fit of {among} nodes"),
    "SizeWithin": _(", {size} of {least} to {most} nodes"),
    "WaitedLong": _(", guaranteed after waiting for {waited_s}"),
    "RunsFor": _("; predicted to run {lasts_s}"),
    "RunTimeUnknown": _("; how long it will run is unknown"),
    "OtherWays": _("; {others} other ways would end later"),
    "TurnHere": _("its turn has come, on {nodes}"),
    # Why a running stage stops, to continue elsewhere or with another number of nodes.
    "MakesRoom": _("makes room for {stage}"),
    "NodeIdle": _("{nodes} is idle"),
    "NodesIdle": _("{nodes} are idle"),
    "NodeDrains": _("{nodes} drains"),
    "NodesDrain": _("{nodes} drain"),
    "DeviceWarns": _("{devices} warns"),
    "DevicesWarn": _("{devices} warn"),
    "DeviceUnhealthy": _("{devices} is unhealthy"),
    "DevicesUnhealthy": _("{devices} are unhealthy"),
    "NodeHot": _("{nodes} has more to do than it can"),
    "NodesHot": _("{nodes} have more to do than they can"),
    "TurnElsewhere": _("its turn goes on elsewhere"),
    # What follows the end of an attempt.
    "Cancelled": _("cancelled"),
    "StoppedEarly": _("stopped early: others of its sweep are better"),
    "QueuedAgain": _("{cause}: queued again"),
    "QueuedAsNodeLost": _("{cause}: queued again as on_node_lost says"),
    "Hopeless": _("{cause}: another attempt could not end otherwise"),
    "NotRetried": _("{cause} is not among the causes that it retries on"),
    "LastAttempt": _("{cause}: attempt {attempt} of {of} was the last"),
    "NextAttempt": _("{cause}: attempt {attempt} of {of} follows"),
    # What stands in a reason for waiting and is more than a number or a name.
    "TimeLimitAbove": _("its time limit of {asked_s} is above the {most_s} that pool {pool} allows"),
    # Why the timetable was recomputed.
    "PromisesBroken": _("the promises of {stages} could not be kept"),
    "MorePromisesBroken": _("the promises of {stages} and {more} more could not be kept"),
    "BundleGone": _("it is no longer kept; upload it again"),
    "NoEngine": _("no node of pool {pool} with {asks} has a container engine"),
    "EngineOn": _("only {able} of {ready} nodes of pool {pool} with {asks} has a container engine"),
    "EnginesOn": _("only {able} of {ready} nodes of pool {pool} with {asks} have a container engine"),
    "CoresAndMemory": _("{cores} cores and {memory_bytes}"),
    "NotOnOneNode": _("not all of it on one node"),
    "OnOneDevice": _("{share} on one device"),
    "Cores": _("cores"),
    # What makes planning raise; a fault is what Python says of it.
    "Unplannable": _("it cannot be planned: {fault}"),
    "HolderUnplannable": _("{stage} runs here and cannot be planned: {fault}"),
    # The request of a stage on each of its nodes.
    "EachOfNodes": _("{nodes} nodes with "),
    "Devices": _("{count} {device}"),
    "ShareOfEach": _(" x {milli}/1000"),
    "PartitionOfEach": _(" {partition}"),
    "HeldToMemory": _(" held {sharing}"),
    "OneCore": _("1 core"),
    "SomeCores": _("{cores} cores"),
    "WithMemory": _(" {memory_bytes}"),
    "DiskSpace": _("{space_bytes} of disk"),
    "DiskBandwidth": _("{mbps} MB/s of disk"),
    "DiskSpaceAndBandwidth": _("{space_bytes} and {mbps} MB/s of disk"),
    "NetworkBandwidth": _("{mbps} MB/s of network"),
    "With": _(" · "),
    "OrElse": _(", or "),
    "OfOneModel": _(" of one model"),
    "InsideOne": _(" inside one {domain}"),
    "NamesAndMore": _("{names} and {more} more"),
    "Others": _("others"),
    # What the reader of a trace did with it, and why rows cannot run.
    "MadeUp": _("made up: no trace of a real cluster"),
    "RowLeftOut": _("1 row cannot run and was left out: {why} (first: line {line})"),
    "RowsLeftOut": _("{count} rows cannot run and were left out: {why} (first: line {line})"),
    "RowTwice": _("1 row said the same as an earlier one; with no job number to tell them apart, all were kept"),
    "RowsTwice": _(
        "{count} rows said the same as an earlier one; with no job number to tell them apart, all were kept"
    ),
    "RowSorted": _('1 row came after later ones; all were sorted by "{column}"'),
    "RowsSorted": _('{count} rows came after later ones; all were sorted by "{column}"'),
    "RanOverLimit": _("{count} ran longer than their limit"),
    "FirstOfTrace": _("the first {count} stages of the trace"),
    "RowsOutside": _("{count} rows lie outside the days that were asked for"),
    "RowsLackNeeds": _("{count} rows need stages that are not in the file before them; they do not wait for those"),
    "NoStartAndEnd": _("without a start and an end"),
    "NotCompleted": _("not completed"),
    "NoRunTime": _("zero run time"),
    "NoKnownRunTime": _("run time zero or not known"),
    "NoProcessors": _("no processors named"),
    "NoDuration": _("zero duration"),
    "NoGpu": _("no GPU asked for"),
    "NoWholeNodes": _("more than {gpus} GPUs, but no whole number of nodes"),
}


def clause(code: str, /, **params: object) -> Clause:
    return Clause(code, params)


def several(count: int, one: str, more: str) -> str:
    """Return the code for one or the code for several."""
    return one if count == 1 else more


def spoken(**said: Said) -> dict[str, object]:
    """Return values of a reason in words, each under its name in English and under ``<name>_said`` in clauses."""
    found: dict[str, object] = {}
    for name, clauses in said.items():
        found[name] = say(clauses)
        found[f"{name}_said"] = plain(clauses)
    return found


def plain(said: Said) -> list[dict[str, object]]:
    """Return the clauses as plain JSON."""
    return [{"code": each.code, "params": dict(each.params)} for each in said]


def shown(name: str, value: object) -> str:
    """Return a value as it stands in an English sentence."""
    if not isinstance(value, int | float):
        return str(value)
    if name.endswith("_s"):
        return span(value)
    return f"{value / 2**30:.4g} GiB" if name.endswith("_bytes") else str(value)


def say(
    said: Iterable[Clause],
    templates: Mapping[str, str] = TEMPLATES,
    show: Callable[[str, object], str] = shown,
) -> str:
    """Return the clauses as one English sentence. ``show`` formats a value by its name."""
    pieces = (
        templates[each.code].format_map({name: show(name, value) for name, value in each.params.items()})
        for each in said
    )
    return "".join(pieces).lstrip(",; ")
