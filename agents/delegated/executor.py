"""The agent's executor over a foreign engine: prepares parts as for processes, and has one thread that talks to the
engine.

What is known of a part lies in its run folder, so a new agent goes on where the last one ended: ``foreign.json`` (the
order), ``submitted.json`` (a submission may have reached the engine), ``order.json`` or ``taken`` (whether anybody may
still begin its command, see :mod:`agents.supervisor.record`), ``stop.json`` and ``exit.json``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from agents.decode import BoundedDecoder
from agents.delegated import (
    DelegatedEngine,
    EngineSilent,
    ForeignJob,
    ForeignOrder,
    ForeignState,
    SubmissionRefused,
    label,
)
from agents.delegated.capacity import Delegation, ForeignCapacity
from agents.delegated.decision import Do, PartState, decide
from agents.delegated.logs import LogCopy
from agents.devices import visible
from agents.ends import clause, told
from agents.isolation.run_as import RunAs
from agents.notes import NoteText
from agents.protocol import Clause, Exit, OpenSession, Phase, Wanted
from agents.resources.adjust import Reach
from agents.runtimes import Sighting, Unlaunchable, no_more
from agents.runtimes.process import Ground, ProcessExecutor
from agents.supervisor import secret_file
from agents.supervisor.lean import number
from agents.supervisor.record import shim_record, stop_order, take, tell_stop, write_whole
from agents.tasks.journal import Intent

log = logging.getLogger("switchyard.agent")

# How often the engine is asked while something is about to change, and while all is as it should be.
BUSY_S: Final = 1.0
REST_S: Final = 10.0
# After an answer that did not come, the next question waits ever longer.
SILENT_MAX_S: Final = 60.0
# How often a job that the engine ended before its command began is submitted again.
MOST_EXCUSED: Final = 3
# How long the end of a job is waited for whose part is given up.
REAP_PATIENCE_S: Final = 60.0
# An engine that is silent for so long is a condition of the node.
SILENT_NOTED_S: Final = 10.0
_orders = BoundedDecoder[ForeignOrder](ForeignOrder)
_exits = BoundedDecoder[Exit](Exit)


class Submitted(msgspec.Struct, frozen=True):
    """That a submission was begun; ``handle`` once the engine has answered."""

    handle: str = ""


_submitted = BoundedDecoder[Submitted](Submitted)


class SupervisedOrders(ProcessExecutor):
    """Writes run folders as for processes of this host, without what only this host can give."""

    def _order(self, wanted: Wanted, places: Any, whose: RunAs, intent: Intent) -> dict[str, object]:
        order = super()._order(wanted, places, whose, intent)
        assert wanted.spec is not None, "prepare has checked it"
        env = order["env"]
        assert isinstance(env, dict), "the order has an environment"
        # Which devices a process sees is decided by the engine that gives them.
        for name in visible.variables(wanted.spec.devices):
            env.pop(name, None)
        path = ""
        if kept := str(order["secret_file"]):
            # The memory of this host is not seen on the nodes of the engine: a file that only this user may read.
            path = f"{places.folder}/secrets.json"
            write_whole(path, secret_file.take(kept) or {})
        return {**order, "secret_file": path, "cgroups": {}, "processes": 0, "nice": 0, "lease_s": None}


@dataclass
class TrackedPart:
    """What the engine's thread knows of a part."""

    intent: Intent
    order: ForeignOrder
    was_tried: bool
    handle: str = ""
    job: ForeignJob | None = None
    has_run: bool = False
    stop_at: float | None = None
    grace_s: float = 0.0
    is_asked: bool = False
    absent_at: float | None = None
    ended_at: float | None = None
    # Whether this agent or its engine was out since the submission, and how often it was submitted again for that.
    had_outage: bool = False
    excused: int = 0
    signals: list[str] = field(default_factory=list)
    copy: LogCopy | None = None


