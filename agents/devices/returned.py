"""Whether the devices of an ended part gave their memory back: measured before it started, while it ran, and after.

That nothing of the part runs any more is known before this is asked. A driver may still hold what its processes had; a
device that does not give it back is told as quarantined, and free again once it has.
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
# So long an end waits for memory that is not given back.
PATIENCE_S: Final = float(os.environ.get("YARD_AGENT_RELEASE_S", "60"))
# So long it waits for a device that nobody can measure any more.
BLIND_S: Final = 5.0
# Drivers keep a little for themselves, and not always the same.
SLACK_BYTES: Final = 64 << 20

# uuid -> when it was measured, on the monotonic clock, and how much of its memory was in use
Uses = dict[str, tuple[float, int]]


class Held(msgspec.Struct, frozen=True):
    """How much memory of each device was in use before a part started, by uuid."""

    before: Annotated[dict[Name, Bytes], msgspec.Meta(max_length=MOST_DEVICES)] = msgspec.field(default_factory=dict)


_held = BoundedDecoder[Held](Held)


@dataclass
class Returns:
    """What is known of the memory of one node's devices. Not thread-safe but for :meth:`begin`."""

    uses: Uses = field(default_factory=dict)
    _most: dict[tuple[str, str], int] = field(default_factory=dict)
    _kept: dict[str, tuple[int, float]] = field(default_factory=dict)

    def note(
        self, samples: Iterable[DeviceSample], parts: Mapping[str, tuple[str, Sequence[DeviceClaim]]], now: float
    ) -> None:
        """Take what was measured. ``parts`` maps each live part to its run folder and its claims."""
        for sample in samples:
            if sample.memory_used_bytes is not None:
                self.uses[sample.uuid] = (now - sample.age_s, sample.memory_used_bytes)
        for part, (_, claims) in parts.items():
            for claim in claims:
                if claim.uuid in self.uses:
                    key = (part, claim.uuid)
                    self._most[key] = max(self._most.get(key, 0), self.uses[claim.uuid][1])
        self._most = {key: most for key, most in self._most.items() if key[0] in parts}
        # What was kept has come back.
        self._kept = {uuid: known for uuid, known in self._kept.items() if self._in_use(uuid) > known[0]}

    def _in_use(self, uuid: str) -> int:
        return self.uses[uuid][1] if uuid in self.uses else 0

    def begin(self, folder: str, claims: Iterable[DeviceClaim]) -> None:
        """NoteText in a part's folder how much of its devices is in use before it starts. Raises OSError."""
        before = {claim.uuid: self.uses[claim.uuid][1] for claim in claims if self.is_told(claim)}
        if before:
            write_whole(f"{folder}/{NOTE}", {"before": before})

    def is_told(self, claim: DeviceClaim) -> bool:
        """Whether anybody tells how much memory of this device is in use, and means it."""
        return claim.kind != "cpu" and not claim.simulated and claim.uuid in self.uses

    def concerns(self, folder: str, claims: Iterable[DeviceClaim]) -> list[DeviceClaim]:
        """The devices of a part whose memory is told now, or was when it started: an agent may be new."""
        before = _before(folder)
        return [claim for claim in claims if self.is_told(claim) or claim.uuid in before]

    def judge(
        self, part: str, folder: str, claims: Iterable[DeviceClaim], shared: set[str], ended_at: float
    ) -> list[Released]:
        """How each device of an ended part is. ``shared`` are those that others use too: they tell nothing of it."""
        before = _before(folder)
        told = []
        for claim in self.concerns(folder, claims):
            at, left = self.uses.get(claim.uuid, (-math.inf, 0))
            is_measured = at >= ended_at
            was = before.get(claim.uuid)
            is_back = None
            if is_measured and was is not None and claim.uuid not in shared:
                is_back = left <= was + SLACK_BYTES
            told.append(
                Released(
                    uuid=claim.uuid,
                    before_bytes=was,
                    most_bytes=self._most.get((part, claim.uuid)),
                    left_bytes=left if is_measured else None,
                    after_s=round(at - ended_at, 3) if is_measured else None,
                    is_back=is_back,
                )
            )
        return told

    def keep(self, told: Iterable[Released]) -> None:
        """These devices were waited for in vain: from now on they are quarantined until they gave it back."""
        for each in told:
            if each.is_back is False and each.left_bytes is not None and each.before_bytes is not None:
                limit = each.before_bytes + SLACK_BYTES
                self._kept[each.uuid] = (limit, _gib(each.left_bytes - each.before_bytes))

    def quarantined(self) -> list[DeviceError]:
        """The devices whose memory did not come back."""
        return [
            DeviceError(uuid, QUARANTINED, str(note), list(note.said))
            for uuid, (_, kept) in sorted(self._kept.items())
            for note in [NoteText(clause("NotReturned", kept_gib=kept))]
        ]


def _before(folder: str) -> dict[str, int]:
    return dict((_held.find(f"{folder}/{NOTE}") or Held()).before)


def waits_for(told: Iterable[Released]) -> NoteText | None:
    """What an end waits for; None where it need not wait."""
    late = [each for each in told if each.is_back is False]
    if not late:
        return None
    amount = sum((each.left_bytes or 0) - (each.before_bytes or 0) for each in late)
    return NoteText(clause("NotFreeYet", kept_gib=_gib(amount)))


def is_blind(told: Iterable[Released], faulty: Collection[str] = ()) -> bool:
    """Whether one of the devices has not been measured since the end, and is not known to answer nobody."""
    return any(each.left_bytes is None and each.uuid not in faulty for each in told)


def _gib(count: int) -> float:
    return round(count / 2**30, 1)
