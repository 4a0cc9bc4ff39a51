"""Decides what to do with the pilots of a provider: a function of the demand, the record, the engine's list and time.

Laws (tests/providers/test_reconcile.py): never more pilots than the maximum, the budget or the engine's quota allow;
idle ones go; a pilot that the engine has and the record does not is stopped; no pilot is asked for in the place of one
that may still come; and where the engine did not answer, nothing is done at all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from controlplane.providers.engine import ForeignPhase, ForeignPilot

# An order whose answer was lost may still arrive so long after it was written down.
SETTLE_S: Final = 90.0
# A node that has not joined so long after its pilot began will not.
JOIN_S: Final = 300.0
# An agent that has reported within these seconds is alive, whatever the engine says.
HEARD_S: Final = 10.0
# So long before the end of its allocation a node is drained, and its stages are asked to save.
LEAVE_S: Final = 120.0
# A pilot that was told to end in order is ended at once after so long.
FORCE_S: Final = 300.0
MOST_AT_ONCE: Final = 10


@dataclass(frozen=True, slots=True)
class ProviderLimits:
    """What bounds a provider. ``node_hours_left`` and ``quota`` are None where nothing is limited; the hours of pilots
    that are there are taken off already."""

    shapes: tuple[str, ...]
    max_nodes: int
    min_nodes: int = 0
    hours: float = 1.0
    node_hours_left: float | None = None
    quota: int | None = None
    idle_s: float = 300.0
    wait_s: float = 86_400.0
    enabled: bool = True
    # Before, none is asked for: the newest did not join.
    ask_after: float = 0.0


@dataclass(frozen=True, slots=True)
class PilotFacts:
    """What the record has of one pilot that is not gone; times in seconds since the epoch.

    ``idle_since`` is since when nothing runs on its node, None while something does or it has not joined. ``heard_at``
    is when its node last reported.
    """

    label: str
    shape: str
    state: str
    asked_at: float
    handle: str = ""
    up_at: float | None = None
    ends_at: float | None = None
    leaving_at: float | None = None
    idle_since: float | None = None
    heard_at: float | None = None


@dataclass(frozen=True, slots=True)
class PilotFound:
    """The engine has this pilot: the record takes its handle, its phase and its end."""

    label: str
    handle: str
    phase: ForeignPhase
    ends_at: float | None = None


@dataclass(frozen=True, slots=True)
class PilotGone:
    """The pilot has ended or will never come; ``why`` is one of ``Pilot.PilotEnd``."""

    label: str
    why: str


@dataclass(frozen=True, slots=True)
class PilotLeaves:
    """The pilot is to leave: its node drains."""

    label: str
    why: str


@dataclass(frozen=True, slots=True)
class StopForeign:
    """The engine is to end this entry, which is empty, unknown to the record, or a double."""

    handle: str
    force: bool = False


@dataclass(frozen=True, slots=True)
class PilotsWanted:
    """So many pilots of a shape are to be asked for."""

    shape: str
    count: int


PilotAction = PilotFound | PilotGone | PilotLeaves | StopForeign | PilotsWanted


@dataclass(slots=True)
class _Ledger:
    """What is decided so far."""

    actions: list[PilotAction] = field(default_factory=list)
    # Pilots that are there or may come, by label; those that leave are among them until they are gone.
    here: dict[str, PilotFacts] = field(default_factory=dict)
    staying: dict[str, PilotFacts] = field(default_factory=dict)


def reconcile(
    demand: Mapping[str, int],
    pilots: Sequence[PilotFacts],
    seen: Sequence[ForeignPilot] | None,
    limits: ProviderLimits,
    now: float,
) -> tuple[PilotAction, ...]:
    """Return what to do. ``demand`` is how many more nodes of each shape the waiting stages need, as if none were
    coming; ``seen`` is the engine's list, None if it did not answer."""
    if seen is None:
        return ()
    ledger = _Ledger()
    entries: dict[str, list[ForeignPilot]] = defaultdict(list)
    for entry in sorted(seen, key=lambda each: (each.phase is ForeignPhase.ENDED, len(each.handle), each.handle)):
        entries[entry.label].append(entry)
    for pilot in sorted(pilots, key=lambda each: (each.asked_at, each.label)):
        _follow(pilot, entries.pop(pilot.label, []), ledger, limits, now)
    for strangers in entries.values():
        ledger.actions += [StopForeign(each.handle) for each in strangers if each.phase is not ForeignPhase.ENDED]
    _shrink(demand, ledger, limits, now)
    if limits.enabled and limits.shapes and now >= limits.ask_after:
        _grow(demand, ledger, limits)
    return tuple(ledger.actions)