class DelegatedExecutor:
    """See :class:`agents.runtimes.Executor`. ``tag`` is that of this cluster's labels."""

    def __init__(
        self,
        ground: Ground,
        engine: DelegatedEngine,
        capacity: ForeignCapacity,
        tag: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ground = dataclasses.replace(ground, cgroups={}, files=None, has_views=False)
        self.engine, self.capacity, self.tag, self.now = engine, capacity, tag, now
        self.inner = SupervisedOrders(self.ground)
        self.parts: dict[str, TrackedPart] = {}
        self.runs: Path | None = None
        self._wake, self._lock = threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._listed: list[ForeignJob] = []
        self._listed_at = float("-inf")
        self._strays: set[str] = set()
        # What the engine's silence is, since when, and when it was last asked in vain.
        self._silent: Clause | None = None
        self._silent_at = self._asked_at = float("-inf")
        self._pause_s = 0.0
        self._troubles: list[Clause] = []

    # -- starting

    def prepare(self, wanted: Wanted, intent: Intent, furnish: Callable[[], None] = no_more) -> None:
        spec = wanted.spec
        if spec is None:
            raise Unlaunchable(clause("NoCommand"))
        if spec.image:
            raise Unlaunchable(clause("NoContainerEngine", error=self.engine.title))
        if len(spec.nodes) > 1:
            raise Unlaunchable(clause("ForeignGang", engine=self.engine.title))
        if spec.lease_s is not None:
            raise Unlaunchable(clause("ForeignLease", engine=self.engine.title))
        shape, devices = self.capacity.placed(spec)
        fence = label.fence_of(spec.job, spec.stage, spec.rank)
        order = ForeignOrder(
            part=wanted.part,
            epoch=wanted.epoch,
            fence=fence,
            label=str(label.Label(self.tag, fence, wanted.epoch, wanted.part)),
            folder=intent.folder,
            shape=shape,
            cpus=max(1, -(-spec.cpus_milli // 1000)),
            memory_bytes=spec.memory_bytes,
            devices=devices,
            spec=msgspec.structs.replace(spec, env={}, secret_files={}, secrets=[]),
        )
        self.inner.prepare(wanted, msgspec.structs.replace(intent, cpus=[], uid=None, gid=None), furnish)
        self.engine.lay_out(order)
        write_whole(f"{intent.folder}/foreign.json", msgspec.to_builtins(order), sync=True)

    def launch(self, intent: Intent) -> None:
        self._track(intent)
        self._wake.set()

    def _track(self, intent: Intent) -> TrackedPart | None:
        """Return what is known of a part; None if it was never prepared to its end."""
        if (found := self.parts.get(intent.part)) is not None:
            return found
        order = _orders.find(f"{intent.folder}/foreign.json")
        if order is None or not label.FENCE.fullmatch(order.fence):
            return None
        # Its jobs run as the agent's user, and could have written another order into their folder.
        mark = label.Label(self.tag, order.fence, intent.epoch, intent.part)
        order = msgspec.structs.replace(
            order, part=intent.part, epoch=intent.epoch, folder=intent.folder, label=str(mark)
        )
        before = _submitted.find(f"{intent.folder}/submitted.json")
        part = TrackedPart(intent, order, was_tried=os.path.exists(f"{intent.folder}/submitted.json"))
        part.had_outage = part.was_tried
        part.handle = before.handle if before else ""
        if asked := stop_order(intent.folder):
            part.stop_at, part.grace_s = self.now(), number(asked.get("grace_s"), 30.0)
        if not self.engine.shares_folder:
            part.copy = LogCopy(intent.folder, intent.rank, self.ground.log_cap_bytes)
        with self._lock:
            self.parts[intent.part] = part
        self.runs = Path(intent.folder).parent
        self._wake.set()
        return part

    # -- looking

    def look(self, intent: Intent) -> Sighting:
        if (end := _exits.find(f"{intent.folder}/exit.json")) is not None:
            self._untrack(intent)
            return Sighting(Phase.ENDED, exit=end)
        part = self._track(intent)
        if part is None:
            # An agent ended before the part was prepared; without its order the engine never heard of it.
            return Sighting(Phase.STARTING, is_orphan=True)
        record = shim_record(intent.folder) or {}
        job, phase = part.job, Phase.STARTING
        if "main" in record or (not self.engine.shares_folder and part.has_run):
            phase = Phase.RUNNING
        if "stopping" in record or (phase is Phase.RUNNING and part.stop_at is not None):
            phase = Phase.STOPPING
        return Sighting(phase, substate=self._said_of(job, phase))

    def _said_of(self, job: ForeignJob | None, phase: Phase) -> str:
        """Return what a part waits for, in words that change seldom."""
        title = self.engine.title
        if self._silent is not None and self.now() - self._silent_at >= SILENT_NOTED_S:
            return NoteText(clause("ForeignUnknown", engine=title))
        if phase is not Phase.STARTING or job is None or job.state is not ForeignState.QUEUED:
            return ""
        said = [clause("ForeignQueued", engine=title)]
        if job.why:
            said.append(clause("ForeignReason", reason=job.why))
        if job.starts_in_s is not None:
            said.append(clause("ForeignStarts", minutes=max(5, math.ceil(job.starts_in_s / 300) * 5)))
        return NoteText(*said)

    def troubles(self) -> list[NoteText]:
        """Return why nothing new should be started here; empty while the engine answers and takes jobs."""
        title = self.engine.title
        if self._silent is not None and self.now() - self._silent_at >= SILENT_NOTED_S:
            return [NoteText(clause("ForeignSilent", engine=title), self._silent)]
        return [NoteText(each) for each in self._troubles]

    # -- stopping

    def stop(self, intent: Intent, grace_s: float, why: str, save: bool = False) -> None:
        with contextlib.suppress(FileNotFoundError):  # nothing of it is there any more
            tell_stop(intent.folder, grace_s, why, save)
        if (part := self._track(intent)) is not None:
            part.stop_at, part.grace_s, part.is_asked = self.now(), grace_s, False
            self._wake.set()

    def signal(self, intent: Intent, name: str) -> None:
        if (part := self._track(intent)) is not None and len(part.signals) < 16:
            part.signals.append(name)
            self._wake.set()

    def guest(self, intent: Intent, session: str, asked: OpenSession) -> dict[str, Any]:
        raise Unlaunchable(clause("NotEntered"))

    def reach(self, intent: Intent) -> Reach:
        return Reach(family=list)

    # -- ending

    def reap(self, intent: Intent) -> Exit:
        part = self._track(intent)
        if part is not None and part.was_tried:
            self.stop(intent, 0.0, "CANCELLED")
            until = time.monotonic() + REAP_PATIENCE_S
            while not os.path.exists(f"{intent.folder}/exit.json") and time.monotonic() < until:
                time.sleep(0.05)
        if (end := _exits.find(f"{intent.folder}/exit.json")) is not None:
            return end
        # A job that the engine has all the same is ended as a stray.
        end = Exit(
            cause="SUPERVISOR_LOST",
            stopped=stop_order(intent.folder) is not None,
            **told(clause("SupervisorGoneEarly")),
        )
        with contextlib.suppress(OSError):
            write_whole(f"{intent.folder}/exit.json", msgspec.to_builtins(end), sync=True)
        return end

    def discard(self, intent: Intent) -> None:
        self._untrack(intent)
        self.inner.discard(intent)

    def _untrack(self, intent: Intent) -> None:
        with self._lock:
            self.parts.pop(intent.part, None)

    # -- the engine's thread

    def begin(self) -> None:
        """Start talking to the engine. Called once every part of the journal is known."""
        self._thread = threading.Thread(target=self._run, name="foreign engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closed = True
        self._wake.set()

    def _run(self) -> None:
        while not self._is_closed:
            try:
                wait_s = self.turn()
            except Exception:
                log.exception("a turn with %s failed", self.engine.title)
                wait_s = BUSY_S
            self._wake.wait(wait_s)
            if self._pause_s and not self._is_closed:
                # Woken early, an engine that is silent is not asked sooner.
                time.sleep(min(0.2, self._pause_s))
            self._wake.clear()

    def turn(self) -> float:
        """Do what is due for each part; return when to look again, in seconds."""
        now = self.now()
        with self._lock:
            parts = list(self.parts.values())
        if self._pause_s and now < self._asked_at + self._pause_s:
            return self._asked_at + self._pause_s - now
        try:
            # What was never tried, and follows no other attempt, needs no list: the engine cannot know it.
            for part in parts:
                if not part.was_tried and part.stop_at is None and part.order.spec.attempt_number <= 1:
                    self._submit(part)
            if self._is_list_due(parts, now):
                self._list(parts)
            for part in parts:
                self._act(part)
        except EngineSilent as fault:
            self._note_silence(fault)
            return self._pause_s
        self._silent, self._pause_s = None, 0.0
        return BUSY_S if any(map(self._is_unsettled, parts)) else REST_S

    def _note_silence(self, fault: EngineSilent) -> None:
        now = self.now()
        if self._silent is None:
            self._silent_at = now
            log.warning("%s is silent: %s", self.engine.title, fault)
        self._silent = fault.why
        self._asked_at = now
        self._pause_s = min(SILENT_MAX_S, max(BUSY_S, self._pause_s * 2))
        # How long a job was absent counts only while the engine answers.
        with self._lock:
            for part in self.parts.values():
                part.absent_at, part.had_outage = None, part.was_tried

    def _is_unsettled(self, part: TrackedPart) -> bool:
        is_running = part.job is not None and part.job.state is ForeignState.RUNNING
        is_quiet = is_running and self.engine.shares_folder and part.stop_at is None
        return not is_quiet

    def _is_list_due(self, parts: list[TrackedPart], now: float) -> bool:
        every_s = BUSY_S if any(map(self._is_unsettled, parts)) else REST_S
        if any(part.stop_at is not None and not part.is_asked for part in parts):
            every_s = 0.0
        if any(not part.was_tried for part in parts):
            every_s = 0.0
        return now - self._listed_at >= every_s * 0.9

    def _list(self, parts: list[TrackedPart]) -> None:
        """Ask the engine for all jobs of this cluster, and note what it knows of each part."""
        found = self.engine.jobs()
        self._listed, self._listed_at = found, self.now()
        self._troubles = list(self.engine.troubles())
        by_part: dict[tuple[str, int], list[ForeignJob]] = {}
        for job in found:
            by_part.setdefault((job.part, job.epoch), []).append(job)
        for part in parts:
            jobs = by_part.get((part.order.part, part.order.epoch), [])
            found_one = best(jobs)
            if found_one is None and part.was_tried:
                found_one = self.engine.find(part.order)
            self._note(part, found_one)
        self._end_strays(found)

    def _note(self, part: TrackedPart, job: ForeignJob | None) -> None:
        now = self.now()
        before, part.job = part.job, job
        part.absent_at = None if job is not None else now if part.absent_at is None else part.absent_at
        is_over = job is not None and job.state is ForeignState.ENDED
        part.ended_at = None if not is_over else now if part.ended_at is None else part.ended_at
        if job is not None and job.state is ForeignState.RUNNING:
            part.has_run = True
        if (before and before.state) != (job and job.state):
            self._ring(part)

    def _end_strays(self, found: list[ForeignJob]) -> None:
        """End jobs of this cluster whose part has ended or is not known: nothing waits for what they do.

        One that was listed so before is meant: the job of a part that has just ended is about to go by itself.
        """
        strays = {job.handle for job in found if job.state is not ForeignState.ENDED and self._is_over(job.part)}
        for job in found:
            if job.handle in strays & self._strays:
                log.warning("job %s of %s is ended: its part %s is over", job.handle, self.engine.title, job.part)
                self.engine.kill(job)
        self._strays = strays

    def _is_over(self, part: str) -> bool:
        with self._lock:
            if part in self.parts:
                return False
        folder = self.runs / part if self.runs is not None else None
        return folder is not None and (not folder.exists() or (folder / "exit.json").exists())

    def _act(self, part: TrackedPart) -> None:
        folder = part.intent.folder
        if os.path.exists(f"{folder}/exit.json"):
            return
        if part.copy is not None and part.job is not None:
            part.copy.turn(self.engine, part.job, part.order)
        if part.signals and part.job is not None and part.job.state is ForeignState.RUNNING:
            self.engine.signal(part.job, part.order, part.signals[0])
            part.signals.pop(0)
        match decide(self._state(part), self.engine.settle_s):
            case Do.FENCE:
                for job in self._older(part):
                    self.engine.kill(job)
            case Do.SUBMIT:
                self._submit(part)
            case Do.ASK if part.job is not None:
                self.engine.ask_to_stop(part.job, part.order, part.grace_s)
                part.is_asked = True
            case Do.KILL if part.job is not None:
                self.engine.kill(part.job)
            case Do.NEVER:
                self._never(part, Exit(stopped=True, **told(clause("NeverStarted"))))
            case Do.LOST:
                lost = told(clause("ForeignGone", engine=self.engine.title))
                self._end(part, Exit(cause="SUPERVISOR_LOST", stopped=part.stop_at is not None, **lost))
            case Do.ENDED:
                self._take_its_word(part)

    def _state(self, part: TrackedPart) -> PartState:
        now = self.now()

        def since(at: float | None) -> float | None:
            return None if at is None else now - at

        return PartState(
            job=part.job,
            was_tried=part.was_tried,
            has_begun=not os.path.exists(f"{part.intent.folder}/order.json") or part.has_run,
            has_older=bool(self._older(part)),
            is_excused=self.engine.takes_again and part.excused < MOST_EXCUSED and self._is_engines_fault(part),
            is_asked=part.is_asked,
            stop_s=since(part.stop_at),
            grace_s=part.grace_s,
            absent_s=since(part.absent_at),
            ended_s=since(part.ended_at),
        )

    def _is_engines_fault(self, part: TrackedPart) -> bool:
        """Whether a job that ended before its command began may do so without a fault of its own: its node failed, or
        a controller that came back ended what it did not know it had begun."""
        cause = part.job.exit.cause if part.job is not None and part.job.exit is not None else ""
        return cause in ("NODE_FAIL", "PREEMPTED") or part.had_outage

    def _older(self, part: TrackedPart) -> list[ForeignJob]:
        """Return the jobs of older epochs of the same stage that may still run."""
        return [
            job
            for job in self._listed
            if job.fence == part.order.fence and job.epoch < part.order.epoch and job.state is not ForeignState.ENDED
        ]

    def _submit(self, part: TrackedPart) -> None:
        """Submit a part; the folder tells that this was tried before the engine hears of it."""
        path = f"{part.intent.folder}/submitted.json"
        try:
            write_whole(path, {"handle": ""}, sync=True)
        except FileNotFoundError:
            return  # it was given up
        if part.job is not None:
            part.excused, part.job, part.ended_at = part.excused + 1, None, None
        part.was_tried, part.absent_at, part.had_outage = True, None, False
        try:
            part.handle = self.engine.submit(part.order)
        except SubmissionRefused as refusal:
            refused = clause("ForeignRefused", engine=self.engine.title, error=str(refusal)[:300])
            self._never(part, Exit(cause="LAUNCH_FAILED", **told(refused)))
            return
        with contextlib.suppress(OSError):
            write_whole(path, {"handle": part.handle})
        part.job = ForeignJob(part.order.part, part.order.epoch, part.order.fence, part.handle, ForeignState.QUEUED)

    def _never(self, part: TrackedPart, end: Exit) -> None:
        """End a part whose command never began, unless it begins at this moment."""
        if take(part.intent.folder):
            # Its job, which finds nothing to do now, is ended after that, and as a stray if the engine is silent.
            self._end(part, end)
            if part.job is not None and part.job.state is not ForeignState.ENDED:
                self.engine.kill(part.job)

    def _take_its_word(self, part: TrackedPart) -> None:
        """End a part as the engine says, because no supervisor told how it ended."""
        if part.copy is not None and part.job is not None and not part.copy.finish(self.engine, part.job, part.order):
            return
        job, has_stop = part.job, part.stop_at is not None
        assert job is not None, "it has ended"
        has_begun = part.has_run or not take(part.intent.folder)
        end = job.exit or Exit(cause="SUPERVISOR_LOST", **told(clause("ForeignNoWord", engine=self.engine.title)))
        if not has_begun and self.engine.shares_folder:
            end = self._unstarted(part, end)
        self._end(part, msgspec.structs.replace(end, stopped=has_stop))

    def _unstarted(self, part: TrackedPart, end: Exit) -> Exit:
        if part.stop_at is not None:
            return Exit(**told(clause("NeverStarted")))
        if end.cause == "NODE_FAIL":
            return end
        return Exit(cause="LAUNCH_FAILED", **told(*end.said, *self.engine.last_words(part.order)))

    def _end(self, part: TrackedPart, end: Exit) -> None:
        with contextlib.suppress(FileNotFoundError):
            write_whole(f"{part.intent.folder}/exit.json", msgspec.to_builtins(end), sync=True)
        secret_file.forget(part.intent.folder)
        with contextlib.suppress(OSError):
            os.unlink(f"{part.intent.folder}/secrets.json")
        self._ring(part)

    def _ring(self, part: TrackedPart) -> None:
        """Notify the agent, as a shim does; it also looks by itself."""
        with contextlib.suppress(OSError):
            bell = os.open(self.ground.bell, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(bell, part.order.part.encode() + b"\n")
            finally:
                os.close(bell)


def best(jobs: list[ForeignJob]) -> ForeignJob | None:
    """Return of several jobs of one part the one that counts: one that runs, else one that waits, else the last."""
    order = [ForeignState.ENDED, ForeignState.QUEUED, ForeignState.RUNNING]
    return max(jobs, key=lambda job: order.index(job.state), default=None)


def delegated(delegation: Delegation, ground: Ground, name: str, node: str) -> DelegatedExecutor:
    """Return the executor of the node with this name and id. Raises ValueError for options that the engine does not
    take."""
    tag = label.tag_of(node)
    engine = delegation.engine_for(tag, Path(ground.state))
    return DelegatedExecutor(ground, engine, ForeignCapacity(name, delegation), tag)
