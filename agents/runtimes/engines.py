"""The command lines of container engines: one fixed template for each, filled from a :class:`Box` and nothing else.

Pure. No word of a job file can become an option: an image's name cannot begin with a dash, the command follows the
image, paths are the agent's own, and variables are passed in a file. What a container gets beyond the template
(devices) follows from its claims. The container has the host's network, on which gangs communicate, and no
capabilities.

Sources: podman-run(1), docker-run(1), apptainer-exec(1), the Container Device Interface.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from agents.ends import clause
from agents.notes import NoteText
from agents.protocol import DeviceClaim, Mount
from agents.runtimes.container_devices import DeviceNodes, nodes_of

PODMAN, DOCKER, APPTAINER = "podman", "docker", "apptainer"
PIDS: Final = 4096
# The file appears by rename: a pull that was cut short leaves no image that looks whole.
_APPTAINER_PULL: Final = '"$0" pull --force "$1" "docker://$2" && mv "$1" "$3"'
_PLAIN_PATH: Final = re.compile(r"/[^\0\n,:\"]*")


@dataclass(frozen=True, slots=True)
class Engine:
    """A working container engine of this host. ``limits`` names what it can limit."""

    name: str
    path: str
    version: str = ""
    rootless: bool = True
    limits: frozenset[str] = frozenset()

    @property
    def is_daemon(self) -> bool:
        """Return whether containers are children of a daemon rather than of the process that requests them."""
        return self.name == DOCKER

    @property
    def spoken(self) -> str:
        """Name, version, and whose rights it has, for people."""
        return f"{self.name} {self.version or '?'} ({'rootless' if self.rootless else 'as root'})"


_DRI: Final = "/dev/dri"


@dataclass(frozen=True, slots=True)
class Box:
    """One container. Paths are the same inside and outside; ``several_lines`` are variables that no file can carry.

    ``rdma`` is the folder of network adapters that it may reach directly, empty for none. ``drawing`` are the files
    below ``/dev/dri`` of its devices; where it is not known which these are, all are shown.
    """

    name: str
    image: str
    argv: Sequence[str]
    env_file: str
    cwd: str
    readable: Sequence[str] = ()
    writable: Sequence[str] = ()
    several_lines: Sequence[str] = ()
    user: tuple[int, int] | None = None
    cpus_milli: int = 0
    weight: int = 100
    memory_bytes: int = 0
    devices: Sequence[DeviceClaim] = field(default_factory=tuple)
    image_file: str = ""
    rdma: str = ""
    drawing: Sequence[str] = ()
    mounts: Sequence[Mount] = ()


@dataclass(frozen=True, slots=True)
class Lines:
    """The command lines that its monitor runs, in this order; an empty line is skipped.

    ``create`` and ``start`` are one line for an engine without created containers. ``state`` prints ``<killed for
    memory> <exit code> <when it began>``, ``pid`` the pid of its first process. ``signal`` takes the signal's name as
    its last word.
    """

    exists: list[str]
    pull: list[str]
    create: list[str]
    start: list[str]
    state: list[str]
    signal: list[str]
    remove: list[str]
    pid: list[str]


def unusable(box: Box) -> str:
    """Return a sentence if this container cannot be described to any engine; empty otherwise."""
    mounted = [path for one in box.mounts for path in (one.source, one.path)]
    for path in (*box.readable, *box.writable, *mounted, box.cwd, box.env_file):
        if not _PLAIN_PATH.fullmatch(path):
            return (
                f'folder "{path}" cannot be shown to a container: its name must hold no comma, colon, quote or newline'
            )
    for vendor in sorted({claim.vendor for claim in real(box.devices)}):
        if nodes_of(vendor, []) is None:
            return f'devices of vendor "{vendor}" cannot be given to a container yet; leave out "image" for this stage'
    return ""


def real(claims: Sequence[DeviceClaim]) -> list[DeviceClaim]:
    """Return the claims of hardware to which a container needs access."""
    return [claim for claim in claims if claim.kind != "cpu" and not claim.simulated]


def unlimited(engine: Engine, box: Box) -> list[NoteText]:
    """Return notes about requested limits that this engine does not enforce on this host."""
    asked = {"memory": box.memory_bytes > 0, "cpus": box.cpus_milli > 0, "pids": True}
    missing = [word for word, is_asked in asked.items() if is_asked and word not in engine.limits]
    return [NoteText(clause("NotLimited", engine=engine.name, resource=word)) for word in missing]


def lines(engine: Engine, box: Box) -> Lines:
    """Return every command line of one container's life."""
    return _apptainer(engine, box) if engine.name == APPTAINER else _oci(engine, box)


def _devices(box: Box) -> DeviceNodes:
    found = DeviceNodes()
    mine = real(box.devices)
    for vendor in sorted({claim.vendor for claim in mine}):
        found += nodes_of(vendor, [claim for claim in mine if claim.vendor == vendor]) or DeviceNodes()
    if box.drawing and _DRI in found.nodes:
        found = replace(found, nodes=(*(node for node in found.nodes if node != _DRI), *box.drawing))
    return found


