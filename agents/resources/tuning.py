"""Keeps the resources of running parts in line with the server's revisions, their claims, and the other parts.

A :class:`~agents.resources.adjust.Setting` follows from several sources: the newest revision of the part (``share``),
else its priority (weight of cores) and the phase that it reports (weight of disks); the cores that the claims of all
parts leave it (:mod:`agents.resources.cores`; idle ones are lent to a part that waits for input); and the feedback
queue of its device (:mod:`agents.resources.feedback_queue`), which suspends it between its turns. Settings are applied
in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import msgspec

from agents.decode import BoundedDecoder
from agents.ends import clause
from agents.notes import NoteText
from agents.protocol import Count, DeviceClaim, Phase, Share
from agents.resources import adjust
from agents.resources.adjust import MIDDLE_WEIGHT, Setting
from agents.resources.cores import CoreClaim, allot
from agents.resources.feedback_queue import QueueRequest
from agents.resources.turns import PERIOD_S, Turns, wish
from agents.supervisor import procfs
from agents.supervisor.record import write_whole
from agents.supervisor.small_file import content

if TYPE_CHECKING:
    from agents.tasks.node import NodeTasks
    from agents.tasks.part import StartedPart

SHARE_FILE: Final = "share.json"


class Revision(msgspec.Struct, frozen=True):
    """The newest revision of a part, as it is stored for a restarted agent."""

    spec_rev: Count
    share: Share


_revision = BoundedDecoder[Revision](Revision)

# A stage that spends a fifth of its time waiting for input would go faster with more cores.
STARVED_SHARE: Final = 0.2
STARVED_VALUE: Final = "input_wait"
AGAIN_S: Final = 5.0
# Words by which a phase is known as one of input or output.
INPUT_OUTPUT: Final = frozenset(
    [
        "checkpoint",
        "download",
        "fetch",
        "load",
        "loading",
        "read",
        "restore",
        "resume",
        "save",
        "saving",
        "upload",
        "write",
    ]
)


@dataclass
class Tuned:
    """The state of one part's setting: the applied one, and the newest revision."""

    applied: Setting
    share: Share = field(default_factory=Share)
    is_busy: bool = False
    failed_at: float | None = None
    was_starved: bool = False


