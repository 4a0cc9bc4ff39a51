"""Checks that the devices of an ended part freed its memory: measured before it started, while it ran, and after.

All processes of the part have ended before this check. A driver may still hold their memory; a device that does not
free it is reported as quarantined until it does.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec

from agents.decode import BoundedDecoder
from agents.ends import clause
from agents.notes import NoteText
from agents.protocol import MOST_DEVICES, QUARANTINED, Bytes, DeviceClaim, DeviceError, DeviceSample, Name, Released
from agents.supervisor.record import write_whole

NOTE: Final = "devices.json"
# How long an end waits for memory to be freed.
PATIENCE_S: Final = float(os.environ.get("YARD_AGENT_RELEASE_S", "60"))
# How long it waits for a device that cannot be measured any more.
BLIND_S: Final = 5.0
# Drivers keep a little for themselves, in varying amounts.
SLACK_BYTES: Final = 64 << 20

# uuid -> time of the sample, on the monotonic clock, and its memory in use
Uses = dict[str, tuple[float, int]]


class Held(msgspec.Struct, frozen=True):
    """The memory of each device in use before a part started, by uuid."""

    before: Annotated[dict[Name, Bytes], msgspec.Meta(max_length=MOST_DEVICES)] = msgspec.field(default_factory=dict)


_held = BoundedDecoder[Held](Held)


@dataclass
class Returns:
    """The memory use of one node's devices. Not thread-safe except :meth:`begin`."""

    uses: Uses = field(default_factory=dict)
    _most: dict[tuple[str, str], int] = field(default_factory=dict)
    _kept: dict[str, tuple[int, float]] = field(default_factory=dict)

    def note(
        self, samples: Iterable[DeviceSample], parts: Mapping[str, tuple[str, Sequence[DeviceClaim]]], now: float
    ) -> None:
        """Add samples. ``parts`` maps each live part to its run folder and its claims."""
        for sample in samples:
            if sample.memory_used_bytes is not None:
                self.uses[sample.uuid] = (now - sample.age_s, sample.memory_used_bytes)
        for part, (_, claims) in parts.items():
            for claim in claims:
                if claim.uuid in self.uses:
                    key = (part, claim.uuid)
                    self._most[key] = max(self._most.get(key, 0), self.uses[claim.uuid][1])
        self._most = {key: most for key, most in self._most.items() if key[0] in parts}
        # The retained memory was freed.
        self._kept = {uuid: known for uuid, known in self._kept.items() if self._in_use(uuid) > known[0]}

    def _in_use(self, uuid: str) -> int:
        return self.uses[uuid][1] if uuid in self.uses else 0

    def begin(self, folder: str, claims: Iterable[DeviceClaim]) -> None:
        """Store in a part's folder how much of its devices is in use before it starts. Raises OSError."""
        before = {claim.uuid: self.uses[claim.uuid][1] for claim in claims if self.is_measured(claim)}
        if before:
            write_whole(f"{folder}/{NOTE}", {"before": before})

    def is_measured(self, claim: DeviceClaim) -> bool:
        """Whether the memory use of this device is measured."""
        return claim.kind != "cpu" and not claim.simulated and claim.uuid in self.uses

    def concerns(self, folder: str, claims: Iterable[DeviceClaim]) -> list[DeviceClaim]:
        """Return the devices of a part whose memory is measured now, or was when it started, maybe by a former
        agent."""
        before = _before(folder)
        return [claim for claim in claims if self.is_measured(claim) or claim.uuid in before]

    def judge(
        self, part: str, folder: str, claims: Iterable[DeviceClaim], shared: set[str], ended_at: float
    ) -> list[Released]:
        """Return the memory of each device of an ended part. ``shared`` are devices that others use too: their use
        tells nothing."""
        before = _before(folder)
        released = []
        for claim in self.concerns(folder, claims):
            at, left = self.uses.get(claim.uuid, (-math.inf, 0))
            is_measured = at >= ended_at
            was = before.get(claim.uuid)
            is_back = None
            if is_measured and was is not None and claim.uuid not in shared:
                is_back = left <= was + SLACK_BYTES
            released.append(
                Released(
                    uuid=claim.uuid,
                    before_bytes=was,
                    most_bytes=self._most.get((part, claim.uuid)),
                    left_bytes=left if is_measured else None,
                    after_s=round(at - ended_at, 3) if is_measured else None,
                    is_back=is_back,
                )
            )
        return released

    def keep(self, released: Iterable[Released]) -> None:
        """Quarantine these devices, which did not free their memory in time, until they do."""
        for each in released:
            if each.is_back is False and each.left_bytes is not None and each.before_bytes is not None:
                limit = each.before_bytes + SLACK_BYTES
                self._kept[each.uuid] = (limit, _gib(each.left_bytes - each.before_bytes))

    def quarantined(self) -> list[DeviceError]:
        """Return the devices whose memory was not freed."""
        return [
            DeviceError(uuid, QUARANTINED, str(note), list(note.said))
            for uuid, (_, kept) in sorted(self._kept.items())
            for note in [NoteText(clause("NotReturned", kept_gib=kept))]
        ]


def _before(folder: str) -> dict[str, int]:
    return dict((_held.find(f"{folder}/{NOTE}") or Held()).before)


def waits_for(released: Iterable[Released]) -> NoteText | None:
    """Return what an end waits for; None if it need not wait."""
    late = [each for each in released if each.is_back is False]
    if not late:
        return None
    amount = sum((each.left_bytes or 0) - (each.before_bytes or 0) for each in late)
    return NoteText(clause("NotFreeYet", kept_gib=_gib(amount)))


def is_blind(released: Iterable[Released], faulty: Collection[str] = ()) -> bool:
    """Whether one of the devices has not been measured since the end, and is not known to be faulty."""
    return any(each.left_bytes is None and each.uuid not in faulty for each in released)


def _gib(count: int) -> float:
    return round(count / 2**30, 1)
