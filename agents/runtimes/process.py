"""Runs a part as plain processes of this host, each under its own shim.

The run folder is created with an exclusive mkdir: together with the journal it is the local at-most-once lock.
``order.json`` is written last, so a folder with one is ready to launch, and only the shim that renames it launches it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from agents.decode import BoundedDecoder, Undecodable, count
from agents.devices.files import DriverFiles
from agents.ends import clause, told
from agents.isolation import beneath, cgroup
from agents.isolation.allowed import is_below
from agents.isolation.beneath import FileRights
from agents.isolation.run_as import RunAs
from agents.masking import secrets_of, tells_secret
from agents.notes import NoteText
from agents.protocol import SHELL, Clause, Exit, Mount, OpenSession, PartSpec, Phase, Said, Wanted
from agents.resources.adjust import Reach, nice_of
from agents.runtimes import Sighting, Unlaunchable, no_more
from agents.storage.bundle import BundleCache, BundleUnusable
from agents.supervisor import procfs, secret_file
from agents.supervisor.fork_client import ForkClient
from agents.supervisor.record import family, ordered, shim_record, stop_order, tell_stop, write_whole
from agents.tasks.environment import PartPaths, environment
from agents.tasks.journal import Intent

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_UNTAKEN_PATIENCE_S = 5.0
_BURY_PATIENCE_S = 60.0
_EXEC_PATIENCE_S = 0.5
_ALWAYS_THERE = ("taken", "exit.json", "report.jsonl", "0.out", "0.err")
_exits = BoundedDecoder[Exit](Exit)


@dataclass
class Ground:
    """What the executor needs of its host. ``lease`` and ``bell`` are the files that shims read and notify.

    ``cgroups`` are the folders below which parts have their groups (:func:`agents.isolation.cgroup.bases`). ``files``
    maps device files to devices, and ``has_views`` tells whether parts can have their own view of the host. ``masked``
    has what the log of a part must not show, if another executor keeps its variables out of the order.
    """

    boot_id: str
    bell: Path
    lease: Path
    fork_client: ForkClient
    bundles: BundleCache
    run_as: RunAs
    runtime: Path | None = None
    cgroups: dict[str, str] = field(default_factory=dict)
    files: DriverFiles | None = None
    has_views: bool = False
    log_cap_bytes: int = 256 << 20
    log_pace_bytes: int = 0
    processes: int = 0
    launched_at: dict[str, float] = field(default_factory=dict)
    masked: dict[str, list[str]] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """The agent's own folder."""
        return str(self.bell.parent)

    def whose(self, intent: Intent) -> RunAs:
        """Whose rights a part has."""
        return run_as_of(intent, self.run_as)


def run_as_of(intent: Intent, default: RunAs) -> RunAs:
    """Return the user that a part was given when it was ordered; ``default`` if its project has none of its own."""
    if intent.uid is None:
        return default
    return RunAs(name=str(intent.uid), uid=intent.uid, gid=intent.gid, home=intent.home or None)


def _is_in_place(mount: Mount) -> bool:
    """Whether a folder lies on this host where the stage expects it, links of an operator included."""
    return os.path.realpath(mount.path) == mount.source


