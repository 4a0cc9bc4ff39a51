"""Runs a part in a container of podman, docker or apptainer, whichever works; each part still has its own shim.

The shim's command is a monitor (:mod:`agents.supervisor.container_monitor`), so logs, stop with grace period, time
limit, lease and adoption are those of plain processes. Different are the image, pulled as a visible step; limits and
devices, by a fixed template (:mod:`agents.runtimes.engines`); and that an end is reported only when the container is
removed.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from typing import Annotated, Any

import msgspec

from agents.decode import BoundedDecoder, digits
from agents.ends import clause, say
from agents.isolation import beneath
from agents.isolation.run_as import RunAs
from agents.notes import NoteText
from agents.protocol import IMAGE, Clause, Exit, OpenSession, PartSpec, Phase, Said, Text, Wanted, Why
from agents.resources.adjust import Reach
from agents.runtimes import Sighting, Unlaunchable, engine_probe, engines, no_more
from agents.runtimes.engines import Box, Engine
from agents.runtimes.process import Ground, ProcessExecutor, asked_for, give_secrets, lay_secrets, substate_of, to_mask
from agents.supervisor import procfs, secret_file
from agents.supervisor.container_removal import planned
from agents.supervisor.record import write_whole
from agents.tasks import fabric
from agents.tasks.environment import PartPaths, environment
from agents.tasks.journal import Intent

REMOVE_PATIENCE_S = 30.0
SHORTEST_GRACE_S = 2.0
_ROOT = str(Path(__file__).resolve().parents[2])
_MONITOR = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from agents.supervisor.container_monitor import run; sys.exit(run(sys.argv[2]))"
)
# A variable of several lines reaches a container only by way of the engine's own environment, where these would matter.
_ENGINES_OWN = re.compile(
    r"(LD_|GO|DOCKER|CONTAINER|PODMAN|BUILDAH|APPTAINER|SINGULARITY|XDG_|REGISTRY|STORAGE_|_).*|PATH|HOME|TMPDIR"
)


class Ending(msgspec.Struct, frozen=True):
    """What only the monitor knows of an end; without a cause, nothing."""

    cause: Why = ""
    detail: Text = ""
    said: Annotated[list[Clause], msgspec.Meta(max_length=256)] = msgspec.field(default_factory=list)


class MonitorState(msgspec.Struct, frozen=True):
    """The state file of a container's monitor. ``stays`` tells that the engine could not remove the container."""

    running: bool = False
    substate: Text = ""
    substate_said: Text = ""
    notes: Annotated[list[Text], msgspec.Meta(max_length=256)] = msgspec.field(default_factory=list)
    notes_said: Annotated[list[Said], msgspec.Meta(max_length=256)] = msgspec.field(default_factory=list)
    end: Ending | None = None
    stays: bool = False


_states = BoundedDecoder[MonitorState](MonitorState)