def _shares(box: Box) -> int:
    """Return the options for a CPU weight without a ceiling; the cores it may use are set from outside."""
    return min(262_144, max(2, box.cpus_milli * 1024 * box.weight // 100_000))


def _limits(engine: Engine, box: Box) -> list[str]:
    words = []
    if "memory" in engine.limits and box.memory_bytes:
        words += [f"--memory={box.memory_bytes}", f"--memory-swap={box.memory_bytes}"]
    if "cpus" in engine.limits and box.cpus_milli:
        words.append(f"--cpu-shares={_shares(box)}")
    if "pids" in engine.limits:
        words.append(f"--pids-limit={PIDS}")
    return words


def _oci(engine: Engine, box: Box) -> Lines:
    """Return the lines for podman and docker: create, start, inspect the end, remove."""
    create = [engine.path, "create", f"--name={box.name}", "--pull=never", "--init", "--log-driver=none"]
    create += ["--network=host", "--ipc=private", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
    if box.memory_bytes:
        create.append(f"--shm-size={max(64 << 20, box.memory_bytes // 2)}")
    if engine.name == PODMAN and engine.rootless:
        create.append("--userns=keep-id")
    elif box.user is not None:
        create.append(f"--user={box.user[0]}:{box.user[1]}")
    create += _limits(engine, box)
    if box.rdma:
        # Memory that an adapter accesses directly must be pinned.
        create += [f"--device={box.rdma}", "--ulimit=memlock=-1:-1"]
    create += _oci_devices(engine, box)
    create += [f"--mount=type=bind,source={path},target={path},readonly" for path in box.readable]
    create += [f"--mount=type=bind,source={path},target={path}" for path in box.writable]
    create += [
        f"--mount=type=bind,source={one.source},target={one.path}{',readonly' if one.readonly else ''}"
        for one in box.mounts
    ]
    create += [f"--env-file={box.env_file}", *(f"--env={name}" for name in box.several_lines)]
    create += [f"--workdir={box.cwd}", "--entrypoint=", box.image, *box.argv]
    state = "{{.State.OOMKilled}} {{.State.ExitCode}} {{.State.StartedAt}}"
    return Lines(
        exists=[engine.path, "image", "inspect", "--format=ok", box.image],
        pull=[engine.path, "pull", "--quiet", box.image],
        create=create,
        start=[engine.path, "start", "--attach", "--sig-proxy=false", box.name],
        state=[engine.path, "container", "inspect", f"--format={state}", box.name],
        signal=[engine.path, "kill", box.name, "--signal"],
        remove=[engine.path, "rm", "--force", "--volumes", box.name],
        pid=[engine.path, "container", "inspect", "--format={{.State.Pid}}", box.name],
    )


def guest_words(path: str, name: str, env: Mapping[str, str], order: Mapping[str, Any]) -> list[str]:
    """Return the line for one more command in a running container, as its user and in its folder (podman, docker)."""
    words = [path, "exec"]
    words += ["--interactive"] if order["stdin"] or order["tty"] else []
    words += ["--tty"] if order["tty"] else []
    words += [f"--env={key}={value}" for key, value in env.items()]
    return [*words, name, *order["argv"]]


def _oci_devices(engine: Engine, box: Box) -> list[str]:
    found = _devices(box)
    words = [f"--device={node}" for node in found.nodes]
    if engine.name == PODMAN:
        words += [f"--device={name}" for name in found.cdi]
        words += ["--group-add=keep-groups"] if found.groups and engine.rootless else []
    elif found.nvidia:
        # The quotes belong to the value: docker reads it as one line of CSV.
        words.append(f'--gpus="device={",".join(found.nvidia)}"')
    if engine.name == DOCKER or not engine.rootless:
        words += [f"--group-add={group}" for group in found.groups]
    return words + [f"--mount=type=bind,source={path},target={path},readonly" for path in found.libraries]


def _apptainer(engine: Engine, box: Box) -> Lines:
    """Return the lines for apptainer: the image is one file, and the container is a child of the process that runs
    it."""
    draft = f"{box.image_file}.{box.name}"
    found = _devices(box)
    run = [engine.path, "exec", "--containall", "--no-home", "--writable-tmpfs", "--no-privs", "--no-eval"]
    run += [word for word, is_asked in (("--nv", found.nvidia), ("--rocm", "/dev/kfd" in found.nodes)) if is_asked]
    if "memory" in engine.limits and box.memory_bytes:
        run.append(f"--memory={box.memory_bytes}")
    if "cpus" in engine.limits and box.cpus_milli:
        run.append(f"--cpu-shares={_shares(box)}")
    if "pids" in engine.limits:
        run.append(f"--pids-limit={PIDS}")
    run += [f"--bind={node}" for node in (*found.nodes, *([box.rdma] if box.rdma else []))]
    run += [f"--bind={path}:{path}:ro" for path in (*found.libraries, *box.readable)]
    run += [f"--bind={path}:{path}" for path in box.writable]
    run += [f"--bind={one.source}:{one.path}:{'ro' if one.readonly else 'rw'}" for one in box.mounts]
    run += [f"--env-file={box.env_file}", f"--pwd={box.cwd}", box.image_file, *box.argv]
    return Lines(
        exists=["test", "-s", box.image_file],
        pull=["sh", "-c", _APPTAINER_PULL, engine.path, draft, box.image, box.image_file],
        create=[],
        start=run,
        state=[],
        signal=[],
        remove=[],
        pid=[],
    )


def env_text(engine: Engine, env: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the content of the file with the variables, and the names of those that it cannot carry.

    podman and docker read NAME=VALUE up to the end of the line without quoting; apptainer reads shell syntax.
    """
    if engine.name == APPTAINER:
        return "".join(f"export {name}={_quoted(value)}\n" for name, value in env.items()), []
    single = {name: value for name, value in env.items() if "\n" not in value and "\r" not in value}
    return "".join(f"{name}={value}\n" for name, value in single.items()), [name for name in env if name not in single]


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "'\\''") + "'"
