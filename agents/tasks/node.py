"""One node's parts: applies Desired, reports Here, and keeps journal and executor in step. Independent of any socket.

Everything here runs on one event loop; only blocking work (unpacking, fsync, removal) leaves it. ``changed`` is set
whenever a report would say something new.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agents.devices.cap import is_share
from agents.devices.instances import Instances, is_missing
from agents.ends import clause, known, told
from agents.isolation import beneath
from agents.isolation.allowed import Allowed
from agents.isolation.beneath import OWN, FileRights
from agents.isolation.mounts import MountRefused, MountRoots
from agents.isolation.run_as import RunAs
from agents.isolation.users import Users
from agents.loops import Loop, Loops
from agents.notes import NoteText
from agents.patience import within
from agents.protocol import AsideOrder, Desired, DeviceClaim, DeviceError, Exit, Here, PartSpec, Phase, Timers, Wanted
from agents.resources.adjust import MIDDLE_WEIGHT
from agents.resources.tuning import Tuner
from agents.runtimes import Executor, Sighting, Unlaunchable
from agents.storage import checkpoint_watch
from agents.storage.manifest import UnfitFile
from agents.storage.staging import INPUTS, Staging
from agents.supervisor import procfs
from agents.supervisor.procfs import boottime
from agents.supervisor.record import write_whole
from agents.tasks import diff, gang, setup
from agents.tasks.environment import PartPaths
from agents.tasks.health import HealthChecks
from agents.tasks.journal import Ended, Gone, Intent, Journal, Seen, Signalled, Started
from agents.tasks.leftovers import Leftovers
from agents.tasks.local import job_folder, localised
from agents.tasks.part import StartedPart
from agents.tasks.quarantine import Quarantine

T = TypeVar("T")
log = logging.getLogger("switchyard.agent")

LIVE_TICK_S = 0.5
REST_TICK_S = 2.0
SLOW_AT_ONCE = 16
REMOVED_AT_ONCE = 5_000


async def _as_it_is(part: StartedPart, end: Exit) -> Exit:
    """Return the end unchanged: the default if nothing measures devices."""
    return end


class NodeTasks:
    """The parts of one node. ``runs`` is the folder in which each part gets its own.

    ``rights`` are those of the stages' user, with which the agent reads the files that stages write.
    """

    def __init__(self, name: str, runs: Path, journal: Journal, executor: Executor, boot_id: str) -> None:
        self.name = name
        self.runs = runs
        self.journal = journal
        self.executor = executor
        self.boot_id = boot_id
        # A warning if its clock is far from the control plane's.
        self.clock: NoteText | None = None
        self.incarnation = uuid.uuid4().hex
        self.parts: dict[str, StartedPart] = {}
        self.held: dict[str, diff.Hold] = {}
        self.timers = Timers()
        self.local: Path | None = None
        self.rights = OWN
        self.users = Users(RunAs(name=""))
        self.allowed = Allowed()
        self.mounts = MountRoots()
        self.staging: Staging | None = None
        self.desired: Desired | None = None
        self.changed = asyncio.Event()
        self.stirred = asyncio.Event()
        self.on_end: Callable[[StartedPart], None] = lambda part: None
        self.shipped: Callable[[str], bool] = lambda part: True
        # Whether the logs of a part are not sent, because the record has no row for it yet.
        self.is_withheld: Callable[[str], bool] = lambda part: False
        self.on_close: Callable[[], None] = lambda: None
        self.measured: Callable[[str, Exit], Exit] = lambda part, end: end
        self.held_before: Callable[[StartedPart], None] = lambda part: None
        self.released: Callable[[StartedPart, Exit], Awaitable[Exit]] = _as_it_is
        self.unreturned: Callable[[], list[DeviceError]] = list
        self.memory_of: Callable[[str], int] = lambda uuid: 0
        # Whether its folders lie on a file system that may be slow.
        self.is_far = False
        self.troubles: Callable[[], Sequence[str]] = list
        self.lacks: Callable[[PartSpec], str] = lambda spec: ""
        self.lease_until: Callable[[float], float] = lambda lease_s: boottime() + lease_s
        self.instances: Instances | None = None
        self.health: HealthChecks | None = None
        self.tuner = Tuner(self)
        self.loops = Loops(self.changed.set)
        self.quarantine = Quarantine()
        self._leftovers = Leftovers()
        # For work on folders of jobs, which may wait for a disk; the journal has threads of its own and does not wait.
        self._slow = ThreadPoolExecutor(SLOW_AT_ONCE, thread_name_prefix="part")
        self._removal = ThreadPoolExecutor(1, thread_name_prefix="removal")
        self.removal_turns = 0
        self._tasks: set[asyncio.Task[None]] = set()

    # -- the past

    def open(self) -> None:
        """Count this start, and take over every part in the journal. Call once, before anything else."""
        past = self.journal.past
        self.journal.append(Started(past.start_seq + 1, self.boot_id, round(self.journal.lived_s, 1)))
        for intent in list(past.intents.values()):
            part = StartedPart(intent, self._rights(intent))
            part.signalled_rev = past.signalled.get(intent.part, 0)
            part.is_launched = True
            part.phase = Phase.STARTING
            self.parts[intent.part] = part
            if intent.part in past.ends:
                part.phase, part.exit = Phase.ENDED, past.ends[intent.part]
            # A part with unreadable files stays known and is set aside; the others are taken over.
            self._try_to_take_over(part)
        self.journal.flush()

    def _try_to_take_over(self, part: StartedPart) -> None:
        name = part.intent.part
        try:
            self._take_over(part)
        except Exception as error:
            log.exception("part %s could not be taken over, and is set aside", name)
            self.quarantine.put(part, error)
        else:
            self.quarantine.drop(name)
        self.changed.set()

    def _take_over(self, part: StartedPart) -> None:
        if part.is_live:
            self.tuner.adopt(part)
            self._see(part)
        else:
            part.outputs = Staging.left(part.intent.folder)
        part.reports.poll()

    @property
    def start_seq(self) -> int:
        return self.journal.past.start_seq

    @property
    def generation(self) -> int:
        return self.journal.past.generation

    @property
    def live(self) -> list[StartedPart]:
        return [part for part in self.parts.values() if part.is_live]

    def world(self) -> diff.AgentState:
        past = self.journal.past
        return diff.AgentState(
            generation=past.generation,
            lineage=past.lineage,
            here={name: part.known() for name, part in self.parts.items()},
            gone={name: gone.exit for name, gone in past.gone.items()},
        )

    # -- orders

    def apply(self, desired: Desired) -> None:
        """Apply the desired state. Messages may come twice, late or out of order."""
        world = self.world()
        if not diff.is_current(desired, world):
            return
        lineage = desired.lineage or world.lineage
        if (desired.generation, lineage) != (world.generation, world.lineage):
            self.journal.append(Seen(generation=desired.generation, lineage=lineage))
            self.changed.set()
        self.timers = desired.timers
        self.desired = self._with_specs(desired)
        if self.staging is not None:
            self.staging.want(desired.prefetch)
            self.staging.measure(desired.measure)
        self._carry_out(diff.diff(self.desired, world))
        for order in desired.aside:
            self._decide(order)

    def _decide(self, order: AsideOrder) -> None:
        """Carry out a person's decision about a part that is set aside."""
        part = self.quarantine.asked(order)
        if part is None or part.is_busy:
            return
        if order.do == "release":
            self._try_to_take_over(part)
            return
        if not part.is_live:
            self.quarantine.drop(order.part)
            self.changed.set()
            return
        part.is_busy = True
        self.spawn(self._give_up(part))

    async def _give_up(self, part: StartedPart) -> None:
        """End a part that cannot be taken over, with all processes that carry its mark, to free its devices."""
        try:
            await self._slowly(self.executor.reap, part.intent)
        except Exception:
            log.exception("part %s could not be ended as others are", part.intent.part)
            marked = partial(procfs.marked, part.intent.part)
            if left := await self._slowly(procfs.end_all, marked):
                log.error("processes of part %s do not end although killed: %s", part.intent.part, left)
                part.is_busy = False
                return
        self._end(part, Exit(cause="SUPERVISOR_LOST", stopped=part.stop is not None, **told(clause("Discarded"))))

    def _with_specs(self, desired: Desired) -> Desired:
        """Restore the specs of held parts: the server may leave out what it has sent before."""
        if not self.held:
            return desired
        whole = [
            self.held[wanted.part].wanted
            if wanted.do == "run" and wanted.spec is None and wanted.part in self.held
            else wanted
            for wanted in desired.wanted
        ]
        return msgspec.structs.replace(desired, wanted=whole)

    def again(self) -> None:
        """Apply the last Desired again, because a local change may allow a held part to start."""
        if self.desired is not None and self.held:
            self._carry_out(diff.diff(self.desired, self.world()))

    def _carry_out(self, orders: list[diff.Order]) -> None:
        held: dict[str, diff.Hold] = {}
        for order in orders:
            match order:
                case diff.StartPart(wanted):
                    self._start(wanted)
                case diff.Hold(wanted):
                    held[wanted.part] = order
                case diff.StopPart(part, grace_s, why, save):
                    self._stop(self.parts[part], grace_s, why, save)
                case diff.Signal(part, signal, signal_rev):
                    self._signal(self.parts[part], signal, signal_rev)
                case diff.AskSave(part, save_rev):
                    self._ask_save(self.parts[part], save_rev)
                case diff.Revise(part, spec_rev, share):
                    self.parts[part].wanted_rev = spec_rev
                    self.tuner.revise(self.parts[part], share)
                case diff.Void(wanted):
                    self._void(wanted, Exit(stopped=True, **told(clause("NeverStarted"))))
                case diff.Recall(wanted, end):
                    lost = Exit(cause="SUPERVISOR_LOST", **told(clause("Gone")))
                    self._void(wanted, end or lost)
                case diff.Forget(part):
                    self.parts[part].is_forgotten = True
        if held.keys() != self.held.keys():
            self.changed.set()
        self.held = held

    def start_own(self, wanted: Wanted, user: RunAs | None) -> None:
        """Start a part that was submitted on this node, as ``user``, unless it was ever started here."""
        if wanted.part not in self.parts and wanted.part not in self.journal.past.gone:
            self._start(wanted, user)
            self.changed.set()

    def promised(self) -> list[DeviceClaim]:
        """Return the claims of all parts that live here, and of those that the newest orders want here."""
        ordered = self.desired.wanted if self.desired is not None else []
        claims = [claim for part in self.live for claim in part.intent.devices]
        for wanted in ordered:
            if wanted.do == "run" and wanted.part not in self.parts and wanted.spec is not None:
                claims += wanted.spec.devices
        return claims

    def _intent(self, wanted: Wanted, user: RunAs | None = None) -> Intent:
        spec = wanted.spec
        # The part's user is journalled: a changed user map after a restart applies to later parts only.
        whose = user or (self.users.of(spec.project, spec.project_number) if spec else self.users.default)
        own = whose if whose is not self.users.default else RunAs(name="")
        return Intent(
            part=wanted.part,
            attempt=wanted.attempt,
            epoch=wanted.epoch,
            boot_id=self.boot_id,
            folder=str(self.runs / os.path.basename(wanted.part)),
            # A revision from before the start is applied, and reported, once the part runs.
            spec_rev=1 if wanted.share else wanted.spec_rev,
            rank=spec.rank if spec else 0,
            # Whichever database has a local part (it has no number of a job) may let it be forgotten.
            lineage=self.journal.past.lineage if spec is None or spec.job else "",
            stop_to=spec.stop_to if spec else "main",
            devices=spec.devices if spec else [],
            disk_bytes=spec.disk_bytes if spec else 0,
            executor="container" if spec and spec.image else "",
            cpus=self.tuner.cores_for(wanted.part, spec.devices if spec else []),
            weight=spec.weight if spec else MIDDLE_WEIGHT,
            uid=own.uid,
            gid=own.gid,
            home=own.home or "",
            lease_until=self.lease_until(spec.lease_s) if spec and spec.lease_s is not None else None,
            ports=spec.ports if spec else [],
        )

    def _rights(self, intent: Intent) -> FileRights:
        """Return the rights of the part's user."""
        return self.rights if intent.uid is None else FileRights(intent.uid, intent.gid)

    def _bounded(self, wanted: Wanted) -> Wanted:
        """Return the order; a device share without a memory limit gets the same share of the device's memory."""
        if wanted.spec is None or not any(map(is_share, wanted.spec.devices)):
            return wanted
        devices = [
            msgspec.structs.replace(claim, memory_bytes=self.memory_of(claim.uuid) * claim.milli // 1000)
            if is_share(claim) and not claim.memory_bytes
            else claim
            for claim in wanted.spec.devices
        ]
        return msgspec.structs.replace(wanted, spec=msgspec.structs.replace(wanted.spec, devices=devices))

    def _start(self, wanted: Wanted, user: RunAs | None = None) -> None:
        wanted = self._bounded(wanted)
        try:
            intent = self._intent(wanted, user)
        except Unlaunchable as error:
            self._void(wanted, Exit(cause="LAUNCH_FAILED", **error.told()))
            return
        part = StartedPart(intent, self._rights(intent))
        part.is_busy = True
        self.parts[wanted.part] = part
        self.journal.append(part.intent)
        if wanted.share:
            part.wanted_rev = wanted.spec_rev
            self.tuner.revise(part, wanted.share)
        self.stirred.set()
        self.spawn(self._launch(part, wanted))

    async def _launch(self, part: StartedPart, wanted: Wanted) -> None:
        """Launch a part in this order: durable intent, folder, launch. A stop may come between any two."""
        try:
            await self.journal.sync()
            spec = wanted.spec
            if spec is not None and spec.refused is not None:
                raise Unlaunchable(known(spec.refused))
            if spec is not None and spec.inputs and self.staging is not None:
                part.substate = NoteText(clause("FetchesInputs"))
                self.changed.set()
                await self.staging.gathered(wanted.part, spec, lambda: part.stop is not None)
                part.substate = ""
            if spec is not None and self._is_slow(spec):
                await self._slowly(self._prepare, part, wanted)
            else:
                self._prepare(part, wanted)
        except Unlaunchable as error:
            self._end(part, Exit(cause=error.cause, stopped=part.stop is not None, **error.told()))
            return
        except OSError as error:
            unrecorded = clause("StartUnrecorded", error=error.strerror or str(error))
            self._end(part, Exit(cause="LAUNCH_FAILED", **told(unrecorded)))
            return
        except Exception as error:
            # A fault of the agent itself: reported for the stage, and shown for the node.
            failed = clause("StartFailed", error=f"{type(error).__name__}: {error}"[:260])
            self._end(part, Exit(cause="LAUNCH_FAILED", **told(failed)))
            raise
        finally:
            part.is_busy = False
            if self.staging is not None:
                self.staging.settle(wanted.part)
        if part.stop is not None:
            self._end(part, Exit(stopped=True, **told(clause("NeverStarted"))))
            return
        part.is_launched = True
        part.phase = Phase.STARTING
        self.executor.launch(part.intent)

    def _is_slow(self, spec: PartSpec) -> bool:
        """Whether preparing the part may block for longer than the event loop may."""
        is_divided = self.instances is not None and any(is_missing(claim) for claim in spec.devices)
        is_checked = self.health is not None
        return bool(
            self.is_far
            or spec.bundle
            or spec.image
            or spec.inputs
            or spec.mounts
            or spec.attempt_number > 1
            or is_divided
            or is_checked
        )

    def _prepare(self, part: StartedPart, wanted: Wanted) -> None:
        """Let the executor prepare the part, with this node's own decisions. May block."""
        if wanted.spec is None:
            self.executor.prepare(wanted, part.intent)
            return
        if why := self.lacks(wanted.spec):
            raise Unlaunchable(why)
        given = self.instances.with_instances(wanted.spec) if self.instances is not None else wanted.spec
        shared, places = wanted.spec.input_dir, PartPaths(Path(part.intent.folder))
        rights = self._rights(part.intent)
        spec = self._decided(wanted.part, given, places, rights)
        for folder in (spec.checkpoint_dir, spec.output_dir):
            if folder and self.allowed.refuses(folder):
                raise Unlaunchable(clause("FolderNotAllowed", folder=folder, allowed=self.allowed.spoken))

        try:
            # One that lies in another is mounted over it, after it.
            mounts = [self.mounts.real(each, rights) for each in sorted(spec.mounts, key=lambda mount: mount.path)]
        except MountRefused as error:
            raise Unlaunchable(error.why) from error
        spec = msgspec.structs.replace(spec, mounts=mounts)

        def furnish() -> None:
            gang.write(spec, places.scratch)
            checkpoint_watch.begin(part.intent.folder, spec, job_folder(spec.checkpoint_dir, self.local), rights)
            self.held_before(part)
            if self.health is not None:
                self.health.before_start(part.intent.folder, wanted.part, spec, rights.uid)
            if self.staging is not None:
                self.staging.lay_out(places.folder, places.scratch, spec, shared, rights)

        self.executor.prepare(msgspec.structs.replace(wanted, spec=spec), part.intent, furnish)

    def _decided(self, part: str, spec: PartSpec, places: PartPaths, rights: FileRights) -> PartSpec:
        """Return the spec with this node's own decisions."""
        spec = localised(part, spec, self.local, rights)
        inputs = str(places.scratch / INPUTS) if spec.inputs and self.staging is not None else spec.input_dir
        return msgspec.structs.replace(spec, argv=gang.command(spec), input_dir=inputs)

    def end(self, part: StartedPart, grace_s: float, why: str) -> None:
        """End a part for a reason of this node's own, unless it is being stopped already."""
        if part.is_live and part.stop is None:
            self._stop(part, grace_s, why, save=False)
            self.changed.set()

    def _stop(self, part: StartedPart, grace_s: float, why: str, save: bool) -> None:
        part.stop = (grace_s, why, save)
        if part.is_launched:
            self.tuner.release(part)
            self._tell_stop(part)

    def _tell_stop(self, part: StartedPart) -> None:
        """Ask the executor to stop the part. If the disk is too full to record this, the next look tries again."""
        assert part.stop is not None, "it is to end"
        part.is_stop_told = False
        with self.loops.careful(f"telling of part {part.intent.part} that it is to end"):
            self.executor.stop(part.intent, *part.stop)
            part.is_stop_told = True

    def _signal(self, part: StartedPart, signal: str, signal_rev: int) -> None:
        if part.phase == Phase.RUNNING:
            part.signalled_rev = signal_rev
            self.journal.append(Signalled(part=part.intent.part, spec_rev=signal_rev))
            self.executor.signal(part.intent, signal)

    def _ask_save(self, part: StartedPart, save_rev: int) -> None:
        """Ask the stage to save now and to go on. An agent that was restarted asks again, which does no harm: the
        stage knows the number."""
        if part.phase != Phase.RUNNING:
            return
        notice = PartPaths(Path(part.intent.folder)).save_notice(is_boxed=part.intent.executor == "container")
        with self.loops.careful(f"asking part {part.intent.part} to save"):
            write_whole(str(notice), {"rev": save_rev}, mode=0o644)
            part.save_rev = save_rev

    def _void(self, wanted: Wanted, end: Exit) -> None:
        part = StartedPart(self._intent(msgspec.structs.replace(wanted, spec=None)), self.rights)
        self.parts[wanted.part] = part
        self.journal.append(part.intent)
        self._end(part, end)

    # -- sightings

    def look(self, name: str) -> None:
        """Check the progress of a part, after its shim or a timer has signalled."""
        part = self.parts.get(name)
        if part is not None and part.is_live and part.is_launched and not part.is_busy:
            self._see(part)

    def _see(self, part: StartedPart) -> None:
        seen: Sighting = self.executor.look(part.intent)
        if seen.exit is not None:
            looks = part.watch.needs_last_scan() or Staging.leaves_outputs(part.intent.folder)
            is_due = self.health is not None and self.health.is_due(part.intent.folder)
            if looks or is_due or any(claim.kind != "cpu" and not claim.simulated for claim in part.intent.devices):
                part.is_busy = True
                self.spawn(self._conclude(part, seen.exit, looks))
            else:
                self._end(part, seen.exit)
            return
        if seen.is_orphan:
            part.is_busy = True
            self.spawn(self._reap_orphan(part))
        part.left = seen.left
        now = (max(part.phase, seen.phase), seen.pid, seen.pid_start, seen.substate)
        if now != (part.phase, part.pid, part.pid_start, part.substate):
            part.phase, part.pid, part.pid_start, part.substate = now
            part.launch_notes = seen.notes
            self.changed.set()
            self.tuner.settle()

    async def _watch(self, part: StartedPart) -> None:
        """Check which checkpoints are complete by now; in a thread, because the disk may be slow."""
        part.watch.is_looking = True
        try:
            if await self._slowly(part.watch.look):
                self.changed.set()
        finally:
            part.watch.is_looking = False

    async def _conclude(self, part: StartedPart, end: Exit, looks: bool) -> None:
        """End a part after a last look at its checkpoints, outputs and devices.

        What it saved and left belongs to its end, because later stages continue from there; its devices must be free.
        If the agent ends meanwhile, the next one does this again.
        """
        if looks:
            with self.loops.careful("last look at what a part leaves"):
                try:
                    await self._watch(part)
                    if self.staging is not None and not end.cause and not end.stopped:
                        part.outputs = await self.staging.left_by(part.intent.folder)
                except UnfitFile as error:
                    end = msgspec.structs.replace(end, cause="EXIT_CODE", **error.told())
        try:
            await self._end_released(part, end)
        finally:
            part.is_busy = False  # if something failed, the next look tries again

    async def _end_released(self, part: StartedPart, end: Exit) -> None:
        if self.health is not None:
            with self.loops.careful("epilog of a part"):
                await asyncio.to_thread(self.health.after_end, part.intent.folder)
        with self.loops.careful("look at what devices gave back"):
            end = await self.released(part, end)
        self._end(part, end)

    async def _reap_orphan(self, part: StartedPart) -> None:
        try:
            end = await self._slowly(self.executor.reap, part.intent)
            await self._end_released(part, end)
        finally:
            part.is_busy = False  # if something failed, the next look tries again

    def _end(self, part: StartedPart, end: Exit) -> None:
        if not part.is_live:
            return
        with self.loops.careful("last look at what a part reports"):
            part.reports.finish()
        with self.loops.careful("account of what a part used"):
            end = self.measured(part.intent.part, setup.judged(end, part.reports.failed_setup))
        part.phase, part.exit, part.is_busy = Phase.ENDED, end, False
        self.quarantine.drop(part.intent.part)
        self.journal.append(Ended(part=part.intent.part, exit=end))
        self.spawn(self._settle_journal())
        self.changed.set()
        self.tuner.drop(part)
        self.on_end(part)
        # Not immediately: the caller may be carrying out orders that applying Desired again would repeat.
        asyncio.get_running_loop().call_soon(self.again)

    async def _settle_journal(self) -> None:
        try:
            await self.journal.sync()
        except OSError as error:
            log.warning("the journal could not be written: %s", error)

    # -- time

    async def tick(self) -> None:
        """Look at every live part, follow its reports, and drop recorded parts, for ever.

        This happens periodically, and sooner if a shim signals.
        """
        with self.loops.careful("removal of what parts left before"):
            self._remove_the_rest()
        while True:
            for part in self.live:
                # An error with one part must not stop the others.
                with self.loops.careful(f"look at part {part.intent.part}"):
                    self._look_after(part)
            self.tuner.settle()
            await self.sweep()
            self.again()
            self.journal.recheck_disk()
            self.stirred.clear()
            busy = bool(self.live) or any(part.is_forgotten for part in self.parts.values())
            if await within(self.stirred, LIVE_TICK_S if busy else REST_TICK_S):
                await asyncio.sleep(LIVE_TICK_S)

    def _look_after(self, part: StartedPart) -> None:
        self.look(part.intent.part)
        if part.is_live and part.stop is not None and not part.is_stop_told and part.is_launched:
            self._tell_stop(part)
        if part.reports.poll():
            self.changed.set()
        if part.watch.is_due():
            self.spawn(self._watch(part))

    async def sweep(self) -> None:
        """Drop every part whose end the server has recorded and whose logs the server has."""
        for part in list(self.parts.values()):
            if part.is_forgotten and self.shipped(part.intent.part):
                await self._drop(part)

    async def _drop(self, part: StartedPart) -> None:
        intent = part.intent
        gone = Gone(intent.part, intent.attempt, intent.epoch, part.exit, round(self.journal.lived_s, 1))
        self.journal.append(gone)
        del self.parts[intent.part]
        self.spawn(self._remove(intent))

    async def _remove(self, intent: Intent) -> None:
        """Remove the files of a part in turns, so that one with very many files does not block others."""
        loop = asyncio.get_running_loop()
        while not await loop.run_in_executor(self._removal, self._remove_some, intent):
            self.removal_turns += 1

    def _remove_some(self, intent: Intent) -> bool:
        places = PartPaths(Path(intent.folder))
        for folder in (places.work, places.scratch):
            if not beneath.thin(str(folder), REMOVED_AT_ONCE):
                return False
        self.executor.discard(intent)
        return True

    def _remove_the_rest(self) -> None:
        """Continue removals that a former agent did not finish."""
        past = self.journal.past
        with os.scandir(self.runs) as listed:
            gone = [past.gone[entry.name] for entry in listed if entry.name in past.gone]
        for each in gone:
            folder = str(self.runs / each.part)
            self.spawn(self._remove(Intent(each.part, each.attempt, each.epoch, self.boot_id, folder)))

    def here(self) -> list[Here]:
        """Return the full state of all parts. A part that waits for a device is not journalled, hence only ASSIGNED."""
        held = [
            Here(
                part=hold.wanted.part,
                attempt=hold.wanted.attempt,
                epoch=hold.wanted.epoch,
                phase=Phase.ASSIGNED,
                spec_rev=hold.wanted.spec_rev,
                substate=str(note),
                substate_said=list(note.said),
            )
            for hold in self.held.values()
            for note in [NoteText(clause("WaitsForDevice", device=hold.device, part=hold.holder))]
        ]
        return [part.here() for part in self.parts.values()] + held

    def quarantined(self) -> list[DeviceError]:
        """Return the devices that killed processes of parts still hold, and those that were not returned clean."""
        left = {part.intent.part: (part.left, part.intent.devices) for part in self.live if part.left}
        return self._leftovers.look(left, boottime()) + self.unreturned()

    async def _slowly(self, work: Callable[..., T], *args: Any) -> T:
        """Run work that may wait for a job's disk in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._slow, partial(work, *args))

    def keep(self, name: str, loop: Loop) -> None:
        """Run a loop for as long as the node is open; if it fails, this name is reported, and it is started again."""
        self.spawn(self.loops.keep(name, loop))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that ends by itself, or with the node."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._reap)

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a part's work failed: %r", error, exc_info=error)
            self.loops.note("work for a part", error)

    async def close(self) -> None:
        """End the agent's work on the node; parts go on."""
        self.desired = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pool in (self._slow, self._removal):
            pool.shutdown(wait=False, cancel_futures=True)
        self.on_close()
        self.journal.close()
