"""The jobs that were submitted on this node: accepted durably, started on free devices, offered until the record has
them.

A job is accepted only while the control plane is out of contact. Its id is chosen before it is accepted and the ids of
its rows follow from it, so whatever is repeated (a submission, a start, an offer) is the same once more. A start is
journalled as that of every part: it happens at most once.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

import msgspec

from agents.edge.allowance import Account, Allowance, Allowances, of_account
from agents.edge.free_devices import choose
from agents.edge.job_file import GRACE_S, JobRefused, chosen, demand
from agents.edge.ledger import MOST_OPEN, AcceptedJob, LocalLedger
from agents.ends import clause, told
from agents.isolation.run_as import RunAs
from agents.isolation.users import LOWEST
from agents.patience import within
from agents.protocol import Device, DeviceClaim, Exit, LocalAnswer, LocalOffer, PartSpec, Wanted, local_ids
from agents.tasks.node import NodeTasks

log = logging.getLogger("switchyard.agent")
STAGE: Final = "main"
# So many whole jobs are in one report, and one whose offer was not taken is in none for this long.
OFFERED_AT_ONCE: Final = 8
OFFERED_AGAIN_S: Final = 60.0
PERIOD_S: Final = 1.0
_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


class LocalJobs:
    """The local jobs of one node. ``devices`` are those of its inventory, ``unusable`` the uuids of faulty ones.

    With ``as_accounts`` each runs as the account that submitted it; else all run as the user of the agent's stages.
    """

    def __init__(
        self,
        node: NodeTasks,
        allowances: Allowances,
        ledger: LocalLedger,
        devices: Callable[[], Iterable[Device]],
        unusable: Callable[[], Collection[str]] = tuple,
        *,
        as_accounts: bool = False,
    ) -> None:
        self.node, self.allowances, self.ledger = node, allowances, ledger
        self.devices, self.unusable, self.as_accounts = devices, unusable, as_accounts
        self.stirred = asyncio.Event()
        self.on_joined: Callable[[str], None] = lambda part: None
        # Why a job waits, or is not in the record.
        self.notes: dict[str, str] = {}
        self._heard_up: float | None = None
        self._told_up: dict[str, float] = {}
        self._turn = asyncio.Lock()
        node.is_withheld = self.is_withheld

    # -- contact

    def heard(self) -> None:
        """Note that the control plane answered a report."""
        self._heard_up = self.ledger.now().up

    @property
    def is_in_contact(self) -> bool:
        silent_s = None if self._heard_up is None else self.ledger.now().up - self._heard_up
        return silent_s is not None and silent_s < self.node.timers.suspect_s

    # -- what people ask

    async def submit(self, account: Account, spec: Any, job_id: str) -> AcceptedJob:
        """Accept a job; when this returns, nothing loses it. The same id once more is the same job. Raises JobRefused,
        OSError."""
        if not isinstance(spec, dict) or not _ID.fullmatch(job_id):
            raise JobRefused("a submission has a job file, and an id that is a UUID of version 7")
        allowed = of_account(self.allowances, account)
        if not allowed:
            raise JobRefused(f"{account.name} may not submit jobs on this node; its operator has a list of who may")
        if self.as_accounts and account.uid < LOWEST:
            raise JobRefused(f"jobs here run as who submits them, and not as {account.name}: use an ordinary account")
        async with self._turn:
            if (before := self.ledger.jobs.get(job_id)) is not None:
                if before.uid != account.uid or before.spec != spec:
                    raise JobRefused("this id is that of another job")
                return before
            rule = chosen(spec, allowed)
            asked = demand(spec, rule)
            if self.is_in_contact:
                raise JobRefused("the control plane is in contact: submit there, with yard submit")
            self._check_room(account, rule)
            job = AcceptedJob(
                job_id, account.uid, account.gid, account.name, account.home, rule.project, spec, asked,
                self.ledger.now(),
            )  # fmt: skip
            await asyncio.to_thread(self.ledger.put, job)
        self.stirred.set()
        return job

    def _check_room(self, account: Account, rule: Allowance) -> None:
        if self.node.journal.disk_pressure:
            raise JobRefused("the disk of this node is nearly full")
        if self.ledger.count_open() >= MOST_OPEN:
            raise JobRefused(f"{MOST_OPEN} jobs of this node are not in the record yet; more are not kept")
        waiting = sum(job.uid == account.uid and self._waits(job) for job in self.ledger.jobs.values())
        if waiting >= rule.waiting:
            raise JobRefused(f"{waiting} of your jobs wait here already; more may not")

    async def cancel(self, account: Account, job_id: str) -> AcceptedJob:
        """End a job. Raises JobRefused if there is none of this account."""
        async with self._turn:
            job = self.found(account, job_id)
            part = self.node.parts.get(job.part)
            if job.exit is None and part is not None:
                self.node.end(part, GRACE_S, "CANCELLED")
            elif job.exit is None:
                end = Exit(cause="CANCELLED", stopped=True, **told(clause("NeverStarted")))
                job = msgspec.structs.replace(job, is_cancelled=True, exit=end)
                await asyncio.to_thread(self.ledger.put, job)
                self.node.changed.set()
        return job

    def found(self, account: Account, job_id: str) -> AcceptedJob:
        job = self.ledger.jobs.get(job_id)
        if job is None or not job.is_of(account):
            raise JobRefused(f"there is no job {job_id[:60]!r} of yours here")
        return job

    def of(self, account: Account) -> list[AcceptedJob]:
        """Return the jobs of an account, newest first; root sees all."""
        return [job for _, job in sorted(self.ledger.jobs.items(), reverse=True) if job.is_of(account)]

    def state(self, job: AcceptedJob) -> str:
        """Return the state of a job in the words of the record."""
        if job.exit is not None:
            if job.exit.stopped:
                return "CANCELLED"
            return "FAILED" if job.exit.cause else "COMPLETED"
        part = self.node.parts.get(job.part)
        if part is None:
            return "PENDING"
        return "STOPPING" if part.stop else "RUNNING" if part.pid else "STARTING"

    # -- running

    def _waits(self, job: AcceptedJob) -> bool:
        return job.exit is None and job.part not in self.node.parts and job.part not in self.node.journal.past.gone

    async def run(self) -> None:
        """Start what may start and note what ended, for ever."""
        while True:
            await self.settle()
            self.stirred.clear()
            await within(self.stirred, PERIOD_S)

    async def settle(self) -> None:
        async with self._turn:
            for job in list(self.ledger.open()):
                await self._note_end(job)
            await self._start_next()
            self.ledger.prune(lambda job: job.part not in self.node.parts)

    async def _note_end(self, job: AcceptedJob) -> None:
        """Keep the end of a job beside it, because its part is dropped once the record has it."""
        if job.exit is not None:
            return
        part, gone = self.node.parts.get(job.part), self.node.journal.past.gone.get(job.part)
        end = part.exit if part is not None else gone.exit if gone is not None else None
        if gone is not None and end is None:
            end = Exit(cause="SUPERVISOR_LOST", **told(clause("Gone")))
        if end is not None:
            await asyncio.to_thread(self.ledger.put, msgspec.structs.replace(job, exit=end))
            self.notes.pop(job.id, None)
            self.node.changed.set()

    async def _start_next(self) -> None:
        """Start waiting jobs in the order of their acceptance, until one does not fit."""
        running: dict[int, int] = {}
        for job in self.ledger.jobs.values():
            part = self.node.parts.get(job.part)
            if part is not None and part.is_live:
                running[job.uid] = running.get(job.uid, 0) + 1
        stopped = ""
        for job in [job for job in self.ledger.open() if self._waits(job)]:
            if stopped:
                self.notes[job.id] = stopped
                continue
            account = Account(job.uid, job.gid, job.account)
            rule = next((each for each in of_account(self.allowances, account) if each.project == job.project), None)
            if rule is None:
                self.notes[job.id] = "its account may not submit jobs here any more"
                continue
            if running.get(job.uid, 0) >= rule.running:
                self.notes[job.id] = f"{rule.running} of your jobs run, and no more may at once"
                continue
            if self.node.journal.disk_pressure or (self.node.health is not None and self.node.health.sentences()):
                stopped = self.notes[job.id] = (
                    "this node starts nothing now: its disk is nearly full, or a check failed"
                )
                continue
            if not await self._start(job):
                self.notes[job.id] = "its devices are held, or promised to the control plane"
                stopped = "it is started after those that wait before it"
                continue
            running[job.uid] = running.get(job.uid, 0) + 1

    async def _start(self, job: AcceptedJob) -> bool:
        while (claims := self._free(job)) is not None:
            if job.begun is not None and claims == job.claims:
                self.node.start_own(self._wanted(job), self._user(job))
                self.notes.pop(job.id, None)
                return True
            # Written first, and looked at again: an order may have come while the disk was busy.
            job = msgspec.structs.replace(job, begun=self.ledger.now(), claims=claims)
            await asyncio.to_thread(self.ledger.put, job)
        return False

    def _free(self, job: AcceptedJob) -> list[DeviceClaim] | None:
        return choose(job.demand, self.devices(), self.node.promised(), self.unusable())

    def _user(self, job: AcceptedJob) -> RunAs | None:
        return RunAs(job.account, job.uid, job.gid, home=job.home or None) if self.as_accounts else None

    def _wanted(self, job: AcceptedJob) -> Wanted:
        ids, asked = local_ids(job.id), job.demand
        spec = PartSpec(
            job=0,
            job_name=job.name,
            stage=STAGE,
            stage_kind="train",
            project=job.project,
            attempt_number=1,
            argv=asked.argv,
            env={**asked.env, "YARD_LOCAL_JOB": job.id},
            devices=job.claims,
            cpus_milli=asked.cpus_milli,
            memory_bytes=asked.memory_bytes,
            disk_bytes=asked.disk_bytes,
            time_limit_s=asked.time_limit_s,
            grace_s=GRACE_S,
        )
        return Wanted(part=ids.part, attempt=ids.attempt, epoch=1, do="run", spec=spec)

    # -- joining

    def is_withheld(self, part: str) -> bool:
        """Whether the record has no row for a part yet, so that its logs are not sent."""
        job = self.ledger.of_part(part)
        return job is not None and job.number is None

    def offers(self, *, is_first: bool) -> list[LocalOffer]:
        """Return what a report offers. The first one of a connection names the others too, because the record may
        have become older."""
        now = self.ledger.now()
        due = [
            job
            for job in self.ledger.open()
            if job.number is None
            and (job.exit is not None or job.part in self.node.parts)
            and self._told_up.get(job.id, 0.0) <= now.up
        ]
        known = [job for _, job in sorted(self.ledger.jobs.items()) if job.number is not None] if is_first else []
        return [*(job.offer(now) for job in due[:OFFERED_AT_ONCE]), *(LocalOffer(job.id) for job in known)]

    def answered(self, answers: list[LocalAnswer]) -> None:
        """Take the answers to offers; the disk is written in the background."""
        if answers:
            self.node.spawn(self._answered(answers))

    async def _answered(self, answers: list[LocalAnswer]) -> None:
        async with self._turn:
            for answer in answers:
                job = self.ledger.jobs.get(answer.id)
                if job is None:
                    continue
                if answer.why:
                    self.notes[job.id] = answer.why[:500]
                    self._told_up[job.id] = self.ledger.now().up + OFFERED_AGAIN_S
                    continue
                number = None if answer.wants else answer.number
                if number == job.number:
                    continue
                await asyncio.to_thread(self.ledger.put, msgspec.structs.replace(job, number=number))
                self.notes.pop(job.id, None)
                self.node.changed.set()
                if number is not None:
                    self.on_joined(job.part)