class ContainerExecutor:
    """See :class:`agents.runtimes.Executor`. ``engine`` is searched for at the first part if it is not given."""

    def __init__(self, ground: Ground, engine: Engine | None = None) -> None:
        self.ground = ground
        self.inner = ProcessExecutor(dataclasses.replace(ground, run_as=RunAs(name="self")), keeps_for=ground.run_as)
        self._engine = engine

    def engine(self) -> Engine:
        """Return the engine of this host. Raises Unlaunchable with what was tried; may block for seconds, once."""
        if self._engine is None:
            self._engine, reason = engine_probe.find(os.environ, os.geteuid() == 0)
            if self._engine is None:
                raise Unlaunchable(clause("NoContainerEngine", error=reason))
        return self._engine

    # -- starting

    def prepare(self, wanted: Wanted, intent: Intent, furnish: Callable[[], None] = no_more) -> None:
        spec = wanted.spec
        if spec is None or not spec.argv or any("\0" in word for word in spec.argv):
            raise Unlaunchable(clause("NoCommand"))
        if not re.fullmatch(IMAGE, spec.image):
            raise Unlaunchable(clause("ImageUnnamed", image=spec.image))
        engine = self.engine()
        places = PartPaths(Path(intent.folder))
        content, several_lines, env = self._env(engine, wanted, places)
        whose = self.ground.whose(intent)
        box = self._box(spec, wanted.part, places, whose)
        several = {name: env.pop(name) for name in several_lines}
        box = dataclasses.replace(box, several_lines=several_lines)
        if fault := engines.unusable(box):
            raise Unlaunchable(fault)
        self.ground.masked[wanted.part] = to_mask(spec)

        def furnish_all() -> None:
            furnish()
            self._furnish(places, spec, whose)
            secret_file.leave(self.ground.state, os.path.basename(box.env_file), content)
            if several:
                secret_file.leave(self.ground.state, f"{wanted.part}.lines", several)
            write_whole(str(places.folder / "container.json"), self._plan(engine, wanted, places, box, env))

        self.inner.prepare(_kept(wanted, intent.folder), intent, furnish_all)

    def _env(self, engine: Engine, wanted: Wanted, places: PartPaths) -> tuple[str, list[str], dict[str, str]]:
        """Return the file of variables, the names that it cannot carry, and the environment of the engine itself."""
        env = environment(wanted, places, {}, self.ground.runtime, str(places.work))
        assert wanted.spec is not None, "prepare has checked it"
        if "PATH" not in wanted.spec.env:
            del env["PATH"]  # the image knows better
        env["YARD_STOP_FILE"] = str(_stop_file(places))
        env["YARD_SAVE_FILE"] = str(places.save_notice(is_boxed=True))
        broken = [
            name for name, value in env.items() if not name or "=" in name or "\n" in name or "\0" in name + value
        ]
        if broken:
            raise Unlaunchable(clause("VariableRefused", name=repr(broken[0])))
        content, several_lines = engines.env_text(engine, env)
        for name in several_lines:
            if _ENGINES_OWN.fullmatch(name):
                raise Unlaunchable(clause("VariableLines", name=name))
        own = engine_probe.engine_env(os.environ)
        return content, several_lines, own | {name: env[name] for name in several_lines}

    def _box(self, spec: PartSpec, part: str, places: PartPaths, run_as: RunAs) -> Box:
        """Return the container's description.

        Of checkpoint folders only the stage's own is mounted: the stage itself says where it resumes, and any other
        folder would be visible to any stage that names it.
        """
        own = (os.geteuid(), os.getegid())
        readable = [spec.input_dir] if spec.input_dir and os.path.isdir(spec.input_dir) else []
        for path in readable:
            self._check_shown(path, run_as)
        if self.ground.runtime is not None:
            readable.append(str(self.ground.runtime))
        writable = [spec.checkpoint_dir, spec.output_dir, str(places.work), str(places.scratch), str(places.reports)]
        return Box(
            name=f"switchyard-{part}",
            image=spec.image,
            argv=spec.argv,
            env_file=f"{secret_file.folder(self.ground.state)}/{part}.env",
            cwd=str(places.work),
            readable=[*readable, str(_stop_file(places).parent), *([str(places.secrets)] if spec.secret_files else [])],
            writable=[path for path in writable if path],
            user=own if run_as.uid is None else (run_as.uid, run_as.gid if run_as.gid is not None else run_as.uid),
            cpus_milli=spec.cpus_milli,
            weight=spec.weight,
            memory_bytes=spec.memory_bytes,
            devices=spec.devices,
            drawing=self.ground.files.drawing(spec.devices) if self.ground.files else [],
            rdma=str(fabric.RDMA) if spec.gang and fabric.has_rdma() else "",
            mounts=spec.mounts,
            image_file=str(self.ground.bundles.folder / image_file(spec.image)),
        )

    def _check_shown(self, path: str, run_as: RunAs) -> None:
        """Refuse a mount whose path a stage could change, because engines follow links with their own rights."""
        rights = run_as.rights()
        if rights.uid is not None and beneath.anchor(path, rights)[1]:
            raise Unlaunchable(
                clause(
                    "FolderNotMade",
                    folder=path,
                    error=f"{run_as.name} could put another folder in its place; "
                    "give the folder that nodes share to root, mode 0755",
                )
            )

    def _furnish(self, places: PartPaths, spec: PartSpec, run_as: RunAs) -> None:
        rights = run_as.rights()
        _stop_file(places).parent.mkdir(mode=0o755)
        for path in (spec.checkpoint_dir, spec.output_dir):
            if path:
                beneath.make(path, rights)
                self._check_shown(path, run_as)
        for folder in (places.work, places.scratch):
            beneath.give(str(folder), 0o755, rights)
        beneath.give(str(places.reports), 0o644, rights)
        lay_secrets(places, spec.secret_files)
        give_secrets(places, rights)

    def _plan(self, engine: Engine, wanted: Wanted, places: PartPaths, box: Box, env: dict[str, str]) -> dict[str, Any]:
        unlimited = engines.unlimited(engine, box)
        return {
            "part": wanted.part,
            "rank": wanted.spec.rank if wanted.spec else 0,
            "engine": engine.name,
            "daemon": engine.is_daemon,
            "image": box.image,
            "command": str(box.argv[0])[:200],
            "memory_bytes": box.memory_bytes,
            "lines": dataclasses.asdict(engines.lines(engine, box)),
            "env": env,
            # Both are in memory; the monitor removes them once the container is created.
            "env_file": box.env_file,
            "lines_file": box.env_file.removesuffix(".env") + ".lines" if box.several_lines else "",
            "bell": str(self.ground.bell),
            "notice": str(places.notice),
            "told": str(_stop_file(places)),
            "notes": [str(note) for note in unlimited],
            "notes_said": [note.said for note in unlimited],
        }

    def launch(self, intent: Intent) -> None:
        self.inner.launch(intent)

    # -- looking

    def look(self, intent: Intent) -> Sighting:
        seen = self.inner.look(intent)
        if intent.boot_id != self.ground.boot_id or seen.is_orphan:
            return seen
        told = _states.find(f"{intent.folder}/container-state.json") or MonitorState()
        if seen.exit is None:
            if seen.phase == Phase.RUNNING and not told.running:
                doing = substate_of(told.substate, told.substate_said)
                return dataclasses.replace(seen, phase=Phase.STARTING, substate=doing)
            said = chain(told.notes_said, repeat([]))
            return dataclasses.replace(seen, notes=tuple(map(NoteText.read, told.notes, said)))
        if told.end is None and os.path.exists(f"{intent.folder}/container.json"):
            # Its monitor was killed: the end is reported only when the container is gone.
            return Sighting(Phase.STOPPING, substate=NoteText(clause("RemovesContainer")), is_orphan=True)
        return dataclasses.replace(seen, exit=_merged(seen.exit, told.end))

    # -- stopping

    def stop(self, intent: Intent, grace_s: float, why: str, save: bool = False) -> None:
        plan = planned(intent.folder) or {}
        # A daemon's container does not end with its monitor: the monitor needs a moment to have it removed.
        self.inner.stop(intent, max(grace_s, SHORTEST_GRACE_S) if plan.get("daemon") else grace_s, why, save)

    def signal(self, intent: Intent, name: str) -> None:
        self.inner.signal(intent, name)

    def guest(self, intent: Intent, session: str, asked: OpenSession) -> dict[str, Any]:
        plan = planned(intent.folder)
        told = _states.find(f"{intent.folder}/container-state.json") or MonitorState()
        if plan is None or not told.running:
            raise Unlaunchable(clause("NotEntered"))
        if plan.get("engine") == engines.APPTAINER:
            raise Unlaunchable(clause("NotEnteredBy", engine=engines.APPTAINER))
        order = asked_for(session, asked)
        marks = {procfs.SESSION_MARK: session, "TERM": asked.term or "dumb"}
        words = engines.guest_words(plan["lines"]["start"][0], f"switchyard-{intent.part}", marks, order)
        env = {**plan["env"], procfs.MARK: intent.part}
        return {**order, "argv": words, "env": env, "cwd": intent.folder}

    def reach(self, intent: Intent) -> Reach:
        """Return the monitor's family and, if a daemon is the parent, the container's. No group has exactly these
        processes."""
        inner = self.inner.reach(intent)
        plan = planned(intent.folder) or {}

        def family() -> list[int]:
            return [*inner.family(), *_of_daemon(plan)]

        return dataclasses.replace(inner, family=family, groups={})

    # -- ending

    def reap(self, intent: Intent) -> Exit:
        end = self.inner.reap(intent)
        plan = planned(intent.folder)
        if plan is None or not plan["lines"]["remove"]:
            return end
        if left := _remove(plan):
            stays = clause("ContainerStays", error=left)
            detail = f"{end.detail}{say((stays,))}".lstrip("; ")
            said = [*end.said, stays] if end.said or not end.detail else []
            return msgspec.structs.replace(end, detail=detail, said=said)
        told = _states.find(f"{intent.folder}/container-state.json") or MonitorState()
        told = msgspec.structs.replace(told, end=told.end or Ending())
        try:
            write_whole(f"{intent.folder}/container-state.json", msgspec.to_builtins(told))
        except OSError:
            pass
        return _merged(end, told.end)

    def discard(self, intent: Intent) -> None:
        self.inner.discard(intent)