class Tuner:
    """The settings of one node's parts. ``topology`` has the cores of each CPU device; empty if none is pinned."""

    def __init__(self, node: NodeTasks) -> None:
        self.node = node
        self.topology: Callable[[], Mapping[str, Sequence[int]]] = dict
        self.turns = Turns()
        self.known: dict[str, Tuned] = {}
        self._is_turning = False

    def of(self, part: StartedPart) -> Tuned:
        """Return the state of a part's setting."""
        name = part.intent.part
        if name not in self.known:
            # A container's processes are not children of the process that was pinned at the start.
            cpus = () if part.intent.executor else tuple(part.intent.cpus)
            self.known[name] = Tuned(Setting(cpus=cpus, cpu_weight=part.intent.weight, io_weight=MIDDLE_WEIGHT))
        return self.known[name]

    def adopt(self, part: StartedPart) -> None:
        """Take over a part of an earlier agent, with its newest revision from its folder.

        Whether it is suspended is unknown, so it counts as suspended until it is resumed.
        """
        tuned = self.of(part)
        tuned.applied = replace(tuned.applied, suspended=True)
        path = _share_file(part)
        if (text := content(path)) is not None:
            known = _revision.read(text)
            tuned.share, part.wanted_rev, part.applied_rev = known.share, known.spec_rev, known.spec_rev

    def cores_for(self, part: str, claims: Sequence[DeviceClaim]) -> list[int]:
        """Return the cores that a part which starts now may use; cores on loan are taken back for it."""
        asks = [*self._asks(), *(CoreClaim(part, claim.uuid, claim.milli) for claim in claims if claim.kind == "cpu")]
        return list(allot(self.topology(), asks).get(part, ()))

    def revise(self, part: StartedPart, share: Share) -> None:
        """Set a newer revision of a part, ``part.wanted_rev``; it is applied when the part runs."""
        tuned = self.of(part)
        tuned.share, tuned.failed_at = share, None
        self.settle()

    def _note(self, part: StartedPart, tuned: Tuned) -> None:
        """Store the revision for the next agent. A lost one is sent again, because it was not reported as applied."""
        if part.wanted_rev == part.intent.spec_rev:
            return
        told = {"spec_rev": part.wanted_rev, "share": msgspec.to_builtins(tuned.share)}
        with contextlib.suppress(OSError):
            write_whole(_share_file(part), told)

    def release(self, part: StartedPart) -> None:
        """Resume a part that is to be stopped, because a suspended process handles no signal."""
        tuned = self.of(part)
        if tuned.applied.suspended:
            adjust.resume(self.node.executor.reach(part.intent))
            tuned.applied = replace(tuned.applied, suspended=False)

    def drop(self, part: StartedPart) -> None:
        """Drop the state of an ended part."""
        self.known.pop(part.intent.part, None)

    def settle(self) -> None:
        """Start applying the differences between the present and the wanted settings. Cheap if there are none."""
        tunable = self._tunable()
        cores = allot(self.topology(), self._asks())
        # A part that is suspended by a revision takes no turns, because others would wait for it.
        turning = [part for part in tunable if not self.of(part).share.suspended]
        wishes = {part.intent.part: wish(self.of(part).share) for part in turning}
        paused = self.turns.paused(turning, time.monotonic(), self._cpu_s, wishes)
        for part in tunable:
            tuned = self.of(part)
            setting = self._setting(part, cores.get(part.intent.part, ()), part.intent.part in paused)
            is_new = setting != tuned.applied or part.wanted_rev != part.applied_rev
            waits = tuned.failed_at is not None and time.monotonic() - tuned.failed_at < AGAIN_S
            if is_new and not tuned.is_busy and not waits:
                tuned.is_busy = True
                self.node.spawn(self._apply(part, tuned, setting))
        if self.turns.is_contended and not self._is_turning:
            self._is_turning = True
            self.node.spawn(self._take_turns())

    async def _take_turns(self) -> None:
        """Check often while a part waits for a turn."""
        try:
            while self.turns.is_contended:
                await asyncio.sleep(PERIOD_S)
                self.settle()
        finally:
            self._is_turning = False

    def _tunable(self) -> list[StartedPart]:
        return [part for part in self.node.live if part.phase == Phase.RUNNING and part.stop is None]

    def _cpu_s(self, part: StartedPart) -> float:
        return procfs.cpu_s(self.node.executor.reach(part.intent).family())

    def _asks(self) -> list[CoreClaim]:
        return [ask for part in self.node.live for ask in self._asks_of(part)]

    def _asks_of(self, part: StartedPart) -> list[CoreClaim]:
        tuned = self.of(part)
        held = tuned.applied.cpus or tuple(part.intent.cpus)
        claims = [claim for claim in part.intent.devices if claim.kind == "cpu"]
        # A revision that gives more cores than were claimed is spread over the claimed devices as they were.
        total = sum(claim.milli for claim in claims) or 1
        factor = (tuned.share.cpus_milli or total) / total
        return [
            CoreClaim(part.intent.part, claim.uuid, round(claim.milli * factor), held, self._is_starved(part, tuned))
            for claim in claims
        ]

    def _is_starved(self, part: StartedPart, tuned: Tuned) -> bool:
        """Whether the part reported that it waits for input; lent cores stay until they are claimed.

        Otherwise a loan that ends the wait would be taken back at once, and lent again.
        """
        progress = part.reports.progress
        waited = progress.values.get(STARVED_VALUE) if progress else None
        if isinstance(waited, int | float) and waited >= STARVED_SHARE:
            tuned.was_starved = True
        return tuned.was_starved

    def _setting(self, part: StartedPart, cores: tuple[int, ...], is_paused: bool) -> Setting:
        tuned = self.of(part)
        share = tuned.share
        return Setting(
            cpus=tuple(share.cpus) if share.cpus is not None else cores or tuned.applied.cpus,
            cpu_weight=share.cpu_weight or part.intent.weight,
            io_weight=share.io_weight or _io_weight(part),
            memory_bytes=share.memory_bytes,
            suspended=share.suspended or is_paused,
        )

    async def _apply(self, part: StartedPart, tuned: Tuned, setting: Setting) -> None:
        spec_rev, share = part.wanted_rev, tuned.share
        reach = self.node.executor.reach(part.intent)
        try:
            self._note(part, tuned)
            notes = await asyncio.to_thread(adjust.apply, reach, tuned.applied, setting)
        finally:
            tuned.is_busy = False
        # A failed setting is tried again after a while, and reported until it succeeds.
        tuned.failed_at = time.monotonic() if notes else None
        if not part.is_live:
            return
        hints = self._hints(part, share)
        if part.stop is not None and setting.suspended:
            adjust.resume(reach)
            setting = replace(setting, suspended=False)
        tuned.applied = setting if not notes else replace(tuned.applied, suspended=setting.suspended)
        if (part.applied_rev, part.notes) != (spec_rev, notes + hints):
            part.applied_rev, part.notes = spec_rev, notes + hints
            self.node.changed.set()

    def _hints(self, part: StartedPart, share: Share) -> list[NoteText]:
        """Return which requested settings have no effect on this node."""
        if wish(share) == QueueRequest() or self.turns.takes(part):
            return []
        return [NoteText(clause("QueueWithoutEffect"))]


def _io_weight(part: StartedPart) -> int:
    """Return twice the normal weight of disks while the stage reports that it reads or writes, because others wait
    for it, or it for them."""
    progress = part.reports.progress
    words = re.split(r"[^a-z]+", progress.phase.lower()) if progress else []
    return 2 * MIDDLE_WEIGHT if INPUT_OUTPUT.intersection(words) else MIDDLE_WEIGHT


def _share_file(part: StartedPart) -> str:
    return f"{part.intent.folder}/{SHARE_FILE}"
