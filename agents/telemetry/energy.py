"""The energy of the devices of a part, by the share that it held.

If the hardware counts its energy, the difference of two readings is used, however far they are apart; else watts are
integrated over time. A kind of device with neither is absent from the result: unknown is not 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgspec

from agents.decode import BoundedDecoder
from agents.protocol import ByKind, Device, DeviceClaim, DeviceSample, Name, Number
from agents.supervisor.record import write_whole

# Over a longer silence the energy is unknown unless it was counted; the gap is left out of the measured time.
LONGEST_GAP_S = 10.0
SAVE_EVERY_S = 10.0
# No device draws more. A larger difference shows that the counter was reset or has overflowed.
MOST_WATTS = 20_000.0


class _Reading(NamedTuple):
    """One reading of a device: its watts, and its counter if it has one."""

    at: float
    power_w: float | None
    energy_j: float | None = None


class Saved(msgspec.Struct, frozen=True):
    """The account that is stored in the part's run folder."""

    joules: ByKind = msgspec.field(default_factory=dict)
    unknown: Annotated[list[Name], msgspec.Meta(max_length=64)] = msgspec.field(default_factory=list)
    measured_s: Number = 0.0


class Counters(msgspec.Struct, frozen=True):
    """In the same file, the last time and joules of each device's own counter. Decoded separately: if these are
    invalid, the rest is still used."""

    counters: Annotated[dict[Name, tuple[Number, Number]], msgspec.Meta(max_length=256)] = msgspec.field(
        default_factory=dict
    )


_counters = BoundedDecoder[Counters](Counters)
_saved = BoundedDecoder[Saved](Saved)


@dataclass
class _Account:
    """The account of one part: joules by kind so far, and the last reading of each of its devices."""

    file: str
    joules: dict[str, float] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    measured_s: float = 0.0
    seen: dict[str, _Reading] = field(default_factory=dict)
    saved_at: float = 0.0


class EnergyMeter:
    """Adds up the samples of one node. Not thread-safe: one loop calls it."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    def note(
        self,
        samples: Iterable[DeviceSample],
        devices: Mapping[str, Device],
        parts: Mapping[str, tuple[str, list[DeviceClaim]]],
        now: float,
    ) -> None:
        """Add the energy until now. ``parts`` maps each live part to its run folder and its claims."""
        told = {sample.uuid: _Reading(now - sample.age_s, sample.power_w, sample.energy_j) for sample in samples}
        for part, (folder, claims) in parts.items():
            account = self._account(part, folder)
            last = dict(account.seen)
            before = max((reading.at for reading in last.values()), default=None)
            is_known = True
            for claim in claims:
                if not self._add(account, claim, devices.get(claim.uuid), last, told.get(claim.uuid)):
                    is_known = False
            after = max((reading.at for reading in account.seen.values()), default=None)
            if before is not None and after is not None and is_known:
                account.measured_s += max(0.0, after - before)
            if now - account.saved_at >= SAVE_EVERY_S:
                self._save(account, now)

    @staticmethod
    def _add(
        account: _Account,
        claim: DeviceClaim,
        device: Device | None,
        last: Mapping[str, _Reading],
        now: _Reading | None,
    ) -> bool:
        """Add the energy of one device since the ``last`` readings; return False if it is unknown."""
        if now is None:
            return True
        if device is None or (now.power_w is None and now.energy_j is None):
            account.unknown.add(claim.kind)
            return True
        account.seen[claim.uuid] = now
        account.joules.setdefault(claim.kind, 0.0)
        since = last.get(claim.uuid)
        if since is None or now.at <= since.at:
            return not last or since is not None
        drawn = _drawn(since, now)
        account.joules[claim.kind] += (drawn or 0.0) * claim.milli / max(1, device.capacity_milli)
        return drawn is not None

    def _account(self, part: str, folder: str) -> _Account:
        """Return the part's account; after a restart of the agent it continues from the stored one."""
        if part not in self._accounts:
            account = _Account(f"{folder}/energy.json")
            saved = _saved.find(account.file) or Saved()
            account.joules, account.unknown = dict(saved.joules), set(saved.unknown)
            account.measured_s = saved.measured_s
            read = (_counters.find(account.file) or Counters()).counters
            account.seen = {uuid: _Reading(at, None, energy_j) for uuid, (at, energy_j) in read.items()}
            self._accounts[part] = account
        return self._accounts[part]

    def _save(self, account: _Account, now: float) -> None:
        account.saved_at = now
        content = {
            "joules": account.joules,
            "unknown": sorted(account.unknown),
            "measured_s": account.measured_s,
            # The clock is the machine's, and continues while no agent runs; so does the counter.
            "counters": {
                uuid: [one.at, one.energy_j] for uuid, one in account.seen.items() if one.energy_j is not None
            },
        }
        try:
            write_whole(account.file, content)
        except OSError:
            return  # the part has gone, or the disk is full: the account in memory goes on

    def joules(self, part: str) -> dict[str, float]:
        """Return the energy of a part so far, by kind of device; only kinds all of whose devices measure power."""
        account = self._accounts.get(part)
        if account is None:
            return {}
        return {kind: round(drawn, 1) for kind, drawn in account.joules.items() if kind not in account.unknown}

    def measured_s(self, part: str) -> float:
        """Return for how many seconds of its life the part was measured."""
        account = self._accounts.get(part)
        return round(account.measured_s, 3) if account is not None else 0.0

    def forget(self, live: Iterable[str]) -> None:
        """Drop the accounts of parts that have ended."""
        kept = set(live)
        self._accounts = {part: account for part, account in self._accounts.items() if part in kept}


def _drawn(since: _Reading, now: _Reading) -> float | None:
    """Return the joules between two readings; None if unknown."""
    span_s = now.at - since.at
    if since.energy_j is not None and now.energy_j is not None:
        counted = now.energy_j - since.energy_j
        if 0 <= counted <= MOST_WATTS * span_s:
            return counted
    if since.power_w is None or now.power_w is None or span_s > LONGEST_GAP_S:
        return None
    return (since.power_w + now.power_w) / 2 * span_s