class ProcessExecutor:
    """See :class:`agents.runtimes.Executor`."""

    def __init__(self, ground: Ground, keeps_for: RunAs | None = None) -> None:
        """``keeps_for`` tells that the started programs are the agent's own and supervise what this user runs: they
        start in a folder that no job can write to."""
        self.ground = ground
        self.keeps = keeps_for is not None
        self.stages = keeps_for or ground.run_as

    # -- starting

    def prepare(self, wanted: Wanted, intent: Intent, furnish: Callable[[], None] = no_more) -> None:
        spec = wanted.spec
        if not _PART.fullmatch(wanted.part):
            raise Unlaunchable(f'part "{wanted.part}" has no usable name')
        if spec is None or not spec.argv or any("\0" in word for word in spec.argv):
            raise Unlaunchable(clause("NoCommand"))
        if not self.keeps and (other := next((one for one in spec.mounts if not _is_in_place(one)), None)):
            raise Unlaunchable(clause("MountElsewhere", folder=other.source, path=other.path))
        places = PartPaths(Path(intent.folder))
        try:
            places.folder.mkdir(mode=0o700)
        except FileExistsError:
            raise Unlaunchable(clause("RunFolderExists")) from None
        try:
            whose = self.ground.run_as if self.keeps else self.ground.whose(intent)
            self._furnish(places, spec.bundle, spec.secret_files, run_as_of(intent, self.stages))
            order = {**self._order(wanted, places, whose, intent), "cpus": intent.cpus}
            furnish()
            self._give_to_user(places, whose.rights())
            write_whole(str(places.folder / "order.json"), order)
        except BundleUnusable as error:
            raise Unlaunchable(error.why) from error
        except OSError as error:
            words = {"error": str(error.strerror), "folder": str(error.filename)}
            raise Unlaunchable(clause("RunFolderNotMade", **words)) from error

    def _furnish(self, places: PartPaths, bundle: str | None, files: Mapping[str, str], whose: RunAs) -> None:
        """Create what the job will write, in a folder that is closed to everybody: other stages may have the same
        user."""
        for folder in (places.work, places.scratch):
            folder.mkdir(mode=0o700)
        lay_secrets(places, files)
        places.reports.touch(mode=0o600)
        if bundle:
            self.ground.bundles.unpack(bundle, places.work, whose)

    def _give_to_user(self, places: PartPaths, rights: FileRights) -> None:
        """Give the folder to the job's user, once the agent has nothing more to put there."""
        for folder in (places.work, places.scratch):
            beneath.give(str(folder), 0o700, rights)
        give_secrets(places, rights)
        beneath.give(str(places.reports), 0o600, rights)
        os.chmod(places.folder, 0o711)

    def _order(self, wanted: Wanted, places: PartPaths, whose: RunAs, intent: Intent) -> dict[str, object]:
        spec, ground = wanted.spec, self.ground
        assert spec is not None, "prepare has checked it"
        home = whose.home or str(places.work)
        env = environment(wanted, places, os.environ, ground.runtime, home)
        if whose.uid is not None:
            # Most such users have no entry in the host's list, where programs would look for a name.
            for name in ("USER", "LOGNAME"):
                env.setdefault(name, whose.name)
        broken = [name for name, value in env.items() if not name or "=" in name or "\0" in name + value]
        if broken:
            raise Unlaunchable(clause("VariableRefused", name=repr(broken[0])))
        # The order is on disk as long as the part is known here.
        closed = {name: env.pop(name) for name in hidden(spec) if name in env}
        mask = ground.masked.pop(wanted.part, None) or to_mask(spec)
        left = {"env": closed, "mask": mask}
        return {
            "secret_file": secret_file.leave(ground.state, f"{wanted.part}.json", left) if closed or mask else "",
            "secret_names": sorted(closed),
            "part": wanted.part,
            "argv": spec.argv,
            "env": env,
            "cwd": str(places.folder if self.keeps else places.work),
            "rank": spec.rank,
            "folders": [folder for folder in (spec.checkpoint_dir, spec.output_dir) if folder],
            "memory_bytes": spec.memory_bytes,
            "processes": ground.processes,
            "weight": spec.weight,
            "nice": nice_of(spec.weight),
            "time_limit_s": spec.time_limit_s,
            "lease_s": spec.lease_s,
            "lease_until": intent.lease_until,
            "lease": str(ground.lease),
            "grace_s": spec.grace_s,
            "stop_to": spec.stop_to,
            "notice": str(places.notice),
            "reports": str(places.reports),
            "bell": str(ground.bell),
            "cgroups": cgroup.of_part(ground.cgroups, wanted.part),
            "log_cap_bytes": ground.log_cap_bytes,
            "log_pace_bytes": ground.log_pace_bytes,
            **self._closed_off(spec, whose),
            **whose.order(),
        }

    def _closed_off(self, spec: PartSpec, whose: RunAs) -> dict[str, object]:
        """Return the view of this host that a part of another user gets, and the groups that open its devices to
        that user."""
        if self.keeps or whose.uid is None:
            return {}
        files, claims = self.ground.files, spec.devices
        groups = files.groups(claims) if files and not whose.groups else []
        if not self.ground.has_views:
            return {"device_groups": groups}
        # A gang has one part on a node: all ranks that pass data by shared memory are in it.
        view: dict[str, object] = {"shm_bytes": spec.memory_bytes, "closed": files.closed(claims) if files else []}
        closed = [mount.source for mount in spec.mounts if mount.readonly]
        # One to be written is as it is anyway, unless it lies in one that is not.
        within = [mount for mount in spec.mounts if any(is_below(mount.source, folder) for folder in closed)]
        view["mounts"] = [(mount.source, mount.readonly) for mount in within]
        return {"device_groups": groups, "view": view}

    def launch(self, intent: Intent) -> None:
        self.ground.launched_at[intent.part] = time.monotonic()
        self.ground.fork_client.fork(Path(intent.folder))

    # -- looking

    def look(self, intent: Intent) -> Sighting:
        folder = intent.folder
        if (end := _end(folder)) is not None:
            return Sighting(Phase.ENDED, exit=end)
        if intent.boot_id != self.ground.boot_id:
            return Sighting(Phase.ENDED, exit=Exit(cause="NODE_REBOOT", **told(clause("Rebooted"))))
        record = shim_record(folder)
        if not record:
            return self._look_before_start(intent, record is not None)
        is_orphan = not procfs.is_alive(record["pid"], record["born"])
        # Looked for once more: a shim writes its exit file before it goes, and may have done both since.
        if is_orphan and (end := _end(folder)) is not None:
            return Sighting(Phase.ENDED, exit=end)
        phase = Phase.STARTING
        if "stopping" in record:
            phase = Phase.STOPPING
        elif "main" in record:
            phase = Phase.RUNNING
        return Sighting(
            phase,
            pid=record.get("main"),
            pid_start=record.get("main_born"),
            substate=substate_of(record.get("substate", ""), record.get("substate_said", "")),
            left=tuple(record.get("left", ())),
            is_orphan=is_orphan,
        )

    def _look_before_start(self, intent: Intent, is_taken: bool) -> Sighting:
        """Return how far a part without a shim is: its shim is starting, was never requested, or died at its first
        step."""
        waited_s = time.monotonic() - self.ground.launched_at.setdefault(intent.part, time.monotonic())
        if is_taken:
            return Sighting(Phase.STARTING, is_orphan=waited_s > _UNTAKEN_PATIENCE_S)
        if not os.path.exists(f"{intent.folder}/order.json") and not os.path.exists(f"{intent.folder}/taken"):
            # An agent ended before the part was ready to launch; without an order no shim ever ran.
            return Sighting(Phase.STARTING, is_orphan=True)
        if waited_s > _UNTAKEN_PATIENCE_S:
            self.launch(intent)
        return Sighting(Phase.STARTING)

    # -- stopping

    def stop(self, intent: Intent, grace_s: float, why: str, save: bool = False) -> None:
        with contextlib.suppress(FileNotFoundError):  # nothing of it is there any more
            tell_stop(intent.folder, grace_s, why, save)
        if record := shim_record(intent.folder):
            _signal(record["pid"], record["born"], signal.SIGUSR1)

    def signal(self, intent: Intent, name: str) -> None:
        record = shim_record(intent.folder)
        number = signal.Signals.__members__.get(name)
        if record and record.get("main") and number is not None:
            _signal(record["main"], record["main_born"], number)

    def guest(self, intent: Intent, session: str, asked: OpenSession) -> dict[str, Any]:
        record, order = shim_record(intent.folder) or {}, ordered(intent.folder)
        main = record.get("main")
        if not main or not order:
            raise Unlaunchable(clause("NotEntered"))
        # As the command is now, and not as it began: its cores may be others since.
        try:
            now = {"cpus": sorted(os.sched_getaffinity(main)), "nice": os.getpriority(os.PRIO_PROCESS, main)}
        except OSError:
            raise Unlaunchable(clause("NotEntered")) from None
        own = procfs.environment(main, order.get("secret_names", ()))
        env = {**order["env"], **own, procfs.SESSION_MARK: session, "TERM": asked.term or "dumb"}
        kept = {name: order.get(name) for name in ("cwd", "uid", "gid", "groups", "device_groups", "processes")}
        if order.get("view"):
            kept["joins"] = [main, record["main_born"]]
        return {**kept, **now, "env": env, **asked_for(session, asked)}

    def reach(self, intent: Intent) -> Reach:
        record = shim_record(intent.folder) or {}
        shim, born = record.get("pid", 0), record.get("born", 0)
        groups = cgroup.of_part(self.ground.cgroups, intent.part)
        return Reach(
            family=lambda: family(intent.folder),
            groups={name: folder for name, folder in groups.items() if os.path.isdir(folder)},
            folder=intent.folder,
            wake=lambda: _signal(shim, born, signal.SIGUSR1),
            started_with=lambda: count(ordered(intent.folder).get("memory_bytes")) or 0,
        )

    # -- ending

    def reap(self, intent: Intent) -> Exit:
        record = shim_record(intent.folder) or {}
        born = record.get("main_born") or 0
        groups = cgroup.of_part(self.ground.cgroups, intent.part)

        def seen() -> list[int]:
            found = set(procfs.marked(intent.part))
            if record.get("main") and born:
                found |= set(procfs.of_session(record["main"], born))
            found |= {pid for pid in cgroup.processes(groups) if procfs.start_time(pid) is not None}
            return sorted(found - {os.getpid()})

        def survivors() -> list[int]:
            # One look can miss a process in execve, and the child of one that ended before the look came to it.
            if found := seen():
                return found
            deadline = time.monotonic() + _EXEC_PATIENCE_S
            while procfs.nameless(born) and time.monotonic() < deadline:
                time.sleep(0.005)
            return seen()

        cgroup.kill(groups)
        left = procfs.end_all(survivors, _BURY_PATIENCE_S)
        cgroup.remove(groups)
        secret_file.forget(intent.folder)
        if (end := _end(intent.folder)) is not None:
            return end
        said = [clause("SupervisorGone" if "main" in record else "SupervisorGoneEarly")]
        if left:
            said.append(clause("StillThere", pids=", ".join(map(str, left))))
        stopped = stop_order(intent.folder) is not None
        end = Exit(cause="SUPERVISOR_LOST", stopped=stopped, **told(*said))
        try:
            write_whole(f"{intent.folder}/exit.json", msgspec.to_builtins(end), sync=True)
        except OSError:
            pass
        return end

    def discard(self, intent: Intent) -> None:
        for left in (f"{intent.part}.json", f"{intent.part}.env", f"{intent.part}.lines"):
            secret_file.remove(f"{secret_file.folder(self.ground.state)}/{left}")
        self.ground.launched_at.pop(intent.part, None)
        _remove(intent.folder)


