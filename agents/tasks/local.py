"""Node-local decisions about a part before it starts: folders without a shared disk, port, and resume path."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import zlib
from pathlib import Path
from typing import Final

import msgspec

from agents.isolation.beneath import OWN, FileRights, Folder
from agents.protocol import PartSpec
from agents.storage import checkpoints
from agents.storage.last_use import age_s

log = logging.getLogger("switchyard.agent")
KEEP_S: Final = 14 * 86_400.0
FIRST_PORT: Final = 31_500
PORTS: Final = 1_000


def localised(part: str, spec: PartSpec, local: Path | None, rights: FileRights = OWN) -> PartSpec:
    """Return the spec with this node's values. May block on the disk for a later attempt."""
    changes: dict[str, object] = {}
    if local is not None and not spec.checkpoint_dir:
        # A job that was submitted on this node has no number.
        base = local / (str(spec.job) if spec.job else f"own-{part}")
        base.mkdir(mode=0o755, exist_ok=True)
        base.chmod(0o755)
        os.utime(base)
        changes["checkpoint_dir"] = str(base / "checkpoints" / spec.stage)
        changes["output_dir"] = str(base / "outputs" / spec.stage)
        changes["input_dir"] = str(base / "outputs")
    if len(spec.nodes) <= 1:
        changes["master_port"] = free_port(part)
    if changes:
        spec = msgspec.structs.replace(spec, **changes)
    if spec.attempt_number > 1:
        resume = checkpoints.resume_path(spec.checkpoint_dir, spec.resume_from, spec.resume_step, rights)
        spec = msgspec.structs.replace(spec, resume_from=resume)
    return spec


def free_port(part: str) -> int:
    """Return a port of this host on which nobody listens, for a part whose processes are all on this host.

    The search starts at a place that depends on the part, so that two parts that start at once look at different ports.
    """
    start = zlib.crc32(part.encode())
    for turn in range(PORTS):
        port = FIRST_PORT + (start + turn) % PORTS
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    return FIRST_PORT + start % PORTS


def job_folder(path: str, local: Path | None) -> str:
    """Return the job's folder on this node's own disk that contains a path; empty if the path is elsewhere."""
    if local is None or not path.startswith(f"{local}/"):
        return ""
    return str(local / Path(path).relative_to(local).parts[0])


def expire(local: Path, keep_s: float = KEEP_S) -> list[str]:
    """Remove the folders of jobs that no part has used for ``keep_s`` seconds, and return their names. Blocks.

    A job without a shared disk may return for its checkpoints, and nothing tells a node that it will not.
    """
    gone = []
    with Folder(str(local)) as folder:
        for name, status in folder.entries():
            if age_s(status.st_mtime) > keep_s and folder.remove(name):
                gone.append(name)
    return gone


async def expire_for_ever(local: Path) -> None:
    """Remove unused folders every hour, for ever."""
    while True:
        try:
            if gone := await asyncio.to_thread(expire, local):
                log.info("removed the folders of jobs that nobody used for long: %s", ", ".join(gone))
        except OSError as error:
            log.warning("the folders of old jobs could not be removed: %s", error)
        await asyncio.sleep(3600.0)


def prepare_folder(local: Path) -> Path:
    """Create the folder of stages whose pool has no shared disk; anybody may traverse it, nobody may list it."""
    local.mkdir(mode=0o711, parents=True, exist_ok=True)
    os.chmod(local, 0o711)
    return local
