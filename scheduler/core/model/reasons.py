"""The catalogue of reasons for waiting. The order is the precedence: the first that holds is the primary one.

Codes are stable: people's scripts read them. ``sentence`` renders English; the face translates by code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from scheduler.core.model.types import Reason


@dataclass(frozen=True, slots=True)
class ReasonEntry:
    code: str
    template: str
    acts: str


CATALOGUE: Final[tuple[ReasonEntry, ...]] = (
    ReasonEntry("Held", "on hold by {who}", "user or admin"),
    ReasonEntry("DependencyNeverSatisfied", "stage {stage} did not complete, and this one needs it", "user"),
    ReasonEntry("DependencyPending", "waits for {stages}", "nobody"),
    ReasonEntry("JobDependency", "waits for {jobs}", "nobody"),
    ReasonEntry("NamesakePending", "an earlier job of {user} called {name} has not ended", "nobody"),
    ReasonEntry("ArrayLimit", "array {array} runs at most {limit} of its elements at a time", "nobody"),
    ReasonEntry("SourcePending", "its code is being fetched from {url} at {rev}", "nobody"),
    ReasonEntry("BeginTime", "not before {time}", "nobody"),
    ReasonEntry("BackoffAfterFailure", "attempt {attempt} of {of} may start in {seconds} s", "nobody"),
    ReasonEntry("InvalidSpec", "cannot run as written: {detail}", "user"),
    ReasonEntry(
        "SetAside", "it cannot be planned as the record has it, and is set aside; administrators see why", "admin"
    ),
    ReasonEntry("BundleUnavailable", "its code cannot be fetched: {detail}", "user"),
    ReasonEntry("ImageUnavailable", "its image cannot be fetched: {detail}", "user"),
    ReasonEntry("SecretMissing", "needs secret {secret}, which project {project} does not have", "user"),
    ReasonEntry("PoolRefused", "project {project} may not use pool {pool} any more", "admin"),
    ReasonEntry("ProviderBrings", "provider {provider} is bringing a node for it, asked for at {time}", "nobody"),
    ReasonEntry("NoMatchingDevice", "no node of pool {pool} has {asks}", "user"),
    ReasonEntry("ExceedsClusterMax", "needs {asks}, more than pool {pool} has", "user"),
    ReasonEntry(
        "MountMissing",
        "mounts {folders}; of the nodes that would do {nodes} have that, and it needs {needed}",
        "user or admin",
    ),
    ReasonEntry("DataResidency", "its data may not leave {site}", "user or admin"),
    ReasonEntry("NodesAvoided", "avoids {avoided}; of the other nodes {nodes} would do, and it needs {needed}", "user"),
    ReasonEntry(
        "NodesRestricted",
        "runs only on nodes with {only}; of those {nodes} would do, and it needs {needed}",
        "user",
    ),
    ReasonEntry(
        "ExceedsQuotaMax", "asks {asked} {kind}; the hard limit of project {project} is {limit}", "lead or admin"
    ),
    ReasonEntry(
        "QuotaExhausted", "project {project} holds {held} of {nominal} {kind} and may borrow {borrow} more", "lead"
    ),
    ReasonEntry(
        "Budget",
        "project {project} has used {used} of the {hours} {kind}-hours of budget {number}; nothing more starts before "
        "{time}, unless it is raised",
        "admin",
    ),
    ReasonEntry("UserLimit", "{user} already runs {running} of {limit} stages", "nobody"),
    ReasonEntry("UserStages", "{user} runs {running} of the {limit} stages that limit {number} allows", "nobody"),
    ReasonEntry(
        "UserDevices",
        "{user} holds {held} of the {limit} devices that limit {number} allows; asks {asked}",
        "user or admin",
    ),
    ReasonEntry("PoolStopped", "pool {pool} is stopped by {who}", "admin"),
    ReasonEntry("MaintenanceWindow", "may run for {lasts} and would overlap the maintenance at {time}", "user"),
    ReasonEntry("Reserved", "reserved for project {project} from {time} until {until}", "user"),
    ReasonEntry("ReservationAhead", "its reservation {reservation} begins at {time}", "nobody"),
    ReasonEntry("ReservationOver", "its reservation {reservation} has ended or was cancelled", "user"),
    ReasonEntry("NodesUnavailable", "{nodes} matching nodes are down, draining or out of contact", "admin"),
    ReasonEntry("WaitingForPreemption", "{victims} make room; up to {seconds} s left", "nobody"),
    ReasonEntry("PromiseYielded", "its earlier start was given to project {project}, which is owed more", "nobody"),
    ReasonEntry("PlannedDeviceBusy", "its time was {time}, but {devices} of its devices are still busy", "nobody"),
    ReasonEntry("PlannedLater", "the timetable lets it start at {time}", "nobody"),
    ReasonEntry("TopologyUnsatisfied", "enough is free, but not inside one {domain}", "user"),
    ReasonEntry("Fragmented", "{free} {kind} are free, but no node has the {needed} it needs", "user"),
    ReasonEntry("CapacityInsufficient", "needs {asks}; the largest free share of a node is {free}", "nobody"),
    ReasonEntry("ReservedForHigher", "what is free is promised to {promised} and would be late", "user"),
    ReasonEntry("FairShareDeferred", "project {project} is above its fair share", "nobody"),
    ReasonEntry("PriorityBehind", "{ahead} stages are ahead", "nobody"),
    ReasonEntry("PendingEvaluation", "not yet looked at", "nobody"),
)
RANK: Final[Mapping[str, int]] = {entry.code: rank for rank, entry in enumerate(CATALOGUE)}
_BY_CODE: Final = {entry.code: entry for entry in CATALOGUE}


_SINGULAR: Final = {
    "stages are": "stage is",
    "matching nodes are": "matching node is",
    "cores": "core",
    "stages": "stage",
    "nodes": "node",
}
_ONE: Final = re.compile(rf"(?<![\d.])1 ({'|'.join(_SINGULAR)})\b")


class _Missing(dict[str, object]):
    def __missing__(self, key: str) -> str:
        return "?"


def sentence(reason: Reason) -> str:
    """The reason in one English sentence, with its numbers."""
    text = _BY_CODE[reason.code].template.format_map(_Missing(reason.params))
    return _ONE.sub(lambda found: found[0].replace(found[1], _SINGULAR[found[1]]), text)


def ranked(reasons: list[Reason]) -> tuple[Reason, ...]:
    """The reasons in order of precedence, one per code."""
    first: dict[str, Reason] = {}
    for reason in reasons:
        first.setdefault(reason.code, reason)
    return tuple(sorted(first.values(), key=lambda reason: RANK[reason.code]))
