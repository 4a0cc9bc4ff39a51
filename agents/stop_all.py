"""``stop-all``: ends every part of a state folder, with or without a running agent, so that no process stays behind."""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import signal
import sys
import time
from pathlib import Path

from agents.isolation import cgroup
from agents.isolation.run_as import RunAs
from agents.link.server import Server
from agents.runtimes.choice import Choice
from agents.runtimes.container import ContainerExecutor
from agents.runtimes.process import Ground, ProcessExecutor
from agents.storage.bundle import BundleCache
from agents.supervisor import procfs
from agents.supervisor.fork_client import ForkClient
from agents.supervisor.record import shim_record, take
from agents.tasks import journal
from agents.tasks.journal import Intent


def _executor(state: Path) -> Choice:
    ground = Ground(
        boot_id=procfs.boot_id(),
        bell=state / "bell",
        lease=state / "lease",
        fork_client=ForkClient(state / "shim.log"),
        bundles=BundleCache(state / "bundles", Server("http://127.0.0.1")),
        run_as=RunAs(name="self"),
        cgroups=cgroup.bases(),
    )
    return Choice({"": ProcessExecutor(ground), "container": ContainerExecutor(ground)})


def _stop(executor: Choice, intent: Intent, grace_s: float) -> None:
    """End one part and return when none of its processes is left."""
    folder = Path(intent.folder)
    if not folder.is_dir() or intent.boot_id != procfs.boot_id():
        return
    is_ours = take(str(folder))
    with contextlib.suppress(OSError):  # a full disk: it is ended all the same
        executor.stop(intent, grace_s, "NODE_STOP", save=True)
    if not is_ours:
        _wait_for_shim(folder, grace_s + 5)
    if not (folder / "exit.json").exists() or executor.look(intent).is_orphan:
        executor.reap(intent)


def _wait_for_shim(folder: Path, patience_s: float) -> None:
    """Return when the part's shim has written its end, or has ended; one that takes too long is killed."""
    deadline = time.monotonic() + patience_s
    while not (folder / "exit.json").exists():
        record = shim_record(str(folder))
        if not record or not procfs.is_alive(record["pid"], record["born"]):
            return
        if time.monotonic() > deadline:
            procfs.send(record["pid"], signal.SIGKILL)
            return
        time.sleep(0.02)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m agents stop-all", description=__doc__)
    parser.add_argument("--state", required=True, help="the agent's state folder")
    parser.add_argument("--grace", type=float, default=5.0, help="seconds a part has to end by itself (default 5)")
    options = parser.parse_args(arguments)
    state = Path(options.state).expanduser().resolve()
    work = []
    with concurrent.futures.ThreadPoolExecutor(max_workers=32) as pool:
        for folder in [state, *sorted((state / "nodes").glob("*"))]:
            past, _ = journal.read(folder / "journal.jsonl")
            live = [intent for part, intent in past.intents.items() if part not in past.ends]
            if live:
                executor = _executor(folder)
                work += [pool.submit(_stop, executor, intent, options.grace) for intent in live]
    for done in work:
        done.result()
    print(f"{len(work)} part(s) stopped", file=sys.stderr)
    return 0