def _kept(wanted: Wanted, folder: str) -> Wanted:
    """Return the order with the monitor as its command. The job's own variables are not visible to the monitor."""
    monitor = [sys.executable, "-I", "-S", "-c", _MONITOR, _ROOT, folder]
    assert wanted.spec is not None, "prepare has checked it"
    spec = msgspec.structs.replace(
        wanted.spec, argv=monitor, env={}, secrets=[], secret_files={}, mounts=[], stop_to="main"
    )
    return msgspec.structs.replace(wanted, spec=spec)


def _of_daemon(plan: dict[str, Any]) -> list[int]:
    """Return the processes of a container that is no child of its monitor. Blocks while the engine answers."""
    if not plan.get("daemon"):
        return []
    try:
        told = subprocess.run(
            plan["lines"]["pid"], env=plan["env"], cwd="/", timeout=5.0, check=True, capture_output=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    first = digits(told.stdout.strip())
    return [first, *procfs.descendants(first)] if first else []


def _remove(plan: dict[str, Any]) -> str:
    """Remove a container and its processes; return a sentence if it is still there. Blocks."""

    def ask(line: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            plan["lines"][line], env=plan["env"], cwd="/", timeout=REMOVE_PATIENCE_S, check=False, capture_output=True
        )

    try:
        removed = ask("remove")
        if removed.returncode == 0 or (plan["lines"]["state"] and ask("state").returncode):
            return ""  # removed now, or not known to the engine any more
        return removed.stderr.decode(errors="replace").strip()[-300:] or f"exit code {removed.returncode}"
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)


def _stop_file(places: PartPaths) -> Path:
    """Return where the stop notice appears inside: in a folder of its own, because it is created by rename."""
    return places.folder / "notice" / places.notice.name


def image_file(image: str) -> str:
    """Return the name of the file of an image, for engines that keep images as files."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", image) + ".sif"


def images_in_use(runs: Path) -> set[str]:
    """Return the names of such files that parts with a run folder use."""
    plans = (planned(str(note.parent)) for note in runs.glob("*/container.json"))
    return {image_file(str(plan.get("image", ""))) for plan in plans if plan is not None}


def _merged(exit_: Exit, end: Ending | None) -> Exit:
    """Return the shim's verdict with what only the monitor could know."""
    if end is None or not end.cause:
        return exit_
    if end.cause == "LAUNCH_FAILED":
        return Exit(cause="LAUNCH_FAILED", stopped=exit_.stopped, ran_s=exit_.ran_s, detail=end.detail, said=end.said)
    return msgspec.structs.replace(exit_, cause=end.cause, detail=end.detail, said=end.said)


EXECUTOR = ContainerExecutor
