"""The peak memory of a part on its devices, by kind of device, as far as it can be measured.

A device reports how much of its memory is in use, not by whom. So shared devices (with another part, or a process that
no stage started) are left out, and so are partitions, whose card reports the sum only, and simulated devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from agents.decode import BoundedDecoder
from agents.protocol import Bytes, DeviceClaim, DeviceSample, Name
from agents.supervisor.record import write_whole

# A peak is stored again when it has grown by this share.
GROWN = 1.02
_saved = BoundedDecoder[dict[Name, Bytes]](dict[Name, Bytes])


@dataclass
class _Account:
    file: str
    since: float
    peaks: dict[str, int] = field(default_factory=dict)
    saved: dict[str, int] = field(default_factory=dict)


class DeviceMemory:
    """The largest samples of each part of one node. Not thread-safe: one loop calls it."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    def note(
        self,
        samples: Iterable[DeviceSample],
        foreign: Collection[str],
        parts: Mapping[str, tuple[str, list[DeviceClaim]]],
        now: float,
    ) -> None:
        """Add samples. ``parts`` maps each live part to its run folder and its claims; ``foreign`` are the devices in
        use by processes that no stage started."""
        used = {one.uuid: (one.memory_used_bytes, now - one.age_s) for one in samples}
        holders = Counter(claim.uuid for _, claims in parts.values() for claim in claims)
        for part, (folder, claims) in parts.items():
            account = self._account(part, folder, now)
            for claim in claims:
                held, at = used.get(claim.uuid, (None, 0.0))
                alone = holders[claim.uuid] == 1 and claim.uuid not in foreign
                counts = claim.kind != "cpu" and claim.partition is None and not claim.simulated
                # A sample from before the part was first seen may be of the device's former holder.
                if held is not None and alone and counts and at >= account.since:
                    account.peaks[claim.kind] = max(account.peaks.get(claim.kind, 0), held)
            if any(peak > GROWN * account.saved.get(kind, 0) for kind, peak in account.peaks.items()):
                self._save(account)

    def _account(self, part: str, folder: str, now: float) -> _Account:
        """Return the part's account; after a restart of the agent it continues from the stored one."""
        if part not in self._accounts:
            account = _Account(f"{folder}/device-memory.json", now)
            account.saved = dict(_saved.find(account.file) or {})
            account.peaks = dict(account.saved)
            self._accounts[part] = account
        return self._accounts[part]

    def _save(self, account: _Account) -> None:
        account.saved = dict(account.peaks)
        try:
            write_whole(account.file, account.saved)
        except OSError:
            return  # the part has gone, or the disk is full: the account in memory goes on

    def peaks(self, part: str) -> dict[str, int]:
        """Return the peak of one device of each kind; kinds without samples are absent."""
        account = self._accounts.get(part)
        return dict(account.peaks) if account is not None else {}

    def forget(self, live: Iterable[str]) -> None:
        """Drop the accounts of parts that have ended."""
        kept = set(live)
        self._accounts = {part: account for part, account in self._accounts.items() if part in kept}
