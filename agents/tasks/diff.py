"""Computes the agent's orders as a pure function of the desired and the actual state.

``diff`` reads no clock, file or socket. Its rules (link.md):

- an older generation orders nothing; the same generation may be applied any number of times;
- a part that was ever started here is never started again, forgotten or not;
- absence from Desired is not a stop, and parts unknown to the server are kept;
- a start waits while a live local part holds one of its devices and either of the two claims it exclusively, or both
  claim the same slots of it;
- a restored database (another lineage) may count generations from the beginning, and makes the agent forget nothing of
  the former one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agents.protocol import Desired, DeviceClaim, Exit, Phase, Share, Wanted

WHOLE_DEVICE_MILLI = 1000
# By device, the parts that hold claims on it.
Holders = dict[str, list[tuple[str, DeviceClaim]]]


@dataclass(frozen=True, slots=True)
class Known:
    """The fields of a part that was started here on which orders depend."""

    part: str
    epoch: int
    phase: int
    spec_rev: int = 1
    devices: tuple[DeviceClaim, ...] = ()
    lineage: str = ""
    stop_grace_s: float | None = None
    signalled_rev: int = 0
    save_rev: int = 0

    @property
    def is_live(self) -> bool:
        return self.phase < Phase.ENDED


@dataclass(frozen=True, slots=True)
class AgentState:
    """The state that the agent remembers. ``gone`` has the tombstones of parts that it was told to forget."""

    generation: int = 0
    lineage: str = ""
    here: Mapping[str, Known] = field(default_factory=dict)
    gone: Mapping[str, Exit | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StartPart:
    """Order: journal the part, then start it."""

    wanted: Wanted


@dataclass(frozen=True, slots=True)
class Hold:
    """Do not start the part yet: part ``holder`` still has ``device``."""

    wanted: Wanted
    device: str
    holder: str


@dataclass(frozen=True, slots=True)
class StopPart:
    """Order: end the part within its grace period; with ``save``, ask it for a checkpoint first."""

    part: str
    grace_s: float
    why: str
    save: bool = False


@dataclass(frozen=True, slots=True)
class Signal:
    part: str
    signal: str
    signal_rev: int


@dataclass(frozen=True, slots=True)
class AskSave:
    """Order: ask a running part to save now and to go on."""

    part: str
    save_rev: int


@dataclass(frozen=True, slots=True)
class Revise:
    """Order: apply a newer revision of a running part; the same process gets ``share``."""

    part: str
    spec_rev: int
    share: Share


@dataclass(frozen=True, slots=True)
class Void:
    """Order: record a part as ended that is to stop but never started here, so that it never starts."""

    wanted: Wanted


@dataclass(frozen=True, slots=True)
class Recall:
    """Order: report again the end of a part that ended here long ago and was forgotten, instead of starting it."""

    wanted: Wanted
    exit: Exit | None


@dataclass(frozen=True, slots=True)
class Forget:
    part: str


Order = StartPart | Hold | StopPart | Signal | AskSave | Revise | Void | Recall | Forget


def is_current(desired: Desired, world: AgentState) -> bool:
    """Whether a message may be applied: it is not older than the newest one of its lineage."""
    if desired.lineage != world.lineage and desired.lineage and world.lineage:
        return True
    return desired.generation >= world.generation


def diff(desired: Desired, world: AgentState) -> list[Order]:
    """Return the orders that lead from the actual to the desired state; forgetting first, starting last."""
    if not is_current(desired, world):
        return []
    orders: list[Order] = []
    for part in desired.forget:
        known = world.here.get(part)
        if known and not known.is_live and (known.lineage == desired.lineage or not known.lineage):
            orders.append(Forget(part))
    holders = _holders(world)
    starts: list[Order] = []
    ordered: set[str] = set()
    for wanted in desired.wanted:
        if wanted.part in ordered:
            continue
        ordered.add(wanted.part)
        known = world.here.get(wanted.part)
        if known is not None:
            orders += _orders_for_known(wanted, known)
        elif wanted.part in world.gone:
            orders.append(Recall(wanted, world.gone[wanted.part]))
        elif wanted.do == "stop":
            orders.append(Void(wanted))
        elif wanted.do == "run" and wanted.spec is not None:
            starts.append(_start_or_hold(wanted, holders))
    return orders + starts


def _orders_for_known(wanted: Wanted, known: Known) -> list[Order]:
    if not known.is_live or wanted.epoch < known.epoch:
        return []
    if wanted.do == "stop":
        if known.stop_grace_s is None or wanted.grace_s < known.stop_grace_s:
            return [StopPart(wanted.part, wanted.grace_s, wanted.why, wanted.save)]
        return []
    orders: list[Order] = []
    if wanted.spec_rev > known.spec_rev:
        orders.append(Revise(wanted.part, wanted.spec_rev, wanted.share or Share()))
    if wanted.signal_rev > known.signalled_rev and wanted.signal:
        orders.append(Signal(wanted.part, wanted.signal, wanted.signal_rev))
    if wanted.save_rev > known.save_rev:
        orders.append(AskSave(wanted.part, wanted.save_rev))
    return orders


def claims_whole(claim: DeviceClaim) -> bool:
    """Whether a claim is exclusive on its device. A CPU device is always shared, by cores."""
    return claim.kind != "cpu" and claim.milli >= WHOLE_DEVICE_MILLI


def are_apart(one: DeviceClaim, other: DeviceClaim) -> bool:
    """Whether two claims on one device can be held at once: both are shares, and they have no slot in common."""
    if claims_whole(one) or claims_whole(other):
        return False
    mine, theirs = one.partition, other.partition
    if mine is None or theirs is None:
        return True
    if mine.start is None or theirs.start is None:
        return mine.uuid != theirs.uuid
    return mine.start + mine.size <= theirs.start or theirs.start + theirs.size <= mine.start


def _holders(world: AgentState) -> Holders:
    holders: Holders = {}
    for known in world.here.values():
        if known.is_live:
            for claim in known.devices:
                holders.setdefault(claim.uuid, []).append((known.part, claim))
    return holders


def _start_or_hold(wanted: Wanted, holders: Holders) -> Order:
    claims = wanted.spec.devices if wanted.spec else []
    for claim in claims:
        for part, held in holders.get(claim.uuid, []):
            if not are_apart(claim, held):
                return Hold(wanted, claim.uuid, part)
    for claim in claims:
        holders.setdefault(claim.uuid, []).append((wanted.part, claim))
    return StartPart(wanted)