def hidden(spec: PartSpec) -> list[str]:
    """Return the variables whose values only the command gets."""
    return [name for name, value in spec.env.items() if value and (name in spec.secrets or tells_secret(name))]


def to_mask(spec: PartSpec) -> list[str]:
    """Return what the log must not show."""
    return [*secrets_of(spec.env, spec.secrets), *spec.secret_files.values()]


def lay_secrets(places: PartPaths, files: Mapping[str, str]) -> None:
    """Write the secrets that a job gets as files. Raises Unlaunchable for an invalid name."""
    if not files:
        return
    places.secrets.mkdir(mode=0o700)
    for name, content in files.items():
        if not _VARIABLE.fullmatch(name):
            raise Unlaunchable(clause("VariableRefused", name=repr(name)))
        descriptor = os.open(places.secrets / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(content)


def give_secrets(places: PartPaths, rights: FileRights) -> None:
    """Let the job's user, and no other user, read them."""
    if places.secrets.is_dir():
        for path in places.secrets.iterdir():
            beneath.give(str(path), 0o400, rights)
        beneath.give(str(places.secrets), 0o700, rights)


def asked_for(session: str, asked: OpenSession) -> dict[str, Any]:
    """What of the order of a session is what whoever enters asks for."""
    return {
        "session": session,
        "argv": asked.argv or list(SHELL),
        "tty": asked.tty,
        "stdin": asked.stdin,
        "rows": asked.rows,
        "columns": asked.columns,
    }


def _end(folder: str) -> Exit | None:
    """Return how the part ended, once its exit file is written."""
    return _exits.find(f"{folder}/exit.json")


def _remove(folder: str) -> None:
    """Remove a run folder. Most hold nothing but what every part has, which is quicker gone by name."""
    for name in _ALWAYS_THERE:
        try:
            os.unlink(f"{folder}/{name}")
        except OSError:
            continue
    try:
        for name in ("work", "tmp", ""):
            os.rmdir(f"{folder}/{name}")
    except OSError:
        parts = os.open(os.path.dirname(folder), beneath.FOLDER)
        try:
            beneath.remove(parts, os.path.basename(folder))
        finally:
            os.close(parts)


_clauses = BoundedDecoder[list[Clause]](Said)


def substate_of(text: str, said: str) -> NoteText:
    """What a part does now, as a state file tells it; a job may have changed that."""
    try:
        return NoteText.read(text, _clauses.read(said or "[]"))
    except Undecodable:
        return NoteText.read(text, [])


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