def _follow(
    pilot: PilotFacts, entries: Sequence[ForeignPilot], ledger: _Ledger, limits: ProviderLimits, now: float
) -> None:
    """Compare one pilot with the engine's entries of its label."""
    live = [each for each in entries if each.phase is not ForeignPhase.ENDED]
    mine = next((each for each in live if each.handle == pilot.handle), live[0] if live else None)
    ledger.actions += [StopForeign(each.handle) for each in live if each is not mine]
    ledger.here[pilot.label] = pilot
    is_heard = pilot.heard_at is not None and now - pilot.heard_at < HEARD_S
    if mine is None:
        why = "ended" if entries else "vanished" if pilot.state != "ASKED" else "never_came"
        may_come = why == "never_came" and now - pilot.asked_at < SETTLE_S
        # An agent that is heard is alive: whoever counts it as gone would let its stages run twice.
        if not may_come and not (is_heard and pilot.up_at is not None):
            ledger.actions.append(PilotGone(pilot.label, why))
            del ledger.here[pilot.label]
        return
    phase_known = {"QUEUED": ForeignPhase.QUEUED, "UP": ForeignPhase.RUNNING}.get(pilot.state)
    is_news = mine.handle != pilot.handle or (pilot.state != "LEAVING" and phase_known is not mine.phase)
    if is_news or (mine.ends_at is not None and pilot.ends_at != mine.ends_at):
        ledger.actions.append(PilotFound(pilot.label, mine.handle, mine.phase, mine.ends_at))
    if pilot.state == "LEAVING":
        left_s = now - (pilot.leaving_at or now)
        # On one that has not joined nothing runs.
        is_empty = pilot.idle_since is not None or pilot.heard_at is None
        if is_empty or mine.phase is ForeignPhase.QUEUED or left_s >= LEAVE_S:
            ledger.actions.append(StopForeign(mine.handle, force=left_s >= FORCE_S))
        return
    ends_at = mine.ends_at if mine.ends_at is not None else pilot.ends_at
    why = _leaves(pilot, mine, ends_at, limits, now)
    if why:
        ledger.actions.append(PilotLeaves(pilot.label, why))
    else:
        ledger.staying[pilot.label] = pilot


def _leaves(pilot: PilotFacts, entry: ForeignPilot, ends_at: float | None, limits: ProviderLimits, now: float) -> str:
    """Return why this pilot leaves whatever the demand is; empty if it stays."""
    if not limits.enabled or pilot.shape not in limits.shapes:
        return "disabled"
    if entry.phase is ForeignPhase.QUEUED:
        return "waited" if now - pilot.asked_at >= limits.wait_s else ""
    lead_s = min(LEAVE_S, limits.hours * 3600 / 4)
    if ends_at is not None and ends_at - now <= lead_s:
        return "ends"
    if pilot.up_at is not None and pilot.heard_at is None and now - pilot.up_at >= JOIN_S:
        return "never_came"
    return ""


def _shrink(demand: Mapping[str, int], ledger: _Ledger, limits: ProviderLimits, now: float) -> None:
    """Give back what nothing needs: nodes that idle for long, requests that nobody waits for any more."""
    spare = len(ledger.staying) - limits.min_nodes
    needed = Counter(demand)
    for label, pilot in sorted(ledger.staying.items(), key=lambda item: (item[1].idle_since or now, item[0])):
        if spare <= 0:
            break
        is_up = pilot.idle_since is not None
        if is_up:
            is_spare = now - pilot.idle_since >= limits.idle_s  # type: ignore[operator]
        elif pilot.heard_at is None and pilot.state != "ASKED":
            # What is in the queue: it goes once the demand has not been there for as long as a node may idle.
            is_spare = now - pilot.asked_at >= limits.idle_s and needed[pilot.shape] <= 0
        else:
            is_spare = False
        if not is_up and needed[pilot.shape] > 0:
            needed[pilot.shape] -= 1
        if is_spare and not (is_up and needed[pilot.shape] > 0):
            ledger.actions.append(PilotLeaves(label, "idle"))
            del ledger.staying[label]
            spare -= 1


def _grow(demand: Mapping[str, int], ledger: _Ledger, limits: ProviderLimits) -> None:
    """Ask for what is needed beyond what is coming, within all limits."""
    room = limits.max_nodes - len(ledger.here)
    if limits.quota is not None:
        room = min(room, limits.quota - len(ledger.here))
    if limits.node_hours_left is not None:
        room = min(room, int(limits.node_hours_left / limits.hours))
    room = min(room, MOST_AT_ONCE)
    coming = Counter(pilot.shape for pilot in ledger.staying.values() if pilot.heard_at is None)
    # One whose answer was lost may come yet.
    coming.update(
        pilot.shape for label, pilot in ledger.here.items() if label not in ledger.staying and pilot.state == "ASKED"
    )
    wanted = {shape: demand.get(shape, 0) - coming[shape] for shape in limits.shapes}
    missing = limits.min_nodes - len(ledger.here) - sum(max(0, count) for count in wanted.values())
    wanted[limits.shapes[0]] = max(0, wanted[limits.shapes[0]]) + max(0, missing)
    for shape in limits.shapes:
        count = min(wanted[shape], room)
        if count > 0:
            ledger.actions.append(PilotsWanted(shape, count))
            room -= count
