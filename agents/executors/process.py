"""Runs a part as plain processes of this host, each under its own shim.

The run folder is made with an exclusive mkdir: together with the journal it is the local at-most-once lock.
``order.json`` is written last, so a folder with one is ready to launch, and only the shim that creates ``taken`` does.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from agents import cgroup, procfs
from agents.bundle import BundleCache, BundleUnusable
from agents.environment import Places, environment
from agents.executors import Sighting, Unlaunchable
from agents.journal import Intent
from agents.protocol import Exit, Phase, Wanted
from agents.record import read_whole, write_whole
from agents.run_as import RunAs
from agents.warm_parent import WarmParent

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_UNTAKEN_PATIENCE_S = 5.0
_BURY_PATIENCE_S = 60.0


@dataclass
class Ground:
    """What the executor needs of its host. ``lease`` and ``bell`` are files that shims read and ring."""

    boot_id: str
    bell: Path
    lease: Path
    warm_parent: WarmParent
    bundles: BundleCache
    run_as: RunAs
    runtime: Path | None = None
    cgroup: str | None = None
    log_cap_bytes: int = 256 << 20
    launched_at: dict[str, float] = field(default_factory=dict)


class ProcessExecutor:
    """See :class:`agents.executors.Executor`."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground

    # -- starting

    def prepare(self, wanted: Wanted, intent: Intent) -> None:
        spec = wanted.spec
        if not _PART.fullmatch(wanted.part):
            raise Unlaunchable(f'part "{wanted.part}" has no usable name')
        if spec is None or not spec.argv or any("\0" in word for word in spec.argv):
            raise Unlaunchable("the stage has no command that could be executed")
        places = Places(Path(intent.folder))
        try:
            places.folder.mkdir(mode=0o711)
        except FileExistsError:
            raise Unlaunchable("its run folder exists already, so it may have run before") from None
        try:
            self._furnish(places, spec.bundle)
            order = self._order(wanted, places)
            write_whole(str(places.folder / "order.json"), order)
        except BundleUnusable as error:
            raise Unlaunchable(str(error)) from error
        except OSError as error:
            raise Unlaunchable(f"its run folder could not be made: {error.strerror} ({error.filename})") from error

    def _furnish(self, places: Places, bundle: str | None) -> None:
        os.chmod(places.folder, 0o711)
        for folder in (places.work, places.scratch):
            folder.mkdir(mode=0o755)
        places.reports.touch(mode=0o644)
        if bundle:
            self.ground.bundles.unpack(bundle, places.work)
        self.ground.run_as.own(places.work, places.scratch, places.reports)

    def _order(self, wanted: Wanted, places: Places) -> dict[str, object]:
        spec, ground = wanted.spec, self.ground
        assert spec is not None, "prepare has checked it"
        home = ground.run_as.home or str(places.work)
        env = environment(wanted, places, os.environ, ground.runtime, home)
        broken = [name for name, value in env.items() if not name or "=" in name or "\0" in name + value]
        if broken:
            raise Unlaunchable(f"environment variable {broken[0]!r} cannot be set: its name or value is not allowed")
        return {
            "part": wanted.part,
            "boot_id": ground.boot_id,
            "argv": spec.argv,
            "env": env,
            "cwd": str(places.work),
            "rank": spec.rank,
            "folders": [folder for folder in (spec.checkpoint_dir, spec.output_dir) if folder],
            "memory_bytes": spec.memory_bytes,
            "time_limit_s": spec.time_limit_s,
            "lease_s": spec.lease_s,
            "lease": str(ground.lease),
            "grace_s": spec.grace_s,
            "stop_to": spec.stop_to,
            "notice": str(places.notice),
            "reports": str(places.reports),
            "bell": str(ground.bell),
            "cgroup": f"{ground.cgroup.rstrip('/')}/switchyard-{wanted.part}" if ground.cgroup else None,
            "log_cap_bytes": ground.log_cap_bytes,
            **ground.run_as.order(),
        }

    def launch(self, intent: Intent) -> None:
        self.ground.launched_at[intent.part] = time.monotonic()
        self.ground.warm_parent.fork(Path(intent.folder))

    # -- looking

    def look(self, intent: Intent) -> Sighting:
        folder = intent.folder
        record = read_whole(f"{folder}/shim.json")
        alive = (
            record is not None
            and record.get("boot_id") == self.ground.boot_id
            and procfs.is_alive(record["pid"], record["born"])
        )
        # In this order: a shim writes its exit file before it goes.
        if ended := read_whole(f"{folder}/exit.json"):
            return Sighting(Phase.ENDED, exit=msgspec.convert(ended, Exit))
        if intent.boot_id != self.ground.boot_id:
            return Sighting(Phase.ENDED, exit=Exit(cause="NODE_REBOOT", detail="the machine was rebooted while it ran"))
        if record is None:
            return self._look_before_birth(intent)
        phase = Phase.STARTING
        if record.get("stopping") is not None:
            phase = Phase.STOPPING
        elif record.get("running"):
            phase = Phase.RUNNING
        return Sighting(
            phase,
            pid=record.get("main"),
            pid_start=record.get("main_born"),
            substate=record.get("substate", ""),
            forlorn=not alive,
        )

    def _look_before_birth(self, intent: Intent) -> Sighting:
        """No shim has spoken yet: it is on its way, was never asked for, or died on its first step."""
        waited_s = time.monotonic() - self.ground.launched_at.setdefault(intent.part, time.monotonic())
        try:
            with open(f"{intent.folder}/taken") as file:
                taken = file.read().split()
        except OSError:
            if not os.path.exists(f"{intent.folder}/order.json"):
                # An agent ended before the part was ready to launch; without an order no shim ever ran.
                return Sighting(Phase.STARTING, forlorn=True)
            if waited_s > _UNTAKEN_PATIENCE_S:
                self.launch(intent)
            return Sighting(Phase.STARTING)
        if len(taken) == 2:
            return Sighting(Phase.STARTING, forlorn=not procfs.is_alive(int(taken[0]), int(taken[1])))
        return Sighting(Phase.STARTING, forlorn=waited_s > _UNTAKEN_PATIENCE_S)

    # -- stopping

    def stop(self, intent: Intent, grace_s: float, why: str) -> None:
        try:
            write_whole(f"{intent.folder}/stop.json", {"grace_s": grace_s, "why": why})
        except OSError:
            return
        record = read_whole(f"{intent.folder}/shim.json")
        if record:
            _signal(record["pid"], record["born"], signal.SIGUSR1)

    def signal(self, intent: Intent, name: str) -> None:
        record = read_whole(f"{intent.folder}/shim.json")
        number = signal.Signals.__members__.get(name)
        if record and record.get("main") and number is not None:
            _signal(record["main"], record["main_born"], number)

    # -- ending

    def bury(self, intent: Intent) -> Exit:
        record = read_whole(f"{intent.folder}/shim.json") or {}
        born = record.get("main_born") or 0
        group = f"{self.ground.cgroup.rstrip('/')}/switchyard-{intent.part}" if self.ground.cgroup else None

        def survivors() -> list[int]:
            found = set(procfs.marked(intent.part))
            if record.get("main") and born:
                found |= set(procfs.of_session(record["main"], born))
            if group:
                found |= {pid for pid in cgroup.processes(group) if procfs.start_time(pid) is not None}
            return sorted(found - {os.getpid()})

        if group:
            cgroup.kill(group)
        left = procfs.end_all(survivors, _BURY_PATIENCE_S)
        if group:
            cgroup.remove(group)
        if ended := read_whole(f"{intent.folder}/exit.json"):
            return msgspec.convert(ended, Exit)
        detail = "its supervisor ended without a word; what it had started was ended too"
        if not record:
            detail = "the agent ended before its command was started"
        if left:
            detail += f"; still there although killed: pid {', '.join(map(str, left))}"
        stopped = os.path.exists(f"{intent.folder}/stop.json")
        end = Exit(cause="SUPERVISOR_LOST", detail=detail, stopped=stopped)
        try:
            write_whole(f"{intent.folder}/exit.json", msgspec.to_builtins(end), sync=True)
        except OSError:
            pass
        return end

    def discard(self, intent: Intent) -> None:
        self.ground.launched_at.pop(intent.part, None)
        shutil.rmtree(intent.folder, ignore_errors=True)


def _signal(pid: int, born: int, number: int) -> None:
    """Signal exactly this process: the descriptor pins it, the start time proves that it is the one."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if procfs.start_time(pid) == born:
            signal.pidfd_send_signal(descriptor, number)
    except OSError:
        pass
    finally:
        os.close(descriptor)


EXECUTOR = ProcessExecutor
