"""What the devices of a part drew while it held them: their watts over time, by the share that it held.

A kind of device whose watts nobody tells is absent from the answer: unknown is not 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from agents.decode import Shape
from agents.protocol import ByKind, Device, DeviceClaim, DeviceSample, Name, Number
from agents.supervisor.record import write_whole

# Over a longer silence nobody knows what was drawn; it is left out, and the measured span tells so.
LONGEST_GAP_S = 10.0
SAVE_EVERY_S = 10.0


class Saved(msgspec.Struct, frozen=True):
    """What is kept of an account in the part's run folder."""

    joules: ByKind = msgspec.field(default_factory=dict)
    unknown: Annotated[list[Name], msgspec.Meta(max_length=64)] = msgspec.field(default_factory=list)
    measured_s: Number = 0.0


_saved = Shape[Saved](Saved)


@dataclass
class _Account:
    """One part: joules by kind so far, and when each of its devices was last known to draw what."""

    file: str
    joules: dict[str, float] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    measured_s: float = 0.0
    seen: dict[str, tuple[float, float]] = field(default_factory=dict)
    saved_at: float = 0.0


class EnergyMeter:
    """Integrates the samples of one node. Not thread-safe: one loop calls it."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    def note(
        self,
        samples: Iterable[DeviceSample],
        devices: Mapping[str, Device],
        parts: Mapping[str, tuple[str, list[DeviceClaim]]],
        now: float,
    ) -> None:
        """Add what was drawn until now. ``parts`` maps each live part to its run folder and its claims."""
        watts = {sample.uuid: (sample.power_w, now - sample.age_s) for sample in samples}
        for part, (folder, claims) in parts.items():
            account = self._account(part, folder)
            before = max((at for at, _ in account.seen.values()), default=None)
            for claim in claims:
                self._add(account, claim, devices.get(claim.uuid), watts.get(claim.uuid))
            after = max((at for at, _ in account.seen.values()), default=None)
            if before is not None and after is not None and after - before <= LONGEST_GAP_S:
                account.measured_s += after - before
            if now - account.saved_at >= SAVE_EVERY_S:
                self._save(account, now)

    @staticmethod
    def _add(
        account: _Account, claim: DeviceClaim, device: Device | None, told: tuple[float | None, float] | None
    ) -> None:
        if told is None:
            return
        power_w, at = told
        if power_w is None or device is None:
            account.unknown.add(claim.kind)
            return
        share = claim.milli / max(1, device.capacity_milli)
        since = account.seen.get(claim.uuid)
        account.seen[claim.uuid] = (at, power_w)
        account.joules.setdefault(claim.kind, 0.0)
        if since is not None and 0 < at - since[0] <= LONGEST_GAP_S:
            account.joules[claim.kind] += (power_w + since[1]) / 2 * (at - since[0]) * share

    def _account(self, part: str, folder: str) -> _Account:
        """The part's account; after a restart of the agent it goes on from what was saved."""
        if part not in self._accounts:
            account = _Account(f"{folder}/energy.json")
            saved = _saved.find(account.file) or Saved()
            account.joules, account.unknown = dict(saved.joules), set(saved.unknown)
            account.measured_s = saved.measured_s
            self._accounts[part] = account
        return self._accounts[part]

    def _save(self, account: _Account, now: float) -> None:
        account.saved_at = now
        content = {"joules": account.joules, "unknown": sorted(account.unknown), "measured_s": account.measured_s}
        try:
            write_whole(account.file, content)
        except OSError:
            return  # the part has gone, or the disk is full: the account in memory goes on

    def joules(self, part: str) -> dict[str, float]:
        """What a part drew so far, by kind of device; only kinds all of whose devices tell their watts."""
        account = self._accounts.get(part)
        if account is None:
            return {}
        return {kind: round(drawn, 1) for kind, drawn in account.joules.items() if kind not in account.unknown}

    def measured_s(self, part: str) -> float:
        """For how long of its life the part was measured."""
        account = self._accounts.get(part)
        return round(account.measured_s, 3) if account is not None else 0.0

    def forget(self, live: Iterable[str]) -> None:
        """Drop the accounts of parts that are no more."""
        kept = set(live)
        self._accounts = {part: account for part, account in self._accounts.items() if part in kept}
