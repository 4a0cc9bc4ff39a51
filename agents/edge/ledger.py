"""The local jobs of one node on disk: a file each, which replaces its former content atomically and durably.

A file outlives the job's part, so that a control plane whose database was restored from a backup can be told of it once
more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from agents.decode import BoundedDecoder
from agents.edge.allowance import Account
from agents.edge.job_file import LocalDemand
from agents.protocol import DeviceClaim, Exit, LocalClaim, LocalJob, LocalOffer, local_ids
from agents.supervisor import procfs
from agents.supervisor.record import sync_folder, write_whole

log = logging.getLogger("switchyard.agent")
# What is not in the record yet is bounded by this; of what is, so many are kept, so long.
MOST_OPEN: Final = 1_000
MOST_JOINED: Final = 256
KEPT_S: Final = 14 * 86_400.0


class HostMoment(msgspec.Struct, frozen=True):
    """A time by both clocks of the host: the wall clock, which may be set, and that of a boot."""

    wall: float
    boot: str
    up: float

    def before(self, now: HostMoment) -> float:
        """Return how many seconds before ``now`` this was; by the wall clock only across boots."""
        return max(0.0, now.up - self.up if now.boot == self.boot else now.wall - self.wall)


def host_now() -> HostMoment:
    return HostMoment(time.time(), procfs.boot_id(), procfs.boottime())


class AcceptedJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A local job. ``number`` is its number in the record, once that has it; ``begun`` when it left the queue."""

    id: str
    uid: int
    gid: int
    account: str
    home: str
    project: str
    spec: dict[str, Any]
    demand: LocalDemand
    accepted: HostMoment
    begun: HostMoment | None = None
    claims: list[DeviceClaim] = msgspec.field(default_factory=list)
    is_cancelled: bool = False
    exit: Exit | None = None
    number: int | None = None

    @property
    def part(self) -> str:
        return local_ids(self.id).part

    @property
    def name(self) -> str:
        return str(self.spec.get("name", "job"))

    @property
    def is_open(self) -> bool:
        """Whether the record does not have all of it."""
        return self.number is None or self.exit is None

    def is_of(self, account: Account) -> bool:
        return account.uid in (0, self.uid)

    def offer(self, now: HostMoment) -> LocalOffer:
        """Return what the control plane is told of it. It has begun, or ended before that."""
        begun = self.begun or self.accepted
        return LocalOffer(
            self.id,
            LocalJob(
                account=self.account,
                project=self.project,
                spec=self.spec,
                claims=[LocalClaim(each.uuid, each.milli, each.memory_bytes) for each in self.claims],
                accepted_s=round(self.accepted.before(now), 3),
                begun_s=round(begun.before(now), 3),
                exit=self.exit,
            ),
        )


_files: Final = BoundedDecoder[AcceptedJob](AcceptedJob)


class LocalLedger:
    """All local jobs, by id, hence in the order of their acceptance. :meth:`put` blocks until the disk has it."""

    def __init__(self, folder: Path, now: Callable[[], HostMoment] = host_now) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.folder, self.now = folder, now
        found = (_files.find(str(path)) for path in sorted(folder.glob("*.json")))
        self.jobs = {job.id: job for job in found if job is not None}
        # Logs ask for each part at each look.
        self._of_part = {job.part: job.id for job in self.jobs.values()}
        if unreadable := sum(1 for _ in folder.glob("*.json")) - len(self.jobs):
            log.error("%d files of local jobs in %s cannot be read, and stay as they are", unreadable, folder)

    def put(self, job: AcceptedJob) -> None:
        """Write a job; when this returns, no crash loses it. Raises OSError, and keeps what was there."""
        write_whole(str(self.folder / f"{job.id}.json"), msgspec.to_builtins(job), sync=True)
        sync_folder(str(self.folder))
        self.jobs[job.id], self._of_part[job.part] = job, job.id

    def of_part(self, part: str) -> AcceptedJob | None:
        """Return the job that this part belongs to; None if it is no local job's."""
        return self.jobs.get(self._of_part.get(part, ""))

    def open(self) -> Iterator[AcceptedJob]:
        return (job for _, job in sorted(self.jobs.items()) if job.is_open)

    def count_open(self) -> int:
        return sum(job.is_open for job in self.jobs.values())

    def prune(self, may_go: Callable[[AcceptedJob], bool]) -> None:
        """Remove the oldest of those that the record has, beyond the bounds. Never one that it does not have."""
        joined = [job for _, job in sorted(self.jobs.items()) if not job.is_open and may_go(job)]
        now = self.now()
        for place, job in enumerate(joined):
            if len(joined) - place > MOST_JOINED or job.accepted.before(now) > KEPT_S:
                (self.folder / f"{job.id}.json").unlink(missing_ok=True)
                del self.jobs[job.id], self._of_part[job.part]
